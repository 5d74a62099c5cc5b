//! Claims due calls and has their attempts started, as far as there are slots.
//!
//! A claim is held in memory from the release of the transaction that starts an attempt until its
//! handler has really ended and the outcome is stored; a row without a claim that says `started`
//! was cut off by the death of an earlier instance. Claims change only when a savepoint is released,
//! so a transaction always sees those that belong to the rows it sees.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures::channel::oneshot;
use serde_json::Value;

use super::decide::{self, Pick, State};
use super::event::{OperationEvent, OperationEventKind};
use super::handler::Handler;
use super::store;
use super::token::Canceller;
use crate::bugs::{Bug, is_on};
use crate::error::{BoxError, StorageError};
use crate::host::{LocalFuture, Sql, Transaction};
use crate::lifecycle::{self, Hook};
use crate::migrations::Migration;
use crate::scheduler::{Participant, Scheduler, Slot, report};
use crate::time::Timestamp;

/// How many calls one transaction starts at most; bounds the payloads that are read at once.
const START_BATCH: usize = 64;
/// How many due calls one query looks for beyond those that are running already.
const LOOK_AHEAD: u64 = 256;
/// How many due calls one transaction looks at, whatever becomes of them.
const PICK_LIMIT: usize = 256;
/// When a call whose handler is not registered is looked at again.
const UNREGISTERED_DELAY: Duration = Duration::from_secs(60);

/// What the capability keeps in memory.
pub(super) struct Driver {
    /// Itself, for what is called without an `Rc`.
    me: Weak<Driver>,
    pub(super) scheduler: Scheduler,
    pub(super) handlers: BTreeMap<String, Rc<Handler>>,
    pub(super) hook: Option<Hook<OperationEvent>>,
    /// The last generation given out.
    pub(super) generation: Cell<u64>,
    /// The newest creation time, which later ones never fall below.
    pub(super) created_at: Cell<Timestamp>,
    pub(super) claims: RefCell<BTreeMap<u64, Rc<Claim>>>,
    /// Due calls that were looked up ahead. Only a hint: a call is looked at again when it starts.
    ahead: RefCell<VecDeque<u64>>,
    /// Whether there may be a due call without a claim.
    pub(super) backlog: Cell<bool>,
    pumping: Cell<bool>,
    /// A pass was asked for this time, which the clock may not have reached when it is asked again.
    asked: Cell<Timestamp>,
    passes: RefCell<Vec<Pass>>,
}

/// The earliest due time that a transaction left behind, or why it failed.
type Observation = Result<Option<Timestamp>, StorageError>;

/// A pass that is not over.
struct Pass {
    now: Timestamp,
    over: oneshot::Sender<Result<(), StorageError>>,
}

impl Pass {
    /// Whether no call that was due for it is left.
    fn is_over(&self, observation: &Observation) -> bool {
        match observation {
            Ok(earliest) => earliest.is_none_or(|earliest| earliest > self.now),
            Err(_) => true,
        }
    }
}

/// An attempt that this instance is running.
pub(super) struct Claim {
    pub(super) canceller: Canceller,
    pub(super) cancel_requested: Cell<bool>,
}

impl Claim {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Claim {
            canceller: Canceller::new(),
            cancel_requested: Cell::new(false),
        })
    }
}

/// An attempt whose start is stored, with what it needs to run.
pub(super) struct Attempt {
    pub(super) generation: u64,
    pub(super) id: String,
    pub(super) number: u64,
    pub(super) handler: Rc<Handler>,
    pub(super) claim: Rc<Claim>,
}

/// An attempt that is to run, in its slot.
pub(super) struct Starting {
    pub(super) attempt: Attempt,
    pub(super) payload: Result<Value, serde_json::Error>,
    pub(super) slot: Slot,
}

/// What a transaction made of the due calls that it looked at.
#[derive(Default)]
struct Picked {
    starting: Vec<Starting>,
    events: Vec<OperationEvent>,
    unregistered: BTreeMap<String, u64>,
}

impl Driver {
    pub(super) fn new(
        scheduler: Scheduler,
        handlers: BTreeMap<String, Rc<Handler>>,
        hook: Option<Hook<OperationEvent>>,
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Driver {
            me: me.clone(),
            scheduler,
            handlers,
            hook,
            generation: Cell::new(0),
            created_at: Cell::new(Timestamp::ZERO),
            claims: RefCell::default(),
            ahead: RefCell::default(),
            backlog: Cell::new(false),
            pumping: Cell::new(false),
            asked: Cell::new(Timestamp::ZERO),
            passes: RefCell::default(),
        })
    }

    pub(super) fn tell(&self, event: &OperationEvent) {
        event.trace();
        lifecycle::emit(self.hook.as_ref(), event);
    }

    pub(super) fn tell_attempt(&self, attempt: &Attempt, kind: OperationEventKind) {
        self.tell(&OperationEvent {
            id: attempt.id.clone(),
            name: attempt.handler.name.clone(),
            generation: attempt.generation,
            attempt: attempt.number,
            at: self.scheduler.now(),
            kind,
        });
    }

    /// Starts a pass for `now` and resolves when no call that was due then is left.
    pub(super) fn pass(
        self: Rc<Self>,
        now: Timestamp,
    ) -> impl Future<Output = Result<(), BoxError>> + 'static {
        self.asked.set(self.asked.get().max(now));
        let (over, told) = oneshot::channel();
        self.passes.borrow_mut().push(Pass { now, over });
        self.wake_pump();
        async move {
            match told.await {
                Ok(outcome) => Ok(outcome?),
                Err(oneshot::Canceled) => Ok(()),
            }
        }
    }

    /// Ends the passes that are over. The others stay, since the transaction that ends the last of
    /// their calls may follow before a pass could ask again: in the same commit, for one.
    pub(super) fn tell_passes(&self, observation: &Observation) {
        let passes = self.passes.take();
        let (over, left): (Vec<_>, Vec<_>) = passes
            .into_iter()
            .filter(|pass| !pass.over.is_canceled())
            .partition(|pass| pass.is_over(observation));
        self.passes.borrow_mut().extend(left);
        for pass in over {
            // A pass that was dropped needs no answer.
            let _ = pass.over.send(observation.clone().map(|_| ()));
        }
    }

    /// Tells waiting passes what `transaction` leaves to be done. Called by each that ends or moves
    /// calls; a pass that comes later hears from the pump that it wakes.
    pub(super) fn observe(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
    ) -> Result<(), StorageError> {
        if self.passes.borrow().is_empty() {
            return Ok(());
        }
        let earliest = store::earliest(transaction.sql())?;
        let driver = self.clone();
        transaction.on_release(Box::new(move || driver.tell_passes(&Ok(earliest))));
        Ok(())
    }

    /// Has due calls started as soon as there are slots for them.
    pub(super) fn wake_pump(self: &Rc<Self>) {
        self.backlog.set(true);
        if !self.pumping.replace(true) {
            self.scheduler.spawn(self.clone().pump());
        }
    }

    async fn pump(self: Rc<Self>) {
        while self.backlog.get() {
            let pool = self.scheduler.pool();
            let mut slots = vec![pool.acquire().await];
            while slots.len() < START_BATCH
                && let Some(slot) = pool.try_acquire()
            {
                slots.push(slot);
            }
            match self.start_due(slots).await {
                Ok(picked) => self.follow(picked),
                Err(error) => {
                    // The calls are still due, so the alarm brings the next try.
                    report(super::CAPABILITY, &error);
                    self.tell_passes(&Err(error));
                    break;
                }
            }
        }
        self.pumping.set(false);
    }

    /// Stores the start of as many due calls as there are slots.
    fn start_due(
        self: &Rc<Self>,
        slots: Vec<Slot>,
    ) -> impl Future<Output = Result<Picked, StorageError>> + 'static {
        let driver = self.clone();
        self.scheduler.transaction(move |transaction| {
            let asked = driver.asked.replace(Timestamp::ZERO);
            let now = driver.scheduler.now().max(asked);
            // Lost if this fails, which costs no more than looking it up again.
            let mut ahead = driver.ahead.take();
            let (picked, more) = driver.pick_due(transaction.sql(), now, slots, &mut ahead)?;
            driver.observe(transaction)?;
            let claims: Vec<_> = picked
                .starting
                .iter()
                .map(|starting| (starting.attempt.generation, starting.attempt.claim.clone()))
                .collect();
            let driver = driver.clone();
            transaction.on_release(Box::new(move || {
                driver.claims.borrow_mut().extend(claims);
                driver.ahead.replace(ahead);
                driver.backlog.set(more);
            }));
            Ok(picked)
        })
    }

    /// Looks at due calls, longest due first, until slots or calls run out; says whether there may
    /// be more of them.
    fn pick_due(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
        mut slots: Vec<Slot>,
        ahead: &mut VecDeque<u64>,
    ) -> Result<(Picked, bool), StorageError> {
        let mut picked = Picked::default();
        let mut exhausted = false;
        let mut looked_at = 0;
        while looked_at < PICK_LIMIT {
            let Some(slot) = slots.pop() else { break };
            if ahead.is_empty() && !exhausted {
                exhausted = self.look_ahead(sql, now, &picked, ahead)?;
            }
            let Some(generation) = ahead.pop_front() else {
                return Ok((picked, false));
            };
            looked_at += 1;
            let unused = self.pick(sql, now, generation, slot, &mut picked)?;
            slots.extend(unused);
        }
        Ok((picked, !(exhausted && ahead.is_empty())))
    }

    /// Looks up due calls without a claim; says whether these are all.
    fn look_ahead(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
        picked: &Picked,
        ahead: &mut VecDeque<u64>,
    ) -> Result<bool, StorageError> {
        let claims = self.claims.borrow();
        let starting = &picked.starting;
        // Calls that are running are due as well, so the limit makes room for them.
        let limit = (claims.len() + starting.len()) as u64 + LOOK_AHEAD;
        let found = store::due(sql, now, limit)?;
        let all = (found.len() as u64) < limit;
        ahead.extend(found.into_iter().filter(|generation| {
            !claims.contains_key(generation)
                && !starting
                    .iter()
                    .any(|other| other.attempt.generation == *generation)
        }));
        Ok(all)
    }

    /// Starts, ends or puts off one due call. Gives the slot back if it is not needed.
    fn pick(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
        generation: u64,
        slot: Slot,
        picked: &mut Picked,
    ) -> Result<Option<Slot>, StorageError> {
        // Meanwhile it may have ended, or be running.
        if self.claims.borrow().contains_key(&generation) {
            return Ok(Some(slot));
        }
        let Some(row) = store::due_row(sql, generation, now)? else {
            return Ok(Some(slot));
        };
        if row.progress.state == State::Started && is_on(Bug::ForgetInterrupted) {
            return Ok(Some(slot));
        }
        let handler = self.handlers.get(&row.name);
        match decide::pick(row.progress, handler.map(|handler| &handler.config)) {
            Pick::Start {
                attempt,
                interruptions,
            } => {
                let Some(handler) = handler.cloned() else {
                    return Ok(Some(slot));
                };
                store::start(sql, generation, interruptions)?;
                picked.starting.push(Starting {
                    attempt: Attempt {
                        generation,
                        id: row.id,
                        number: attempt,
                        handler,
                        claim: Claim::new(),
                    },
                    payload: serde_json::from_str(row.payload.as_deref().unwrap_or_default()),
                    slot,
                });
                Ok(None)
            }
            Pick::End(reason) => {
                let attempts = row.progress.attempts;
                store::end(sql, generation, reason, attempts, None, now)?;
                picked.events.push(OperationEvent {
                    id: row.id,
                    name: row.name.into(),
                    generation,
                    attempt: attempts,
                    at: now,
                    kind: OperationEventKind::Terminal(reason),
                });
                Ok(Some(slot))
            }
            Pick::Postpone => {
                let error = format!("no handler is named {:?}", row.name);
                store::postpone(sql, generation, now + UNREGISTERED_DELAY, &error)?;
                *picked.unregistered.entry(row.name).or_default() += 1;
                Ok(Some(slot))
            }
        }
    }

    fn follow(self: &Rc<Self>, picked: Picked) {
        for (name, calls) in picked.unregistered {
            let error = format!("no handler is named {name:?}: {calls} calls of it wait");
            report(super::CAPABILITY, &error);
        }
        for event in &picked.events {
            self.tell(event);
        }
        self.begin(picked.starting);
    }

    /// Runs attempts whose start is committed.
    pub(super) fn begin(self: &Rc<Self>, starting: Vec<Starting>) {
        for starting in starting {
            self.tell_attempt(&starting.attempt, OperationEventKind::AttemptStarted);
            self.scheduler.spawn(self.clone().run(starting));
        }
    }
}

impl Participant for Driver {
    fn name(&self) -> &'static str {
        super::CAPABILITY
    }

    fn migrations(&self) -> &'static [Migration] {
        store::MIGRATIONS
    }

    fn load(&self, sql: &dyn Sql, now: Timestamp) -> Result<(), StorageError> {
        let (generation, created_at) = store::newest(sql)?;
        self.generation.set(generation);
        self.created_at.set(created_at);
        let earliest = store::earliest(sql)?;
        self.backlog.set(earliest.is_some_and(|at| at <= now));
        Ok(())
    }

    fn opened(&self) {
        if let Some(driver) = self.me.upgrade()
            && self.backlog.get()
        {
            driver.wake_pump();
        }
    }

    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        store::earliest(sql)
    }

    fn next_wake_at(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        store::earliest_after(sql, now)
    }

    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(self.pass(now))
    }
}
