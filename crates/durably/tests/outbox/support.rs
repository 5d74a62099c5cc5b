//! An object with an outbox in a virtual world, and a receiver that does as it is told.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, pending};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object, Transaction};
use durably::outbox::{
    Backoff, BatchEntry, Channel, ChannelConfig, Entry, EntryStatus, Outbox, OutboxError,
    OutboxEventKind, Outcome, Overlap, Publish,
};
use durably::{OpenError, Scheduler, SchedulerConfig, Timestamp};
use durably_sim::{Alarms, VirtualObject, World};
use serde_json::{Value, json};

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A channel whose failed entries are tried again after a second.
pub(crate) fn config(overlap: Overlap) -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.overlap = overlap;
    config.attempt_timeout = seconds(10);
    config.backoff = Backoff::Delay(Arc::new(|_| seconds(1)));
    config
}

/// What the receiver does with a call.
#[derive(Clone)]
pub(crate) enum Act {
    Done,
    Fail,
    Panic,
    Hang,
    After(Duration, Box<Act>),
    Answer(Outcome),
}

pub(crate) fn after(delay: Duration, act: Act) -> Act {
    Act::After(delay, Box::new(act))
}

/// A call that the receiver got.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Got {
    pub(crate) key: String,
    pub(crate) version: u64,
    pub(crate) attempt: u64,
    pub(crate) value: Value,
    pub(crate) at: Timestamp,
}

/// The receiver of a channel.
#[derive(Clone, Default)]
pub(crate) struct Receiver {
    scripts: Rc<RefCell<BTreeMap<String, VecDeque<Act>>>>,
    got: Rc<RefCell<Vec<Got>>>,
    running: Rc<RefCell<BTreeMap<String, u64>>>,
    pub(crate) most_running: Rc<Cell<usize>>,
}

/// Counts a key for as long as its call runs.
struct Running(Receiver, String);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.borrow_mut().remove(&self.1);
    }
}

impl Receiver {
    pub(crate) fn script(&self, key: &str, acts: impl IntoIterator<Item = Act>) {
        let mut scripts = self.scripts.borrow_mut();
        scripts.entry(key.to_owned()).or_default().extend(acts);
    }

    fn take(&self, host: &Rc<dyn Host>, entry: &Entry) -> (Act, Running) {
        let mut running = self.running.borrow_mut();
        let overlaps = running.insert(entry.key.clone(), entry.version);
        assert_eq!(overlaps, None, "two calls for {} at once", entry.key);
        self.most_running
            .set(self.most_running.get().max(running.len()));
        self.got.borrow_mut().push(Got {
            key: entry.key.clone(),
            version: entry.version,
            attempt: entry.attempt,
            value: entry.value.clone(),
            at: host.now(),
        });
        let mut scripts = self.scripts.borrow_mut();
        let act = scripts.get_mut(&entry.key).and_then(VecDeque::pop_front);
        let running = Running(self.clone(), entry.key.clone());
        (act.unwrap_or(Act::Done), running)
    }

    fn each(&self, host: Rc<dyn Host>) -> Publish {
        let receiver = self.clone();
        Publish::each(move |entry: Entry| {
            let (receiver, host) = (receiver.clone(), host.clone());
            async move {
                let (act, _running) = receiver.take(&host, &entry);
                perform(&host, act).await
            }
        })
    }

    fn batch(&self, host: Rc<dyn Host>) -> Publish {
        let receiver = self.clone();
        Publish::batch(move |entries: Vec<BatchEntry>| {
            let (receiver, host) = (receiver.clone(), host.clone());
            async move {
                let mut answered = Vec::new();
                for entry in entries {
                    let (act, _running) = receiver.take(&host, &entry);
                    match act {
                        // It is not handed back.
                        Act::Fail => {}
                        act => {
                            entry.settle(perform(&host, act).await?);
                            answered.push(entry);
                        }
                    }
                }
                Ok(answered)
            }
        })
    }

    /// Everything that came, in order, as `key version attempt`.
    pub(crate) fn got(&self) -> Vec<String> {
        let told = |got: &Got| format!("{} {} {}", got.key, got.version, got.attempt);
        self.got.borrow().iter().map(told).collect()
    }

    /// What came last under a key.
    pub(crate) fn last(&self, key: &str) -> Option<Got> {
        let got = self.got.borrow();
        got.iter().rev().find(|got| got.key == key).cloned()
    }
}

async fn perform(host: &Rc<dyn Host>, act: Act) -> Result<Outcome, BoxError> {
    let mut act = act;
    loop {
        match act {
            Act::Done => return Ok(Outcome::Done),
            Act::Answer(outcome) => return Ok(outcome),
            Act::Fail => return Err("the receiver is away".into()),
            Act::Panic => panic!("a callback that fails"),
            Act::Hang => pending::<()>().await,
            Act::After(delay, then) => {
                host.sleep(delay).await;
                act = *then;
            }
        }
    }
}

/// Whether a channel is published one by one or many at once.
#[derive(Clone, Copy)]
pub(crate) enum How {
    Each,
    Batch,
}

pub(crate) struct Sender {
    pub(crate) scheduler: Scheduler,
    pub(crate) outbox: Outbox,
    pub(crate) channels: BTreeMap<String, Channel>,
}

impl Object for Sender {
    const CLASS: &'static str = "sender";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

type Parts = Rc<RefCell<Vec<(String, ChannelConfig, How, Receiver)>>>;

pub(crate) struct Fixture {
    pub(crate) world: World,
    pub(crate) object: VirtualObject<Sender>,
    pub(crate) events: Rc<RefCell<Vec<String>>>,
    parts: Parts,
}

fn build(
    host: Rc<dyn Host>,
    parts: &Parts,
    events: &Rc<RefCell<Vec<String>>>,
) -> Result<Rc<Sender>, OpenError> {
    let scheduler = Scheduler::new(host.clone(), SchedulerConfig::default())?;
    let outbox = Outbox::new(&scheduler)?;
    let events = events.clone();
    outbox.on_event(Rc::new(move |event| {
        let what = match &event.kind {
            OutboxEventKind::Staged => "staged",
            OutboxEventKind::AttemptStarted => "attempt",
            OutboxEventKind::Delivered => "delivered",
            OutboxEventKind::Retrying { .. } => "retrying",
            OutboxEventKind::Superseded => "superseded",
            OutboxEventKind::Discarded => "discarded",
            _ => "something new",
        };
        let told = format!("{} {what} {} {}", event.key, event.version, event.attempt);
        events.borrow_mut().push(told);
    }));
    let mut channels = BTreeMap::new();
    for (name, config, how, receiver) in &*parts.borrow() {
        let publish = match how {
            How::Each => receiver.each(host.clone()),
            How::Batch => receiver.batch(host.clone()),
        };
        let channel = outbox.channel(name.as_str(), config.clone(), publish)?;
        channels.insert(name.clone(), channel);
    }
    Ok(Rc::new(Sender {
        scheduler,
        outbox,
        channels,
    }))
}

impl Fixture {
    /// An object with one channel, `c`.
    pub(crate) fn one(config: ChannelConfig, how: How) -> (Fixture, Receiver) {
        let fixture = Fixture::new();
        let receiver = fixture.channel("c", config, how);
        (fixture, receiver)
    }

    pub(crate) fn new() -> Fixture {
        let world = World::new(1_700_000_000_000);
        let (parts, events) = (Parts::default(), Rc::<RefCell<Vec<String>>>::default());
        let (building, telling) = (parts.clone(), events.clone());
        let object = world.object("s", Alarms::Automatic, move |host| {
            let sender = build(host, &building, &telling);
            async move {
                let sender = sender?;
                sender.scheduler.open().await?;
                Ok(sender)
            }
        });
        Fixture {
            world,
            object,
            events,
            parts,
        }
    }

    /// Adds a channel to the next instance.
    pub(crate) fn channel(&self, name: &str, config: ChannelConfig, how: How) -> Receiver {
        let receiver = Receiver::default();
        let part = (name.to_owned(), config, how, receiver.clone());
        self.parts.borrow_mut().push(part);
        receiver
    }

    /// The next instance has no channels but those that are added from here on.
    pub(crate) fn forget(&self) {
        self.parts.borrow_mut().clear();
    }

    /// Why an instance with the present settings cannot be built.
    pub(crate) fn build_error(&self) -> OpenError {
        let told = Rc::new(RefCell::new(None));
        let (tell, parts) = (told.clone(), self.parts.clone());
        let object = self.world.object("refused", Alarms::Manual, move |host| {
            let error = build(host, &parts, &Rc::default()).err().expect("refused");
            *tell.borrow_mut() = Some(error.clone());
            async move { Err::<Rc<Sender>, BoxError>(error.into()) }
        });
        assert!(self.world.block_on(object.open()).is_err());
        told.borrow_mut().take().expect("an error")
    }

    pub(crate) fn call<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        call: impl FnOnce(Rc<Sender>) -> F + 'static,
    ) -> T {
        self.world
            .block_on(self.object.call(call))
            .expect("the object answers")
    }

    /// Runs a transaction over channel `c`.
    pub(crate) fn transaction<T: 'static>(
        &self,
        work: impl FnOnce(&dyn Transaction, &Channel) -> Result<T, OutboxError> + 'static,
    ) -> Result<T, OutboxError> {
        self.call(move |sender| {
            let channel = sender.channels["c"].clone();
            sender
                .scheduler
                .transaction(move |transaction| work(transaction, &channel))
        })
    }

    /// Stages a value in channel `c` and lets what follows happen, as far as it takes no time.
    pub(crate) fn stage(&self, key: &str, value: u64) -> u64 {
        let key = key.to_owned();
        let staged = self.transaction(move |transaction, channel| {
            channel.stage(transaction, &key, &json!(value))
        });
        self.world.run_until_idle();
        staged.expect("staged")
    }

    pub(crate) fn discard(&self, key: &str) -> bool {
        let key = key.to_owned();
        let discarded =
            self.transaction(move |transaction, channel| channel.discard(transaction, &key));
        self.world.run_until_idle();
        discarded.expect("discarded")
    }

    pub(crate) fn publish_now(&self, key: &str) -> bool {
        let key = key.to_owned();
        let published =
            self.call(move |sender| async move { sender.channels["c"].publish_now(&key).await });
        published.expect("storage answers")
    }

    pub(crate) fn status(&self, key: &str) -> EntryStatus {
        let key = key.to_owned();
        let status =
            self.call(move |sender| async move { sender.channels["c"].status(&key).await });
        status.expect("storage answers").expect("an entry")
    }

    pub(crate) fn pending(&self) -> Vec<EntryStatus> {
        let pending =
            self.call(move |sender| async move { sender.channels["c"].pending(0, 100).await });
        pending.expect("storage answers")
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.events.take()
    }
}
