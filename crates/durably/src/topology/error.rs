//! What a coordinator can refuse.

use crate::error::StorageError;
use crate::outbox::OutboxError;

/// The longest name of a group and id of a member, in bytes.
pub const MAX_ID_BYTES: usize = 256;
/// The longest location hint, in bytes.
pub const MAX_HINT_BYTES: usize = 64;
/// The longest metadata of a member, in bytes of its JSON.
pub const MAX_META_BYTES: usize = 16_384;
/// The longest value of a state channel, in bytes of its JSON.
pub const MAX_STATE_BYTES: usize = 1_048_576;

/// Why a change of a group, or a question about one, was refused. Nothing was stored then.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyError {
    /// The group's name is empty or too long.
    #[error("the name of a group has 1 to {MAX_ID_BYTES} bytes, this one has {0}")]
    InvalidGroup(usize),
    /// There is no such group.
    #[error("there is no group {0:?}: an update that names its members creates it")]
    UnknownGroup(String),
    /// The group is not at the version that the update was made for.
    #[error("the group is at version {found:?}, and the update is for {expected:?}: read it again")]
    VersionConflict {
        /// What the update expected; `None` for no group.
        expected: Option<u64>,
        /// What there is; `None` for no group.
        found: Option<u64>,
    },
    /// The draft has no members.
    #[error("a group needs at least one member: delete it to remove it")]
    NoMembers,
    /// Two members of the draft have the same id.
    #[error("the member {0:?} is there twice")]
    DuplicateMember(String),
    /// A member of the draft is not valid.
    #[error("member {id:?}: {problem}")]
    InvalidMember {
        /// Its id, perhaps shortened.
        id: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The group has no such member.
    #[error("the group has no member {0:?}")]
    UnknownMember(String),
    /// No state channel has this name.
    #[error("no state channel is named {0:?}: configure it where the topology is built")]
    UnknownChannel(String),
    /// A state value is too long.
    #[error(
        "the value of channel {channel:?} has {bytes} bytes as JSON, at most {MAX_STATE_BYTES} are allowed"
    )]
    StateTooLarge {
        /// The channel.
        channel: String,
        /// How long it is.
        bytes: usize,
    },
    /// The snapshot would be too long.
    #[error(
        "the snapshot would have {bytes} bytes, at most {limit} are allowed: shorten the metadata or split the group"
    )]
    SnapshotTooLarge {
        /// How long it would be.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The guard against removing too many members stopped the update.
    #[error("{removed} of {members} members would be removed, and the guard allows {allowed}")]
    TooManyRemoved {
        /// Members that would be removed.
        removed: usize,
        /// Members that the group has.
        members: usize,
        /// How many of them may be removed at once.
        allowed: usize,
    },
    /// The draft is not one.
    #[error("the draft cannot be read: {0}")]
    InvalidDraft(String),
    /// The application's updater failed.
    #[error("the updater failed: {0}")]
    Updater(String),
    /// Storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl TopologyError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            TopologyError::InvalidGroup(_) => "invalid_group",
            TopologyError::UnknownGroup(_) => "unknown_group",
            TopologyError::VersionConflict { .. } => "version_conflict",
            TopologyError::NoMembers => "no_members",
            TopologyError::DuplicateMember(_) => "duplicate_member",
            TopologyError::InvalidMember { .. } => "invalid_member",
            TopologyError::UnknownMember(_) => "unknown_member",
            TopologyError::UnknownChannel(_) => "unknown_channel",
            TopologyError::StateTooLarge { .. } => "state_too_large",
            TopologyError::SnapshotTooLarge { .. } => "snapshot_too_large",
            TopologyError::TooManyRemoved { .. } => "too_many_removed",
            TopologyError::InvalidDraft(_) => "invalid_draft",
            TopologyError::Updater(_) => "updater_failed",
            TopologyError::Storage(error) => error.code(),
        }
    }
}

impl From<OutboxError> for TopologyError {
    fn from(error: OutboxError) -> Self {
        match error {
            OutboxError::Storage(error) => TopologyError::Storage(error),
            // Names and values were checked before they were staged.
            other => TopologyError::Storage(StorageError::Failed(other.to_string())),
        }
    }
}
