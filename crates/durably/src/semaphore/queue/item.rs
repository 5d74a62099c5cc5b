//! What goes into a queue and what is said about it: items, outcomes, states and errors. Nothing is
//! decided here.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::event::Via;
use crate::error::StorageError;
use crate::time::Timestamp;

/// The longest id of an item, in bytes: room for an address made of several ids.
pub const MAX_ITEM_ID_BYTES: usize = 2_048;

/// A piece of work that wants one permit.
#[derive(Clone, Debug)]
pub struct NewItem {
    /// Names the item in the queue; 1 to 2,048 bytes. As long as it is known, another item of the
    /// same id is a duplicate.
    pub id: String,
    /// The holder that gives the permit; 1 to 256 bytes.
    pub key: String,
    /// The group under the key; 1 to 256 bytes.
    pub group: String,
    /// What the application needs to start the work; JSON, kept as it is written.
    pub body: Box<RawValue>,
}

impl NewItem {
    /// An item whose body is `body` as JSON.
    ///
    /// # Errors
    ///
    /// What serde_json answers if `body` has no JSON form.
    pub fn new(
        id: impl Into<String>,
        key: impl Into<String>,
        group: impl Into<String>,
        body: &impl Serialize,
    ) -> Result<NewItem, serde_json::Error> {
        Ok(NewItem {
            id: id.into(),
            key: key.into(),
            group: group.into(),
            body: serde_json::value::to_raw_value(body)?,
        })
    }
}

/// What became of an item that was offered to a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It waits for its permit.
    Queued,
    /// An item of this id is known already; nothing was changed.
    Duplicate,
    /// It was not taken.
    Refused {
        /// Why.
        reason: Refusal,
    },
}

/// Why an item was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(
    tag = "code",
    rename_all = "snake_case",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum Refusal {
    /// An id, key or group is empty or too long.
    #[error("{field} {problem}")]
    InvalidField {
        /// `id`, `key` or `group`.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The body is larger than this queue takes.
    #[error("body has {bytes} bytes, at most {max_bytes} are taken")]
    BodyTooLarge {
        /// The size of this one.
        bytes: u64,
        /// The largest that is taken.
        max_bytes: u64,
    },
    /// So many items wait already that no more are taken; offer it again later.
    #[error("the queue is full with {max_items} items: offer it again later")]
    QueueFull {
        /// How many items may wait.
        max_items: u64,
    },
}

impl Refusal {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::InvalidField { .. } => "invalid_field",
            Refusal::BodyTooLarge { .. } => "body_too_large",
            Refusal::QueueFull { .. } => "queue_full",
        }
    }
}

/// An item that has its permit and is handed to the application.
#[derive(Clone, Debug)]
pub struct AdmittedItem {
    /// The item.
    pub id: String,
    /// The holder whose permit it has.
    pub key: String,
    /// The group under the key.
    pub group: String,
    /// What gives it its permit. The same again if the item is handed over again, unless its permit
    /// had to be given back and another was had.
    pub via: Via,
    /// Since when it has waited.
    pub queued_at: Timestamp,
    /// What was queued.
    pub body: Box<RawValue>,
}

impl AdmittedItem {
    /// Reads the body.
    ///
    /// # Errors
    ///
    /// What serde_json answers if the body is no `Body`.
    pub fn read<Body: DeserializeOwned>(&self) -> Result<Body, serde_json::Error> {
        serde_json::from_str(self.body.get())
    }
}

/// Where an item stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(
    tag = "status",
    rename_all = "snake_case",
    rename_all_fields = "camelCase"
)]
pub enum ItemStatus {
    /// The queue knows no such item, or has forgotten it.
    Unknown,
    /// It waits for a permit.
    Queued {
        /// Its group.
        group: String,
        /// Its place in its group under its key, from 1. Places beyond 10,000 are told as 10,000.
        place: u64,
        /// Since when it waits.
        queued_at: Timestamp,
        /// Why its group waits, as far as is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        waiting: Option<Waiting>,
    },
    /// A permit is assigned to it, and not handed over yet: the holder has yet to confirm the claim,
    /// or the application to take the item.
    Claiming {
        /// Its group.
        group: String,
    },
    /// It runs, as far as the queue knows.
    Admitted {
        /// Its group.
        group: String,
    },
    /// It has given its permit back.
    Finished {
        /// Its group.
        group: String,
        /// When.
        at: Timestamp,
    },
}

/// Why the items of a group wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// What stands in the way.
    pub reason: WaitReason,
    /// Since when it does.
    pub since: Timestamp,
}

/// What a queue has of one key at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyUsage {
    /// Items that wait.
    pub waiting: u64,
    /// Items that hold a permit, or are about to.
    pub held: u64,
    /// Permits of leases that nothing was drawn from yet, and that may still be.
    pub undrawn: u64,
}

/// What stands in the way of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// The group has nothing left under its own ceiling.
    GroupLimit,
    /// The key has nothing left.
    Limit,
    /// The application does not let the group have permits.
    NotPermitted,
    /// The group's gate or ceiling could not be read.
    LimitResolutionError,
    /// The holder does not answer.
    Unreachable,
}

impl WaitReason {
    /// Its name: the holder's own, or `unreachable`.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitReason::GroupLimit => "group_limit",
            WaitReason::Limit => "limit",
            WaitReason::NotPermitted => "not_permitted",
            WaitReason::LimitResolutionError => "limit_resolution_error",
            WaitReason::Unreachable => "unreachable",
        }
    }
}

impl From<crate::semaphore::protocol::BlockedReason> for WaitReason {
    fn from(reason: crate::semaphore::protocol::BlockedReason) -> Self {
        use crate::semaphore::protocol::BlockedReason;
        match reason {
            BlockedReason::GroupLimit => WaitReason::GroupLimit,
            BlockedReason::Limit => WaitReason::Limit,
            BlockedReason::NotPermitted => WaitReason::NotPermitted,
            BlockedReason::LimitResolutionError => WaitReason::LimitResolutionError,
        }
    }
}

/// What became of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelOutcome {
    /// It waited and is gone; its id may be used again.
    Cancelled,
    /// It will not be admitted; its permit goes back as soon as the holder has answered the claim.
    Releasing,
    /// It is, or may already be, in the application's hands: that one has to stop it.
    Admitted,
    /// It had ended before.
    Finished,
    /// The queue knows no such item.
    Unknown,
}

/// Why a queue did not do what it was asked. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// More items at once than this queue takes.
    #[error("a batch of {items} items is too long: send at most {max_items} at once")]
    BatchTooLong {
        /// How many there were.
        items: u64,
        /// How many are taken.
        max_items: u64,
    },
    /// Storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl QueueError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            QueueError::BatchTooLong { .. } => "batch_too_long",
            QueueError::Storage(error) => error.code(),
        }
    }
}
