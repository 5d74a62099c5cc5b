//! What an outbox can refuse.

use crate::error::StorageError;

/// Why a value was not staged, discarded or published.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboxError {
    /// The key is empty or too long.
    #[error("a key has 1 to {MAX_KEY_BYTES} bytes, this one has {0}")]
    InvalidKey(usize),
    /// The value is too long as JSON.
    #[error("a value has at most {MAX_VALUE_BYTES} bytes as JSON, this one has {0}")]
    ValueTooLarge(usize),
    /// Storage failed; nothing was changed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The longest key, in bytes: room for a pair of names.
pub(super) const MAX_KEY_BYTES: usize = 4_096;
/// The longest value, in bytes of its JSON: what every host stores in one row.
pub(super) const MAX_VALUE_BYTES: usize = 1_048_576;

impl OutboxError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            OutboxError::InvalidKey(_) => "invalid_key",
            OutboxError::ValueTooLarge(_) => "value_too_large",
            OutboxError::Storage(error) => error.code(),
        }
    }
}
