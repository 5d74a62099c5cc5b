//! Changes of groups as data, for doors that are not in the object: what a change expects of the group,
//! and what it makes of it. Without I/O.

mod patch;

pub use patch::{Drain, Patch};

use super::coordinator::{Deleted, Topology, Updated};
use super::draft::{Current, Draft};
use super::error::{MAX_ID_BYTES, TopologyError};

/// What a change expects of the group that it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// Nothing.
    #[default]
    Anything,
    /// That there is one.
    Some,
    /// That there is none.
    None,
    /// That it is at this version.
    Version(u64),
}

impl Expected {
    fn check(self, group: &str, found: Option<u64>) -> Result<(), TopologyError> {
        let conflict = |expected| Err(TopologyError::VersionConflict { expected, found });
        match self {
            Expected::Some if found.is_none() => Err(TopologyError::UnknownGroup(group.to_owned())),
            Expected::None if found.is_some() => conflict(None),
            Expected::Version(version) if found != Some(version) => conflict(Some(version)),
            _ => Ok(()),
        }
    }
}

/// A change of a group, as data.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupChange {
    /// What the group is to be.
    Draft(Draft),
    /// What of it is to be otherwise.
    Patch(Patch),
}

impl GroupChange {
    /// What this makes of the group that there is.
    fn drafted(
        self,
        group: &str,
        expected: Expected,
        current: &Current,
    ) -> Result<Draft, TopologyError> {
        expected.check(group, current.version)?;
        match self {
            GroupChange::Draft(draft) => Ok(draft),
            GroupChange::Patch(patch) => patch.draft(current),
        }
    }

    /// Whether it could make a topology's first group, so that what is refused leaves no coordinator
    /// behind; `channels` are the names of its state channels.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn check_first(
        &self,
        group: &str,
        expected: Expected,
        channels: &[&str],
    ) -> Result<(), TopologyError> {
        let first = self.clone().drafted(group, expected, &Current::default())?;
        first.check_new(group, channels)
    }
}

/// The name of a topology cannot be, or names none.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TopologyNameError {
    /// It is empty or too long.
    #[error("the name of a topology has 1 to {MAX_ID_BYTES} bytes, this one has {0}")]
    Invalid(usize),
    /// There is no such topology.
    #[error("there is no topology {0:?}: it comes to be with its first group")]
    Unknown(String),
}

impl TopologyNameError {
    /// Refuses what no topology can be named.
    ///
    /// # Errors
    ///
    /// [`Invalid`](Self::Invalid).
    pub fn check(topology: &str) -> Result<(), TopologyNameError> {
        match topology.len() {
            1..=MAX_ID_BYTES => Ok(()),
            bytes => Err(TopologyNameError::Invalid(bytes)),
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            TopologyNameError::Invalid(_) => "invalid_topology",
            TopologyNameError::Unknown(_) => "unknown_topology",
        }
    }
}

/// Refuses what no group can be named.
///
/// # Errors
///
/// [`TopologyError::InvalidGroup`].
pub fn check_group(group: &str) -> Result<(), TopologyError> {
    match group.len() {
        1..=MAX_ID_BYTES => Ok(()),
        bytes => Err(TopologyError::InvalidGroup(bytes)),
    }
}

impl Topology {
    /// Changes a group, or creates it, if it is as the change expects.
    ///
    /// # Errors
    ///
    /// As for [`update`](Self::update), [`TopologyError::UnknownGroup`] and
    /// [`TopologyError::VersionConflict`] if it is not, and what is wrong with a patch.
    pub async fn change(
        &self,
        group: &str,
        expected: Expected,
        change: GroupChange,
    ) -> Result<Updated, TopologyError> {
        let named = group.to_owned();
        self.update(group, move |current| {
            change.drafted(&named, expected, current)
        })
        .await
    }

    /// Deletes a group if it is as `expected`, which it cannot be if there is none.
    ///
    /// # Errors
    ///
    /// As for [`delete`](Self::delete), and [`TopologyError::UnknownGroup`] if there is none, also when it
    /// was expected to have a version.
    pub async fn remove(&self, group: &str, expected: Expected) -> Result<Deleted, TopologyError> {
        let version = match expected {
            Expected::Version(version) => Some(version),
            _ => None,
        };
        let deleted = self.delete(group, version).await?;
        match deleted.version {
            Some(_) => Ok(deleted),
            None => Err(TopologyError::UnknownGroup(group.to_owned())),
        }
    }
}
