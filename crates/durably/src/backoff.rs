//! How long what has failed waits for its next attempt.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::ConfigError;
use crate::host::Host;
use crate::scheduler::report;
use crate::time::{MAX_DURATION, check_duration};

/// The first delay by default.
const DEFAULT_BASE: Duration = Duration::from_secs(1);
/// The longest delay by default.
const DEFAULT_MAX: Duration = Duration::from_secs(5 * 60);

/// The delay between a failed attempt and the next.
#[derive(Clone)]
#[non_exhaustive]
pub enum Backoff {
    /// Doubles from `base` up to `max`, with equal jitter: half of it is certain, the other half
    /// random. By default from 1 s to 5 min.
    Exponential {
        /// The ceiling of the delay after the first attempt.
        base: Duration,
        /// The ceiling of all delays.
        max: Duration,
    },
    /// A function of the number of the attempt that failed, from 1. A delay above 2^31 - 1 ms or a
    /// panic is reported, and the default takes its place.
    Delay(Arc<dyn Fn(u64) -> Duration + Send + Sync>),
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::Exponential {
            base: DEFAULT_BASE,
            max: DEFAULT_MAX,
        }
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backoff::Exponential { base, max } => formatter
                .debug_struct("Exponential")
                .field("base", base)
                .field("max", max)
                .finish(),
            Backoff::Delay(_) => formatter.write_str("Delay(..)"),
        }
    }
}

/// A delay function gave nothing usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a delay function panicked or asked for more than 2^31 - 1 ms")]
struct UnusableDelay;

impl Backoff {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Backoff::Exponential { base, max } = self else {
            return Ok(());
        };
        check_duration("backoff.base", *base)?;
        check_duration("backoff.max", *max)?;
        if max < base {
            return Err(ConfigError::new(
                "backoff.max",
                "must not be below backoff.base",
            ));
        }
        Ok(())
    }

    /// The delay after the failure of `attempt`. A delay function that gives nothing usable is
    /// reported, and the default takes its place.
    pub(crate) fn delay(&self, attempt: u64, host: &dyn Host, who: &'static str) -> Duration {
        let mut random = [0; 8];
        host.random(&mut random);
        let random = u64::from_le_bytes(random);
        self.after(attempt, random).unwrap_or_else(|error| {
            report(who, &error);
            let default = Backoff::default().after(attempt, random);
            default.unwrap_or_default()
        })
    }

    /// The delay after the failure of `attempt`, with `random` for the jitter.
    fn after(&self, attempt: u64, random: u64) -> Result<Duration, UnusableDelay> {
        match self {
            Backoff::Exponential { base, max } => Ok(equal_jitter(*base, *max, attempt, random)),
            Backoff::Delay(delay) => catch_unwind(AssertUnwindSafe(|| delay(attempt)))
                .ok()
                .filter(|delay| *delay <= MAX_DURATION)
                .ok_or(UnusableDelay),
        }
    }
}

/// Between half of and the whole of `base` doubled `attempt - 1` times, at most `max`; in whole ms.
fn equal_jitter(base: Duration, max: Duration, attempt: u64, random: u64) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
    let ceiling = base
        .saturating_mul(2u32.saturating_pow(doublings))
        .min(max)
        .as_millis();
    // Both durations were checked, so this is at most 2^31 - 1.
    let ceiling = u64::try_from(ceiling).unwrap_or(u64::MAX);
    let certain = ceiling / 2;
    let span = (ceiling - certain).saturating_add(1);
    Duration::from_millis(certain + random % span)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn delays_lie_between_half_and_the_whole_ceiling(
            base in 1u64..=(1 << 31) - 1,
            above in 0u64..=(1 << 31),
            attempt in 1u64..=u64::MAX,
            random: u64,
        ) {
            let max = (base + above).min((1 << 31) - 1);
            let backoff = Backoff::Exponential {
                base: Duration::from_millis(base),
                max: Duration::from_millis(max),
            };
            prop_assert!(backoff.check().is_ok());
            let delay = backoff.after(attempt, random).expect("exponential delays are usable");
            let doubled = u128::from(base) << (attempt - 1).min(64);
            let ceiling = doubled.min(u128::from(max));
            prop_assert!(delay.as_millis() >= ceiling / 2);
            prop_assert!(delay.as_millis() <= ceiling);
        }

        #[test]
        fn a_delay_function_is_taken_as_it_is_or_refused(millis: u64) {
            let asked = Duration::from_millis(millis);
            let backoff = Backoff::Delay(Arc::new(move |_| asked));
            let expected = if asked <= MAX_DURATION { Ok(asked) } else { Err(UnusableDelay) };
            prop_assert_eq!(backoff.after(1, 0), expected);
        }
    }

    #[test]
    fn jitter_reaches_both_ends() {
        let delay = |random| equal_jitter(DEFAULT_BASE, DEFAULT_MAX, 3, random).as_millis();
        assert_eq!(delay(0), 2_000);
        assert_eq!(delay(2_000), 4_000);
        assert_eq!(delay(2_001), 2_000);
    }

    #[test]
    fn by_default_delays_rise_from_a_second_to_five_minutes() {
        // Without luck half of it is certain.
        let shortest = |attempt| Backoff::default().after(attempt, 0);
        assert_eq!(shortest(1), Ok(Duration::from_millis(500)));
        assert_eq!(shortest(2), Ok(Duration::from_secs(1)));
        assert_eq!(shortest(100), Ok(Duration::from_secs(150)));
    }

    #[test]
    fn delays_may_stay_the_same() {
        let second = Duration::from_secs(1);
        let backoff = Backoff::Exponential {
            base: second,
            max: second,
        };
        assert_eq!(backoff.check(), Ok(()));
        assert_eq!(backoff.after(9, 500), Ok(second));
    }

    #[test]
    fn a_ceiling_below_the_base_is_refused() {
        let backoff = Backoff::Exponential {
            base: Duration::from_secs(2),
            max: Duration::from_secs(1),
        };
        assert_eq!(backoff.check().expect_err("refused").field(), "backoff.max");
    }
}
