//! One instance of a queue: its transactions, and that nothing leaves it before it is durable.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures::channel::oneshot;

use super::book::{Book, Name};
use super::builder::{AdmitCallback, FinishedCallback, Settings};
use super::event::{QueueEvent, TARGET};
use super::lease::Phase;
use super::store::{self, State};
use super::transport::HolderTransport;
use crate::bugs::{Bug, is_on};
use crate::error::{BoxError, OpenError, StorageError};
use crate::host::{LocalFuture, Sql};
use crate::lifecycle::{Hook, emit};
use crate::migrations::Migration;
use crate::scheduler::{Participant, Scheduler, earlier};
use crate::time::Timestamp;

pub(super) struct Inner {
    itself: Weak<Inner>,
    pub(super) scheduler: Scheduler,
    pub(super) client_id: String,
    pub(super) holder: Rc<dyn HolderTransport>,
    pub(super) admit: AdmitCallback,
    pub(super) finished: Option<FinishedCallback>,
    pub(super) settings: Settings,
    pub(super) book: RefCell<Book>,
    /// By key, what has a request that is out leave for a newer one when it is dropped.
    pub(super) asking: RefCell<BTreeMap<Name, oneshot::Sender<()>>>,
    hook: Option<Hook<QueueEvent>>,
    durability: Durability,
    /// When something is pending that the transaction under way stores and the book does not show
    /// yet.
    storing: Cell<Option<Timestamp>>,
    /// The earliest wake that the scheduler has heard of.
    heard: Cell<Option<Timestamp>>,
}

/// What a transaction of the queue does beside its rows.
pub(super) struct Change<T> {
    pub(super) value: T,
    /// Told after the commit.
    pub(super) events: Vec<QueueEvent>,
    /// The earliest time at which something is pending by it.
    pub(super) pending: Option<Timestamp>,
    /// How the book follows.
    pub(super) apply: Box<dyn FnOnce(&mut Book)>,
}

/// How far the changes that the book shows are durable. The book is ahead between a savepoint and
/// its commit, and then nobody outside may learn of it.
#[derive(Default)]
struct Durability {
    shown: Cell<u64>,
    durable: Cell<u64>,
    waiting: RefCell<Vec<(u64, oneshot::Sender<()>)>>,
}

impl Durability {
    fn reached(&self, version: u64) {
        let durable = self.durable.get().max(version);
        self.durable.set(durable);
        let mut waiting = self.waiting.borrow_mut();
        let (done, left) = waiting.drain(..).partition(|(of, _)| *of <= durable);
        *waiting = left;
        drop(waiting);
        let done: Vec<(u64, oneshot::Sender<()>)> = done;
        for (_, waiting) in done {
            let _ = waiting.send(());
        }
    }
}

impl Inner {
    pub(super) fn new(
        scheduler: Scheduler,
        client_id: String,
        holder: Rc<dyn HolderTransport>,
        admit: AdmitCallback,
        finished: Option<FinishedCallback>,
        hook: Option<Hook<QueueEvent>>,
        settings: Settings,
    ) -> Rc<Inner> {
        // Replaced by what the rows say when the object opens.
        let wait = settings.request_wait;
        let book = Book::new(settings.max_admitted, None, settings.retention, wait);
        Rc::new_cyclic(|itself| Inner {
            itself: itself.clone(),
            scheduler,
            client_id,
            holder,
            admit,
            finished,
            settings,
            book: RefCell::new(book),
            asking: RefCell::default(),
            hook,
            durability: Durability::default(),
            storing: Cell::new(None),
            heard: Cell::new(None),
        })
    }

    pub(super) fn attach(self: &Rc<Self>) -> Result<(), OpenError> {
        self.scheduler.attach(self)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.scheduler.now()
    }

    /// Stores what `work` decides from the book as it is when its turn comes. What follows from the
    /// commit follows also if the returned future is dropped.
    pub(super) fn store<T, Work>(
        self: &Rc<Self>,
        work: Work,
    ) -> impl Future<Output = Result<T, StorageError>> + use<T, Work>
    where
        T: 'static,
        Work: FnOnce(&Book, &dyn Sql) -> Result<Change<T>, StorageError> + 'static,
    {
        let inner = self.clone();
        let version = Rc::new(Cell::new(0));
        let shown = version.clone();
        let stored = self.scheduler.transaction(move |transaction| {
            inner.storing.set(None);
            let change = work(&inner.book.borrow(), transaction.sql())?;
            inner.storing.set(change.pending);
            let Change {
                value,
                events,
                apply,
                ..
            } = change;
            let following = inner.clone();
            transaction.on_release(Box::new(move || {
                following.storing.set(None);
                apply(&mut following.book.borrow_mut());
                let version = following.durability.shown.get() + 1;
                following.durability.shown.set(version);
                shown.set(version);
            }));
            Ok::<_, StorageError>((value, events))
        });
        let inner = self.clone();
        let (answer, answered) = oneshot::channel();
        self.scheduler.spawn(async move {
            let result = stored.await.map(|(value, events)| {
                inner.durability.reached(version.get());
                for event in events {
                    inner.tell(&event);
                }
                inner.pump();
                value
            });
            // Whoever asked may have left.
            let _ = answer.send(result);
        });
        async move {
            answered.await.unwrap_or_else(|oneshot::Canceled| {
                Err(StorageError::Ended(
                    "a queue's transaction was cut off".into(),
                ))
            })
        }
    }

    /// Resolves when everything that the book shows now is durable.
    pub(super) async fn durable(&self) {
        let shown = self.durability.shown.get();
        if self.durability.durable.get() >= shown {
            return;
        }
        let (reached, wait) = oneshot::channel();
        self.durability.waiting.borrow_mut().push((shown, reached));
        // Its sender goes only with the instance.
        let _ = wait.await;
    }

    /// Whether anybody hears events, so that none are made for nobody.
    pub(super) fn is_heard(&self) -> bool {
        self.hook.is_some() || tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
    }

    pub(super) fn tell(&self, event: &QueueEvent) {
        event.trace();
        emit(self.hook.as_ref(), event);
    }

    /// Reports a failure in the background.
    pub(super) fn report(&self, problem: &str, error: &dyn std::fmt::Display) {
        tracing::error!(
            target: TARGET,
            problem,
            error = %error,
            "durability.background_execution.failed"
        );
    }

    /// The delay after so many failures in a row.
    pub(super) fn delay(&self) -> impl FnOnce(u32) -> Duration + use<> {
        let mut bytes = [0; 8];
        self.scheduler.host().random(&mut bytes);
        let random = u64::from_le_bytes(bytes);
        let backoff = self.settings.backoff;
        move |failures| backoff.delay(failures, random)
    }

    /// Starts everything that is to be done now.
    pub(super) fn pump(self: &Rc<Self>) {
        self.pump_at(self.now());
    }

    fn pump_at(self: &Rc<Self>, now: Timestamp) {
        if self.heard.get().is_some_and(|heard| heard <= now) {
            self.heard.set(None);
        }
        let starts = self.book.borrow_mut().start(now);
        for start in starts {
            let inner = self.clone();
            self.scheduler.spawn(async move {
                inner.durable().await;
                inner.perform(start).await;
                inner.pump();
            });
        }
        self.keep_awake();
    }

    /// Has the scheduler hear of a wake that it does not know of.
    fn keep_awake(self: &Rc<Self>) {
        let first = self.book.borrow().first_wake();
        let Some(first) = first else { return };
        if self.heard.get().is_some_and(|heard| heard <= first) {
            return;
        }
        self.heard.set(Some(first));
        // A transaction that only has the scheduler set its alarm and timer.
        let heard = self.scheduler.transaction(|_| Ok::<_, StorageError>(()));
        let inner = self.clone();
        self.scheduler.spawn(async move {
            if let Err(error) = heard.await {
                inner.report("a wake-up could not be set", &error);
            }
        });
    }

    /// A book of what the rows say.
    pub(super) fn read_book(&self, sql: &dyn Sql) -> Result<Book, StorageError> {
        let settings = &self.settings;
        let finished_after = self.finished.as_ref().map(|_| settings.finished_after);
        let mut book = Book::new(
            settings.max_admitted,
            finished_after,
            settings.retention,
            settings.request_wait,
        );
        for lease in store::leases(sql)? {
            if lease.phase == Phase::Stopped && is_on(Bug::ForgetStoppedLease) {
                continue;
            }
            book.load_lease(&lease);
        }
        for group in store::waiting_groups(sql)? {
            let seqs = (group.first_seq, group.last_seq);
            book.load_group(&group.key, &group.group, group.count, seqs);
            if let Some(first) = store::oldest(sql, &group.key, &group.group, 1)?.first() {
                book.load_oldest(&group.key, &group.group, first.place.queued_at);
            }
        }
        for grant in store::grants(sql)? {
            let mut items = Vec::with_capacity(grant.items.len());
            for id in &grant.items {
                // An id that was used again since belongs to another item.
                let is_own = |row: &store::ItemRow| {
                    row.key == grant.key && row.grant_id.as_ref() == Some(&grant.grant_id)
                };
                let own = store::item(sql, id)?.filter(is_own);
                let place = own.and_then(|row| match row.state {
                    State::Assigned => Some((row.place, false)),
                    State::Cancelled => Some((row.place, true)),
                    State::Queued | State::Finished => None,
                });
                items.push((id.as_str().into(), place));
            }
            book.load_grant(&grant, items);
        }
        for (key, id) in store::requests(sql)? {
            book.load_request(&key, &id);
        }
        let first = store::first_finished(sql)?;
        book.load_settled(first.map(|batch| batch.settled_at));
        Ok(book)
    }
}

impl Participant for Inner {
    fn name(&self) -> &'static str {
        "semaphore_queue"
    }

    fn migrations(&self) -> &'static [Migration] {
        store::MIGRATIONS
    }

    fn load(&self, sql: &dyn Sql, _now: Timestamp) -> Result<(), StorageError> {
        let book = self.read_book(sql)?;
        *self.book.borrow_mut() = book;
        Ok(())
    }

    fn opened(&self) {
        if let Some(inner) = self.itself.upgrade() {
            inner.pump();
        }
    }

    fn next_pending_at(&self, _sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        let book = self.book.borrow();
        self.heard.set(book.first_wake());
        Ok(earlier(book.next_pending_at(), self.storing.get()))
    }

    fn next_wake_at(
        &self,
        _sql: &dyn Sql,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        let stored = self.storing.get().filter(|at| *at > now);
        Ok(earlier(self.book.borrow().first_wake(), stored))
    }

    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        // What is started goes on by itself, each part bounded by its own timeout; an alarm pass
        // that waited for it would keep other capabilities' alarms away.
        self.pump_at(now);
        Box::pin(async { Ok(()) })
    }
}
