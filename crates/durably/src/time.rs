//! Points in time on the host's wall clock, and the bounds of configured durations.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// The largest count and time that crosses the wire or is stored: 2^53 - 1, which every JSON
/// reader holds exactly.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// The longest duration that a configuration may name: 2^31 - 1 ms, a little under 25 days.
pub const MAX_DURATION: Duration = Duration::from_millis((1 << 31) - 1);

/// A wall-clock time in whole milliseconds since the Unix epoch.
///
/// ```
/// use std::time::Duration;
/// use durably::Timestamp;
///
/// let start = Timestamp::from_millis(1_000);
/// let end = start + Duration::from_millis(250);
/// assert_eq!(end.as_millis(), 1_250);
/// assert_eq!(end.since(start), Duration::from_millis(250));
/// assert_eq!(start.since(end), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The epoch itself.
    pub const ZERO: Timestamp = Timestamp(0);

    /// The time `millis` ms after the epoch; later ones than 2^53 - 1 are cut to that.
    pub const fn from_millis(millis: u64) -> Self {
        if millis > MAX_SAFE_INTEGER {
            Timestamp(MAX_SAFE_INTEGER)
        } else {
            Timestamp(millis)
        }
    }

    /// Milliseconds since the epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The same as a signed integer, as SQLite stores it.
    pub const fn as_sql(self) -> i64 {
        // At most 2^53 - 1, so it fits.
        self.0 as i64
    }

    /// A stored time; negative ones, which no version ever wrote, read as the epoch.
    pub const fn from_sql(stored: i64) -> Self {
        Timestamp::from_millis(if stored < 0 { 0 } else { stored as u64 })
    }

    /// How long after `earlier` this is; zero if it is before.
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, duration: Duration) -> Timestamp {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(self.0.saturating_add(millis))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// Refuses a configured duration that is not between 1 ms and 2^31 - 1 ms.
pub fn check_duration(field: &'static str, duration: Duration) -> Result<(), ConfigError> {
    if duration < Duration::from_millis(1) || duration > MAX_DURATION {
        return Err(ConfigError::new(
            field,
            format!("must be between 1 and {} ms", MAX_DURATION.as_millis()),
        ));
    }
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(ConfigError::new(field, "must be a whole number of ms"));
    }
    Ok(())
}

/// Refuses a configured count that is zero or above 2^53 - 1.
pub fn check_count(field: &'static str, count: u64) -> Result<(), ConfigError> {
    if count == 0 || count > MAX_SAFE_INTEGER {
        return Err(ConfigError::new(
            field,
            format!("must be between 1 and {MAX_SAFE_INTEGER}"),
        ));
    }
    Ok(())
}
