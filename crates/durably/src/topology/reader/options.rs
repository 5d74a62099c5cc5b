//! What may be configured about reading, and what of it is refused.

use std::time::Duration;

use super::entry::Terms;
use crate::error::ConfigError;
use crate::time::{check_count, check_duration};

/// Settings of a [`TopologyReader`](super::TopologyReader). Durations are whole milliseconds from 1
/// to 2^31 - 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderOptions {
    /// How long a copy is used without looking again; 30 s by default. Each copy is given a share of
    /// it between 80 and 120 % that stays the same, so that many readers do not come at once.
    pub ttl: Duration,
    /// How long it is remembered that a group was missing or that a read failed; 5 s by default. Also
    /// how long a copy is used on after the store answered with an older one.
    pub negative_ttl: Duration,
    /// How long a read may take; 1 s by default.
    pub read_timeout: Duration,
    /// For how long a copy is used on while reads fail, after it had to be looked at again: at the end of
    /// its `ttl`, or of `negative_ttl` if the store had an older one last. Not at all by default.
    pub stale_if_error: Option<Duration>,
    /// How many groups are remembered at most, missing ones included; 10,000 by default.
    pub max_groups: u64,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        ReaderOptions {
            ttl: Duration::from_secs(30),
            negative_ttl: Duration::from_secs(5),
            read_timeout: Duration::from_secs(1),
            stale_if_error: None,
            max_groups: 10_000,
        }
    }
}

impl ReaderOptions {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_duration("ttl", self.ttl)?;
        check_duration("negative_ttl", self.negative_ttl)?;
        check_duration("read_timeout", self.read_timeout)?;
        if let Some(stale_if_error) = self.stale_if_error {
            check_duration("stale_if_error", stale_if_error)?;
        }
        check_count("max_groups", self.max_groups)
    }

    /// How long outcomes stand; `random` picks a copy's share of the `ttl`.
    pub(super) fn terms(&self, random: u64) -> Terms {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let ttl = millis(self.ttl);
        // At most 2^31 times 2^32.
        let spread = ((2 * ttl / 5) * ((random >> 32) + 1)) >> 32;
        Terms {
            good: (ttl - ttl / 5 + spread).max(1),
            bad: millis(self.negative_ttl),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_spread_by_a_fifth_each_way() {
        let options = ReaderOptions::default();
        assert_eq!(options.terms(0).good, 24_000);
        assert_eq!(options.terms(u64::MAX / 2).good, 30_000);
        assert_eq!(options.terms(u64::MAX).good, 36_000);
        for millis in [1, 2, 7, (1 << 31) - 1] {
            let ttl = Duration::from_millis(millis);
            let options = ReaderOptions {
                ttl,
                ..options.clone()
            };
            options.check().expect("allowed");
            let (least, most) = (options.terms(0).good, options.terms(u64::MAX).good);
            assert!(least >= 1 && least >= millis * 4 / 5, "{millis}: {least}");
            assert!(most <= millis * 6 / 5 + 1, "{millis}: {most}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let zero = Duration::ZERO;
        let wrong = |change: fn(&mut ReaderOptions, Duration)| {
            let mut options = ReaderOptions::default();
            change(&mut options, zero);
            options.check().expect_err("refused").field().to_owned()
        };
        assert_eq!(wrong(|options, zero| options.ttl = zero), "ttl");
        assert_eq!(
            wrong(|options, zero| options.negative_ttl = zero),
            "negative_ttl"
        );
        assert_eq!(
            wrong(|options, zero| options.read_timeout = zero),
            "read_timeout"
        );
        let field = wrong(|options, zero| options.stale_if_error = Some(zero));
        assert_eq!(field, "stale_if_error");
        assert_eq!(wrong(|options, _| options.max_groups = 0), "max_groups");
    }
}
