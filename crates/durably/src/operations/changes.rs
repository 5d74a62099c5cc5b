//! The transactions that register, cancel and purge calls. What follows their commits is the
//! matter of `capability`.

use std::rc::Rc;

use serde_json::Value;

use super::capability::{CancelOutcome, RunOutcome};
use super::decide::State;
use super::driver::{Attempt, Claim, Driver, Starting};
use super::error::OperationError;
use super::event::{OperationEvent, OperationEventKind, TerminalReason};
use super::handler::Handler;
use super::store;
use crate::host::{Sql, Transaction};
use crate::scheduler::Slot;
use crate::time::Timestamp;

/// How many calls one transaction of a purge looks at.
pub(super) const PURGE_BATCH: u64 = 500;

/// A call that is to be stored, with its place in the batch.
pub(super) struct Candidate {
    pub(super) place: usize,
    pub(super) id: String,
    pub(super) payload: Value,
    pub(super) text: String,
}

/// What a batch became.
pub(super) struct Admission {
    pub(super) outcomes: Vec<(usize, Result<RunOutcome, OperationError>)>,
    pub(super) events: Vec<OperationEvent>,
    pub(super) starting: Vec<Starting>,
    pub(super) waiting: bool,
}

/// What a cancellation became, and what follows its commit.
pub(super) struct Cancellation {
    pub(super) outcome: CancelOutcome,
    /// The attempt that is to end.
    pub(super) claim: Option<Rc<Claim>>,
    pub(super) event: Option<OperationEvent>,
}

impl Cancellation {
    fn nothing(outcome: CancelOutcome) -> Self {
        Cancellation {
            outcome,
            claim: None,
            event: None,
        }
    }
}

impl Driver {
    /// At most `wanted` slots that nobody else waits for.
    pub(super) fn free_slots(&self, wanted: usize) -> Vec<Slot> {
        if self.backlog.get() {
            return Vec::new();
        }
        std::iter::from_fn(|| self.scheduler.pool().try_acquire())
            .take(wanted)
            .collect()
    }

    /// Stores calls; as many as there are slots as started, which saves them a commit.
    pub(super) fn admit(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        handler: &Rc<Handler>,
        candidates: Vec<Candidate>,
        mut slots: Vec<Slot>,
    ) -> Result<Admission, OperationError> {
        let sql = transaction.sql();
        let now = self.scheduler.now();
        // Purging finds the oldest calls by their order, which a clock that steps back must not break.
        let created_at = now.max(self.created_at.get());
        let mut generation = self.generation.get();
        let mut admission = Admission {
            outcomes: Vec::with_capacity(candidates.len()),
            events: Vec::with_capacity(candidates.len()),
            starting: Vec::with_capacity(slots.len()),
            waiting: false,
        };
        for Candidate {
            place,
            id,
            payload,
            text,
        } in candidates
        {
            let row = store::NewRow {
                generation: generation + 1,
                id: &id,
                name: &handler.name,
                started: !slots.is_empty(),
                due_at: now,
                created_at,
                payload: &text,
            };
            if !store::insert(sql, &row)? {
                let outcome = match store::name_of(sql, &id)? {
                    Some(name) if *name != *handler.name => {
                        Err(OperationError::DuplicateCall { id, name })
                    }
                    _ => Ok(RunOutcome::Duplicate),
                };
                admission.outcomes.push((place, outcome));
                continue;
            }
            generation += 1;
            admission.outcomes.push((place, Ok(RunOutcome::Registered)));
            admission.events.push(OperationEvent {
                id: id.clone(),
                name: handler.name.clone(),
                generation,
                attempt: 0,
                at: now,
                kind: OperationEventKind::Registered,
            });
            let Some(slot) = slots.pop() else {
                admission.waiting = true;
                continue;
            };
            admission.starting.push(Starting {
                attempt: Attempt {
                    generation,
                    id,
                    number: 1,
                    handler: handler.clone(),
                    claim: Claim::new(),
                },
                payload: Ok(payload),
                slot,
            });
        }
        let claims: Vec<_> = admission
            .starting
            .iter()
            .map(|starting| (starting.attempt.generation, starting.attempt.claim.clone()))
            .collect();
        let driver = self.clone();
        let waiting = admission.waiting;
        transaction.on_release(Box::new(move || {
            driver.generation.set(generation);
            driver.created_at.set(created_at);
            driver.claims.borrow_mut().extend(claims);
            if waiting {
                driver.backlog.set(true);
            }
        }));
        Ok(admission)
    }

    pub(super) fn cancel(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        id: String,
    ) -> Result<Cancellation, OperationError> {
        let sql = transaction.sql();
        let Some(row) = store::status(sql, &id)? else {
            return Ok(Cancellation::nothing(CancelOutcome::NotFound));
        };
        if row.state.has_ended() {
            return Ok(Cancellation::nothing(CancelOutcome::AlreadyEnded));
        }
        let claim = self.claims.borrow().get(&row.generation).cloned();
        if let Some(claim) = claim {
            if row.state != State::Cancelling {
                store::request_cancel(sql, row.generation)?;
            }
            let requested = claim.clone();
            transaction.on_release(Box::new(move || requested.cancel_requested.set(true)));
            return Ok(Cancellation {
                outcome: CancelOutcome::Cancelling,
                claim: Some(claim),
                event: None,
            });
        }
        let now = self.scheduler.now();
        let reason = TerminalReason::Cancelled;
        store::end(sql, row.generation, reason, row.attempts, None, now)?;
        self.observe(transaction)?;
        let event = OperationEvent {
            id,
            name: row.name.into(),
            generation: row.generation,
            attempt: row.attempts,
            at: now,
            kind: OperationEventKind::Terminal(reason),
        };
        Ok(Cancellation {
            outcome: CancelOutcome::Cancelled,
            claim: None,
            event: Some(event),
        })
    }

    /// Removes at most `limit` old calls after the generation `after`. Says which, and where to go
    /// on if there may be more.
    pub(super) fn purge(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        before: Timestamp,
        after: u64,
        limit: u64,
        old: impl Fn(&store::OldRow) -> bool,
    ) -> Result<(Vec<OperationEvent>, Option<u64>), OperationError> {
        let sql = transaction.sql();
        let rows = store::oldest(sql, after, PURGE_BATCH)?;
        let mut more = rows.len() as u64 == PURGE_BATCH;
        let mut last = after;
        let mut removed = Vec::new();
        for row in rows {
            if row.created_at >= before {
                more = false;
                break;
            }
            if removed.len() as u64 == limit {
                break;
            }
            last = row.generation;
            if !old(&row) {
                continue;
            }
            removed.push(self.remove(sql, row)?);
        }
        if !removed.is_empty() {
            self.observe(transaction)?;
        }
        Ok((removed, more.then_some(last)))
    }

    /// Removes those of `ids` whose call had ended before `before`.
    pub(super) fn purge_ended(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        ids: &[String],
        before: Timestamp,
    ) -> Result<Vec<OperationEvent>, OperationError> {
        let sql = transaction.sql();
        let mut removed = Vec::new();
        for id in ids {
            let row = store::by_id(sql, id)?;
            let ended = row.filter(|row| row.ended_at.is_some_and(|ended_at| ended_at < before));
            if let Some(row) = ended {
                removed.push(self.remove(sql, row)?);
            }
        }
        if !removed.is_empty() {
            self.observe(transaction)?;
        }
        Ok(removed)
    }

    fn remove(&self, sql: &dyn Sql, row: store::OldRow) -> Result<OperationEvent, OperationError> {
        store::delete(sql, row.generation)?;
        if row.generation == self.generation.get() {
            store::remember_purged(sql, row.generation)?;
        }
        Ok(OperationEvent {
            id: row.id,
            name: row.name.into(),
            generation: row.generation,
            attempt: row.attempts,
            at: self.scheduler.now(),
            kind: OperationEventKind::Purged,
        })
    }
}
