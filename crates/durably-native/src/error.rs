//! What goes wrong with a system and with calls to its objects.

use std::path::PathBuf;

use durably::error::BoxError;
use durably::{ConfigError, OpenError, StorageError};

/// Why a system could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// A setting was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another process, or another system of this one, owns the data folder.
    #[error(
        "the data folder {} is in use: stop the process that has it open, or choose another folder",
        .0.display()
    )]
    FolderLocked(PathBuf),
    /// The data folder cannot be used.
    #[error("the data folder {} cannot be used: {source}", folder.display())]
    Folder {
        /// The folder as it was given.
        folder: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The SQLite library is not fit for objects.
    #[error(transparent)]
    Library(StorageError),
    /// The system's journal cannot be opened.
    #[error("the system's journal cannot be opened: {0}")]
    Journal(StorageError),
    /// A worker thread could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(std::io::Error),
}

impl SystemError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            SystemError::Config(error) => error.code(),
            SystemError::FolderLocked(_) => "folder_locked",
            SystemError::Folder { .. } => "folder_unusable",
            SystemError::Library(_) => "sqlite_too_old",
            SystemError::Journal(error) => error.code(),
            SystemError::Thread(_) => "no_thread",
        }
    }
}

/// Why a call to an object brought no answer.
///
/// Unless the variant says otherwise the call may or may not have done its work: what it committed
/// stays.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// The name is empty or too long. Nothing was done.
    #[error("an object's name has 1 to 512 bytes, not {0}")]
    BadName(usize),
    /// The system was opened without this class. Nothing was done.
    #[error("the system has no class {0:?}: register it at its builder")]
    UnknownClass(&'static str),
    /// The object could not be opened. Nothing was done.
    #[error("the object could not be opened: {message}")]
    Open {
        /// The code of the error behind it, or `open_failed`.
        code: &'static str,
        /// What it says.
        message: String,
    },
    /// The object's file is damaged. Nothing was done.
    #[error("the object's file is damaged: restore it from a copy ({0})")]
    Damaged(String),
    /// Something in the object panicked; the next call opens it afresh.
    #[error("the object panicked and was closed: {0}")]
    Panicked(String),
    /// A commit of the object failed; the next call opens it afresh.
    #[error("a commit of the object failed and it was closed: {0}")]
    Storage(StorageError),
    /// The object's instance was ended from outside; the next call opens it afresh.
    #[error("the object's instance has ended: {0}")]
    Ended(String),
    /// The system is shutting down.
    #[error("the system is shutting down")]
    Stopping,
    /// There is too much to do already. Nothing was done.
    #[error("overloaded: {0}; try again later")]
    Overloaded(&'static str),
}

impl CallError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            CallError::BadName(_) => "bad_object_name",
            CallError::UnknownClass(_) => "unknown_class",
            CallError::Open { code, .. } => code,
            CallError::Damaged(_) => "storage_damaged",
            CallError::Panicked(_) => "object_panicked",
            CallError::Storage(error) => error.code(),
            CallError::Ended(_) => "object_ended",
            CallError::Stopping => "stopping",
            CallError::Overloaded(_) => "overloaded",
        }
    }

    /// For an object whose file could not be opened.
    pub(crate) fn from_storage(error: StorageError) -> Self {
        match error {
            StorageError::Damaged(text) => CallError::Damaged(text),
            other => CallError::Open {
                code: other.code(),
                message: other.to_string(),
            },
        }
    }

    /// For an object that could not be built; errors of the library keep their code.
    pub(crate) fn from_building(error: BoxError) -> Self {
        let error = match error.downcast::<StorageError>() {
            Ok(storage) => return CallError::from_storage(*storage),
            Err(other) => other,
        };
        match error.downcast::<OpenError>() {
            Ok(open) => match *open {
                OpenError::Storage(storage) => CallError::from_storage(storage),
                other => CallError::Open {
                    code: other.code(),
                    message: other.to_string(),
                },
            },
            Err(other) => CallError::Open {
                code: "open_failed",
                message: with_sources(&*other),
            },
        }
    }
}

/// What an error says, followed by what its sources say.
pub(crate) fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        text.push_str(": ");
        text.push_str(&next.to_string());
        source = next.source();
    }
    text
}
