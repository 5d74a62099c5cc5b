//! How long to wait after a failure, before the next try.

use std::time::Duration;

use crate::error::ConfigError;
use crate::time::check_duration;

/// A delay that doubles with every failure in a row, with equal jitter: half of it is certain, the
/// other half random.
///
/// ```
/// use std::time::Duration;
/// use durably::layers::Backoff;
///
/// let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
/// assert_eq!(backoff.delay(1, 0), Duration::from_millis(50));
/// assert_eq!(backoff.delay(2, 0), Duration::from_millis(100));
/// assert_eq!(backoff.delay(60, 0), Duration::from_millis(500));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest delay after the first failure.
    pub first: Duration,
    /// The longest delay of all.
    pub longest: Duration,
}

impl Default for Backoff {
    /// From 500 ms to 1 min.
    fn default() -> Self {
        Backoff {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(60),
        }
    }
}

impl Backoff {
    /// The delay after `failures` in a row, from 1; `random` decides within the jitter.
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let doublings = failures.saturating_sub(1);
        let ceiling = self
            .first
            .saturating_mul(2u32.saturating_pow(doublings))
            .min(self.longest);
        let ceiling = u64::try_from(ceiling.as_millis()).unwrap_or(u64::MAX);
        let certain = ceiling / 2;
        let span = (ceiling - certain).saturating_add(1);
        Duration::from_millis(certain + random % span)
    }

    /// Refuses bounds out of range or the wrong way round.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming `backoff.first` or `backoff.longest`.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_duration("backoff.first", self.first)?;
        check_duration("backoff.longest", self.longest)?;
        if self.longest < self.first {
            return Err(ConfigError::new(
                "backoff.longest",
                "must not be shorter than backoff.first",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn delays_lie_between_half_the_ceiling_and_the_ceiling(
            first in 1u64..10_000,
            factor in 1u64..1_000,
            failures: u32,
            random: u64,
        ) {
            let backoff = Backoff {
                first: Duration::from_millis(first),
                longest: Duration::from_millis(first * factor),
            };
            prop_assert_eq!(backoff.check(), Ok(()));
            let delay = backoff.delay(failures, random);
            let doublings = failures.saturating_sub(1).min(40);
            let ceiling = Duration::from_millis((first << doublings.min(30)).min(first * factor));
            prop_assert!(delay <= ceiling);
            prop_assert!(delay >= ceiling / 2 - Duration::from_millis(1).min(ceiling / 2));
        }
    }
}
