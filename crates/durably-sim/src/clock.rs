//! The virtual clock and its timers. When it moves is decided in [`executor`](crate::executor).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use durably::Timestamp;

/// What time it is, and who waits for which.
pub(crate) struct Clock {
    now: Cell<Timestamp>,
    /// By time, then by when they were set.
    timers: RefCell<BTreeMap<(Timestamp, u64), Waker>>,
    last_timer: Cell<u64>,
}

impl Clock {
    pub(crate) fn new(now: Timestamp) -> Clock {
        Clock {
            now: Cell::new(now),
            timers: RefCell::default(),
            last_timer: Cell::new(0),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now.get()
    }

    /// Sets the clock to `target`, unless that is past.
    pub(crate) fn move_to(&self, target: Timestamp) {
        self.now.set(self.now.get().max(target));
    }

    /// When the next timer is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let timers = self.timers.borrow();
        timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Sets the clock to `due`, unless it is past, and wakes what is due then.
    pub(crate) fn fire(&self, due: Timestamp) {
        self.move_to(due);
        let mut fired = Vec::new();
        let mut timers = self.timers.borrow_mut();
        while let Some(entry) = timers.first_entry() {
            if entry.key().0 > due {
                break;
            }
            fired.push(entry.remove());
        }
        drop(timers);
        for waker in fired {
            waker.wake();
        }
    }

    pub(crate) fn sleep(self: &Rc<Self>, duration: Duration) -> Sleep {
        let whole = duration.as_nanos().div_ceil(1_000_000);
        let whole = u64::try_from(whole).unwrap_or(u64::MAX);
        self.sleep_until(self.now.get() + Duration::from_millis(whole))
    }

    pub(crate) fn sleep_until(self: &Rc<Self>, at: Timestamp) -> Sleep {
        let sequence = self.last_timer.get() + 1;
        self.last_timer.set(sequence);
        Sleep {
            clock: self.clone(),
            key: (at, sequence),
            started: false,
        }
    }
}

/// Resolves when the clock shows its time.
pub struct Sleep {
    clock: Rc<Clock>,
    key: (Timestamp, u64),
    started: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut timers = self.clock.timers.borrow_mut();
        // A timer whose time has come still waits to be fired, so that order is kept.
        let waiting = !self.started || timers.contains_key(&self.key);
        if waiting {
            timers.insert(self.key, context.waker().clone());
        }
        drop(timers);
        self.started = true;
        if waiting {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.timers.borrow_mut().remove(&self.key);
    }
}
