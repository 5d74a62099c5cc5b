//! What an outbox keeps in memory, and its part in the object's alarm.
//!
//! Each channel makes *turns*, one at a time: a transaction that settles what has ended and starts
//! what may start (`turn`). Whatever gives a channel something to do wakes it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use futures::channel::oneshot;
use futures::future::join_all;

use super::error::OutboxError;
use super::event::OutboxEvent;
use super::lanes::{BatchId, Lanes, Ticket};
use super::publish::{ChannelConfig, Outcome, Publish, Way};
use super::store;
use crate::bugs::{self, Bug};
use crate::error::{BoxError, StorageError};
use crate::host::{LocalFuture, Sql};
use crate::lifecycle::{self, Hook};
use crate::migrations::Migration;
use crate::scheduler::{Participant, Scheduler, earlier};
use crate::time::Timestamp;

/// The outbox of one object.
pub(super) struct Driver {
    pub(super) scheduler: Scheduler,
    pub(super) hook: RefCell<Option<Hook<OutboxEvent>>>,
    pub(super) channels: RefCell<Vec<Rc<Lane>>>,
    /// No channel can be added any more.
    pub(super) opened: Cell<bool>,
    /// The order of staging, rising also from instance to instance as long as the clock does.
    staged: Cell<u64>,
}

/// One channel.
pub(super) struct Lane {
    pub(super) name: Rc<str>,
    pub(super) config: ChannelConfig,
    pub(super) publish: Way,
    pub(super) lanes: RefCell<Lanes>,
    /// Who waits to hear of a key, in line or while a batch of theirs runs.
    pub(super) waiting: RefCell<BTreeMap<Ticket, Reply>>,
    /// Batches that somebody waits for.
    pub(super) attached: RefCell<BTreeMap<BatchId, Ticket>>,
    /// Batches that have ended and are not stored as such yet.
    pub(super) settled: RefCell<Vec<Rc<Settled>>>,
    /// Events of changes that may not be durable yet: the next turn's commit comes after theirs.
    pub(super) events: RefCell<Vec<OutboxEvent>>,
    pub(super) passes: RefCell<Vec<Pass>>,
    /// Who hears of this channel's events beside the application.
    pub(super) observer: RefCell<Option<Hook<OutboxEvent>>>,
    pumping: Cell<bool>,
    again: Cell<bool>,
}

/// Whether the newest version of a key is out.
pub(super) type Reply = oneshot::Sender<Result<bool, OutboxError>>;

/// A batch whose calls have ended.
pub(super) struct Settled {
    pub(super) batch: BatchId,
    pub(super) entries: Vec<SettledEntry>,
}

/// What became of one call.
pub(super) struct SettledEntry {
    pub(super) key: String,
    pub(super) version: u64,
    pub(super) attempt: u64,
    pub(super) outcome: Outcome,
}

/// An alarm pass, or the timer before it.
pub(super) struct Pass {
    pub(super) now: Timestamp,
    /// What had started when its turn was over: what it waits for. `None` before that turn.
    pub(super) until: Option<BatchId>,
    pub(super) over: oneshot::Sender<Result<(), StorageError>>,
}

impl Driver {
    pub(super) fn new(scheduler: &Scheduler) -> Rc<Self> {
        Rc::new(Driver {
            scheduler: scheduler.clone(),
            hook: RefCell::default(),
            channels: RefCell::default(),
            opened: Cell::new(false),
            staged: Cell::new(0),
        })
    }

    pub(super) fn add(&self, name: Rc<str>, config: ChannelConfig, publish: Publish) -> Rc<Lane> {
        let lanes = Lanes::new(config.overlap, config.max_in_flight);
        let lane = Rc::new(Lane {
            name,
            config,
            publish: publish.0,
            lanes: RefCell::new(lanes),
            waiting: RefCell::default(),
            attached: RefCell::default(),
            settled: RefCell::default(),
            events: RefCell::default(),
            passes: RefCell::default(),
            observer: RefCell::default(),
            pumping: Cell::new(false),
            again: Cell::new(false),
        });
        self.channels.borrow_mut().push(lane.clone());
        lane
    }

    /// The place of the next version in the order of staging.
    pub(super) fn next_staged(&self, now: Timestamp) -> u64 {
        // 1,024 a millisecond before it runs ahead of the clock; below 2^53 for centuries.
        let next = (self.staged.get() + 1).max(now.as_millis() << 10);
        self.staged.set(next);
        next
    }

    pub(super) fn tell(&self, lane: &Lane, event: &OutboxEvent) {
        event.trace();
        let observer = lane.observer.borrow().clone();
        lifecycle::emit(observer.as_ref(), event);
        let hook = self.hook.borrow().clone();
        lifecycle::emit(hook.as_ref(), event);
    }

    /// Has a channel make a turn.
    pub(super) fn wake(self: &Rc<Self>, lane: &Rc<Lane>) {
        lane.again.set(true);
        if !lane.pumping.replace(true) {
            self.scheduler.spawn(self.clone().pump(lane.clone()));
        }
    }

    async fn pump(self: Rc<Self>, lane: Rc<Lane>) {
        while lane.again.replace(false) {
            if !self.turn(&lane).await {
                // What is due stays due, so the alarm brings the next try.
                break;
            }
        }
        lane.pumping.set(false);
    }

    /// Starts a pass over a channel; resolves when what it started has ended.
    fn pass(
        self: &Rc<Self>,
        lane: &Rc<Lane>,
        now: Timestamp,
    ) -> oneshot::Receiver<Result<(), StorageError>> {
        let (over, told) = oneshot::channel();
        lane.passes.borrow_mut().push(Pass {
            now,
            until: None,
            over,
        });
        self.wake(lane);
        told
    }
}

impl Participant for Driver {
    fn name(&self) -> &'static str {
        super::CAPABILITY
    }

    fn migrations(&self) -> &'static [Migration] {
        store::MIGRATIONS
    }

    fn load(&self, _: &dyn Sql, _: Timestamp) -> Result<(), StorageError> {
        self.opened.set(true);
        Ok(())
    }

    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        if bugs::is_on(Bug::AlarmIgnoresOutbox) {
            return Ok(None);
        }
        let mut earliest = None;
        for lane in &*self.channels.borrow() {
            earliest = earlier(earliest, store::earliest(sql, &lane.name)?);
        }
        Ok(earliest)
    }

    fn next_wake_at(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        // What is due already is on its way, or starts as soon as there is room.
        let mut earliest = None;
        for lane in &*self.channels.borrow() {
            earliest = earlier(earliest, store::earliest_after(sql, &lane.name, now)?);
        }
        Ok(earliest)
    }

    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        let lanes = self.channels.borrow().clone();
        let passes: Vec<_> = lanes.iter().map(|lane| self.pass(lane, now)).collect();
        Box::pin(async move {
            for told in join_all(passes).await {
                // A pass that nobody answers ended with its instance.
                told.unwrap_or(Ok(()))?;
            }
            Ok(())
        })
    }
}
