//! What is answered when a group cannot be read, in which order and until when.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use durably::topology::{FallbackEvent, Fallbacks, Origin, Snapshot, UnavailableReason};
use durably_sim::World;

use crate::setup::{Answer, Stand, ms, version};

/// Group, reason and origin of an event.
type Told = (String, &'static str, Origin);

/// Whose parts a test switches on.
#[derive(Clone, Default)]
struct Own {
    seeds: Rc<Cell<bool>>,
    falls_back: Rc<Cell<bool>>,
    /// How often the fallback was asked.
    asked: Rc<Cell<usize>>,
    /// In which world the fallback takes 50 ms.
    world: Rc<RefCell<Option<World>>>,
    told: Rc<RefCell<Vec<Told>>>,
}

impl Fallbacks for Own {
    fn seed(&self, group: &str) -> Option<Snapshot> {
        let seed = Snapshot::new(group, 70, "seed", Vec::new());
        self.seeds.get().then_some(seed)
    }

    async fn fallback(&self, group: &str, reason: &UnavailableReason) -> Option<Snapshot> {
        self.asked.set(self.asked.get() + 1);
        assert!(!reason.code().is_empty());
        let world = self.world.borrow().clone();
        if let Some(world) = world {
            world.sleep(ms(50)).await;
        }
        let fallback = Snapshot::new(group, 80, "fallback", Vec::new());
        self.falls_back.get().then_some(fallback)
    }

    fn on_fallback(&self, event: &FallbackEvent<'_>) {
        let told = (event.group.to_owned(), event.reason.code(), event.origin);
        self.told.borrow_mut().push(told);
    }
}

#[test]
fn stale_copies_are_used_for_exactly_as_long_as_opted_into() {
    let stand = Stand::new(|options| options.stale_if_error = Some(ms(20_000)));
    stand.store.set(version(1));
    stand.get("g").expect("published");
    stand.store.set(Answer::Error);
    for at in [30_000, 34_999, 35_000, 45_000, 49_999] {
        stand.at(at);
        let stale = stand.get("g").expect("stale");
        assert_eq!((stale.origin(), stale.age()), (Origin::Stale, ms(at)));
        assert_eq!(stale.version(), 1);
    }
    stand.at(50_000);
    assert_eq!(
        stand.get("g").expect_err("too old").code(),
        "topology_failed"
    );
    // Nor later, when the read after that fails as well.
    stand.at(60_000);
    stand.get("g").expect_err("too old");
}

#[test]
fn without_opting_in_nothing_is_used_after_its_ttl() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(1));
    stand.get("g").expect("published");
    stand.store.set(Answer::Error);
    stand.at(30_000);
    assert_eq!(
        stand.get("g").expect_err("failed").code(),
        "topology_failed"
    );
}

#[test]
fn a_group_that_is_missing_is_never_stale() {
    let stand = Stand::new(|options| options.stale_if_error = Some(ms(1_000_000)));
    stand.store.set(version(1));
    stand.get("g").expect("published");
    stand.store.set(Answer::Nothing);
    stand.at(30_000);
    assert_eq!(
        stand.get("g").expect_err("missing").code(),
        "topology_missing"
    );
    // And stays so while the store is away.
    stand.store.set(Answer::Error);
    stand.at(35_000);
    assert_eq!(
        stand.get("g").expect_err("failed").code(),
        "topology_failed"
    );
}

#[test]
fn what_was_kept_against_an_older_copy_is_stale_from_when_it_was_to_be_looked_at() {
    let stand = Stand::new(|options| options.stale_if_error = Some(ms(20_000)));
    stand.store.set(version(2));
    stand.get("g").expect("published");
    stand.store.set(version(1));
    stand.at(40_000);
    stand.get("g").expect("kept until 45,000");
    stand.store.set(Answer::Error);
    stand.at(64_999);
    assert_eq!(stand.get("g").expect("stale").origin(), Origin::Stale);
    stand.at(65_000);
    stand.get("g").expect_err("too old");
}

#[test]
fn a_slow_read_ends_at_its_time_out() {
    let stand = Stand::new(|options| options.stale_if_error = Some(ms(5_000)));
    stand.store.set(Answer::Never);
    let error = stand.get("g").expect_err("too slow");
    assert_eq!(error.code(), "topology_slow");
    stand.world.run_until_idle();
    assert_eq!(stand.world.now().as_millis(), crate::setup::START + 1_000);
    assert_eq!(stand.store.abandoned(), 1);
    stand.store.takes(999);
    stand.store.set(version(1));
    stand.at(6_000);
    assert_eq!(
        stand.get("g").expect("just in time").origin(),
        Origin::Fresh
    );
}

#[test]
fn the_order_is_stale_seed_fallback_and_each_is_told() {
    let own = Own::default();
    let stand = Stand::with(own.clone(), |options| {
        options.stale_if_error = Some(ms(5_000))
    });
    *own.world.borrow_mut() = Some(stand.world.clone());
    own.seeds.set(true);
    own.falls_back.set(true);
    stand.store.set(version(1));
    assert_eq!(stand.get("g").expect("published").version(), 1);
    stand.store.set(Answer::Error);
    stand.at(30_000);
    assert_eq!(stand.get("g").expect("stale").origin(), Origin::Stale);
    stand.at(35_000);
    let seed = stand.get("g").expect("the seed");
    assert_eq!(
        (seed.origin(), seed.version(), seed.age()),
        (Origin::Seed, 70, ms(0))
    );
    own.seeds.set(false);
    let fallback = stand.get("g").expect("the fallback");
    assert_eq!(
        (fallback.origin(), fallback.version()),
        (Origin::Fallback, 80)
    );
    own.falls_back.set(false);
    stand.get("g").expect_err("no fallback has it");
    let told = own.told.borrow().clone();
    let expected = [Origin::Stale, Origin::Seed, Origin::Fallback];
    let expected = expected.map(|origin| ("g".to_owned(), "topology_failed", origin));
    assert_eq!(told, expected);
}

#[test]
fn a_fallback_is_not_remembered_and_does_not_hide_the_store() {
    let own = Own::default();
    own.falls_back.set(true);
    let stand = Stand::with(own.clone(), |_| {});
    for asked in 1..=3 {
        let read = stand.get("g").expect("the fallback");
        assert_eq!(read.origin(), Origin::Fallback);
        assert_eq!(own.asked.get(), asked);
        assert!(stand.reader.cached("g").is_none());
    }
    assert_eq!(stand.store.reads(), 1);
    stand.store.set(version(1));
    stand.at(5_000);
    assert_eq!(stand.get("g").expect("published").origin(), Origin::Fresh);
}

#[test]
fn seeds_serve_groups_that_are_missing() {
    let own = Own::default();
    own.seeds.set(true);
    let stand = Stand::with(own.clone(), |_| {});
    assert_eq!(stand.get("g").expect("the seed").origin(), Origin::Seed);
    assert_eq!(own.told.borrow()[0].1, "topology_missing");
}
