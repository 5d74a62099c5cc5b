//! Why a holder did not do what it was asked.

use std::error::Error;
use std::sync::Arc;

use super::protocol::ProtocolError;
use crate::error::StorageError;

/// Why a message or a question was refused. Nothing of it has been stored.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SemaphoreError {
    /// The message breaks the protocol.
    #[error(transparent)]
    Malformed(#[from] ProtocolError),
    /// The limit could not be read, so the round gave nothing and dropped its reports; ask again.
    #[error("the semaphore's limit could not be read: {0}")]
    Limit(#[source] Arc<dyn Error + Send + Sync>),
    /// So many requests wait for the next round already that this one was not taken; ask again
    /// later.
    #[error("too many requests are waiting for a round ({waiting}): ask again later")]
    Overloaded {
        /// Requests that wait.
        waiting: u64,
    },
    /// Storage failed, or the instance ended while the request waited; ask again.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl SemaphoreError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            SemaphoreError::Malformed(error) => error.code(),
            SemaphoreError::Limit(_) => "limit",
            SemaphoreError::Overloaded { .. } => "overloaded",
            SemaphoreError::Storage(error) => error.code(),
        }
    }
}
