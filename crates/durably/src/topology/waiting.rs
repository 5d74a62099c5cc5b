//! Those who wait for a group to come somewhere. Looking over a large group costs, so they look again only
//! when its members or its version have changed, or when as many entries have ended as were missing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use futures::channel::oneshot;

/// Who waits, by group.
#[derive(Default)]
pub(super) struct Waiting(RefCell<BTreeMap<String, Vec<Weak<Waiter>>>>);

/// Somebody who waits for a group, until it is dropped.
pub(super) struct Waiter {
    /// Entries of the group that have ended since it began to wait.
    ended: Cell<u64>,
    /// How many of them it waits for, if it knows.
    missing: Cell<Option<u64>>,
    wake: Cell<Option<oneshot::Sender<()>>>,
}

impl Waiting {
    /// Begins to wait; what resolves when it may be worth a look.
    pub(super) fn begin(&self, group: &str) -> (Rc<Waiter>, oneshot::Receiver<()>) {
        let (wake, woken) = oneshot::channel();
        let waiter = Rc::new(Waiter {
            ended: Cell::new(0),
            missing: Cell::new(None),
            wake: Cell::new(Some(wake)),
        });
        let mut waiting = self.0.borrow_mut();
        let of_group = waiting.entry(group.to_owned()).or_default();
        of_group.retain(|other| other.strong_count() > 0);
        of_group.push(Rc::downgrade(&waiter));
        (waiter, woken)
    }

    /// A group's members or its version have changed.
    pub(super) fn changed(&self, group: &str) {
        let waiting = self.0.borrow_mut().remove(group);
        for waiter in waiting.iter().flatten().filter_map(Weak::upgrade) {
            waiter.wake();
        }
    }

    /// A publication or a delivery of a group has ended.
    pub(super) fn ended(&self, group: &str) {
        let waiting = self.0.borrow();
        for waiter in waiting.get(group).into_iter().flatten() {
            if let Some(waiter) = waiter.upgrade() {
                waiter.ended.set(waiter.ended.get() + 1);
                waiter.wake_if_enough();
            }
        }
    }
}

impl Waiter {
    /// So many entries must end before it is worth a look, counted from when it began to wait.
    pub(super) fn until_ended(&self, missing: u64) {
        self.missing.set(Some(missing));
        self.wake_if_enough();
    }

    fn wake_if_enough(&self) {
        let is_enough = |missing| self.ended.get() >= missing;
        if self.missing.get().is_some_and(is_enough) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(wake) = self.wake.take() {
            // It may have stopped waiting.
            let _ = wake.send(());
        }
    }
}
