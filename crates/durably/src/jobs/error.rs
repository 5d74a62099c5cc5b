//! Why something about a job or an account cannot be done, also as a text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{OpenError, StorageError};
use crate::semaphore::SemaphoreError;

/// Why something about a job or an account cannot be done.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Something given is wrong.
    #[error("{field} {problem}")]
    Invalid {
        /// The field to blame.
        field: String,
        /// Completes the sentence "*field* …".
        problem: String,
    },
    /// The job's body is larger than allowed.
    #[error("body must be at most {limit} bytes of JSON, this one has {found}")]
    BodyTooLarge {
        /// Bytes of this one.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The shard has as many waiting jobs as it may.
    #[error("the queue is full with {limit} waiting jobs: submit it again when some have run")]
    QueueFull {
        /// How many may wait.
        limit: u64,
    },
    /// The semaphore message or its round failed.
    #[error(transparent)]
    Semaphore(SemaphoreError),
    /// Storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An object refused that was asked in texts.
    #[error("{message}")]
    Told {
        /// Its own code.
        code: String,
        /// What it said.
        message: String,
        /// The field that it blames.
        field: Option<String>,
    },
    /// The object cannot be reached right now.
    #[error("{message}")]
    Unavailable {
        /// A stable name of the cause.
        code: &'static str,
        /// What happened and what to do.
        message: String,
    },
}

impl JobError {
    /// A refusal of `field`.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        JobError::Invalid {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &str {
        match self {
            JobError::Invalid { .. } => "invalid",
            JobError::BodyTooLarge { .. } => "body_too_large",
            JobError::QueueFull { .. } => "queue_full",
            JobError::Semaphore(error) => error.code(),
            JobError::Storage(error) => error.code(),
            JobError::Told { code, .. } => code,
            JobError::Unavailable { code, .. } => code,
        }
    }

    /// The field to blame, if there is one.
    pub fn field(&self) -> Option<&str> {
        match self {
            JobError::Invalid { field, .. } => Some(field),
            JobError::BodyTooLarge { .. } => Some("body"),
            JobError::Told { field, .. } => field.as_deref(),
            JobError::Semaphore(SemaphoreError::Malformed(error)) => Some(&error.field),
            _ => None,
        }
    }
}

impl From<OpenError> for JobError {
    fn from(error: OpenError) -> Self {
        JobError::Unavailable {
            code: error.code(),
            message: error.to_string(),
        }
    }
}

/// An error as a text: what whoever reads it can still tell.
#[derive(Serialize, Deserialize)]
struct Written {
    code: String,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

impl Serialize for JobError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written {
            code: self.code().to_owned(),
            message: self.to_string(),
            field: self.field().map(str::to_owned),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JobError {
    /// As [`JobError::Told`].
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written {
            code,
            message,
            field,
        } = Written::deserialize(deserializer)?;
        Ok(JobError::Told {
            code,
            message,
            field,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_elsewhere_is_told_alike() {
        let error = JobError::QueueFull { limit: 3 };
        let text = serde_json::to_string(&error).unwrap();
        let told: JobError = serde_json::from_str(&text).unwrap();
        assert_eq!(told.code(), error.code());
        assert_eq!(told.to_string(), error.to_string());
        let blamed = JobError::invalid("id", "must not be empty");
        let text = serde_json::to_string(&blamed).unwrap();
        let told: JobError = serde_json::from_str(&text).unwrap();
        assert_eq!(told.field(), Some("id"));
    }
}
