//! What may be configured about leases, its defaults and bounds, and how it is written as JSON.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;
use crate::time::{MAX_SAFE_INTEGER, check_count, check_duration};

/// A part of a limit: so many permits, or a share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// So many permits.
    Permits(u64),
    /// A share of the limit, rounded down.
    Share {
        /// 0.5 is half of the limit.
        ratio: Ratio,
    },
}

/// A number from 0 up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ratio(pub f64);

impl PartialEq for Ratio {
    fn eq(&self, other: &Ratio) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Ratio {}

impl Hash for Ratio {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl Amount {
    fn check(self, field: &'static str) -> Result<(), ConfigError> {
        match self {
            Amount::Permits(permits) if permits > MAX_SAFE_INTEGER => Err(ConfigError::new(
                field,
                format!("must be a whole number up to {MAX_SAFE_INTEGER}"),
            )),
            Amount::Share { ratio } if !ratio.0.is_finite() || ratio.0 < 0.0 => Err(
                ConfigError::new(field, "must be a ratio that is a number from 0 up"),
            ),
            _ => Ok(()),
        }
    }

    /// How many permits of `limit` it is.
    pub(super) fn of(self, limit: u64) -> u64 {
        match self {
            Amount::Permits(permits) => permits,
            // The product is defined as that of doubles; the cast cuts what is too large.
            Amount::Share { ratio } => (limit as f64 * ratio.0).floor() as u64,
        }
    }
}

/// Where the permits of leases come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum Provisioning {
    /// From the limit, after the grants of the round: grants and leases together never pass it.
    #[default]
    Strict,
    /// From a part of the limit that grants leave alone, except for its last permit: with a reserve
    /// at or above the limit grants still have one.
    Under {
        /// What grants leave alone.
        reserve: Amount,
    },
    /// From a budget of its own above the limit: up to `limit + extra` run at once.
    Over {
        /// What may be leased.
        extra: Amount,
    },
}

/// Whether groups with a ceiling of their own are given leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitedGroups {
    /// They are not; grants alone keep their ceiling exactly.
    #[default]
    Exclude,
    /// They are, within their ceiling.
    WithinGroupLimit,
}

/// How leases are given. As JSON it has the reference's names: `provisioning`, `permitsPerLease`,
/// `ttlMs`, `maxGroups`, `maxClientsPerGroup`, `limitedGroups`, each with its default.
///
/// ```
/// use std::time::Duration;
/// use durably::semaphore::{LeaseOptions, Provisioning};
///
/// let options = LeaseOptions {
///     permits_per_lease: 16,
///     ttl: Duration::from_secs(600),
///     ..LeaseOptions::default()
/// };
/// assert_eq!(options.provisioning, Provisioning::Strict);
/// assert!(options.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeaseOptions {
    /// Where the permits come from; strict by default.
    pub provisioning: Provisioning,
    /// The most permits in one lease; 64 by default.
    pub permits_per_lease: u64,
    /// How long after its last report a lease is drawn from; 30 min by default.
    #[serde(rename = "ttlMs", with = "millis")]
    pub ttl: Duration,
    /// In how many groups a round gives leases; 100 by default.
    pub max_groups: u64,
    /// To how many clients of a group a round gives leases; 100 by default.
    pub max_clients_per_group: u64,
    /// Whether groups with a ceiling are given any; not by default.
    pub limited_groups: LimitedGroups,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        LeaseOptions {
            provisioning: Provisioning::Strict,
            permits_per_lease: 64,
            ttl: Duration::from_secs(30 * 60),
            max_groups: 100,
            max_clients_per_group: 100,
            limited_groups: LimitedGroups::Exclude,
        }
    }
}

impl LeaseOptions {
    /// Refuses what no holder can work with.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the field.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.provisioning {
            Provisioning::Strict => {}
            Provisioning::Under { reserve } => reserve.check("leases.provisioning.reserve")?,
            Provisioning::Over { extra } => extra.check("leases.provisioning.extra")?,
        }
        check_count("leases.permitsPerLease", self.permits_per_lease)?;
        check_duration("leases.ttlMs", self.ttl)?;
        check_count("leases.maxGroups", self.max_groups)?;
        check_count("leases.maxClientsPerGroup", self.max_clients_per_group)
    }
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_the_reference_names_and_fill_in_defaults() {
        let options: LeaseOptions = serde_json::from_str(
            r#"{"provisioning":{"mode":"over","extra":{"ratio":0.5}},"ttlMs":600000,"limitedGroups":"withinGroupLimit"}"#,
        )
        .unwrap();
        assert_eq!(
            options,
            LeaseOptions {
                provisioning: Provisioning::Over {
                    extra: Amount::Share { ratio: Ratio(0.5) }
                },
                ttl: Duration::from_secs(600),
                limited_groups: LimitedGroups::WithinGroupLimit,
                ..LeaseOptions::default()
            }
        );
        let json = serde_json::to_string(&options).unwrap();
        assert_eq!(
            serde_json::from_str::<LeaseOptions>(&json).unwrap(),
            options
        );
    }

    #[test]
    fn wrong_options_are_refused_by_name() {
        let wrong = |change: fn(&mut LeaseOptions)| {
            let mut options = LeaseOptions::default();
            change(&mut options);
            options.check().unwrap_err().field().to_owned()
        };
        assert_eq!(wrong(|o| o.permits_per_lease = 0), "leases.permitsPerLease");
        assert_eq!(wrong(|o| o.ttl = Duration::ZERO), "leases.ttlMs");
        assert_eq!(wrong(|o| o.max_groups = 0), "leases.maxGroups");
        assert_eq!(
            wrong(|o| o.max_clients_per_group = MAX_SAFE_INTEGER + 1),
            "leases.maxClientsPerGroup"
        );
        assert_eq!(
            wrong(|o| {
                o.provisioning = Provisioning::Under {
                    reserve: Amount::Share { ratio: Ratio(-0.1) },
                }
            }),
            "leases.provisioning.reserve"
        );
        assert_eq!(
            wrong(|o| {
                o.provisioning = Provisioning::Over {
                    extra: Amount::Permits(MAX_SAFE_INTEGER + 1),
                }
            }),
            "leases.provisioning.extra"
        );
        for json in [
            r#"{"provisioning":{"mode":"under","reserve":1.5}}"#,
            r#"{"provisioning":{"mode":"under","reserve":-1}}"#,
            r#"{"provisioning":{"mode":"under"}}"#,
            r#"{"provisioning":{"mode":"loose"}}"#,
            r#"{"permits":3}"#,
        ] {
            assert!(
                serde_json::from_str::<LeaseOptions>(json).is_err(),
                "{json}"
            );
        }
    }

    #[test]
    fn a_share_is_the_floor_of_the_product_of_doubles() {
        assert_eq!(Amount::Share { ratio: Ratio(0.29) }.of(100), 28);
        assert_eq!(
            Amount::Share {
                ratio: Ratio(1e300)
            }
            .of(3),
            u64::MAX
        );
        assert_eq!(Amount::Share { ratio: Ratio(0.0) }.of(100), 0);
    }
}
