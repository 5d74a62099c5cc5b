//! The holder: takes messages, holds rounds at their time, answers after the commit.
//!
//! Decided here: when a round takes place, who is in it, and in which order its effects are seen.
//! Not decided here: who gets what ([`round`](super::round)), what the limits are
//! ([`limits`](super::limits)), what the rows look like ([`store`](super::store)).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use futures::channel::oneshot;
use futures::future::Either;
use tracing::Instrument;

use super::book::Book;
use super::builder::{SemaphoreBuilder, Settings};
use super::error::SemaphoreError;
use super::event::{GroupStanding, SemaphoreEvent, Standing, TARGET, Usage};
use super::lease_options::LeaseOptions;
use super::leases::Leasing;
use super::ledger::{Delta, Ledger};
use super::limits::Limits;
use super::protocol::{GrantReport, LeaseReport, Message, PermitSync, Reply, SyncReply, check_id};
use super::round::{Policy, usage};
use super::rounds::Rounds;
use super::store::{self, Changes, GrantRow, LeaseRow};
use super::tap::{Act, Told};
use crate::bugs::{Bug, is_on};
use crate::error::{BoxError, ConfigError, OpenError, StorageError};
use crate::host::{LocalFuture, Sql, Transaction};
use crate::lifecycle::{Hook, emit};
use crate::migrations::Migration;
use crate::scheduler::{Participant, Scheduler};
use crate::time::Timestamp;

/// The holder's schema, for [`migrate`](crate::migrations::migrate).
pub const MIGRATIONS: &[Migration] = store::MIGRATIONS;

/// Of how many clients it is known when they were last heard of.
const MAX_HEARD: usize = 10_000;

/// Below this many rows a debug build compares the sums with the rows after every change.
#[cfg(debug_assertions)]
const ALWAYS_COMPARED: u64 = 200;

/// Holds one concurrency budget for many clients, within the object that owns it. Clones are
/// handles to the same holder.
///
/// ```no_run
/// # use durably::{OpenError, Scheduler};
/// use std::time::Duration;
/// use durably::semaphore::Semaphore;
///
/// # fn build(scheduler: Scheduler) -> Result<Semaphore, OpenError> {
/// // 12 permits for all, at most 8 of them for one group.
/// let semaphore = Semaphore::builder(&scheduler)
///     .limit(12)
///     .group_limit(|_group| async { Ok(Some(8)) })
///     .round_wait(Duration::from_millis(50))
///     .build()?;
/// # Ok(semaphore)
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore(Rc<Inner>);

pub(super) struct Inner {
    pub(super) scheduler: Scheduler,
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    hook: Option<Hook<SemaphoreEvent>>,
    leases: RefCell<Option<LeaseOptions>>,
    pub(super) ledger: RefCell<Ledger>,
    pub(super) rounds: Rounds,
    pub(super) told: Told,
    /// When each client was last heard of since the object was opened.
    pub(super) heard: RefCell<BTreeMap<String, Timestamp>>,
    /// Whether any client without storage may be registered.
    pub(super) ephemeral: Cell<bool>,
}

impl Semaphore {
    /// Starts to configure the holder of the object that `scheduler` belongs to.
    pub fn builder(scheduler: &Scheduler) -> SemaphoreBuilder {
        SemaphoreBuilder::new(scheduler.clone())
    }

    pub(super) fn new(inner: Rc<Inner>) -> Semaphore {
        Semaphore(inner)
    }

    pub(super) fn inner(&self) -> &Rc<Inner> {
        &self.0
    }

    /// Takes a message: a sync is applied and answered at once, a request is answered by its
    /// round. The message is taken when this is called; dropping the returned future gives up the
    /// answer, not the message.
    ///
    /// Requests wait in memory only. If the instance ends first, the call fails and the client asks
    /// again.
    ///
    /// # Errors
    ///
    /// [`SemaphoreError::Malformed`], [`SemaphoreError::Overloaded`], [`SemaphoreError::Limit`] if
    /// the limit of the round could not be read, [`SemaphoreError::Storage`]. Nothing of the message
    /// is stored then.
    pub fn handle(
        &self,
        message: Message,
    ) -> impl Future<Output = Result<Reply, SemaphoreError>> + use<> {
        let span = tracing::debug_span!(
            target: TARGET,
            "Semaphore.handle",
            client_id = message.client_id()
        );
        let taken = message
            .check()
            .map_err(SemaphoreError::from)
            .and_then(|()| {
                let now = self.0.scheduler.now();
                self.0.hear(message.client_id(), now);
                let act = self.0.told.begin(now, Act::Message(&message));
                match message {
                    Message::Request(request) => {
                        let taken = self.0.clone().request(request, act, now);
                        if let Err(error) = &taken {
                            self.0.told.answered(act, act, Err(error));
                        }
                        self.0.told.end(act, false);
                        taken.map(Taken::Request)
                    }
                    Message::Sync(sync) => Ok(Taken::Sync(self.0.clone().sync(sync, act, now))),
                }
            });
        async move {
            match taken? {
                Taken::Sync(answer) => answer.await,
                Taken::Request(answer) => answer.await.unwrap_or_else(|_| {
                    let problem = "the request was waiting for its round".to_owned();
                    Err(StorageError::Ended(problem).into())
                }),
            }
        }
        .instrument(span)
    }

    /// Takes a message as it came over the wire, like [`handle`](Self::handle).
    ///
    /// # Errors
    ///
    /// As [`handle`](Self::handle).
    pub fn handle_json(
        &self,
        json: &[u8],
    ) -> impl Future<Output = Result<Reply, SemaphoreError>> + use<> {
        let answer = Message::from_json(json).map(|message| self.handle(message));
        async move { answer?.await }
    }

    /// What is given out now, with the limits as they are now. Permits that were not claimed in
    /// time do not count, also if no cleanup has taken them back yet.
    ///
    /// # Errors
    ///
    /// [`SemaphoreError::Limit`] if the limit cannot be read, [`SemaphoreError::Storage`]. A group
    /// whose ceiling cannot be read is listed without one.
    #[tracing::instrument(
        level = "debug",
        target = "durably::semaphore",
        name = "Semaphore.usage",
        skip_all
    )]
    pub async fn usage(&self) -> Result<Usage, SemaphoreError> {
        let inner = self.0.clone();
        let limit = inner.limits.limit(&**inner.scheduler.host()).await?;
        let (sums, leasing) = inner.sums_now(None).await?;
        let granted = sums.groups().filter(|(_, sum)| sum.grants > 0);
        let groups: Vec<String> = granted.map(|(group, _)| group.to_owned()).collect();
        let policies = inner.policies(groups).await;
        Ok(usage(limit, &leasing, 0, &policies, &sums))
    }

    /// What `group` is measured against now, for whoever wants to know why it waits.
    ///
    /// # Errors
    ///
    /// Those of [`usage`](Self::usage), and [`SemaphoreError::Malformed`] for a bad name.
    #[tracing::instrument(
        level = "debug",
        target = "durably::semaphore",
        name = "Semaphore.standing",
        skip_all
    )]
    pub async fn standing(&self, group: &str) -> Result<Standing, SemaphoreError> {
        check_id("group", group)?;
        let inner = self.0.clone();
        let limit = inner.limits.limit(&**inner.scheduler.host()).await?;
        let policy = inner.limits.policy(&**inner.scheduler.host(), group).await;
        let (sums, leasing) = inner.sums_now(Some(group)).await?;
        let of_group = sums.group(group);
        Ok(Standing {
            limit,
            granted: sums.outstanding(),
            leased: sums.footprint(),
            available: leasing.room(limit, sums.outstanding(), sums.footprint(), 0),
            group: GroupStanding {
                limit: policy.ceiling(),
                granted: of_group.outstanding,
                leased: of_group.footprint,
                closed: match policy {
                    Policy::Open { .. } => None,
                    Policy::Closed(reason) => Some(reason),
                },
            },
        })
    }

    /// Changes how leases are given, from the next round on; `None` gives none any more, and has the
    /// next round retire those that are stored. It is not stored: whoever changes it says it again
    /// when the object opens.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the field that is out of range; nothing has changed then.
    pub fn set_leases(&self, options: Option<LeaseOptions>) -> Result<(), ConfigError> {
        if let Some(options) = &options {
            options.check()?;
        }
        let now = self.0.scheduler.now();
        self.0.told.act(now, Act::Leases(options.as_ref()));
        *self.0.leases.borrow_mut() = options;
        self.0.clone().limits_changed();
        Ok(())
    }

    /// Says that limits, ceilings or gates may be other than they were, so that a round is held for
    /// requests that wait for capacity. Without it they are noticed in the next round.
    pub fn limits_changed(&self) {
        let now = self.0.scheduler.now();
        self.0.told.act(now, Act::LimitsChanged);
        self.0.clone().limits_changed();
    }

    /// All stored grants, by creation time, then insertion.
    ///
    /// # Errors
    ///
    /// What storage answers.
    #[cfg(feature = "testing")]
    pub async fn grants(&self) -> Result<Vec<GrantRow>, SemaphoreError> {
        let read = |transaction: &dyn Transaction| Ok(store::all_grants(transaction.sql())?);
        self.0.scheduler.transaction(read).await
    }

    /// All stored leases, by creation time, then insertion.
    ///
    /// # Errors
    ///
    /// What storage answers.
    #[cfg(feature = "testing")]
    pub async fn leases(&self) -> Result<Vec<LeaseRow>, SemaphoreError> {
        let read = |transaction: &dyn Transaction| Ok(store::all_leases(transaction.sql())?);
        self.0.scheduler.transaction(read).await
    }

    /// Stores rows as they are, in the order given, for traces that begin with rows. The sums of
    /// this instance do not follow: the object must be opened anew.
    ///
    /// # Errors
    ///
    /// What storage answers.
    #[cfg(feature = "testing")]
    pub async fn load_rows(
        &self,
        grants: Vec<GrantRow>,
        leases: Vec<LeaseRow>,
        clients: Vec<store::ClientRow>,
        numbers: Vec<store::NumberRow>,
    ) -> Result<(), SemaphoreError> {
        let changes = Changes {
            grants_inserted: grants,
            leases_inserted: leases,
            numbers: numbers
                .into_iter()
                .map(|row| (row.client_id, row.number))
                .collect(),
            ..Changes::default()
        };
        let write = move |transaction: &dyn Transaction| {
            for client in &clients {
                store::insert_client(transaction.sql(), client)?;
            }
            Ok(store::write(transaction.sql(), &changes)?)
        };
        self.0.scheduler.transaction(write).await
    }

    /// The sums in memory, and the same from a full scan of the rows. They are always equal.
    ///
    /// # Errors
    ///
    /// What storage answers.
    #[cfg(feature = "testing")]
    pub async fn compare_sums(&self) -> Result<(Ledger, Ledger), SemaphoreError> {
        let inner = self.0.clone();
        let read = move |transaction: &dyn Transaction| {
            Ok((
                inner.ledger.borrow().clone(),
                store::sums(transaction.sql())?,
            ))
        };
        self.0.scheduler.transaction(read).await
    }
}

#[cfg(feature = "testing")]
impl Semaphore {
    /// The sums as they are in memory.
    pub fn sums(&self) -> Ledger {
        self.0.ledger.borrow().clone()
    }

    /// The same from a full scan of the rows.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub fn scan(&self, sql: &dyn Sql) -> Result<Ledger, StorageError> {
        store::sums(sql)
    }
}

/// A message that was taken, and where its answer comes from.
enum Taken<SyncAnswer> {
    Request(oneshot::Receiver<Result<Reply, SemaphoreError>>),
    Sync(SyncAnswer),
}

impl Inner {
    pub(super) fn new(
        scheduler: Scheduler,
        settings: Settings,
        limits: Limits,
        leases: Option<LeaseOptions>,
        hook: Option<Hook<SemaphoreEvent>>,
        told: Told,
    ) -> Rc<Inner> {
        Rc::new(Inner {
            scheduler,
            settings,
            limits,
            hook,
            leases: RefCell::new(leases),
            ledger: RefCell::default(),
            rounds: Rounds::default(),
            told,
            heard: RefCell::default(),
            ephemeral: Cell::default(),
        })
    }

    pub(super) fn attach(self: &Rc<Self>) -> Result<(), OpenError> {
        self.scheduler.attach(self)
    }

    fn sync(
        self: Rc<Self>,
        sync: PermitSync,
        act: u64,
        now: Timestamp,
    ) -> impl Future<Output = Result<Reply, SemaphoreError>> + use<> {
        let PermitSync {
            client_id,
            grants,
            leases,
            sent_at,
            client_ttl_ms,
        } = sync;
        let inner = self.clone();
        let applied = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            if !is_on(Bug::ReportingCountsAsSilent) || client_ttl_ms.is_some() {
                inner.renew(sql, &client_id, client_ttl_ms, now)?;
            }
            let leasing = inner.leasing();
            let leases = leases.filter(|_| leasing.is_active());
            let mut book = Book::new(
                named(sql, &grants)?,
                named_leases(sql, leases.as_deref().unwrap_or_default())?,
            );
            let results: Vec<_> = grants
                .iter()
                .map(|report| book.report(&client_id, report, now))
                .collect();
            let echoes = leases.map(|leases| {
                let echoes = leases.iter().map(|report| {
                    let echo = book.report_lease(&client_id, report, &leasing, now);
                    echo.lease
                });
                echoes.collect::<Vec<_>>()
            });
            let (changes, delta) = book.close();
            inner.apply(transaction, &changes, delta)?;
            Ok::<_, StorageError>(SyncReply {
                grant_results: results,
                contended: echoes.is_some() && inner.rounds.contended.get(),
                leases: echoes,
                now: sent_at.map(|_| now),
            })
        });
        let (told, answered) = oneshot::channel();
        let inner = self.clone();
        let answer = async move {
            let answer = applied.await.map(Reply::Synced).map_err(Into::into);
            inner.told.answered(act, act, answer.as_ref());
            inner.told.end(act, answer.is_err());
            answer
        };
        // Who listens hears of every answer, also if the caller has left.
        match self.told.anybody() {
            false => Either::Left(answer),
            true => {
                self.scheduler.spawn(async move {
                    let _ = told.send(answer.await);
                });
                Either::Right(async move {
                    answered.await.unwrap_or_else(|oneshot::Canceled| {
                        let problem = "a report was being taken".to_owned();
                        Err(StorageError::Ended(problem).into())
                    })
                })
            }
        }
    }

    /// Notes that a client was heard of.
    fn hear(&self, client_id: &str, now: Timestamp) {
        let mut heard = self.heard.borrow_mut();
        if let Some(at) = heard.get_mut(client_id) {
            *at = now;
            return;
        }
        // Strangers who come and go must not fill the memory; who was not heard for longest goes.
        if heard.len() >= MAX_HEARD {
            let middle = {
                let mut times: Vec<Timestamp> = heard.values().copied().collect();
                let half = times.len() / 2;
                *times.select_nth_unstable(half).1
            };
            heard.retain(|_, at| *at > middle);
        }
        heard.insert(client_id.to_owned(), now);
    }

    /// What there is to do with leases at this moment.
    pub(super) fn leasing(&self) -> Leasing {
        // Every stored lease has a footprint, whose sum costs nothing to know.
        Leasing::new(
            self.leases.borrow().clone(),
            self.ledger.borrow().footprint(),
        )
    }

    /// How leases are given.
    pub(super) fn leasing_options(&self) -> Option<LeaseOptions> {
        self.leases.borrow().clone()
    }

    /// Writes what was decided; the sums follow once it can no longer be undone alone.
    pub(super) fn apply(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        changes: &Changes,
        delta: Delta,
    ) -> Result<(), StorageError> {
        if is_on(Bug::ReplyBeforeCommit) {
            self.write_later(changes.clone(), delta);
            return Ok(());
        }
        self.write(transaction, changes, delta)
    }

    fn write(
        self: &Rc<Self>,
        transaction: &dyn Transaction,
        changes: &Changes,
        delta: Delta,
    ) -> Result<(), StorageError> {
        store::write(transaction.sql(), changes)?;
        #[cfg(debug_assertions)]
        self.compare(transaction.sql(), &delta)?;
        if !delta.is_empty() {
            let inner = self.clone();
            transaction.on_release(Box::new(move || {
                if delta.frees() && is_on(Bug::LoseDelta) {
                    return;
                }
                inner.ledger.borrow_mut().apply(&delta);
                if delta.frees() && !is_on(Bug::FreedWakesNobody) {
                    inner.freed();
                }
            }));
        }
        Ok(())
    }

    /// Only for [`Bug::ReplyBeforeCommit`].
    fn write_later(self: &Rc<Self>, changes: Changes, delta: Delta) {
        let (inner, scheduler) = (self.clone(), self.scheduler.clone());
        self.scheduler.spawn(async move {
            let write =
                move |transaction: &dyn Transaction| inner.write(transaction, &changes, delta);
            let _ = scheduler.transaction(write).await;
        });
    }

    #[cfg(debug_assertions)]
    fn compare(&self, sql: &dyn Sql, delta: &Delta) -> Result<(), StorageError> {
        let ledger = self.ledger.borrow();
        if ledger.grants() + ledger.leases() <= ALWAYS_COMPARED {
            let mut after = ledger.clone();
            after.apply(delta);
            assert_eq!(
                after,
                store::sums(sql)?,
                "sums and rows of the semaphore differ"
            );
        }
        Ok(())
    }

    /// The sums as they are once all that is due by now has been taken back, and what there is to do
    /// with leases; for all groups, or for one.
    async fn sums_now(
        self: &Rc<Self>,
        group: Option<&str>,
    ) -> Result<(Ledger, Leasing), StorageError> {
        let now = self.scheduler.now();
        let inner = self.clone();
        let group = group.map(str::to_owned);
        let read = self.scheduler.transaction(move |transaction| {
            let mut sums = match group {
                Some(group) => inner.ledger.borrow().of_group(&group),
                None => inner.ledger.borrow().clone(),
            };
            for (group, unclaimed) in store::due_by_group(transaction.sql(), now)? {
                sums.take_back(&group, unclaimed);
            }
            Ok::<_, StorageError>((sums, inner.leasing()))
        });
        read.await
    }

    /// Takes back what was not claimed in time.
    async fn clean_up(self: Rc<Self>, now: Timestamp) -> Result<(), StorageError> {
        let inner = self.clone();
        let cleaned = self.scheduler.transaction(move |transaction| {
            let mut book = Book::new(store::due(transaction.sql(), now)?, []);
            let events = book.clean_up(now);
            let (changes, delta) = book.close();
            inner.apply(transaction, &changes, delta)?;
            Ok::<_, StorageError>(events)
        });
        for event in cleaned.await? {
            self.tell(&event);
        }
        Ok(())
    }

    /// Whether anybody hears events; only then is the usage of a round worked out.
    pub(super) fn is_heard(&self) -> bool {
        self.hook.is_some() || tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
    }

    pub(super) fn tell(&self, event: &SemaphoreEvent) {
        event.trace();
        emit(self.hook.as_ref(), event);
    }
}

/// The stored grants that `reports` name.
pub(super) fn named(sql: &dyn Sql, reports: &[GrantReport]) -> Result<Vec<GrantRow>, StorageError> {
    let mut rows = Vec::with_capacity(reports.len());
    for report in reports {
        rows.extend(store::grant(sql, &report.grant_id)?);
    }
    Ok(rows)
}

/// The stored leases that `reports` name.
pub(super) fn named_leases(
    sql: &dyn Sql,
    reports: &[LeaseReport],
) -> Result<Vec<LeaseRow>, StorageError> {
    let mut rows = Vec::with_capacity(reports.len());
    for report in reports {
        rows.extend(store::lease(sql, &report.lease_id)?);
    }
    Ok(rows)
}

impl Participant for Inner {
    fn name(&self) -> &'static str {
        "semaphore"
    }

    fn migrations(&self) -> &'static [Migration] {
        store::MIGRATIONS
    }

    fn load(&self, sql: &dyn Sql, _now: Timestamp) -> Result<(), StorageError> {
        *self.ledger.borrow_mut() = store::sums(sql)?;
        self.ephemeral.set(store::knows_clients(sql)?);
        Ok(())
    }

    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        let deadline = match is_on(Bug::ForgetDeadline) {
            true => None,
            false => store::next_deadline(sql)?,
        };
        let expiry = match self.ephemeral.get() {
            true => store::next_client_expiry(sql)?,
            false => None,
        };
        Ok([deadline, expiry].into_iter().flatten().min())
    }

    // A cleanup finds all that is due, so a deadline that has passed is still to be met.
    fn next_wake_at(
        &self,
        sql: &dyn Sql,
        _now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        self.next_pending_at(sql)
    }

    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move {
            // Not before anything that was taken meanwhile.
            let now = self.scheduler.now().max(now);
            let act = self.told.begin(now, Act::CleanUp);
            let cleaned = async {
                self.clone().clean_up(now).await?;
                self.expire_clients(now).await
            };
            let cleaned = cleaned.await;
            self.told.end(act, cleaned.is_err());
            Ok(cleaned?)
        })
    }
}
