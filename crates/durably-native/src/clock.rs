//! The clock of a process's objects: the wall clock as it was noted, and the time since.
//!
//! What objects have stored as due is due by this clock, so it never goes back: a wall clock that is set back by
//! an hour would put all of it off by that hour. Set forward, the wall clock is followed, but not before the
//! [journal](crate::journal) has noted the new time, so that a process which starts after the wall clock was set back
//! goes on from there.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use durably::Timestamp;

static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock::new(wall()));

struct Clock {
    start: Instant,
    /// What is added to the milliseconds since the start; only rises.
    offset: AtomicU64,
}

impl Clock {
    fn new(time: Timestamp) -> Clock {
        Clock {
            start: Instant::now(),
            offset: AtomicU64::new(time.as_millis()),
        }
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn now(&self) -> Timestamp {
        let offset = self.offset.load(Ordering::Relaxed);
        Timestamp::from_millis(offset.saturating_add(self.elapsed()))
    }

    fn not_before(&self, time: Timestamp) {
        let offset = time.as_millis().saturating_sub(self.elapsed());
        self.offset.fetch_max(offset, Ordering::Relaxed);
    }
}

/// What time it is.
pub(crate) fn now() -> Timestamp {
    CLOCK.now()
}

/// From now on it is no earlier than `time`.
pub(crate) fn not_before(time: Timestamp) {
    CLOCK.not_before(time);
}

/// What the machine says.
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_only_goes_forward() {
        let noon = Timestamp::from_millis(1_000_000_000);
        let hour = Duration::from_secs(3_600);
        let clock = Clock::new(noon);
        assert!(clock.now() >= noon);
        clock.not_before(noon + hour);
        let ahead = clock.now();
        assert!(ahead >= noon + hour && ahead < noon + 2 * hour);
        clock.not_before(noon);
        let later = clock.now();
        assert!(later >= ahead);
        while clock.now() == later {
            std::hint::spin_loop();
        }
        assert!(clock.now() > later);
    }
}
