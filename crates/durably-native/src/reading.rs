//! What a [`TopologyReader`] needs from a process that runs tokio: a clock that costs next to nothing,
//! and numbers that spread its reads.

use std::sync::LazyLock;
use std::time::Duration;

use durably::Timestamp;
use durably::layers::{Randomness, Timer};
use durably::topology::{NoFallbacks, TopologyReader};

use crate::clock;

/// A reader of the store `S`, in a process that runs tokio.
///
/// ```no_run
/// use durably::topology::ReaderOptions;
/// use durably_native::publishers::FolderReader;
/// use durably_native::reading::{ReaderClock, ReaderRandom, Reader};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = FolderReader::new("/var/lib/topology");
/// let topology: Reader<FolderReader> =
///     Reader::new(ReaderOptions::default(), store, ReaderClock, ReaderRandom)?;
/// let group = topology.get("tenant-1").await?;
/// let ids: Vec<&str> = group.writable().map(|member| &*member.id).collect();
/// # Ok(())
/// # }
/// ```
pub type Reader<S, F = NoFallbacks> = TopologyReader<S, ReaderClock, ReaderRandom, F>;

/// The time since a reader's process looked at the wall clock for the first time, added to what that
/// showed: it never goes back. On Linux it is behind by up to 10 ms, the kernel's own tick, and costs a third
/// of an exact one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReaderClock;

impl Timer for ReaderClock {
    type Sleep = tokio::time::Sleep;

    #[inline]
    fn now(&self) -> Timestamp {
        static START: LazyLock<(u64, u64)> =
            LazyLock::new(|| (clock::wall().as_millis(), ticked()));
        let (wall, start) = *START;
        Timestamp::from_millis(wall + ticked().saturating_sub(start))
    }

    fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        tokio::time::sleep(duration)
    }
}

/// Milliseconds since some start, as of the last tick.
#[cfg(target_os = "linux")]
fn ticked() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // Neither is negative.
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Milliseconds since some start.
#[cfg(not(target_os = "linux"))]
fn ticked() -> u64 {
    clock::now().as_millis()
}

/// Numbers of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReaderRandom;

impl Randomness for ReaderRandom {
    fn next(&self) -> u64 {
        // Readers that come at once cost, but nothing is wrong.
        getrandom::u64().unwrap_or(u64::MAX / 2)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn its_clock_goes_forward_with_time() {
        let (start, began) = (ReaderClock.now(), Instant::now());
        let mut last = start;
        while last.since(start) < Duration::from_millis(50) {
            let now = ReaderClock.now();
            assert!(now >= last);
            last = now;
            std::hint::spin_loop();
        }
        let gone = began.elapsed();
        assert!(gone >= Duration::from_millis(35), "{gone:?}");
    }
}
