//! What happens to tasks and commits out of the ordinary.
//!
//! Decided here: which ready task goes before the others, at which polls an instance is evicted, and
//! which commits are slow or fail. All of it follows from a seed; what is not wanted is zero. Faults
//! between nodes are the [network's](crate::network), faults of callbacks the scenario's matter.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::random::Random;

/// Interferes with a world; see [`World::interfere`](crate::World).
pub(crate) struct Chaos {
    random: RefCell<Random>,
    /// Of 100 choices, how many take any ready task instead of the first.
    pub(crate) shuffled_percent: Cell<u64>,
    /// Of a million polls, how many evict the object instead.
    pub(crate) evictions_per_million: Cell<u64>,
    /// At which polls of objects, counted from 1, one is evicted for certain.
    pub(crate) evictions: RefCell<BTreeSet<u64>>,
    /// How long a commit takes at most, in ms.
    pub(crate) slowest_commit: Cell<u64>,
    /// Of a million commits, how many fail.
    pub(crate) failures_per_million: Cell<u64>,
    /// How many objects were evicted.
    pub(crate) evicted: Cell<u64>,
    /// How many commits failed.
    pub(crate) failed: Cell<u64>,
}

impl Chaos {
    pub(crate) fn new(random: Random) -> Chaos {
        Chaos {
            random: RefCell::new(random),
            shuffled_percent: Cell::new(0),
            evictions_per_million: Cell::new(0),
            evictions: RefCell::default(),
            slowest_commit: Cell::new(0),
            failures_per_million: Cell::new(0),
            evicted: Cell::new(0),
            failed: Cell::new(0),
        }
    }

    /// The place of the task that runs next, of `length` that are ready.
    pub(crate) fn pick(&self, length: usize) -> usize {
        let percent = self.shuffled_percent.get();
        let mut random = self.random.borrow_mut();
        match percent > 0 && random.below(100) < percent {
            true => random.below(length as u64) as usize,
            false => 0,
        }
    }

    /// Whether the object is evicted instead of the poll that would be its world's `place`-th of
    /// objects.
    pub(crate) fn evicts(&self, place: u64) -> bool {
        let is_chosen = self.evictions.borrow_mut().remove(&place);
        let evicts = is_chosen || self.chance(&self.evictions_per_million);
        if evicts {
            self.evicted.set(self.evicted.get() + 1);
        }
        evicts
    }

    /// How long the next commit takes.
    pub(crate) fn commit_takes(&self) -> Duration {
        match self.slowest_commit.get() {
            0 => Duration::ZERO,
            most => Duration::from_millis(self.random.borrow_mut().below(most + 1)),
        }
    }

    /// Whether the next commit fails.
    pub(crate) fn commit_fails(&self) -> bool {
        let fails = self.chance(&self.failures_per_million);
        if fails {
            self.failed.set(self.failed.get() + 1);
        }
        fails
    }

    /// From now on nothing is out of the ordinary but the order of tasks.
    pub(crate) fn calm(&self) {
        self.evictions_per_million.set(0);
        self.slowest_commit.set(0);
        self.failures_per_million.set(0);
    }

    fn chance(&self, per_million: &Cell<u64>) -> bool {
        let per_million = per_million.get();
        per_million > 0 && self.random.borrow_mut().below(1_000_000) < per_million
    }
}
