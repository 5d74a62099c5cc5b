//! The door for applications: registering, reading, cancelling and purging calls.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use serde_json::Value;

use super::changes::{Cancellation, Candidate, PURGE_BATCH};
use super::decide::State;
use super::driver::Driver;
use super::error::{MAX_ID_BYTES, OperationError};
use super::event::{OperationEvent, TerminalReason};
use super::handler::{Call, Handler, HandlerConfig, HandlerError};
use super::store;
use crate::error::{ConfigError, OpenError, StorageError};
use crate::lifecycle::Hook;
use crate::scheduler::Scheduler;
use crate::time::Timestamp;

/// The durable calls of one object. Clones are handles to the same ones.
///
/// Everything that changes calls runs to its end even if the future that waits for it is dropped.
#[derive(Clone)]
pub struct Operations(Rc<Driver>);

/// Settings of [`Operations`]: the handlers and who hears of their calls.
///
/// A handler or hook that needs the object that owns the operations must hold it by
/// [`Weak`](std::rc::Weak): the operations own their handlers, and a circle would keep a
/// hibernated object in memory.
pub struct OperationsBuilder {
    scheduler: Scheduler,
    handlers: Vec<Handler>,
    hook: Option<Hook<OperationEvent>>,
}

/// What became of a call that was to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// It is stored and will run.
    Registered,
    /// The id had been registered before; nothing was changed.
    Duplicate,
}

/// What became of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// There is no call of this id.
    NotFound,
    /// The call waited and has ended.
    Cancelled,
    /// An attempt is running: its token is cancelled, and the call ends when its handler has ended.
    Cancelling,
    /// The call had ended before.
    AlreadyEnded,
}

/// Where a call stands.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationResult {
    /// There is no call of this id.
    NotFound,
    /// It has not ended.
    Pending {
        /// The attempt that is running, or the number of those that failed; 0 before the first.
        attempt: u64,
        /// When the next attempt is due, or was, if it waits for a slot or is running.
        next_attempt_at: Timestamp,
        /// Why the last attempt failed.
        last_error: Option<String>,
    },
    /// It ended without a result.
    Failed {
        /// How many attempts failed.
        attempt: u64,
        /// Why.
        reason: TerminalReason,
        /// The last error, or the reason where there was none.
        error: String,
    },
    /// It has its result.
    Completed {
        /// What the handler returned.
        result: Value,
    },
}

impl OperationsBuilder {
    /// Runs calls of `name` by `run`.
    #[must_use]
    pub fn handler<F, Answer>(
        mut self,
        name: impl Into<String>,
        config: HandlerConfig,
        run: F,
    ) -> Self
    where
        F: Fn(Call) -> Answer + 'static,
        Answer: Future<Output = Result<Value, HandlerError>> + 'static,
    {
        self.handlers.push(Handler::new(name.into(), config, run));
        self
    }

    /// Tells `hook` what happens to calls.
    #[must_use]
    pub fn on_event(mut self, hook: Hook<OperationEvent>) -> Self {
        self.hook = Some(hook);
        self
    }

    /// Makes the operations and attaches them to the scheduler.
    ///
    /// # Errors
    ///
    /// [`OpenError::Config`] for settings out of range and a handler's name that is empty or given
    /// twice; what [`Scheduler::attach`] answers.
    pub fn build(self) -> Result<Operations, OpenError> {
        let mut handlers = BTreeMap::new();
        for handler in self.handlers {
            handler.config.check()?;
            if handler.name.is_empty() {
                return Err(ConfigError::new("handler", "must have a name").into());
            }
            let name = handler.name.to_string();
            if handlers.insert(name.clone(), Rc::new(handler)).is_some() {
                let problem = format!("{name:?} is there twice");
                return Err(ConfigError::new("handler", problem).into());
            }
        }
        let driver = Driver::new(self.scheduler, handlers, self.hook);
        driver.scheduler.attach(&driver)?;
        Ok(Operations(driver))
    }
}

impl Operations {
    /// Settings for the operations of the object that `scheduler` belongs to. They are attached
    /// before the scheduler is opened.
    pub fn builder(scheduler: &Scheduler) -> OperationsBuilder {
        OperationsBuilder {
            scheduler: scheduler.clone(),
            handlers: Vec::new(),
            hook: None,
        }
    }

    /// Registers a call of the handler `name` and returns when that is committed. The handler
    /// starts at once if the pool has a slot, otherwise as soon as one is free.
    ///
    /// # Errors
    ///
    /// [`OperationError::UnknownHandler`], [`OperationError::InvalidId`],
    /// [`OperationError::DuplicateCall`] if the id belongs to another handler's call, and what
    /// storage answers. Nothing is stored then.
    pub async fn run(
        &self,
        name: &str,
        id: &str,
        payload: Value,
    ) -> Result<RunOutcome, OperationError> {
        let outcomes = self.run_all(name, vec![(id.to_owned(), payload)]).await?;
        // One call, one outcome.
        outcomes
            .into_iter()
            .next()
            .unwrap_or(Ok(RunOutcome::Duplicate))
    }

    /// Registers a batch of calls in one transaction, with an outcome for each. One that is refused
    /// does not hold up the others.
    ///
    /// # Errors
    ///
    /// [`OperationError::UnknownHandler`] and what storage answers; nothing is stored then.
    #[tracing::instrument(
        name = "durability.operations.run",
        level = "debug",
        skip_all,
        fields(handler = name, calls = calls.len())
    )]
    pub async fn run_all(
        &self,
        name: &str,
        calls: Vec<(String, Value)>,
    ) -> Result<Vec<Result<RunOutcome, OperationError>>, OperationError> {
        let driver = &self.0;
        let Some(handler) = driver.handlers.get(name).cloned() else {
            return Err(OperationError::UnknownHandler(name.to_owned()));
        };
        let mut outcomes = vec![Ok(RunOutcome::Duplicate); calls.len()];
        let mut candidates = Vec::with_capacity(calls.len());
        for (place, (id, payload)) in calls.into_iter().enumerate() {
            if id.is_empty() || id.len() > MAX_ID_BYTES {
                outcomes[place] = Err(OperationError::InvalidId(id.len()));
                continue;
            }
            let text = payload.to_string();
            candidates.push(Candidate {
                place,
                id,
                payload,
                text,
            });
        }
        let slots = driver.free_slots(candidates.len());
        let admitting = driver.clone();
        let admitted = driver.scheduler.transaction(move |transaction| {
            admitting.admit(transaction, &handler, candidates, slots)
        });
        let driver = driver.clone();
        let settled = self.0.scheduler.detached(async move {
            let admission = admitted.await?;
            for event in &admission.events {
                driver.tell(event);
            }
            driver.begin(admission.starting);
            if admission.waiting {
                driver.wake_pump();
            }
            Ok::<_, OperationError>(admission.outcomes)
        });
        for (place, outcome) in settled.await? {
            outcomes[place] = outcome;
        }
        Ok(outcomes)
    }

    /// Where the call of an id stands.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn result(&self, id: &str) -> Result<OperationResult, OperationError> {
        let results = self.results(&[id]).await?;
        Ok(results
            .into_iter()
            .next()
            .unwrap_or(OperationResult::NotFound))
    }

    /// Where the calls of several ids stand, in their order and at one moment.
    ///
    /// # Errors
    ///
    /// What storage answers.
    #[tracing::instrument(name = "durability.operations.results", level = "debug", skip_all)]
    pub async fn results<Id: AsRef<str>>(
        &self,
        ids: &[Id],
    ) -> Result<Vec<OperationResult>, OperationError> {
        let ids: Vec<String> = ids.iter().map(|id| id.as_ref().to_owned()).collect();
        let host = self.0.scheduler.host();
        host.transaction(move |transaction| {
            let sql = transaction.sql();
            ids.iter()
                .map(|id| store::status(sql, id)?.map_or(Ok(OperationResult::NotFound), told))
                .collect::<Result<Vec<_>, StorageError>>()
        })
        .await
        .map_err(OperationError::from)
    }

    /// Cancels a call. One that waits ends at once; one that runs has its token cancelled and ends
    /// as cancelled when its handler has ended, whatever that answers, also after the object died
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// What storage answers; nothing is changed then.
    #[tracing::instrument(
        name = "durability.operations.cancel",
        level = "debug",
        skip_all,
        fields(id)
    )]
    pub async fn cancel(&self, id: &str) -> Result<CancelOutcome, OperationError> {
        let id = id.to_owned();
        let cancelling = self.0.clone();
        let cancelled = self
            .0
            .scheduler
            .transaction(move |transaction| cancelling.cancel(transaction, id));
        let driver = self.0.clone();
        let settled = self.0.scheduler.detached(async move {
            let Cancellation {
                outcome,
                claim,
                event,
            } = cancelled.await?;
            if let Some(claim) = claim {
                claim.canceller.cancel();
            }
            if let Some(event) = event {
                driver.tell(&event);
            }
            Ok(outcome)
        });
        settled.await
    }

    /// Removes at most `limit` calls that were created before `before`, oldest first, whether they
    /// have ended or not, and returns how many. The tokens of running ones are cancelled; what
    /// their handlers answer later is dropped. An id that is used again meanwhile is a new call, which
    /// may run beside such a handler. Works in batches of its own.
    ///
    /// # Errors
    ///
    /// What storage answers; batches that were removed before stay removed.
    pub async fn purge_before(&self, before: Timestamp, limit: u64) -> Result<u64, OperationError> {
        self.purge(before, limit, |_| true).await
    }

    /// Like [`purge_before`](Self::purge_before), but only calls that had *ended* before `before`,
    /// so none is lost that is still to run. What was created before and has not ended is looked at
    /// each time.
    ///
    /// # Errors
    ///
    /// What storage answers; batches that were removed before stay removed.
    pub async fn purge_ended_before(
        &self,
        before: Timestamp,
        limit: u64,
    ) -> Result<u64, OperationError> {
        self.purge(before, limit, move |row| {
            row.ended_at.is_some_and(|ended_at| ended_at < before)
        })
        .await
    }

    /// Removes those of `ids` whose calls had ended before `before`, and returns their ids. For
    /// callers that give an id a new meaning.
    ///
    /// # Errors
    ///
    /// What storage answers; nothing is removed then.
    pub async fn purge_ended(
        &self,
        ids: Vec<String>,
        before: Timestamp,
    ) -> Result<Vec<String>, OperationError> {
        let purging = self.0.clone();
        let removed = self
            .0
            .scheduler
            .transaction(move |transaction| purging.purge_ended(transaction, &ids, before));
        let driver = self.0.clone();
        let told = self.0.scheduler.detached(async move {
            let removed = removed.await?;
            for event in &removed {
                driver.tell(event);
            }
            Ok(removed.into_iter().map(|event| event.id).collect())
        });
        told.await
    }

    #[tracing::instrument(
        name = "durability.operations.purge",
        level = "debug",
        skip_all,
        fields(%before, limit)
    )]
    async fn purge(
        &self,
        before: Timestamp,
        limit: u64,
        old: impl Fn(&store::OldRow) -> bool + Copy + 'static,
    ) -> Result<u64, OperationError> {
        let mut purged = 0;
        let mut after = Some(0);
        while let Some(position) = after
            && purged < limit
        {
            let left = (limit - purged).min(PURGE_BATCH);
            let purging = self.0.clone();
            let removed = self.0.scheduler.transaction(move |transaction| {
                purging.purge(transaction, before, position, left, old)
            });
            let driver = self.0.clone();
            let batch = self.0.scheduler.detached(async move {
                let (removed, next) = removed.await?;
                for event in &removed {
                    let claim = driver.claims.borrow().get(&event.generation).cloned();
                    if let Some(claim) = claim {
                        claim.canceller.cancel();
                    }
                    driver.tell(event);
                }
                Ok::<_, OperationError>((removed.len() as u64, next))
            });
            let (removed, next) = batch.await?;
            purged += removed;
            after = next;
        }
        Ok(purged)
    }
}

/// A row as its status is told.
fn told(row: store::StatusRow) -> Result<OperationResult, StorageError> {
    let corrupt = |column, expected| StorageError::Value { column, expected };
    Ok(match row.state {
        State::Waiting | State::Started | State::Cancelling => OperationResult::Pending {
            attempt: row.attempts + u64::from(row.state != State::Waiting),
            next_attempt_at: row.due_at.ok_or(corrupt(4, "the time of a pending call"))?,
            last_error: row.last_error,
        },
        State::Ended(reason) => OperationResult::Failed {
            attempt: row.attempts,
            reason,
            error: row.last_error.unwrap_or_else(|| reason.code().to_owned()),
        },
        State::Completed => OperationResult::Completed {
            result: row
                .result
                .and_then(|text| serde_json::from_str(&text).ok())
                .ok_or(corrupt(6, "a result in JSON"))?,
        },
    })
}
