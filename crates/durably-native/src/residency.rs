//! How many objects are open at once, and which one makes room.
//!
//! Decided here: who may open, who waits, which idle object is asked to close. Not decided here:
//! whether it still can; that is its own thread's matter.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::CallError;
use crate::key::Key;

/// In place of the time since which an object is idle.
const BUSY: u64 = 0;
const ASKED_TO_CLOSE: u64 = u64::MAX;

/// The bound on open objects, shared by all threads.
pub(crate) struct Residency {
    room: Arc<Semaphore>,
    wait: Duration,
    start: Instant,
    open: Mutex<Open>,
    /// How many of those who wait have found no idle object to ask. The next ones that become idle
    /// make room by themselves.
    wanted: AtomicUsize,
}

#[derive(Default)]
struct Open {
    next: u64,
    slots: HashMap<u64, Arc<Slot>>,
}

struct Slot {
    key: Arc<Key>,
    idle_since: AtomicU64,
}

/// The place of one open object; dropping it makes room.
pub(crate) struct Residence {
    residency: Arc<Residency>,
    number: u64,
    slot: Arc<Slot>,
    _room: OwnedSemaphorePermit,
}

impl Residency {
    pub(crate) fn new(limit: usize, wait: Duration) -> Arc<Self> {
        Arc::new(Residency {
            room: Arc::new(Semaphore::new(limit)),
            wait,
            start: Instant::now(),
            open: Mutex::default(),
            wanted: AtomicUsize::new(0),
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
        let slot = Arc::new(Slot {
            key: key.clone(),
            idle_since: AtomicU64::new(BUSY),
        });
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.slots.insert(number, slot.clone());
        drop(open);
        Ok(Residence {
            residency: self.clone(),
            number,
            slot,
            _room: room,
        })
    }

    /// Asks the object that has been idle longest to close; if there is none, leaves word for the
    /// next that becomes idle.
    pub(crate) fn make_room(&self, ask: impl Fn(&Arc<Key>)) {
        // Leaving word before looking around means that an object which becomes idle meanwhile
        // either is seen here or sees the word.
        self.wanted.fetch_add(1, SeqCst);
        let open = self.lock();
        loop {
            let idle = open
                .slots
                .values()
                .map(|slot| (slot.idle_since.load(SeqCst), slot))
                .filter(|(since, _)| *since != BUSY && *since != ASKED_TO_CLOSE)
                .min_by_key(|(since, _)| *since);
            let Some((since, slot)) = idle else { return };
            let asked = slot
                .idle_since
                .compare_exchange(since, ASKED_TO_CLOSE, SeqCst, SeqCst);
            if asked.is_ok() {
                if self.take_word() {
                    ask(&slot.key);
                } else {
                    // Somebody who became idle has made the room; this one may stay.
                    let _ = slot
                        .idle_since
                        .compare_exchange(ASKED_TO_CLOSE, since, SeqCst, SeqCst);
                }
                return;
            }
        }
    }

    fn take_word(&self) -> bool {
        self.wanted
            .fetch_update(SeqCst, SeqCst, |wanted| wanted.checked_sub(1))
            .is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Residence {
    /// The object has something to do.
    pub(crate) fn busy(&self) {
        self.slot.idle_since.store(BUSY, SeqCst);
    }

    /// The object has nothing to do; `true` if it should make room at once.
    pub(crate) fn idle(&self) -> bool {
        let since = self.residency.start.elapsed().as_nanos();
        let since = u64::try_from(since).unwrap_or(ASKED_TO_CLOSE - 1).max(1);
        self.slot.idle_since.store(since, SeqCst);
        self.residency.wanted.load(SeqCst) > 0 && self.residency.take_word()
    }
}

impl Drop for Residence {
    fn drop(&mut self) {
        self.residency.lock().slots.remove(&self.number);
    }
}
