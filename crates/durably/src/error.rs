//! Errors that every capability shares. Each capability adds one small enum of its own.

use std::borrow::Cow;

/// What storage answered instead of doing what it was asked.
///
/// Nothing of a transaction that returned one is stored.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageError {
    /// The disk or the object's quota is full.
    #[error("storage is full: free some space, then try again ({0})")]
    Full(String),
    /// The file is locked by somebody else.
    #[error("storage is locked by another process ({0})")]
    Locked(String),
    /// The file is not a database or is damaged.
    #[error("storage is damaged: restore the object's file from a copy ({0})")]
    Damaged(String),
    /// A row broke a constraint of its table.
    #[error("a row was refused: {0}")]
    Constraint(String),
    /// A value was larger than the host stores.
    #[error("a value is too large to be stored: {0}")]
    TooLarge(String),
    /// A stored value is not what its column promises.
    #[error("column {column} does not hold {expected}")]
    Value {
        /// Position of the column in the row, from 0.
        column: usize,
        /// What was asked for.
        expected: &'static str,
    },
    /// The instance of the object has ended; a new one starts from what was committed.
    #[error("the object's instance has ended: {0}")]
    Ended(String),
    /// Anything else that the database reports.
    #[error("storage failed: {0}")]
    Failed(String),
}

impl StorageError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            StorageError::Full(_) => "storage_full",
            StorageError::Locked(_) => "storage_locked",
            StorageError::Damaged(_) => "storage_damaged",
            StorageError::Constraint(_) => "storage_constraint",
            StorageError::TooLarge(_) => "storage_too_large",
            StorageError::Value { .. } => "storage_value",
            StorageError::Ended(_) => "object_ended",
            StorageError::Failed(_) => "storage_failed",
        }
    }
}

/// The HTTP status of each failure, for every door that answers over HTTP. Codes come from the library
/// or from the door; one that is not listed is a failure of the server.
///
/// ```
/// assert_eq!(durably::error::http_status("unknown_job"), 404);
/// ```
pub fn http_status(code: &str) -> u16 {
    match code {
        "invalid" | "malformed" | "malformed_json" | "malformed_request" => 400,
        "invalid_topology" | "invalid_group" | "invalid_draft" | "invalid_member"
        | "duplicate_member" | "no_members" | "unknown_channel" => 400,
        "unauthorized" => 401,
        "not_found" | "unknown_job" | "unknown_topology" | "unknown_group" | "unknown_member"
        | "not_published" => 404,
        "method_not_allowed" => 405,
        "body_too_slow" => 408,
        // Another server is meant.
        "held_elsewhere" => 421,
        "holders_refused" => 502,
        "job_running" | "job_ended" | "too_many_removed" => 409,
        "version_conflict" => 412,
        "body_too_large" | "line_too_large" | "too_many_jobs" | "storage_too_large"
        | "state_too_large" | "snapshot_too_large" => 413,
        "unsupported_media_type" => 415,
        "queue_full" => 429,
        // Gone when tried again, as far as the server can tell.
        "stopping"
        | "overloaded"
        | "object_ended"
        | "object_panicked"
        | "shards_changing"
        | "storage_locked"
        | "holders_unreachable" => 503,
        "no_job_endpoint" => 501,
        "storage_full" => 507,
        _ => 500,
    }
}

/// A configuration that was refused, and which field is to blame.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("configuration: {field} {problem}")]
pub struct ConfigError {
    field: Cow<'static, str>,
    problem: Cow<'static, str>,
}

impl ConfigError {
    /// A refusal of `field`; `problem` completes the sentence "*field* …".
    pub fn new(
        field: impl Into<Cow<'static, str>>,
        problem: impl Into<Cow<'static, str>>,
    ) -> ConfigError {
        ConfigError {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// The field that is wrong.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong with it; completes the sentence "*field* …".
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        "configuration"
    }
}

/// Why an object could not be opened.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// A capability was configured wrongly.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The object already has a scheduler.
    #[error("the object already has a scheduler: build capabilities on that one")]
    SecondScheduler,
    /// The same capability was attached twice to one instance.
    #[error("capability {0:?} is attached already")]
    AttachedTwice(&'static str),
    /// A capability was attached after the scheduler had been opened.
    #[error("capability {0:?} came too late: attach it before Scheduler::open")]
    AttachedLate(&'static str),
    /// The scheduler was opened a second time.
    #[error("the scheduler is open already: open it once, after attaching all capabilities")]
    OpenedTwice,
    /// The stored schema is newer than this build can undo.
    #[error(
        "capability {capability:?} is {ahead} migrations ahead of this build, which undoes at most \
         {allowed}: open it with a newer build"
    )]
    TooFarAhead {
        /// Whose schema it is.
        capability: String,
        /// Migrations that this build does not know.
        ahead: usize,
        /// Migrations that it would undo.
        allowed: usize,
    },
    /// The stored history and the build disagree about the order of migrations.
    #[error("capability {capability:?} has migration {found:?} where this build has {expected:?}")]
    HistoryDiffers {
        /// Whose schema it is.
        capability: String,
        /// The stored name.
        found: String,
        /// The name in this build.
        expected: String,
    },
    /// `migrate` was asked for a migration that does not exist.
    #[error("capability {capability:?} has no migration {target:?}")]
    UnknownMigration {
        /// Whose schema it is.
        capability: String,
        /// The name asked for.
        target: String,
    },
    /// Storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl OpenError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            OpenError::Config(error) => error.code(),
            OpenError::SecondScheduler => "second_scheduler",
            OpenError::AttachedTwice(_) => "attached_twice",
            OpenError::AttachedLate(_) => "attached_late",
            OpenError::OpenedTwice => "opened_twice",
            OpenError::TooFarAhead { .. } => "schema_too_far_ahead",
            OpenError::HistoryDiffers { .. } => "schema_history_differs",
            OpenError::UnknownMigration { .. } => "unknown_migration",
            OpenError::Storage(error) => error.code(),
        }
    }
}

/// An error of the application's own, kept as it is.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The longest error text that is stored, in bytes.
const MAX_ERROR_BYTES: usize = 4_096;

/// An error with its sources, short enough to be stored.
pub(crate) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        if text.len() > MAX_ERROR_BYTES {
            break;
        }
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    cut(text)
}

/// What a callback said when it panicked, short enough to be stored.
pub(crate) fn panic_text(who: &str, panic: &(dyn std::any::Any + Send)) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    cut(format!("{who} panicked: {message}"))
}

fn cut(mut text: String) -> String {
    let end = text.floor_char_boundary(MAX_ERROR_BYTES);
    text.truncate(end);
    text
}
