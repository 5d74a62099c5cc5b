//! What becomes of a coordinator whose storage is put back to an older copy.
//!
//! Either an operator asks it for a new incarnation, or nobody tells it, and it finds out by itself when
//! it publishes something that its store has a newer edition of. A group that is not changed is not
//! published, so what nobody has told is promised only of groups that change: in the end all of them do.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::topology::Incarnation;

use super::Region;
use super::client;
use super::coordinator::CoordinatorSide;
use crate::simulation::run::Run;

/// What a coordinator was put back to.
#[derive(Default)]
pub(super) struct Restored {
    /// The incarnation of its newest copy, until it has begun another.
    unnoticed: RefCell<Option<Incarnation>>,
}

impl Restored {
    /// It goes on from a copy with this incarnation.
    pub(super) fn begin(&self, incarnation: Option<Incarnation>) {
        self.unnoticed.replace(incarnation);
    }

    /// Its incarnation is this.
    pub(super) fn follow(&self, incarnation: Option<&Incarnation>) {
        let mut unnoticed = self.unnoticed.borrow_mut();
        if unnoticed.as_ref() != incarnation {
            *unnoticed = None;
        }
    }

    /// Whether it goes on as if nothing had happened.
    pub(super) fn is_unnoticed(&self) -> bool {
        self.unnoticed.borrow().is_some()
    }
}

/// Copies a coordinator's storage and, some time later, puts the copy in its place.
pub(super) async fn put_back(region: Rc<Region>) {
    let run = region.run.clone();
    let place = region.dice.below(run.knob("coordinators"));
    let Some(side) = region.coordinator(place as usize) else {
        return;
    };
    let age = Duration::from_millis(region.dice.below(run.knob("duration-s") * 500));
    let weak = Rc::downgrade(&region);
    drop(region);
    let storage = side.object.storage().clone();
    let Ok(copy) = storage.copy() else {
        run.fail("storage can be copied", &side.name, String::new());
        return;
    };
    run.world.sleep(age).await;
    if run.is_healed() {
        return;
    }
    side.object.crash();
    if let Err(error) = storage.restore(&copy) {
        run.fail("a copy can be restored", &side.name, error.to_string());
        return;
    }
    run.cover("older copy restored");
    let ms = age.as_millis();
    run.note(&side.name, format_args!("is put back by {ms} ms"));
    side.put_back();
    match run.knob("operator") {
        0 => {}
        _ => tell(weak, &run, &side).await,
    }
}

/// An operator asks for a new incarnation until it has begun.
async fn tell(region: Weak<Region>, run: &Run, side: &CoordinatorSide) {
    loop {
        let Some(known) = region.upgrade() else {
            return;
        };
        let pause = Duration::from_millis(1 + known.dice.below(2_000));
        drop(known);
        run.world.sleep(pause).await;
        let begun = side
            .object
            .call(|coordinator| async move { coordinator.topology.new_incarnation().await });
        if let Ok(Ok(_)) = begun.await {
            run.cover("operator asked for an incarnation");
            return;
        }
    }
}

/// The faults are over: what nobody has noticed is noticed, if it matters, when groups change. Resolves
/// when all of them have.
pub(super) async fn change_all(region: Weak<Region>) {
    loop {
        let Some(known) = region.upgrade() else {
            return;
        };
        let (run, writes) = (known.run.clone(), known.store.under_way());
        if writes == 0 {
            break;
        }
        drop(known);
        // Only when nothing lands any more that is newer than what it knows.
        run.world.sleep(Duration::from_secs(10)).await;
    }
    let Some(known) = region.upgrade() else {
        return;
    };
    let sides: Vec<_> = known.coordinators.borrow().clone();
    let groups = known.groups();
    drop(known);
    for side in sides.iter().filter(|side| side.restored.is_unnoticed()) {
        for group in groups.iter().filter(|group| side.owns(group)) {
            client::change(&region, side, group).await;
        }
    }
}
