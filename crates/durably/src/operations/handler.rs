//! What an application gives to have its calls run, and what its handlers get and answer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::token::CancellationToken;
use crate::backoff::Backoff;
use crate::error::{BoxError, ConfigError};
use crate::host::LocalFuture;
use crate::time::{check_count, check_duration};

/// One attempt at a durable call, as its handler gets it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Call {
    /// The call's id: the key by which the handler must be idempotent.
    pub id: String,
    /// The name of the handler.
    pub name: String,
    /// What was registered.
    pub payload: Value,
    /// Which attempt this is, from 1. An attempt that the object's death cut off is repeated under
    /// its number.
    pub attempt: u64,
    /// Rises with every registered call of the object; tells a purged id from its next use.
    pub generation: u64,
    /// Says when the attempt should end.
    pub token: CancellationToken,
}

/// Why an attempt failed. Every error converts into the kind that is tried again, so `?` works.
#[derive(Debug)]
pub enum HandlerError {
    /// Try again, as long as attempts are left.
    Retry(BoxError),
    /// Trying again would not help: the call fails at once.
    NonRetryable(BoxError),
}

impl HandlerError {
    /// A failure that is tried again.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        HandlerError::Retry(error.into())
    }

    /// A failure that is not tried again.
    pub fn non_retryable(error: impl Into<BoxError>) -> Self {
        HandlerError::NonRetryable(error.into())
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        HandlerError::Retry(Box::new(error))
    }
}

/// How one handler's calls are tried.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HandlerConfig {
    /// Failed attempts after which a call has failed; 5 by default.
    pub max_attempts: u64,
    /// An attempt that takes this long has failed, and its token is cancelled; 5 min by default.
    pub attempt_timeout: Duration,
    /// The delay between attempts.
    pub backoff: Backoff,
    /// How often a call's attempts may be cut off by the death of the object, which does not count
    /// as failing, before the call has failed; 1,000 by default.
    pub max_interruptions: u64,
}

impl Default for HandlerConfig {
    fn default() -> Self {
        HandlerConfig {
            max_attempts: 5,
            attempt_timeout: Duration::from_secs(5 * 60),
            backoff: Backoff::default(),
            max_interruptions: 1_000,
        }
    }
}

impl HandlerConfig {
    /// Refuses settings out of range.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the field.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_count("max_attempts", self.max_attempts)?;
        check_duration("attempt_timeout", self.attempt_timeout)?;
        check_count("max_interruptions", self.max_interruptions)?;
        self.backoff.check()
    }
}

type Run = Box<dyn Fn(Call) -> LocalFuture<Result<Value, HandlerError>>>;

/// A registered handler.
pub(super) struct Handler {
    pub(super) name: Arc<str>,
    pub(super) config: HandlerConfig,
    pub(super) run: Run,
}

impl Handler {
    pub(super) fn new<F, Answer>(name: String, config: HandlerConfig, run: F) -> Self
    where
        F: Fn(Call) -> Answer + 'static,
        Answer: Future<Output = Result<Value, HandlerError>> + 'static,
    {
        Handler {
            name: name.into(),
            config,
            run: Box::new(move |call| Box::pin(run(call))),
        }
    }
}
