//! Asking the application for the limit, for a group's gate and for its ceiling. What follows from
//! the answers is decided in [`round`](super::round).
//!
//! Zero (stop), no ceiling, closed and unreadable are four different answers. An answer that does
//! not come, cannot be read or makes no sense never means "unlimited": without a limit there is no
//! round, and a group that cannot be judged stays closed.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::future::{Either, select};

use super::error::SemaphoreError;
use super::event::TARGET;
use super::protocol::BlockedReason;
use super::round::Policy;
use crate::error::{BoxError, ConfigError};
use crate::host::{Host, LocalFuture};
use crate::time::MAX_SAFE_INTEGER;

pub(super) type LimitCallback = Rc<dyn Fn() -> LocalFuture<Result<u64, BoxError>>>;
pub(super) type GroupLimitCallback =
    Rc<dyn Fn(String) -> LocalFuture<Result<Option<u64>, BoxError>>>;
pub(super) type CanGrantCallback = Rc<dyn Fn(String) -> LocalFuture<Result<bool, BoxError>>>;

/// Where the limit comes from.
#[derive(Clone)]
pub(super) enum Limit {
    Fixed(u64),
    Asked(LimitCallback),
}

/// The application's answers.
pub(super) struct Limits {
    pub(super) limit: Limit,
    pub(super) group_limit: Option<GroupLimitCallback>,
    pub(super) can_grant: Option<CanGrantCallback>,
    /// How long an answer may take.
    pub(super) timeout: Duration,
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match self.limit {
            Limit::Fixed(limit) if limit > MAX_SAFE_INTEGER => Err(ConfigError::new(
                "limit",
                format!("must be at most {MAX_SAFE_INTEGER}"),
            )),
            _ => Ok(()),
        }
    }

    /// The limit as it is now.
    pub(super) async fn limit(&self, host: &dyn Host) -> Result<u64, SemaphoreError> {
        let limit = match &self.limit {
            Limit::Fixed(limit) => return Ok(*limit),
            Limit::Asked(ask) => self.answer(host, ask()).await.and_then(sensible),
        };
        limit.map_err(|error| SemaphoreError::Limit(Arc::from(error)))
    }

    /// What `group` may receive. The gate goes first: a group that it does not let through is not
    /// asked for its ceiling.
    pub(super) async fn policy(&self, host: &dyn Host, group: &str) -> Policy {
        match self.resolve(host, group).await {
            Ok(policy) => policy,
            Err(error) => {
                tracing::error!(
                    target: TARGET,
                    group,
                    error = %error,
                    "durability.semaphore.limit_resolution_failed"
                );
                Policy::Closed(BlockedReason::LimitResolutionError)
            }
        }
    }

    async fn resolve(&self, host: &dyn Host, group: &str) -> Result<Policy, BoxError> {
        if let Some(can_grant) = &self.can_grant
            && !self.answer(host, can_grant(group.to_owned())).await?
        {
            return Ok(Policy::Closed(BlockedReason::NotPermitted));
        }
        let ceiling = match &self.group_limit {
            Some(group_limit) => self.answer(host, group_limit(group.to_owned())).await?,
            None => None,
        };
        Ok(Policy::Open {
            ceiling: ceiling.map(sensible).transpose()?,
        })
    }

    /// Waits for an answer, but not forever: a callback that hangs would stop all later rounds.
    async fn answer<T>(
        &self,
        host: &dyn Host,
        answer: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, BoxError> {
        let mut answer = pin!(answer);
        // Most answers are there at once, and cost no timer.
        let at_once = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(answer) = at_once.await {
            return answer;
        }
        match select(answer, host.sleep(self.timeout)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                Err(format!("no answer within {} ms", self.timeout.as_millis()).into())
            }
        }
    }
}

fn sensible(limit: u64) -> Result<u64, BoxError> {
    if limit > MAX_SAFE_INTEGER {
        return Err(format!("{limit} is no limit: the largest is {MAX_SAFE_INTEGER}").into());
    }
    Ok(limit)
}
