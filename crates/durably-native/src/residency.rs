//! How many objects are open at once, and which one makes room.
//!
//! Decided here: who may open, who waits, which idle object is asked to close. Not decided here:
//! whether it still can; that is its own thread's matter.
//!
//! The rule: as long as more wait than leave, somebody idle leaves, the one unused longest first.
//! Being busy and idle costs an atomic write; only when somebody waits does it cost a lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::CallError;
use crate::key::Key;

/// In place of the time since which an object is idle.
const BUSY: u64 = 0;

/// The bound on open objects, shared by all threads.
pub(crate) struct Residency {
    room: Arc<Semaphore>,
    wait: Duration,
    start: Instant,
    /// How many objects wait for room.
    waiting: AtomicUsize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    slots: HashMap<u64, Slot>,
    /// How many slots are leaving.
    leaving: usize,
}

struct Slot {
    key: Arc<Key>,
    idle_since: Arc<AtomicU64>,
    /// It was asked to make room, or does so by itself.
    leaving: bool,
}

/// The place of one open object; dropping it makes room.
pub(crate) struct Residence {
    residency: Arc<Residency>,
    number: u64,
    idle_since: Arc<AtomicU64>,
    _room: OwnedSemaphorePermit,
}

impl Residency {
    pub(crate) fn new(limit: usize, wait: Duration) -> Arc<Self> {
        Arc::new(Residency {
            room: Arc::new(Semaphore::new(limit)),
            wait,
            start: Instant::now(),
            waiting: AtomicUsize::new(0),
            open: Mutex::default(),
        })
    }

    /// How many objects are open.
    pub(crate) fn open_objects(&self) -> usize {
        self.lock().slots.len()
    }

    /// A place for `key`, as soon as there is one. `ask` tells the thread of an idle object to close
    /// it.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        key: &Arc<Key>,
        ask: impl Fn(&Arc<Key>),
    ) -> Result<Residence, CallError> {
        let room = match self.room.clone().try_acquire_owned() {
            Ok(room) => room,
            Err(_) => {
                let _waiting = Waiting::new(&self.waiting);
                self.make_room(ask);
                match tokio::time::timeout(self.wait, self.room.clone().acquire_owned()).await {
                    Ok(Ok(room)) => room,
                    _ => {
                        return Err(CallError::Overloaded(
                            "as many objects as allowed are open, and none of them is idle",
                        ));
                    }
                }
            }
        };
        let idle_since = Arc::new(AtomicU64::new(BUSY));
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.slots.insert(
            number,
            Slot {
                key: key.clone(),
                idle_since: idle_since.clone(),
                leaving: false,
            },
        );
        drop(open);
        Ok(Residence {
            residency: self.clone(),
            number,
            idle_since,
            _room: room,
        })
    }

    /// Asks idle objects to close, for as many as wait.
    fn make_room(&self, ask: impl Fn(&Arc<Key>)) {
        let mut open = self.lock();
        while open.leaving < self.waiting.load(SeqCst) {
            let longest = open
                .slots
                .values_mut()
                .filter(|slot| !slot.leaving)
                .map(|slot| (slot.idle_since.load(SeqCst), slot))
                .filter(|(since, _)| *since != BUSY)
                .min_by_key(|(since, _)| *since);
            // Whoever becomes idle from here on sees that somebody waits.
            let Some((_, slot)) = longest else { return };
            slot.leaving = true;
            let key = slot.key.clone();
            open.leaving += 1;
            ask(&key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Marks a slot as leaving or staying.
    fn set_leaving(&mut self, number: u64, leaving: bool) {
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        if slot.leaving != leaving {
            slot.leaving = leaving;
            if leaving {
                self.leaving += 1;
            } else {
                self.leaving -= 1;
            }
        }
    }
}

impl Residence {
    /// The object has something to do.
    pub(crate) fn busy(&self) {
        self.idle_since.store(BUSY, SeqCst);
    }

    /// The object has nothing to do; `true` if it should make room at once.
    pub(crate) fn idle(&self) -> bool {
        let since = self.residency.start.elapsed().as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX).max(BUSY + 1);
        self.idle_since.store(since, SeqCst);
        if self.residency.waiting.load(SeqCst) == 0 {
            return false;
        }
        let mut open = self.residency.lock();
        if open.leaving < self.residency.waiting.load(SeqCst) {
            open.set_leaving(self.number, true);
        }
        open.slots
            .get(&self.number)
            .is_some_and(|slot| slot.leaving)
    }

    /// The object was asked to make room but is busy; somebody else shall.
    pub(crate) fn stay(&self, ask: impl Fn(&Arc<Key>)) {
        self.busy();
        self.residency.lock().set_leaving(self.number, false);
        self.residency.make_room(ask);
    }
}

impl Drop for Residence {
    fn drop(&mut self) {
        let mut open = self.residency.lock();
        open.set_leaving(self.number, false);
        open.slots.remove(&self.number);
    }
}

/// Counts one that waits for as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
