//! Changes of groups and questions about them, as they are written; what members get; what is told of a
//! published group.

mod change;
mod events;
mod members;
mod published;

use std::collections::BTreeMap;
use std::time::Duration;

use durably::topology::{Audience, Convergence, Snapshot, TopologyError, TopologyNameError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use change::{HeaderValues, expected, expected_by_deletion, read_draft, read_patch};
pub use events::{Event, Told};
pub use members::{
    Delivery, StateChannel, check_template, drained_query, fill, read_drained, refused,
};
pub use published::{edition_tag, is_known, not_published, version_tag};

use crate::ApiError;

/// The longest wait for a version; who wants more asks again.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// How many groups one answer lists.
pub const MAX_GROUPS: u64 = 1_000;

/// The longest draft or patch that is read, in bytes, if nothing else is set.
pub const MAX_DRAFT_BYTES: usize = 8 << 20;

impl From<TopologyError> for ApiError {
    fn from(error: TopologyError) -> Self {
        ApiError::new(error.code(), error.to_string())
    }
}

impl From<TopologyNameError> for ApiError {
    fn from(error: TopologyNameError) -> Self {
        ApiError::new(error.code(), error.to_string())
    }
}

/// What a change has made.
#[derive(Serialize)]
pub struct Changed<'a> {
    /// The group after it.
    pub snapshot: &'a Snapshot,
    /// Whether the store has it.
    pub published: bool,
}

/// What a deletion has made.
#[derive(Serialize)]
pub struct Removed {
    /// The version that the group was deleted with.
    pub version: Option<u64>,
    /// Whether the store has it.
    pub published: bool,
}

/// The values of a group's state channels.
#[derive(Serialize)]
pub struct States {
    /// By channel.
    pub states: BTreeMap<String, Value>,
}

/// Names of groups.
#[derive(Serialize)]
pub struct Groups {
    /// In order.
    pub groups: Vec<String>,
}

/// Which groups are asked for.
#[derive(Debug, Deserialize)]
pub struct GroupsQuery {
    /// The group before the first.
    #[serde(default)]
    pub after: String,
    limit: Option<u64>,
}

impl GroupsQuery {
    /// How many at most.
    ///
    /// # Errors
    ///
    /// [`ApiError`] if it is out of range.
    pub fn limit(&self) -> Result<u64, ApiError> {
        let limit = self.limit.unwrap_or(MAX_GROUPS);
        if !(1..=MAX_GROUPS).contains(&limit) {
            let problem = format!("must be from 1 to {MAX_GROUPS}");
            return Err(ApiError::invalid("limit", problem));
        }
        Ok(limit)
    }
}

/// What is to be reached, by whom, and how long that is waited for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConvergenceQuery {
    version: Option<u64>,
    audience: Option<AudienceText>,
    wait_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AudienceText {
    Published,
    Quorum,
    All,
}

impl From<AudienceText> for Audience {
    fn from(text: AudienceText) -> Self {
        match text {
            AudienceText::Published => Audience::Published,
            AudienceText::Quorum => Audience::Quorum,
            AudienceText::All => Audience::All,
        }
    }
}

impl ConvergenceQuery {
    /// The version.
    pub fn version(&self) -> u64 {
        self.version.unwrap_or(0)
    }

    /// Whom it must have reached.
    pub fn audience(&self) -> Audience {
        self.audience.map_or(Audience::All, Audience::from)
    }

    /// How long to wait for it.
    ///
    /// # Errors
    ///
    /// [`ApiError`] if it is too long.
    pub fn wait(&self) -> Result<Duration, ApiError> {
        let wait = Duration::from_millis(self.wait_ms.unwrap_or(0));
        if wait > MAX_WAIT {
            let problem = format!("must be at most {}", MAX_WAIT.as_millis());
            return Err(ApiError::invalid("waitMs", problem));
        }
        Ok(wait)
    }

    /// The answer.
    pub fn reached(&self, convergence: Convergence) -> Reached {
        Reached {
            reached: convergence.reached(self.version(), self.audience()),
            convergence,
        }
    }
}

/// How far a group has come, and whether that is far enough.
#[derive(Serialize)]
pub struct Reached {
    reached: bool,
    #[serde(flatten)]
    convergence: Convergence,
}
