//! The slots in which application handlers run, given out first come, first served.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use futures::channel::oneshot;

/// A bounded number of slots for application handlers of one object.
#[derive(Clone)]
pub struct HandlerPool(Rc<Inner>);

struct Inner {
    capacity: u64,
    taken: Cell<u64>,
    waiting: RefCell<VecDeque<oneshot::Sender<Slot>>>,
}

/// A slot of the pool; dropping it gives it to whoever waits longest.
pub struct Slot(Option<Rc<Inner>>);

impl HandlerPool {
    pub(super) fn new(capacity: u64) -> Self {
        HandlerPool(Rc::new(Inner {
            capacity,
            taken: Cell::new(0),
            waiting: RefCell::default(),
        }))
    }

    /// How many handlers may run at once.
    pub fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// A slot, if one is free and nobody waits.
    pub fn try_acquire(&self) -> Option<Slot> {
        if self.0.taken.get() >= self.0.capacity {
            return None;
        }
        self.0.taken.set(self.0.taken.get() + 1);
        Some(Slot(Some(self.0.clone())))
    }

    /// A slot, as soon as one is free.
    pub async fn acquire(&self) -> Slot {
        if let Some(slot) = self.try_acquire() {
            return slot;
        }
        let (give, get) = oneshot::channel();
        self.0.waiting.borrow_mut().push_back(give);
        match get.await {
            Ok(slot) => slot,
            // The pool keeps its senders until it has served them, and we hold the pool.
            Err(oneshot::Canceled) => unreachable!("a handler pool never forgets who waits"),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(pool) = self.0.take() else { return };
        let mut slot = Slot(Some(pool.clone()));
        loop {
            let next = pool.waiting.borrow_mut().pop_front();
            let Some(next) = next else { break };
            match next.send(slot) {
                Ok(()) => return,
                // It no longer waits; the slot comes back and goes to the one behind it.
                Err(returned) => slot = returned,
            }
        }
        slot.0 = None;
        pool.taken.set(pool.taken.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn slots_go_to_whoever_waits_longest_and_still_waits() {
        let pool = HandlerPool::new(1);
        let slot = pool.try_acquire().expect("a free slot");
        let mut gone = Box::pin(pool.acquire());
        let mut second = Box::pin(pool.acquire());
        assert!((&mut gone).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        drop(gone);
        drop(slot);
        let slot = second.now_or_never().expect("the slot passes on");
        assert!(pool.try_acquire().is_none());
        drop(slot);
        assert!(pool.try_acquire().is_some());
    }
}
