//! One attempt: runs its handler, watches the time and settles what became of it.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, join, select};
use serde_json::Value;

use super::decide::{self, Outcome, Settlement};
use super::driver::{Attempt, Driver, Starting};
use super::event::{AttemptOutcome, OperationEventKind};
use super::handler::{Call, HandlerError};
use super::store;
use crate::bugs::{Bug, is_on};
use crate::error::{StorageError, error_text, panic_text};
use crate::scheduler::report;

impl Driver {
    /// Runs an attempt until its handler has ended and the outcome is stored.
    pub(super) async fn run(self: Rc<Self>, starting: Starting) {
        let Starting {
            attempt,
            payload,
            slot,
        } = starting;
        let claim = attempt.claim.clone();
        let handler = attempt.handler.clone();
        let call = payload.map(|payload| Call {
            id: attempt.id.clone(),
            name: handler.name.to_string(),
            payload,
            attempt: attempt.number,
            generation: attempt.generation,
            token: claim.canceller.token(),
        });
        let call = match call {
            Ok(call) => call,
            Err(error) => {
                drop(slot);
                let error = format!("the stored payload is no JSON: {error}");
                return self
                    .conclude(attempt, Outcome::NonRetryable(error), false)
                    .await;
            }
        };
        if claim.cancel_requested.get() {
            drop(slot);
            let outcome = Outcome::Failed("cancelled before its handler ran".to_owned());
            return self.conclude(attempt, outcome, false).await;
        }
        let timeout = self.scheduler.host().sleep(handler.config.attempt_timeout);
        let (outcome, counted) = {
            let running = async { (handler.run)(call).await };
            let running = pin!(AssertUnwindSafe(running).catch_unwind());
            match select(running, timeout).await {
                Either::Left((answer, _)) => (outcome(answer), false),
                Either::Right(((), running)) => {
                    claim.canceller.cancel();
                    // It counts from here on, and it is over when it is over.
                    let error = timed_out(&attempt);
                    let (counted, _) = join(self.time_out(&attempt), running).await;
                    (Outcome::Failed(error), counted)
                }
            }
        };
        // Its successor's start can share the commit of this one's end.
        drop(slot);
        self.conclude(attempt, outcome, counted).await;
    }

    /// Counts a timed out attempt whose handler may go on; says whether that is stored.
    async fn time_out(self: &Rc<Self>, attempt: &Attempt) -> bool {
        let error = timed_out(attempt);
        let generation = attempt.generation;
        let number = attempt.number;
        let claim = attempt.claim.clone();
        let last = number >= attempt.handler.config.max_attempts;
        let delay = if last {
            Duration::ZERO
        } else {
            self.delay(attempt)
        };
        let driver = self.clone();
        let stored = self.scheduler.transaction(move |transaction| {
            if claim.cancel_requested.get() {
                return Ok::<_, StorageError>(None);
            }
            let due_at = driver.scheduler.now() + delay;
            let known = store::retry(transaction.sql(), generation, number, due_at, &error)?;
            driver.observe(transaction)?;
            if is_on(Bug::OverlapAfterTimeout) {
                driver.claims.borrow_mut().remove(&generation);
            }
            Ok((known && !last).then_some(due_at))
        });
        match stored.await {
            Ok(next_attempt_at) => {
                if let Some(next_attempt_at) = next_attempt_at {
                    let outcome = AttemptOutcome::Retrying { next_attempt_at };
                    self.tell_attempt(attempt, OperationEventKind::AttemptSettled(outcome));
                }
                true
            }
            Err(error) => {
                report(super::CAPABILITY, &error);
                false
            }
        }
    }

    /// Stores what became of an attempt whose handler has ended, and gives its claim back. With
    /// `counted`, the attempt stands as failed in its row already.
    async fn conclude(self: Rc<Self>, attempt: Attempt, outcome: Outcome, counted: bool) {
        let attempt = Rc::new(attempt);
        let first = match self.settle(&attempt, outcome, counted).await {
            // With its instance ended, the next one repeats the attempt.
            Ok(()) | Err(StorageError::Ended(_)) => return,
            Err(error) => error,
        };
        // A result that storage refuses is a failure of its attempt.
        let text = format!("the outcome could not be stored: {first}");
        let outcome = match first {
            StorageError::TooLarge(_) => Outcome::NonRetryable(text),
            _ => Outcome::Failed(text),
        };
        if let Err(error) = self.settle(&attempt, outcome, counted).await {
            // The row still says that the attempt runs. Without a claim that is an interruption, and
            // the next alarm repeats it.
            report(super::CAPABILITY, &error);
            self.claims.borrow_mut().remove(&attempt.generation);
            // A pass that waits for this row would wait for nothing.
            self.tell_passes(&Err(error));
        }
    }

    async fn settle(
        self: &Rc<Self>,
        attempt: &Rc<Attempt>,
        outcome: Outcome,
        counted: bool,
    ) -> Result<(), StorageError> {
        let max_attempts = attempt.handler.config.max_attempts;
        let delay = match decide::settle(attempt.number, max_attempts, false, &outcome) {
            Settlement::Retry if !counted => self.delay(attempt),
            _ => Duration::ZERO,
        };
        let driver = self.clone();
        let settling = attempt.clone();
        let settled = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            let Attempt {
                mut generation,
                number,
                ref claim,
                ..
            } = *settling;
            if is_on(Bug::LateResultApplies)
                && let Some(row) = store::status(sql, &settling.id)?
            {
                generation = row.generation;
            }
            let now = driver.scheduler.now();
            let cancelled = claim.cancel_requested.get();
            let settlement = decide::settle(number, max_attempts, cancelled, &outcome);
            let mut next_attempt_at = None;
            let known = match (settlement, &outcome) {
                (Settlement::Complete, Outcome::Completed(result)) => {
                    store::complete(sql, generation, number, result, now)?
                }
                (Settlement::End(reason), outcome) => {
                    store::end(sql, generation, reason, number, outcome.error(), now)?
                }
                (_, outcome) if !counted => {
                    let due_at = now + delay;
                    next_attempt_at = Some(due_at);
                    let error = outcome.error().unwrap_or_default();
                    store::retry(sql, generation, number, due_at, error)?
                }
                _ => true,
            };
            driver.observe(transaction)?;
            let driver = driver.clone();
            transaction.on_release(Box::new(move || {
                driver.claims.borrow_mut().remove(&generation);
            }));
            Ok::<_, StorageError>(known.then_some((settlement, next_attempt_at)))
        });
        let Some((settlement, next_attempt_at)) = settled.await? else {
            // Purged meanwhile: this is the late result of an old generation.
            return Ok(());
        };
        let settled = |outcome| {
            self.tell_attempt(attempt, OperationEventKind::AttemptSettled(outcome));
        };
        match settlement {
            Settlement::Complete => settled(AttemptOutcome::Completed),
            Settlement::Retry => match next_attempt_at {
                Some(next_attempt_at) => {
                    settled(AttemptOutcome::Retrying { next_attempt_at });
                    if next_attempt_at <= self.scheduler.now() {
                        // Timers are only for later times.
                        self.wake_pump();
                    }
                }
                // The next attempt may have been due while this one's handler was still running.
                None => self.wake_pump(),
            },
            Settlement::End(reason) => {
                settled(AttemptOutcome::Failed);
                self.tell_attempt(attempt, OperationEventKind::Terminal(reason));
            }
        }
        Ok(())
    }

    fn delay(&self, attempt: &Attempt) -> Duration {
        let host = self.scheduler.host();
        let backoff = &attempt.handler.config.backoff;
        backoff.delay(attempt.number, &**host, super::CAPABILITY)
    }
}

fn timed_out(attempt: &Attempt) -> String {
    let timeout = attempt.handler.config.attempt_timeout.as_millis();
    format!("the attempt took longer than {timeout} ms")
}

type Answer = Result<Result<Value, HandlerError>, Box<dyn std::any::Any + Send>>;

fn outcome(answer: Answer) -> Outcome {
    match answer {
        Ok(Ok(result)) => Outcome::Completed(result.to_string()),
        Ok(Err(HandlerError::Retry(error))) => Outcome::Failed(error_text(&*error)),
        Ok(Err(HandlerError::NonRetryable(error))) => Outcome::NonRetryable(error_text(&*error)),
        Err(panic) => Outcome::Failed(panic_text("the handler", &*panic)),
    }
}
