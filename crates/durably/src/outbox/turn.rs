//! One turn of a channel: in one transaction, stores what became of the calls that have ended and
//! counts the attempts of those that start; then tells who waits, and makes the calls.

use std::rc::Rc;

use super::driver::{Driver, Lane, Settled, SettledEntry};
use super::error::OutboxError;
use super::event::{OutboxEvent, OutboxEventKind};
use super::lanes::{BatchId, Lanes, Ticket};
use super::publish::{Outcome, Overlap, Way};
use super::store::{self, DueEntry, Ending};
use crate::bugs::{self, Bug};
use crate::error::StorageError;
use crate::host::{Sql, Transaction};
use crate::scheduler::report;
use crate::time::Timestamp;

/// How many due entries one turn starts at most; bounds the values that are read at once.
const BATCH_LIMIT: u64 = 1_000;

/// What a turn made of its channel.
#[derive(Default)]
struct Turn {
    ended: Vec<BatchId>,
    left: Vec<Ticket>,
    starting: Vec<Starting>,
    answers: Vec<(Ticket, bool)>,
    events: Vec<OutboxEvent>,
}

/// A batch that is to run.
pub(super) struct Starting {
    pub(super) batch: BatchId,
    /// Who waits for it.
    ticket: Option<Ticket>,
    /// With the attempts that have started before.
    pub(super) entries: Vec<DueEntry>,
}

impl Driver {
    /// Makes a turn; `false` if storage refused it.
    pub(super) async fn turn(self: &Rc<Self>, lane: &Rc<Lane>) -> bool {
        // Whatever is told below was committed before this turn is.
        let staged = lane.events.take();
        let (driver, of) = (self.clone(), lane.clone());
        let made = self
            .scheduler
            .transaction(move |transaction| driver.make(transaction, &of));
        match made.await {
            Ok(turn) => {
                self.follow(lane, turn, staged);
                true
            }
            Err(error) => {
                report(super::CAPABILITY, &error);
                self.give_up(lane, &error);
                false
            }
        }
    }

    fn make(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        lane: &Rc<Lane>,
    ) -> Result<Turn, StorageError> {
        let sql = transaction.sql();
        let mut lanes = lane.lanes.borrow().clone();
        let settled = lane.settled.borrow().clone();
        let asked = lane
            .passes
            .borrow()
            .iter()
            .filter(|pass| pass.until.is_none())
            .map(|pass| pass.now)
            .max();
        let now = asked.map_or(self.scheduler.now(), |asked| {
            asked.max(self.scheduler.now())
        });
        let mut turn = Turn::default();
        for batch in &settled {
            self.settle(sql, lane, batch, now, &mut turn)?;
            lanes.end(batch.batch);
            turn.ended.push(batch.batch);
        }
        self.serve_line(sql, lane, &mut lanes, &mut turn)?;
        if asked.is_some() || !self.scheduler.is_manual() {
            self.start_due(sql, lane, &mut lanes, now, &mut turn)?;
        }
        for starting in &turn.starting {
            for entry in &starting.entries {
                store::start(sql, &lane.name, &entry.key)?;
            }
        }
        let (lane, handled) = (lane.clone(), settled.len());
        let (ended, left) = (turn.ended.clone(), turn.left.clone());
        let started: Vec<_> = turn
            .starting
            .iter()
            .map(|starting| {
                let keys: Vec<_> = starting
                    .entries
                    .iter()
                    .map(|entry| entry.key.clone())
                    .collect();
                (starting.batch, starting.ticket, keys)
            })
            .collect();
        transaction.on_release(Box::new(move || {
            lane.settled.borrow_mut().drain(..handled);
            let mut lanes = lane.lanes.borrow_mut();
            ended.into_iter().for_each(|batch| lanes.end(batch));
            left.into_iter().for_each(|ticket| lanes.leave(ticket));
            let mut attached = lane.attached.borrow_mut();
            for (batch, ticket, keys) in started {
                let same = lanes.start(keys);
                debug_assert_eq!(batch, same, "only turns start batches, one at a time");
                attached.extend(ticket.map(|ticket| (batch, ticket)));
            }
            let until = lanes.next_batch();
            let mut passes = lane.passes.borrow_mut();
            // One that was asked for since waits for the next turn.
            let asked_before = |pass: &&mut super::driver::Pass| {
                pass.until.is_none() && asked.is_some_and(|asked| pass.now <= asked)
            };
            for pass in passes.iter_mut().filter(asked_before) {
                pass.until = Some(until);
            }
        }));
        Ok(turn)
    }

    /// Stores what became of a batch.
    fn settle(
        &self,
        sql: &dyn Sql,
        lane: &Lane,
        batch: &Settled,
        now: Timestamp,
        turn: &mut Turn,
    ) -> Result<(), StorageError> {
        for entry in &batch.entries {
            let kind = self.settle_entry(sql, lane, entry, now)?;
            turn.events.extend(kind.map(|kind| OutboxEvent {
                channel: lane.name.clone(),
                key: entry.key.clone(),
                version: entry.version,
                attempt: entry.attempt,
                at: now,
                kind,
            }));
        }
        let ticket = lane.attached.borrow().get(&batch.batch).copied();
        if let (Some(ticket), Some(entry)) = (ticket, batch.entries.first()) {
            let pending = store::pending_of_key(sql, &lane.name, &entry.key)?;
            turn.answers.push((ticket, pending.is_none()));
        }
        Ok(())
    }

    /// Stores what became of one call, if its version is still the one that is pending.
    fn settle_entry(
        &self,
        sql: &dyn Sql,
        lane: &Lane,
        entry: &SettledEntry,
        now: Timestamp,
    ) -> Result<Option<OutboxEventKind>, StorageError> {
        let (name, key, mut version) = (&*lane.name, &*entry.key, entry.version);
        if bugs::is_on(Bug::OlderOutcomeEndsNewer) {
            version = store::newest(sql, name, key)?.map_or(version, |(newest, _)| newest);
        }
        let (counts, kind) = match &entry.outcome {
            Outcome::Done => (
                store::end(sql, name, key, version, Ending::Delivered)?,
                OutboxEventKind::Delivered,
            ),
            Outcome::Dropped => (
                store::end(sql, name, key, version, Ending::Discarded)?,
                OutboxEventKind::Discarded,
            ),
            Outcome::Retry { after, error } => {
                let delay = after.unwrap_or_else(|| {
                    let host = self.scheduler.host();
                    let backoff = &lane.config.backoff;
                    backoff.delay(entry.attempt, &**host, super::CAPABILITY)
                });
                let next_attempt_at = now + delay.min(crate::time::MAX_DURATION);
                let kind = OutboxEventKind::Retrying {
                    next_attempt_at,
                    error: error.clone(),
                };
                let error = error.as_deref();
                let counts = store::retry(sql, name, key, version, next_attempt_at, error)?;
                (counts, kind)
            }
        };
        Ok(counts.then_some(kind))
    }

    /// Serves who is in line, as far as their lanes are free.
    fn serve_line(
        &self,
        sql: &dyn Sql,
        lane: &Lane,
        lanes: &mut Lanes,
        turn: &mut Turn,
    ) -> Result<(), StorageError> {
        while let Some((ticket, key)) = lanes.next_in_line() {
            let entry = store::pending_of_key(sql, &lane.name, key)?;
            lanes.leave(ticket);
            turn.left.push(ticket);
            match entry {
                Some(entry) => {
                    let batch = lanes.start([entry.key.clone()]);
                    turn.starting.push(Starting {
                        batch,
                        ticket: Some(ticket),
                        entries: vec![entry],
                    });
                }
                None => turn.answers.push((ticket, true)),
            }
        }
        Ok(())
    }

    /// Starts what is due, as far as there is room.
    fn start_due(
        &self,
        sql: &dyn Sql,
        lane: &Lane,
        lanes: &mut Lanes,
        now: Timestamp,
        turn: &mut Turn,
    ) -> Result<(), StorageError> {
        let room = lanes.room().min(BATCH_LIMIT);
        if room == 0 {
            return Ok(());
        }
        // What is on its way is due as well, so the limit makes room for it.
        let due = store::due_keys(sql, &lane.name, now, room + lanes.in_flight())?;
        let mut entries = Vec::new();
        for key in due.into_iter().filter(|key| !lanes.is_in_flight(key)) {
            if entries.len() as u64 == room {
                break;
            }
            entries.extend(store::pending_of_key(sql, &lane.name, &key)?);
        }
        let batches = match (lane.config.overlap, &lane.publish) {
            (Overlap::PerKey, Way::Each(_)) => {
                entries.into_iter().map(|entry| vec![entry]).collect()
            }
            _ if entries.is_empty() => Vec::new(),
            _ => vec![entries],
        };
        for entries in batches {
            let batch = lanes.start(entries.iter().map(|entry| entry.key.clone()));
            turn.starting.push(Starting {
                batch,
                ticket: None,
                entries,
            });
        }
        Ok(())
    }

    /// What comes after the commit of a turn.
    fn follow(self: &Rc<Self>, lane: &Rc<Lane>, turn: Turn, staged: Vec<OutboxEvent>) {
        for event in staged.iter().chain(&turn.events) {
            self.tell(lane, event);
        }
        for batch in &turn.ended {
            lane.attached.borrow_mut().remove(batch);
        }
        for (ticket, published) in turn.answers {
            if let Some(reply) = lane.waiting.borrow_mut().remove(&ticket) {
                // The caller may have stopped waiting.
                let _ = reply.send(Ok(published));
            }
        }
        for starting in turn.starting {
            for entry in &starting.entries {
                self.tell(
                    lane,
                    &OutboxEvent {
                        channel: lane.name.clone(),
                        key: entry.key.clone(),
                        version: entry.version,
                        attempt: entry.attempts + 1,
                        at: self.scheduler.now(),
                        kind: OutboxEventKind::AttemptStarted,
                    },
                );
            }
            self.scheduler
                .spawn(self.clone().run(lane.clone(), starting));
        }
        let oldest = lane.lanes.borrow().oldest();
        let passes = lane.passes.take();
        let (over, left): (Vec<_>, Vec<_>) = passes.into_iter().partition(|pass| {
            pass.until
                .is_some_and(|until| oldest.is_none_or(|oldest| oldest >= until))
        });
        lane.passes.borrow_mut().extend(left);
        for pass in over {
            let _ = pass.over.send(Ok(()));
        }
    }

    /// Tells everybody who waits that storage refused a turn. What has ended stays to be stored by the
    /// next one.
    fn give_up(&self, lane: &Lane, error: &StorageError) {
        for pass in lane.passes.take() {
            let _ = pass.over.send(Err(error.clone()));
        }
        for (ticket, reply) in lane.waiting.take() {
            lane.lanes.borrow_mut().leave(ticket);
            let _ = reply.send(Err(OutboxError::Storage(error.clone())));
        }
    }
}
