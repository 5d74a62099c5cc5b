//! Why a group cannot be read.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::topology::snapshot::SnapshotError;

/// A group could not be read, and no fallback had it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the group {group:?} cannot be read: {reason}")]
pub struct TopologyUnavailable {
    /// The group.
    pub group: String,
    /// What is the matter.
    #[source]
    pub reason: UnavailableReason,
}

impl TopologyUnavailable {
    /// A stable name for programs, its reason's.
    pub fn code(&self) -> &'static str {
        self.reason.code()
    }
}

/// What is the matter with the published copy of a group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnavailableReason {
    /// The store has none, or says that the group was deleted.
    #[error("nothing is published of it")]
    Missing,
    /// It cannot be used; of a newer schema, too.
    #[error("what is published of it cannot be used: {0}")]
    Invalid(#[source] SnapshotError),
    /// The store did not answer within the read time-out.
    #[error("the store did not answer within {} ms", .0.as_millis())]
    Slow(Duration),
    /// The store answered with an error.
    #[error("the store could not be read: {0}")]
    Failed(#[source] Arc<dyn Error + Send + Sync>),
}

impl UnavailableReason {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            UnavailableReason::Missing => "topology_missing",
            UnavailableReason::Invalid(_) => "topology_invalid",
            UnavailableReason::Slow(_) => "topology_slow",
            UnavailableReason::Failed(_) => "topology_failed",
        }
    }
}
