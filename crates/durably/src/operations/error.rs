//! What an operation can refuse.

use crate::error::StorageError;

/// Why a durable call was not registered, read, cancelled or purged.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationError {
    /// No handler has this name.
    #[error("no handler is named {0:?}: register it before building the operations")]
    UnknownHandler(String),
    /// The id belongs to a call of another handler.
    #[error("the id {id:?} belongs to a call of {name:?}: choose another id")]
    DuplicateCall {
        /// The id.
        id: String,
        /// The handler whose call it is.
        name: String,
    },
    /// The id is empty or too long.
    #[error("an id has 1 to {MAX_ID_BYTES} bytes, this one has {0}")]
    InvalidId(usize),
    /// Storage failed; nothing was changed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The longest id of a call, in bytes: room for an address made of several ids.
pub(super) const MAX_ID_BYTES: usize = 2_048;

impl OperationError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            OperationError::UnknownHandler(_) => "unknown_handler",
            OperationError::DuplicateCall { .. } => "duplicate_call",
            OperationError::InvalidId(_) => "invalid_id",
            OperationError::Storage(error) => error.code(),
        }
    }
}
