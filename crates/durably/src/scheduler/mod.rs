//! The object's one alarm, the timers before it, and the handler pool.
//!
//! Decided here: when the object wakes up next, and that a wake-up is never lost. Not decided here:
//! what is due; that is each [`Participant`]'s matter.

mod pass;
mod pool;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{AbortHandle, abortable};

pub(crate) use pass::report;
pub use pool::{HandlerPool, Slot};

use crate::bugs::{Bug, is_on};
use crate::error::{BoxError, ConfigError, OpenError, StorageError};
use crate::host::{Host, LocalFuture, Sql, Transaction};
use crate::id::Ids;
use crate::migrations::{self, Migration};
use crate::time::{Timestamp, check_count, check_duration};

/// A capability that has work to do at certain times.
pub trait Participant {
    /// The capability's name, under which its migrations are recorded.
    fn name(&self) -> &'static str;

    /// Its schema.
    fn migrations(&self) -> &'static [Migration];

    /// Reads what the capability keeps in memory, in the transaction that opens the object.
    fn load(&self, sql: &dyn Sql, now: Timestamp) -> Result<(), StorageError>;

    /// The object is open: work that an earlier instance left behind may go on.
    fn opened(&self) {}

    /// The earliest time at which something is pending, past times and work in flight included.
    /// Asked within every transaction, so it is one indexed query.
    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError>;

    /// The earliest time after `now` at which `run_due` would find something new. Differs from
    /// [`next_pending_at`](Self::next_pending_at) when that lies in the past, for what is in flight
    /// or cannot start yet; asked only then.
    fn next_wake_at(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError>;

    /// Does what is due at `now`. Resolves when that work has ended; work in flight from an earlier
    /// call is joined, not repeated.
    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>>;
}

/// Settings of a [`Scheduler`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerConfig {
    /// The alarm is never set sooner than this from now: 1 to 15 s, 15 s by default. Sooner
    /// deadlines are met by a timer in memory, the alarm being its fallback after an eviction.
    pub alarm_min_delay: Duration,
    /// How many application handlers run at once in this object; 10 by default.
    pub alarm_concurrency: u64,
    /// An alarm pass that takes this long leaves its work running and returns, so that the host does
    /// not cut it off; 14 min by default.
    pub alarm_handoff: Duration,
    /// Neither timers nor a minimum delay: only alarm passes run what is due. For trace replay.
    #[cfg(feature = "testing")]
    pub manual: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        SchedulerConfig {
            alarm_min_delay: Duration::from_secs(15),
            alarm_concurrency: 10,
            alarm_handoff: pass::DEFAULT_HANDOFF,
            #[cfg(feature = "testing")]
            manual: false,
        }
    }
}

impl SchedulerConfig {
    /// Refuses settings out of range.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the field.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.alarm_min_delay < Duration::from_secs(1)
            || self.alarm_min_delay > Duration::from_secs(15)
        {
            return Err(ConfigError::new(
                "alarm_min_delay",
                "must be between 1 and 15 s",
            ));
        }
        check_count("alarm_concurrency", self.alarm_concurrency)?;
        check_duration("alarm_handoff", self.alarm_handoff)
    }

    fn manual(&self) -> bool {
        #[cfg(feature = "testing")]
        return self.manual;
        #[cfg(not(feature = "testing"))]
        false
    }
}

/// The scheduler of one instance of an object. Clones are handles to the same one.
#[derive(Clone)]
pub struct Scheduler(Rc<Inner>);

struct Inner {
    host: Rc<dyn Host>,
    config: SchedulerConfig,
    ids: Ids,
    pool: HandlerPool,
    // Capabilities own the scheduler, so it holds them weakly: an instance that is dropped is freed.
    participants: RefCell<Vec<(&'static str, Weak<dyn Participant>)>>,
    opened: Cell<bool>,
    /// The alarm as committed, or about to be with what is queued; unknown until the object opens.
    alarm: Cell<Option<Armed>>,
    timer: RefCell<Option<Timer>>,
    /// An alarm pass is under way, and the host delivers no other alarm before it has ended.
    in_alarm: Cell<bool>,
    /// Whose last pass failed. The alarm has them try again, and no timer before it: what is due would
    /// fail again at once, for ever.
    failing: RefCell<BTreeSet<&'static str>>,
}

struct Timer {
    at: Timestamp,
    task: AbortHandle,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scheduler {
    /// Makes the object's scheduler.
    ///
    /// # Errors
    ///
    /// [`OpenError::SecondScheduler`] if the instance has one, [`OpenError::Config`] for settings out
    /// of range.
    pub fn new(host: Rc<dyn Host>, config: SchedulerConfig) -> Result<Self, OpenError> {
        config.check()?;
        let pool = HandlerPool::new(config.alarm_concurrency);
        let inner = Rc::new(Inner {
            host: host.clone(),
            config,
            ids: Ids::default(),
            pool,
            participants: RefCell::default(),
            opened: Cell::new(false),
            alarm: Cell::new(None),
            timer: RefCell::new(None),
            in_alarm: Cell::new(false),
            failing: RefCell::default(),
        });
        let weak: Weak<dyn Any> = {
            let erased: Rc<dyn Any> = inner.clone();
            Rc::downgrade(&erased)
        };
        if !host.instance().register(weak) {
            return Err(OpenError::SecondScheduler);
        }
        Ok(Scheduler(inner))
    }

    /// The object's scheduler: the one that it has, or a new one with default settings.
    ///
    /// # Errors
    ///
    /// [`OpenError::SecondScheduler`] if the instance had one that is gone.
    pub fn of(host: Rc<dyn Host>) -> Result<Self, OpenError> {
        let existing = host.instance().scheduler();
        match existing.and_then(|scheduler| scheduler.downcast::<Inner>().ok()) {
            Some(inner) => Ok(Scheduler(inner)),
            None => Scheduler::new(host, SchedulerConfig::default()),
        }
    }

    /// Registers a capability. It takes part for as long as its owner keeps it.
    ///
    /// # Errors
    ///
    /// [`OpenError::AttachedTwice`] for a name that is taken, [`OpenError::AttachedLate`] after
    /// [`open`](Self::open).
    pub fn attach(&self, participant: &Rc<impl Participant + 'static>) -> Result<(), OpenError> {
        let name = participant.name();
        if self.0.opened.get() {
            return Err(OpenError::AttachedLate(name));
        }
        let mut participants = self.0.participants.borrow_mut();
        if participants.iter().any(|(taken, _)| *taken == name) {
            return Err(OpenError::AttachedTwice(name));
        }
        let erased: Rc<dyn Participant> = participant.clone();
        participants.push((name, Rc::downgrade(&erased)));
        Ok(())
    }

    /// Opens the object: in one transaction, applies the migrations of all attached capabilities,
    /// reads their sums and arms the alarm again; then lets their work go on.
    ///
    /// # Errors
    ///
    /// What a migration or storage answers; nothing is stored then, and the instance is of no use.
    /// [`OpenError::OpenedTwice`] from the second call on, which changes nothing.
    pub async fn open(&self) -> Result<(), OpenError> {
        if self.0.opened.replace(true) {
            return Err(OpenError::OpenedTwice);
        }
        let scheduler = self.clone();
        let now = self.now();
        let opened = self.0.host.transaction(move |transaction| {
            let sql = transaction.sql();
            migrations::prepare(sql)?;
            for participant in scheduler.participants() {
                migrations::bring_up(sql, participant.name(), participant.migrations(), now)?;
                participant.load(sql, now)?;
            }
            scheduler.reconcile(transaction, Arming::Opening)?;
            Ok::<_, OpenError>(())
        });
        opened.await?;
        for participant in self.participants() {
            participant.opened();
        }
        Ok(())
    }

    /// Where the object lives.
    pub fn host(&self) -> &Rc<dyn Host> {
        &self.0.host
    }

    /// The host's clock.
    pub fn now(&self) -> Timestamp {
        self.0.host.now()
    }

    /// A new id, higher than all before it in this instance.
    pub fn next_id(&self) -> String {
        self.0.ids.next(&*self.0.host)
    }

    /// The slots in which application handlers run.
    pub fn pool(&self) -> &HandlerPool {
        &self.0.pool
    }

    /// Runs a transaction that ends by reconciling the alarm. Every capability stores through this.
    pub fn transaction<T, E, Work>(
        &self,
        work: Work,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, Work>
    where
        T: 'static,
        E: From<StorageError> + 'static,
        Work: FnOnce(&dyn Transaction) -> Result<T, E> + 'static,
    {
        let scheduler = self.clone();
        self.0.host.transaction(move |transaction| {
            let value = work(transaction)?;
            scheduler.reconcile(transaction, Arming::Usual)?;
            Ok(value)
        })
    }

    /// The earliest pending time of all capabilities, past ones included.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn next_pending_at(&self) -> Result<Option<Timestamp>, StorageError> {
        let scheduler = self.clone();
        self.0
            .host
            .transaction(move |transaction| scheduler.earliest_pending(transaction.sql()))
            .await
    }

    /// Runs a task in the background, for as long as the instance lives.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.host.spawn(Box::pin(task));
    }

    /// Runs `work` to its end even if the returned future is dropped: what follows a commit must not be
    /// lost with a caller that stopped waiting.
    pub(crate) fn detached<T, E, Work>(
        &self,
        work: Work,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, Work>
    where
        T: 'static,
        E: From<StorageError> + 'static,
        Work: Future<Output = Result<T, E>> + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.spawn(async move {
            // The caller may have stopped waiting.
            let _ = reply.send(work.await);
        });
        async move {
            answer
                .await
                .unwrap_or_else(|_| Err(StorageError::Ended("the call was cut off".into()).into()))
        }
    }

    /// Whether only alarm passes run what is due.
    pub(crate) fn is_manual(&self) -> bool {
        self.0.config.manual()
    }

    fn participants(&self) -> Vec<Rc<dyn Participant>> {
        let participants = self.0.participants.borrow();
        participants
            .iter()
            .filter_map(|(_, participant)| participant.upgrade())
            .collect()
    }

    fn is_failing(&self, participant: &str) -> bool {
        self.0.failing.borrow().contains(participant)
    }

    /// Takes note of how a participant's pass went.
    fn note(&self, participant: &'static str, failed: bool) {
        let mut failing = self.0.failing.borrow_mut();
        match failed {
            true => failing.insert(participant),
            false => failing.remove(participant),
        };
    }

    fn earliest_pending(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        let mut earliest = None;
        for participant in self.participants() {
            earliest = earlier(earliest, participant.next_pending_at(sql)?);
        }
        Ok(earliest)
    }

    /// Sets the alarm, and the timer before it, to what is pending now.
    fn reconcile(&self, transaction: &dyn Transaction, arming: Arming) -> Result<(), StorageError> {
        let now = self.now();
        let sql = transaction.sql();
        let mut pending = None;
        let mut wake = None;
        for participant in self.participants() {
            let at = participant.next_pending_at(sql)?;
            pending = match is_on(Bug::AlarmOfTheLast) {
                true => at.or(pending),
                false => earlier(pending, at),
            };
            wake = earlier(
                wake,
                match at {
                    Some(at) if at <= now => match self.is_failing(participant.name()) {
                        true => None,
                        false => participant.next_wake_at(sql, now)?,
                    },
                    later => later,
                },
            );
        }
        let min_delay = self.0.config.alarm_min_delay;
        let soonest = if self.is_manual() {
            Timestamp::ZERO
        } else {
            now + min_delay
        };
        let alarm = pending.map(|at| match arming {
            Arming::Opening if at <= now => at,
            _ => at.max(soonest),
        });
        let wanted = match arming {
            Arming::NotLaterThan(fallback) => earlier(alarm, Some(fallback)),
            _ => alarm,
        };
        let armed = self.0.alarm.get();
        let keep = matches!(arming, Arming::Usual)
            && armed.is_some_and(|armed| armed.serves(wanted, now, min_delay));
        let dropped = is_on(Bug::DropAlarm)
            || (matches!(arming, Arming::Opening) && is_on(Bug::NoAlarmOnOpen));
        if !keep && !dropped {
            transaction.set_alarm(wanted)?;
        }
        let scheduler = self.clone();
        transaction.on_release(Box::new(move || {
            if !keep {
                scheduler.0.alarm.set(Some(Armed {
                    at: wanted,
                    since: now,
                }));
            }
            scheduler.set_timer(wake, now);
        }));
        Ok(())
    }

    /// Has a timer wake the object at `wake` if the alarm comes later than that, or cannot come
    /// because its handler is still busy.
    fn set_timer(&self, wake: Option<Timestamp>, now: Timestamp) {
        let mut timer = self.0.timer.borrow_mut();
        let wake = wake.filter(|wake| {
            let alarm = self.0.alarm.get().and_then(|armed| armed.at);
            let covered = !self.0.in_alarm.get() && alarm.is_some_and(|alarm| alarm <= *wake);
            !self.is_manual() && !covered
        });
        let Some(at) = wake else {
            *timer = None;
            return;
        };
        if timer.as_ref().is_some_and(|timer| timer.at == at) {
            return;
        }
        let scheduler = self.clone();
        let sleep = self.0.host.sleep(at.since(now));
        let (task, handle) = abortable(async move {
            sleep.await;
            // The task leaves its own place first, since what it starts may set the next timer.
            let own = scheduler.0.timer.borrow_mut().take();
            // The wall clock may lag behind the one that the timer ran on.
            let pass = scheduler.start_pass(scheduler.now().max(at));
            scheduler.look_ahead();
            pass.await;
            drop(own);
        });
        *timer = Some(Timer { at, task: handle });
        self.spawn(async move {
            // Aborted is as good as done: another timer has taken over.
            let _ = task.await;
        });
    }
}

/// The alarm, and when this instance set it.
#[derive(Clone, Copy)]
struct Armed {
    at: Option<Timestamp>,
    since: Timestamp,
}

impl Armed {
    /// Whether the alarm need not be set for `wanted`. One that is set for an earlier time will do:
    /// it finds nothing new and arms itself again, while moving it along with every commit would
    /// cost a row each time. One that should have fired a while ago was dropped.
    fn serves(self, wanted: Option<Timestamp>, now: Timestamp, patience: Duration) -> bool {
        match (self.at, wanted) {
            (Some(at), Some(wanted)) => at <= wanted && at.max(self.since) + patience > now,
            (None, None) => true,
            _ => false,
        }
    }
}

/// What a transaction that ends by arming the alarm is about.
#[derive(Clone, Copy)]
enum Arming {
    Usual,
    /// The object opens. An alarm that is due stays due: it may be the very one that opens the
    /// object, which some hosts do not deliver once it has been moved. Put off by the minimum delay,
    /// it would never go off in an object that lives for less than that.
    Opening,
    /// An alarm pass has ended: what it armed when it started may be too early by now.
    Ended,
    /// The same, but work that is left running is to be looked after by this time.
    NotLaterThan(Timestamp),
}

/// The earlier of two times that may be missing.
pub(crate) fn earlier(left: Option<Timestamp>, right: Option<Timestamp>) -> Option<Timestamp> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (one, other) => one.or(other),
    }
}
