//! What a holder tells about itself: its usage and its lifecycle events, in the shapes that cross
//! the wire. When they are told is not decided here.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::protocol::BlockedReason;
use crate::time::Timestamp;

/// Under which target the events of a holder are traced.
pub(super) const TARGET: &str = "durably::semaphore";

/// What is given out at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Permits that may be out at once.
    pub limit: u64,
    /// Permits granted and not released, unclaimed ones included. More than `limit` after that was
    /// lowered: running work is never stopped.
    pub granted: u64,
    /// Permits of leases that are not released.
    pub leased: u64,
    /// Permits that grants may still receive.
    pub available: u64,
    /// The same by group.
    pub groups: BTreeMap<String, GroupUsage>,
}

/// What is given out in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupUsage {
    /// Permits granted and not released.
    pub granted: u64,
    /// The group's own ceiling, if it has one that could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// What a group is measured against at one moment, from the sums that rounds decide by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// Permits that may be out at once, of all groups.
    pub limit: u64,
    /// Permits granted and not released, of all groups.
    pub granted: u64,
    /// Permits of leases that are not released, of all groups.
    pub leased: u64,
    /// Permits that grants may still receive.
    pub available: u64,
    /// The group's own part.
    pub group: GroupStanding,
}

/// The part of one group in a [`Standing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupStanding {
    /// The group's own ceiling, if it has one that could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Permits granted and not released.
    pub granted: u64,
    /// Permits of leases that are not released.
    pub leased: u64,
    /// Why the group is given nothing whatever is left, if so: `not_permitted` or
    /// `limit_resolution_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<BlockedReason>,
}

/// Something that happened in a holder, told after its commit.
///
/// As JSON it has `entityKind: "semaphore"`, its `type` and its fields in camelCase.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SemaphoreEvent {
    /// A round was held.
    Round {
        /// When it ended.
        timestamp: Timestamp,
        /// Permits asked for.
        requested: u64,
        /// Permits handed out.
        granted: u64,
        /// What is given out after it; groups with nothing outstanding do not appear.
        usage: Usage,
    },
    /// Demand of a group was left waiting by a round.
    Blocked {
        /// When the round ended.
        timestamp: Timestamp,
        /// The group.
        group: String,
        /// Why.
        reason: BlockedReason,
        /// Permits left waiting for this reason.
        count: u64,
    },
    /// A cleanup took back permits that were not claimed in time.
    GrantReclaimed {
        /// The time of the round or the alarm pass.
        timestamp: Timestamp,
        /// The grant.
        grant_id: String,
        /// Whose it was.
        client_id: String,
        /// Its group.
        group: String,
        /// Permits taken back.
        permits: u64,
    },
    /// A client was given a lease.
    LeaseGranted {
        /// The time of the round.
        timestamp: Timestamp,
        /// The lease.
        lease_id: String,
        /// Whose it is.
        client_id: String,
        /// Its group.
        group: String,
        /// Its permits.
        permits: u64,
    },
    /// A round retired a lease: nothing is drawn from it any more. Its permits stay counted until
    /// its client has told what it drew and given that back.
    LeaseRetired {
        /// The time of the round.
        timestamp: Timestamp,
        /// The lease.
        lease_id: String,
        /// Whose it is.
        client_id: String,
        /// Its group.
        group: String,
        /// Permits that its client reported as undrawn in this round; none if it did not report.
        permits: u64,
    },
    /// A client without storage was silent for too long, and what it held came back.
    ClientExpired {
        /// The time of the alarm pass.
        timestamp: Timestamp,
        /// The client.
        client_id: String,
        /// Permits of grants.
        granted: u64,
        /// Permits of leases.
        leased: u64,
    },
    /// An operator took permits from a client.
    ForceReleased {
        /// When.
        timestamp: Timestamp,
        /// Whose they were.
        client_id: String,
        /// Of which group; of all if none is named.
        group: Option<String>,
        /// Permits of grants.
        granted: u64,
        /// Permits of leases.
        leased: u64,
        /// What the operator said.
        reason: String,
    },
}

impl SemaphoreEvent {
    /// Its name on the wire.
    pub fn r#type(&self) -> &'static str {
        match self {
            SemaphoreEvent::Round { .. } => "round",
            SemaphoreEvent::Blocked { .. } => "blocked",
            SemaphoreEvent::GrantReclaimed { .. } => "grant_reclaimed",
            SemaphoreEvent::LeaseGranted { .. } => "lease_granted",
            SemaphoreEvent::LeaseRetired { .. } => "lease_retired",
            SemaphoreEvent::ClientExpired { .. } => "client_expired",
            SemaphoreEvent::ForceReleased { .. } => "force_released",
        }
    }

    /// Tells the event to whoever collects traces.
    pub(super) fn trace(&self) {
        match self {
            SemaphoreEvent::Round {
                requested,
                granted,
                usage,
                ..
            } => tracing::debug!(
                target: TARGET,
                requested,
                granted,
                limit = usage.limit,
                outstanding = usage.granted,
                leased = usage.leased,
                available = usage.available,
                "durability.semaphore.round"
            ),
            SemaphoreEvent::Blocked {
                group,
                reason,
                count,
                ..
            } => tracing::debug!(
                target: TARGET,
                group,
                reason = reason.as_str(),
                count,
                "durability.semaphore.blocked"
            ),
            SemaphoreEvent::GrantReclaimed {
                grant_id,
                client_id,
                group,
                permits,
                ..
            } => tracing::debug!(
                target: TARGET,
                grant_id,
                client_id,
                group,
                permits,
                "durability.semaphore.grant_reclaimed"
            ),
            SemaphoreEvent::LeaseGranted {
                lease_id,
                client_id,
                group,
                permits,
                ..
            } => tracing::debug!(
                target: TARGET,
                lease_id,
                client_id,
                group,
                permits,
                "durability.semaphore.lease_granted"
            ),
            SemaphoreEvent::LeaseRetired {
                lease_id,
                client_id,
                group,
                permits,
                ..
            } => tracing::debug!(
                target: TARGET,
                lease_id,
                client_id,
                group,
                permits,
                "durability.semaphore.lease_retired"
            ),
            SemaphoreEvent::ClientExpired {
                client_id,
                granted,
                leased,
                ..
            } => tracing::debug!(
                target: TARGET,
                client_id,
                granted,
                leased,
                "durability.semaphore.client_expired"
            ),
            // Traced where it is done, with more weight than these.
            SemaphoreEvent::ForceReleased { .. } => {}
        }
    }
}

impl Serialize for SemaphoreEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("entityKind", "semaphore")?;
        map.serialize_entry("type", self.r#type())?;
        match self {
            SemaphoreEvent::Round {
                timestamp,
                requested,
                granted,
                usage,
            } => {
                map.serialize_entry("timestamp", timestamp)?;
                map.serialize_entry("requested", requested)?;
                map.serialize_entry("granted", granted)?;
                map.serialize_entry("usage", usage)?;
            }
            SemaphoreEvent::Blocked {
                timestamp,
                group,
                reason,
                count,
            } => {
                map.serialize_entry("timestamp", timestamp)?;
                map.serialize_entry("group", group)?;
                map.serialize_entry("reason", reason)?;
                map.serialize_entry("count", count)?;
            }
            SemaphoreEvent::GrantReclaimed {
                timestamp,
                grant_id,
                client_id,
                group,
                permits,
            } => {
                map.serialize_entry("timestamp", timestamp)?;
                map.serialize_entry("grantId", grant_id)?;
                map.serialize_entry("clientId", client_id)?;
                map.serialize_entry("group", group)?;
                map.serialize_entry("permits", permits)?;
            }
            SemaphoreEvent::LeaseGranted {
                timestamp,
                lease_id,
                client_id,
                group,
                permits,
            }
            | SemaphoreEvent::LeaseRetired {
                timestamp,
                lease_id,
                client_id,
                group,
                permits,
            } => {
                map.serialize_entry("timestamp", timestamp)?;
                map.serialize_entry("leaseId", lease_id)?;
                map.serialize_entry("clientId", client_id)?;
                map.serialize_entry("group", group)?;
                map.serialize_entry("permits", permits)?;
            }
            SemaphoreEvent::ClientExpired {
                timestamp,
                client_id,
                granted,
                leased,
            } => {
                map.serialize_entry("timestamp", timestamp)?;
                map.serialize_entry("clientId", client_id)?;
                map.serialize_entry("granted", granted)?;
                map.serialize_entry("leased", leased)?;
            }
            SemaphoreEvent::ForceReleased {
                timestamp,
                client_id,
                group,
                granted,
                leased,
                reason,
            } => {
                map.serialize_entry("timestamp", timestamp)?;
                map.serialize_entry("clientId", client_id)?;
                if let Some(group) = group {
                    map.serialize_entry("group", group)?;
                }
                map.serialize_entry("granted", granted)?;
                map.serialize_entry("leased", leased)?;
                map.serialize_entry("reason", reason)?;
            }
        }
        map.end()
    }
}
