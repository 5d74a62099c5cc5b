//! What an application can hear of its groups.

use super::snapshot::Incarnation;
use crate::time::Timestamp;

/// Something happened to a group. Told after the commit, best effort.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopologyEvent {
    /// The group; empty for what is about all of them.
    pub group: String,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub kind: TopologyEventKind,
}

/// What happened to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyEventKind {
    /// Its members changed.
    Changed {
        /// Its new version.
        version: u64,
    },
    /// It was deleted.
    Deleted {
        /// The version of its deletion.
        version: u64,
    },
    /// A member whose draining had an end was removed.
    Drained {
        /// The member.
        member: String,
        /// Whether its time was up; else the `drained` callback said so.
        by_deadline: bool,
    },
    /// The coordinator began a new incarnation: it was asked to, or found a newer edition in the store
    /// than it has itself.
    Incarnation(Incarnation),
}

impl TopologyEvent {
    /// The same as a `tracing` event.
    pub(super) fn trace(&self) {
        let group = &self.group;
        match &self.kind {
            TopologyEventKind::Changed { version } => {
                tracing::debug!(group, version, "durability.topology.changed");
            }
            TopologyEventKind::Deleted { version } => {
                tracing::debug!(group, version, "durability.topology.deleted");
            }
            TopologyEventKind::Drained {
                member,
                by_deadline,
            } => {
                tracing::debug!(group, member, by_deadline, "durability.topology.drained");
            }
            TopologyEventKind::Incarnation(incarnation) => {
                tracing::warn!(
                    created_at = incarnation.created_at.as_millis(),
                    "durability.topology.incarnation"
                );
            }
        }
    }
}
