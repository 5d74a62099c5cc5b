//! A shard with a queue, the holders of its keys, a network between them that fails on demand, and
//! the work that is admitted, which no crash of an object touches.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::layers::{Backoff, HostTimer};
use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
use durably::semaphore::protocol::{Message, Reply};
use durably::semaphore::queue::{
    AdmittedItem, CancelOutcome, ItemStatus, NewItem, Outcome, QueueEvent, SemaphoreQueue,
    SemaphoreQueueBuilder,
};
use durably::semaphore::{LeaseOptions, Semaphore, Usage};
use durably::{Scheduler, SchedulerConfig, Timestamp};
use durably_sim::{Alarms, VirtualObject, World};

/// What the world's clock shows at first, in ms.
pub(crate) const START: u64 = 1_000_000;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) struct Limit {
    scheduler: Scheduler,
    semaphore: Semaphore,
}

impl Object for Limit {
    const CLASS: &'static str = "limit";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

pub(crate) struct Shard {
    pub(crate) scheduler: Scheduler,
    pub(crate) queue: SemaphoreQueue,
}

impl Object for Shard {
    const CLASS: &'static str = "shard";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    /// It is lost, and nobody learns of it.
    Lost,
    /// The connection breaks before it arrives.
    Refused,
    /// It arrives, but the answer is lost.
    AnswerLost,
    /// It arrives twice; the second answer counts.
    Twice,
    /// It arrives late.
    Late(u64),
    /// Its answer arrives late.
    AnswerLate(u64),
}

type Script = Rc<dyn Fn(&HolderCall) -> Option<Result<Reply, ClientError>>>;
type Judge = Rc<dyn Fn(&HolderCall) -> Fate>;

/// Everything outside of the shard.
pub(crate) struct Outside {
    world: World,
    limits: RefCell<BTreeMap<String, u64>>,
    group_limit: Cell<Option<u64>>,
    group_limits: RefCell<BTreeMap<String, u64>>,
    /// How holders that open from now on give leases.
    pub(crate) leases: RefCell<Option<LeaseOptions>>,
    holders: RefCell<BTreeMap<String, VirtualObject<Limit>>>,
    shard: RefCell<Option<VirtualObject<Shard>>>,
    /// Decides what happens to each message.
    pub(crate) fate: RefCell<Judge>,
    /// Answers instead of the holder, if it has an answer.
    pub(crate) script: RefCell<Option<Script>>,
    pub(crate) calls: RefCell<Vec<HolderCall>>,
    /// How many grants were handed out.
    pub(crate) grants: Cell<u64>,
    pub(crate) events: RefCell<Vec<QueueEvent>>,
    /// How long work takes.
    pub(crate) takes: Cell<Duration>,
    /// How long the work of some items takes instead.
    pub(crate) takes_of: RefCell<BTreeMap<String, Duration>>,
    /// Calls of `admit` that fail from now on, before they do anything.
    pub(crate) failing_admits: Cell<u32>,
    /// Calls of `admit` that fail from now on, after they did what they should.
    pub(crate) late_failing_admits: Cell<u32>,
    /// How long `admit` takes to answer after it did what it should.
    pub(crate) admit_takes: Cell<Duration>,
    /// Releases that are lost from now on.
    pub(crate) lost_releases: Cell<u32>,
    pub(crate) admissions: Cell<u32>,
    pub(crate) started: RefCell<Vec<String>>,
    pub(crate) running: RefCell<BTreeMap<String, String>>,
    pub(crate) done: RefCell<BTreeSet<String>>,
    pub(crate) forbidden: RefCell<BTreeSet<String>>,
    pub(crate) most: RefCell<BTreeMap<String, u64>>,
}

impl Outside {
    fn holder(self: &Rc<Self>, key: &str) -> VirtualObject<Limit> {
        if let Some(holder) = self.holders.borrow().get(key) {
            return holder.clone();
        }
        let limits = Rc::downgrade(self);
        let of = key.to_owned();
        let holder = self.world.object(key, Alarms::Automatic, move |host| {
            let (limits, of) = (limits.clone(), of.clone());
            let opened = (|| {
                let config = SchedulerConfig::default();
                let scheduler = Scheduler::new(host, config)?;
                let groups = limits.clone();
                let outside = limits.upgrade().expect("the world outlives its objects");
                let leases = outside.leases.borrow().clone();
                let builder = Semaphore::builder(&scheduler);
                let builder = match leases {
                    Some(options) => builder.leases(options),
                    None => builder,
                };
                let semaphore = builder
                    .limit_with(move || {
                        let outside = limits.upgrade().expect("the world outlives its objects");
                        let limit = outside.limits.borrow().get(&of).copied();
                        async move { Ok(limit.unwrap_or(0)) }
                    })
                    .group_limit(move |group| {
                        let outside = groups.upgrade().expect("the world outlives its objects");
                        let own = outside.group_limits.borrow().get(&group).copied();
                        let limit = own.or(outside.group_limit.get());
                        async move { Ok(limit) }
                    })
                    .round_wait(ms(100))
                    .round_period(ms(200))
                    .grant_timeout(ms(1_000))
                    .build()?;
                Ok::<_, BoxError>(Limit {
                    scheduler,
                    semaphore,
                })
            })();
            async move {
                let opened = opened?;
                opened.scheduler.open().await?;
                Ok(Rc::new(opened))
            }
        });
        self.holders
            .borrow_mut()
            .insert(key.to_owned(), holder.clone());
        holder
    }

    async fn call(self: Rc<Self>, call: HolderCall) -> Result<Reply, ClientError> {
        self.calls.borrow_mut().push(call.clone());
        let judge = self.fate.borrow().clone();
        let fate = judge(&call);
        match fate {
            Fate::Lost => std::future::pending().await,
            Fate::Refused => return Err(ClientError::unreachable("the connection broke")),
            _ => {}
        }
        let late = match fate {
            Fate::Late(millis) => ms(millis),
            _ => Duration::ZERO,
        };
        let script = self.script.borrow().clone();
        if let Some(script) = script {
            self.world.sleep(late).await;
            if fate == Fate::Twice {
                script(&call);
            }
            if let Some(answer) = script(&call) {
                return self.answered(fate, answer).await;
            }
        }
        if fate == Fate::Twice {
            let first = self.clone().deliver(call.clone());
            self.world.spawn(async move {
                let _ = first.await;
            });
        }
        // The message and the holder go on whatever becomes of the caller.
        let (answer, answered) = futures::channel::oneshot::channel();
        let deliver = self.clone().deliver(call);
        let world = self.world.clone();
        self.world.spawn(async move {
            if !late.is_zero() {
                world.sleep(late).await;
            }
            let _ = answer.send(deliver.await);
        });
        let answer = answered.await.expect("the world outlives its calls");
        self.answered(fate, answer).await
    }

    async fn answered(
        &self,
        fate: Fate,
        answer: Result<Reply, ClientError>,
    ) -> Result<Reply, ClientError> {
        match fate {
            Fate::AnswerLost => std::future::pending().await,
            Fate::AnswerLate(millis) => self.world.sleep(ms(millis)).await,
            _ => {}
        }
        answer
    }

    async fn deliver(self: Rc<Self>, call: HolderCall) -> Result<Reply, ClientError> {
        // As over a wire: what cannot be written and read is not said.
        let json = serde_json::to_vec(&call.message).expect("messages have a JSON form");
        let message = Message::from_json(&json)?;
        let answer = self
            .holder(&call.key)
            .call(move |holder| async move { holder.semaphore.handle(message).await })
            .await
            .map_err(ClientError::unreachable)?;
        if let Ok(Reply::Grant(reply)) = &answer {
            let grants = self.grants.get() + reply.grants.len() as u64;
            self.grants.set(grants);
        }
        Ok(answer?)
    }

    /// The application takes items: their work starts, once.
    fn admit(self: &Rc<Self>, items: Vec<AdmittedItem>) -> Result<(), BoxError> {
        self.admissions.set(self.admissions.get() + 1);
        if self.failing_admits.get() > 0 {
            self.failing_admits.set(self.failing_admits.get() - 1);
            return Err("the application is not ready".into());
        }
        for item in items {
            assert_eq!(item.read::<String>().expect("a string"), item.id);
            assert!(
                !self.forbidden.borrow().contains(&item.id),
                "{} was cancelled and is admitted",
                item.id
            );
            let is_known = self.running.borrow().contains_key(&item.id)
                || self.done.borrow().contains(&item.id);
            if is_known {
                continue;
            }
            self.started.borrow_mut().push(item.id.clone());
            self.running
                .borrow_mut()
                .insert(item.id.clone(), item.key.clone());
            self.check_ceiling(&item.key);
            let outside = self.clone();
            let takes = self.takes_of.borrow().get(&item.id).copied();
            let takes = takes.unwrap_or(self.takes.get());
            self.world.spawn(async move {
                outside.world.sleep(takes).await;
                outside.end(item.id).await;
            });
        }
        if self.late_failing_admits.get() > 0 {
            self.late_failing_admits
                .set(self.late_failing_admits.get() - 1);
            return Err("the application forgot what it did".into());
        }
        Ok(())
    }

    /// Every job that runs is counted by its holder as claimed, and no more run than may.
    fn check_ceiling(self: &Rc<Self>, key: &str) {
        let running = self.running.borrow();
        let running = running.values().filter(|of| *of == key).count() as u64;
        let mut most = self.most.borrow_mut();
        let most = most.entry(key.to_owned()).or_default();
        *most = running.max(*most);
        if self.script.borrow().is_some() {
            return;
        }
        let claimed = self.holder(key).storage().transaction(|transaction| {
            let sql = transaction.sql();
            sql.first(
                "SELECT COALESCE((SELECT SUM(claimed - released) FROM durability_semaphore_grants), 0)
                    + COALESCE((SELECT SUM(permits - released) FROM durability_semaphore_leases), 0)",
                &[],
                |row| row.count(0),
            )
        });
        let claimed = claimed.expect("storage works").expect("a row");
        assert!(
            running <= claimed,
            "{running} jobs of {key} run, the holder knows of {claimed} claims"
        );
    }

    async fn end(self: Rc<Self>, id: String) {
        self.running.borrow_mut().remove(&id);
        self.done.borrow_mut().insert(id.clone());
        if self.lost_releases.get() > 0 {
            self.lost_releases.set(self.lost_releases.get() - 1);
            return;
        }
        let shard = self.shard.borrow().clone();
        if let Some(shard) = shard {
            // It may die meanwhile; then the release is lost.
            let _ = shard
                .call(move |shard| async move { shard.queue.release(&id).await })
                .await;
        }
    }
}

pub(crate) struct Setup {
    pub(crate) world: World,
    pub(crate) shard: VirtualObject<Shard>,
    pub(crate) outside: Rc<Outside>,
}

impl Drop for Setup {
    fn drop(&mut self) {
        // Handles go round in a circle through here.
        self.outside.shard.take();
        self.outside.holders.take();
    }
}

impl Setup {
    /// At most 8 items run in the shard, work takes 300 ms; `configure` has the last word.
    pub(crate) fn new(
        limits: &[(&str, u64)],
        configure: impl Fn(SemaphoreQueueBuilder) -> SemaphoreQueueBuilder + 'static,
    ) -> Setup {
        Setup::in_world(World::new(START), limits, configure)
    }

    pub(crate) fn in_world(
        world: World,
        limits: &[(&str, u64)],
        configure: impl Fn(SemaphoreQueueBuilder) -> SemaphoreQueueBuilder + 'static,
    ) -> Setup {
        let limits = limits
            .iter()
            .map(|(key, limit)| ((*key).to_owned(), *limit));
        let outside = Rc::new(Outside {
            world: world.clone(),
            limits: RefCell::new(limits.collect()),
            group_limit: Cell::new(None),
            group_limits: RefCell::default(),
            leases: RefCell::default(),
            holders: RefCell::default(),
            shard: RefCell::default(),
            fate: RefCell::new(Rc::new(|_| Fate::Arrives)),
            script: RefCell::default(),
            calls: RefCell::default(),
            grants: Cell::new(0),
            events: RefCell::default(),
            takes: Cell::new(ms(300)),
            takes_of: RefCell::default(),
            failing_admits: Cell::new(0),
            late_failing_admits: Cell::new(0),
            admit_takes: Cell::default(),
            lost_releases: Cell::new(0),
            admissions: Cell::new(0),
            started: RefCell::default(),
            running: RefCell::default(),
            done: RefCell::default(),
            forbidden: RefCell::default(),
            most: RefCell::default(),
        });
        let weak = Rc::downgrade(&outside);
        let shard = world.object("shard", Alarms::Automatic, move |host| {
            let opened = open_shard(host, &weak, &configure);
            async move {
                let opened = opened?;
                opened.scheduler.open().await?;
                Ok(Rc::new(opened))
            }
        });
        *outside.shard.borrow_mut() = Some(shard.clone());
        Setup {
            world,
            shard,
            outside,
        }
    }

    pub(crate) fn fate(&self, judge: impl Fn(&HolderCall) -> Fate + 'static) {
        *self.outside.fate.borrow_mut() = Rc::new(judge);
    }

    pub(crate) fn script(
        &self,
        script: impl Fn(&HolderCall) -> Option<Result<Reply, ClientError>> + 'static,
    ) {
        *self.outside.script.borrow_mut() = Some(Rc::new(script));
    }

    pub(crate) fn set_limit(&self, key: &str, limit: u64) {
        let mut limits = self.outside.limits.borrow_mut();
        limits.insert(key.to_owned(), limit);
    }

    pub(crate) fn limit_group(&self, group: &str, limit: u64) {
        let mut limits = self.outside.group_limits.borrow_mut();
        limits.insert(group.to_owned(), limit);
    }

    /// Tells a holder that limits have changed.
    pub(crate) fn limits_changed(&self, key: &str) {
        let call = self
            .outside
            .holder(key)
            .call(|holder| async move { holder.semaphore.limits_changed() });
        self.world.block_on(call).expect("the holder is there");
    }

    pub(crate) fn set_group_limit(&self, limit: u64) {
        self.outside.group_limit.set(Some(limit));
    }

    pub(crate) fn enqueue(&self, items: &[(&str, &str, &str)]) -> Vec<Outcome> {
        let items = items.iter().map(|(id, key, group)| item(id, key, group));
        let items = items.collect();
        let call = self
            .shard
            .call(move |shard| async move { shard.queue.enqueue(items).await });
        let result = self.world.block_on(call).expect("the shard is there");
        result.expect("items are stored")
    }

    /// Queues `count` items `prefix-0`, `prefix-1`, …
    pub(crate) fn enqueue_many(&self, prefix: &str, count: usize, key: &str, group: &str) {
        let ids: Vec<String> = (0..count).map(|n| format!("{prefix}-{n:03}")).collect();
        let items: Vec<_> = ids.iter().map(|id| (id.as_str(), key, group)).collect();
        let outcomes = self.enqueue(&items);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Queued));
    }

    pub(crate) fn status(&self, id: &str) -> ItemStatus {
        let id = id.to_owned();
        let call = self
            .shard
            .call(move |shard| async move { shard.queue.status(&id).await });
        let result = self.world.block_on(call).expect("the shard is there");
        result.expect("rows are read")
    }

    pub(crate) fn cancel(&self, id: &str) -> CancelOutcome {
        let id = id.to_owned();
        let call = self
            .shard
            .call(move |shard| async move { shard.queue.cancel(&id).await });
        let result = self.world.block_on(call).expect("the shard is there");
        result.expect("rows are written")
    }

    pub(crate) fn release(&self, id: &str) {
        let id = id.to_owned();
        let call = self
            .shard
            .call(move |shard| async move { shard.queue.release(&id).await });
        let result = self.world.block_on(call).expect("the shard is there");
        result.expect("rows are written");
    }

    pub(crate) fn usage(&self, key: &str) -> Usage {
        let call = self
            .outside
            .holder(key)
            .call(|holder| async move { holder.semaphore.usage().await });
        let result = self.world.block_on(call).expect("the holder is there");
        result.expect("usage is read")
    }

    pub(crate) fn crash_holder(&self, key: &str) {
        self.outside.holder(key).crash();
    }

    pub(crate) fn started(&self) -> Vec<String> {
        self.outside.started.borrow().clone()
    }

    pub(crate) fn done(&self) -> usize {
        self.outside.done.borrow().len()
    }

    pub(crate) fn events(&self) -> Vec<QueueEvent> {
        self.outside.events.take()
    }

    pub(crate) fn most(&self, key: &str) -> u64 {
        self.outside.most.borrow().get(key).copied().unwrap_or(0)
    }

    /// Counts rows of one of the shard's tables.
    pub(crate) fn rows(&self, table: &str) -> u64 {
        let query = format!("SELECT COUNT(*) FROM {table}");
        let counted = self.shard.storage().transaction(move |transaction| {
            let sql = transaction.sql();
            sql.first(&query, &[], |row| row.count(0))
        });
        counted.expect("storage works").expect("a row")
    }

    /// Changes the schema of the shard's database, so that some changes of rows fail or no longer do.
    pub(crate) fn alter(&self, sql: &'static str) {
        let storage = self.shard.storage();
        let altered = storage.transaction(move |transaction| transaction.script(sql));
        altered.expect("the script is fine");
    }

    /// How many rows of tables were changed since the database was opened, the alarm's included.
    pub(crate) fn rows_changed(&self) -> u64 {
        let changed = self.shard.storage().transaction(|transaction| {
            let sql = transaction.sql();
            sql.first("SELECT total_changes()", &[], |row| row.count(0))
        });
        changed.expect("storage works").expect("a row")
    }

    /// Moves the clock in steps until `count` jobs are done, but no further than `at_most`.
    pub(crate) fn run_until_done(&self, count: usize, at_most: Duration) {
        let end = self.world.now() + at_most;
        while self.done() < count && self.world.now() < end {
            self.world.advance(ms(50));
        }
        assert_eq!(
            self.done(),
            count,
            "not all jobs ran within {at_most:?}; alarm {:?}, now {}",
            self.shard.alarm(),
            self.world.now()
        );
    }

    /// The sums in memory are those of the rows.
    pub(crate) fn assert_sums(&self) {
        let call = self
            .shard
            .call(|shard| async move { shard.queue.compare_sums().await });
        let compared = self.world.block_on(call).expect("the shard is there");
        let (kept, scanned) = compared.expect("rows are read");
        assert_eq!(kept, scanned);
    }

    /// Everything came back: no permits are out, and the shard has nothing unsettled.
    pub(crate) fn assert_settled(&self, keys: &[&str]) {
        for key in keys {
            let usage = self.usage(key);
            assert_eq!(usage.granted, 0, "permits of {key} are still out");
            assert_eq!(usage.leased, 0, "leases of {key} are still out");
            for table in ["grants", "leases", "requests"] {
                let table = format!("durability_semaphore_queue_{table} WHERE key = '{key}'");
                assert_eq!(self.rows(&table), 0, "{table}");
            }
        }
    }
}

pub(crate) fn item(id: &str, key: &str, group: &str) -> NewItem {
    NewItem::new(id, key, group, &id).expect("a string has a JSON form")
}

fn open_shard(
    host: Rc<dyn durably::host::Host>,
    outside: &Weak<Outside>,
    configure: &impl Fn(SemaphoreQueueBuilder) -> SemaphoreQueueBuilder,
) -> Result<Shard, BoxError> {
    let mut config = SchedulerConfig::default();
    config.alarm_min_delay = Duration::from_secs(1);
    config.alarm_concurrency = 8;
    let scheduler = Scheduler::new(host, config)?;
    let of = |outside: &Weak<Outside>| outside.upgrade().expect("the world outlives its objects");
    let network = outside.clone();
    let transport = holder_fn(move |call| of(&network).call(call));
    let timer = HostTimer::new(scheduler.host().clone());
    let (admit, finished, events) = (outside.clone(), outside.clone(), outside.clone());
    let builder = SemaphoreQueue::builder(&scheduler)
        .holder(SemaphoreClient::new(transport, timer))
        .admit(move |items| {
            let outside = of(&admit);
            async move {
                let admitted = outside.admit(items);
                outside.world.sleep(outside.admit_takes.get()).await;
                admitted
            }
        })
        .finished(move |ids| {
            let outside = of(&finished);
            async move {
                let done = outside.done.borrow();
                Ok(ids.into_iter().filter(|id| done.contains(id)).collect())
            }
        })
        .on_event(move |event| of(&events).events.borrow_mut().push(event.clone()))
        .finished_after(Duration::from_secs(5))
        .answer_timeout(ms(1_000))
        .request_wait(Duration::ZERO)
        .backoff(Backoff {
            first: ms(50),
            longest: ms(2_000),
        });
    let queue = configure(builder).build()?;
    Ok(Shard { scheduler, queue })
}

pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}
