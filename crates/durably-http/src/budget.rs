//! Limits, leases and holders of an account, as they are written.

use std::fmt;

use durably::semaphore::{Holding, LeaseOptions, MAX_HOLDINGS};
use durably::time::MAX_SAFE_INTEGER;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{ApiError, parse_object};

/// The longest message of the semaphore that is read, whatever the bound on other bodies: its lists are
/// bounded by themselves, and a shard whose message is refused would wait for ever.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// A limit as it is shown: that of the account or group, or the default of all; null for a group that
/// has only its account's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Permits.
    pub limit: Option<u64>,
}

#[derive(Deserialize)]
struct LimitText {
    limit: Option<Permits>,
}

/// A number of permits.
struct Permits(u64);

impl<'de> Deserialize<'de> for Permits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Permits;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a whole number from 0 to {MAX_SAFE_INTEGER}")
            }

            fn visit_u64<E>(self, permits: u64) -> Result<Permits, E> {
                Ok(Permits(permits))
            }
        }
        deserializer.deserialize_u64(Whole)
    }
}

/// Reads a limit to be set.
///
/// # Errors
///
/// [`ApiError`] naming what is wrong.
pub fn read_limit(json: &[u8]) -> Result<u64, ApiError> {
    let text: LimitText = parse_object(json)?;
    text.limit
        .map(|Permits(permits)| permits)
        .ok_or_else(|| ApiError::invalid("limit", "is missing"))
}

/// How an account gives leases; null if it gives none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leases {
    /// All settings.
    pub leases: Option<LeaseOptions>,
}

/// Tells null from a field that is missing.
#[derive(Deserialize)]
struct LeasesText {
    #[serde(default, deserialize_with = "given")]
    leases: Option<Option<LeaseOptions>>,
}

fn given<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<LeaseOptions>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Reads how leases are to be given; `None` for not at all.
///
/// # Errors
///
/// [`ApiError`] naming what is wrong.
pub fn read_leases(json: &[u8]) -> Result<Option<LeaseOptions>, ApiError> {
    let text: LeasesText = parse_object(json)?;
    text.leases
        .ok_or_else(|| ApiError::invalid("leases", "is missing"))
}

/// Who holds permits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holders {
    /// By client and group.
    pub holders: Vec<Holding>,
}

/// Which holders are asked for.
#[derive(Clone, Debug, Deserialize)]
pub struct HoldersQuery {
    /// The client before the first.
    pub after: Option<String>,
    limit: Option<u64>,
}

impl HoldersQuery {
    /// How many clients at most.
    pub fn limit(&self) -> u64 {
        self.limit.unwrap_or(MAX_HOLDINGS)
    }
}

/// What is taken from a holder that is gone, and why.
#[derive(Clone, Debug, Deserialize)]
pub struct ReleaseQuery {
    /// The group; all of them if none is named.
    pub group: Option<String>,
    /// For the log.
    #[serde(default)]
    pub reason: String,
}

#[derive(Deserialize)]
struct ShardsText {
    shards: Option<Vec<String>>,
}

/// Reads the shards that an account's jobs are to be on.
///
/// # Errors
///
/// [`ApiError`] naming what is wrong.
pub fn read_shards(json: &[u8]) -> Result<Vec<String>, ApiError> {
    let text: ShardsText = parse_object(json)?;
    text.shards
        .ok_or_else(|| ApiError::invalid("shards", "is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_no_leases_and_nothing_is_missing() {
        assert_eq!(read_leases(br#"{"leases": null}"#), Ok(None));
        let missing = read_leases(b"{}").expect_err("nothing is said");
        assert_eq!(missing.field.as_deref(), Some("leases"));
    }

    #[test]
    fn a_limit_is_a_whole_number() {
        assert_eq!(read_limit(br#"{"limit": 3}"#), Ok(3));
        for wrong in [
            "{}",
            r#"{"limit": -1}"#,
            r#"{"limit": 1.5}"#,
            r#"{"limit": "3"}"#,
        ] {
            let error = read_limit(wrong.as_bytes()).expect_err(wrong);
            let found = (error.code.as_ref(), error.field.as_deref());
            assert_eq!(found, ("invalid", Some("limit")), "{wrong}");
        }
    }
}
