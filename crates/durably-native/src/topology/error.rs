//! What a topology of this host can answer instead.

use durably::topology::{SnapshotError, TopologyError, TopologyNameError};

use crate::CallError;
use crate::publishers::FolderError;

/// Why a call to a topology failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologiesError {
    /// The topology's name cannot be, or names none.
    #[error(transparent)]
    Name(#[from] TopologyNameError),
    /// The coordinator refused.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The coordinator could not be called.
    #[error(transparent)]
    Call(#[from] CallError),
    /// What is published cannot be read.
    #[error(transparent)]
    Read(#[from] FolderError),
    /// What is published is of no use.
    #[error("what is published of the group cannot be used: {0}")]
    Damaged(#[from] SnapshotError),
}

impl TopologiesError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            TopologiesError::Name(error) => error.code(),
            TopologiesError::Topology(error) => error.code(),
            TopologiesError::Call(error) => error.code(),
            TopologiesError::Read(error) => error.code(),
            TopologiesError::Damaged(error) => error.code(),
        }
    }
}
