//! An application's own outbox: values that are staged, taken back and published at once, and a
//! receiver that keeps the newest.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::outbox::{
    Backoff, BatchEntry, Channel, ChannelConfig, Entry, Outbox, OutboxError, OutboxEvent, Outcome,
    Overlap, Publish,
};
use durably::{Scheduler, SchedulerConfig};
use serde_json::json;

use super::topology::hear_outbox;
use super::{Plan, Scenario};
use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::dice::Dice;
use crate::simulation::invariants::awake;
use crate::simulation::invariants::calls::{Calls, Rules};
use crate::simulation::invariants::entries::{Entries, Name, WANTED};
use crate::simulation::knobs::Knob;
use crate::simulation::run::Run;
use crate::simulation::troubles;

/// An outbox of one's own.
pub(super) const OUTBOX: Plan = Plan {
    name: "outbox",
    about: "values that are staged, taken back and published, and a receiver that keeps the newest",
    knobs: &[
        Knob::range("senders", 1, 2, "objects with an outbox"),
        Knob::range("channels", 1, 3, "channels of each"),
        Knob::scale("keys", 1, 12, "keys of a channel"),
        Knob::scale(
            "wishes",
            1,
            120,
            "values that are staged, taken back or published at once",
        ),
        Knob::choice(
            "overlap-never",
            &[0, 1],
            "whether entries wait for the slowest of their batch",
        ),
        Knob::choice("batches", &[0, 1], "whether a call takes a whole batch"),
        Knob::scale("in-flight", 1, 64, "entries on their way at once"),
        Knob::scale("attempt-ms", 100, 20_000, "how long a call may take, in ms"),
        Knob::scale(
            "backoff-ms",
            10,
            5_000,
            "the first delay between attempts, in ms",
        ),
        Knob::fault("refuse-percent", 50, "of 100 calls, how many fail"),
        Knob::fault(
            "later-percent",
            40,
            "of 100 entries, how many are wanted later",
        ),
        Knob::fault(
            "needless-percent",
            10,
            "of 100 entries, how many nobody needs",
        ),
        Knob::fault("slow-percent", 40, "of 100 calls, how many take their time"),
        Knob::fault("slow-ms", 60_000, "how long that is at most, in ms"),
    ],
    expects: &[
        "object evicted",
        "process killed",
        "commit failed",
        "clock stepped",
        "value superseded",
        "value taken back",
        "arrived at a later attempt",
        "older value passed over",
        "entry wanted later",
        "entry needless",
        "call out of time",
        "told to be out",
        "told not to be out yet",
        "told to be taken back",
        "wish cut off by a death",
    ],
    short: &[
        ("duration-s", 5),
        ("shuffled-percent", 0),
        ("senders", 1),
        ("channels", 1),
        ("keys", 2),
        ("wishes", 6),
        ("in-flight", 2),
        ("attempt-ms", 500),
        ("backoff-ms", 100),
        ("refuse-percent", 30),
    ],
    start: Office::start,
};

struct Sender {
    scheduler: Scheduler,
    channels: Vec<Channel>,
}

impl Object for Sender {
    const CLASS: &'static str = "sender";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

struct Side {
    name: String,
    node: Node,
    object: VirtualObject<Sender>,
    entries: Entries,
    calls: Rc<Calls>,
}

/// Everything of the scenario.
struct Office {
    run: Rc<Run>,
    nodes: Vec<Node>,
    sides: RefCell<Vec<Rc<Side>>>,
    /// By sender, channel and key: the newest version and its value.
    received: RefCell<BTreeMap<(usize, Name), (u64, u64)>>,
    values: Cell<u64>,
    dice: Dice,
}

impl Office {
    fn start(run: &Rc<Run>) -> Box<dyn Scenario> {
        let nodes = ["senders", "receivers"].map(|name| run.world.node(name));
        let office = Rc::new(Office {
            run: run.clone(),
            nodes: nodes.to_vec(),
            sides: RefCell::default(),
            received: RefCell::default(),
            values: Cell::new(0),
            dice: Dice::new(run, "outbox"),
        });
        for index in 0..run.knob("senders") {
            let side = open(&office, index as usize);
            office.sides.borrow_mut().push(side);
        }
        troubles::trouble(run, &office.nodes);
        for _ in 0..run.knob("wishes") {
            office.dice.sometime(&office, wish);
        }
        Box::new(Running(office))
    }

    fn side(&self, place: usize) -> Option<Rc<Side>> {
        self.sides.borrow().get(place).cloned()
    }

    fn rules(&self) -> Rules {
        Rules {
            one_batch: self.run.knob("overlap-never") > 0,
            whole: self.run.knob("batches") > 0,
            most: self.run.knob("in-flight"),
        }
    }
}

fn open(office: &Rc<Office>, index: usize) -> Rc<Side> {
    let name = format!("sender-{index}");
    let node = office.nodes[0].clone();
    let weak = Rc::downgrade(office);
    let object = office.run.world.object_in(&node, &name, move |host| {
        let weak = weak.clone();
        async move {
            let run = weak.upgrade().ok_or("the run is over")?.run.clone();
            let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
            let channels = build(&scheduler, &run, &weak, index)?;
            scheduler.open().await?;
            let prepared = scheduler.transaction(|transaction| transaction.sql().script(WANTED));
            prepared.await?;
            Ok(Rc::new(Sender {
                scheduler,
                channels,
            }))
        }
    });
    Rc::new(Side {
        name,
        node,
        object,
        entries: Entries::default(),
        calls: Rc::default(),
    })
}

fn build(
    scheduler: &Scheduler,
    run: &Rc<Run>,
    office: &Weak<Office>,
    place: usize,
) -> Result<Vec<Channel>, BoxError> {
    let outbox = Outbox::new(scheduler)?;
    let heard = run.clone();
    outbox.on_event(Rc::new(move |event: &OutboxEvent| {
        hear_outbox(&heard, event)
    }));
    let mut channels = Vec::new();
    for number in 0..run.knob("channels") {
        let name = format!("channel-{number}");
        let mut config = ChannelConfig::default();
        if run.knob("overlap-never") > 0 {
            config.overlap = Overlap::Never;
        }
        config.max_in_flight = run.knob("in-flight");
        config.attempt_timeout = run.knob_ms("attempt-ms");
        config.backoff = Backoff::Exponential {
            base: run.knob_ms("backoff-ms"),
            max: Duration::from_secs(30),
        };
        let (office, of) = (office.clone(), name.clone());
        let publish = match run.knob("batches") {
            0 => Publish::each(move |entry: Entry| {
                let (office, of) = (office.clone(), of.clone());
                async move {
                    let sent = vec![((of, entry.key.clone()), entry.version, value(&entry))];
                    let mut outcomes = send(office, place, sent).await?;
                    outcomes.pop().ok_or_else(|| "no answer".into())
                }
            }),
            _ => Publish::batch(move |batch: Vec<BatchEntry>| {
                let (office, of) = (office.clone(), of.clone());
                async move {
                    let sent = batch.iter().map(|entry| {
                        ((of.clone(), entry.key.clone()), entry.version, value(entry))
                    });
                    let outcomes = send(office, place, sent.collect()).await?;
                    for (entry, outcome) in batch.iter().zip(outcomes) {
                        entry.settle(outcome);
                    }
                    Ok(batch)
                }
            }),
        };
        channels.push(outbox.channel(name, config, publish)?);
    }
    Ok(channels)
}

fn value(entry: &Entry) -> u64 {
    entry.value.as_u64().unwrap_or(0)
}

type Sent = Vec<(Name, u64, u64)>;

/// What the receiver makes of each entry.
#[derive(Clone, Copy)]
enum Taken {
    Kept,
    Later(u64),
    Needless,
}

/// What the receiver answers.
struct Told(Result<Vec<Taken>, &'static str>);

impl fmt::Display for Told {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(taken) => write!(formatter, "{} taken", taken.len()),
            Err(error) => formatter.write_str(error),
        }
    }
}

/// A call to the receiver, for one entry or a batch.
async fn send(office: Weak<Office>, place: usize, sent: Sent) -> Result<Vec<Outcome>, BoxError> {
    let office = office.upgrade().ok_or("the run is over")?;
    let side = office.side(place).ok_or("the run is over")?;
    let run = office.run.clone();
    let names = sent.iter().map(|(name, ..)| name.clone()).collect();
    let _running = side.calls.begin(&run, office.rules(), names);
    let (weak, what) = (Rc::downgrade(&office), format!("{sent:?}"));
    let carried = sent.clone();
    let arrives = Rc::new(move || -> LocalFuture<Told> {
        Box::pin(receive(weak.clone(), place, carried.clone()))
    });
    let (from, to) = (side.node.clone(), office.nodes[1].clone());
    let about = ("receiver".to_owned(), what);
    let answered = run
        .network
        .clone()
        .send(run.clone(), from, to, about, arrives);
    let taken = match answered.await {
        Ok(Told(Ok(taken))) => taken,
        Ok(Told(Err(error))) => return Err(error.into()),
        Err(_) => return Err("the connection broke".into()),
    };
    let outcomes = sent
        .iter()
        .zip(taken)
        .map(|((name, version, _), taken)| match taken {
            Taken::Kept => {
                side.entries.arrives(name, *version);
                Outcome::Done
            }
            Taken::Later(after) => Outcome::Retry {
                after: Some(Duration::from_millis(after)),
                error: None,
            },
            Taken::Needless => {
                side.entries.is_needless(name, *version);
                Outcome::Dropped
            }
        });
    Ok(outcomes.collect())
}

async fn receive(office: Weak<Office>, place: usize, sent: Sent) -> Told {
    let Some(office) = office.upgrade() else {
        return Told(Err("the run is over"));
    };
    let run = &office.run;
    if office.dice.fails("slow-percent") {
        office.dice.linger("slow-ms").await;
    }
    if office.dice.fails("refuse-percent") {
        return Told(Err("not this time"));
    }
    let mut taken = Vec::with_capacity(sent.len());
    for (name, version, value) in sent {
        if office.dice.fails("later-percent") {
            run.cover("entry wanted later");
            taken.push(Taken::Later(office.dice.below(5_000)));
            continue;
        }
        if office.dice.fails("needless-percent") {
            run.cover("entry needless");
            taken.push(Taken::Needless);
            continue;
        }
        let mut received = office.received.borrow_mut();
        let newest = received.entry((place, name)).or_insert((0, 0));
        if version > newest.0 {
            *newest = (version, value);
        } else {
            run.cover("older value passed over");
        }
        taken.push(Taken::Kept);
    }
    Told(Ok(taken))
}

/// Stages a value, takes one back or wants it published now.
async fn wish(office: Rc<Office>) {
    let run = office.run.clone();
    let dice = &office.dice;
    let place = dice.below(run.knob("senders")) as usize;
    let Some(side) = office.side(place) else {
        return;
    };
    let channel = dice.below(run.knob("channels")) as usize;
    let key = format!("{}-key-{}", side.name, dice.below(run.knob("keys")));
    let name = (format!("channel-{channel}"), key.clone());
    let value = office.values.get() + 1;
    office.values.set(value);
    let what = dice.below(10);
    let before = side.entries.pending(&name);
    if what == 7 {
        side.entries.takes_back(&name);
    }
    let object = side.object.clone();
    // What waits for an answer must not keep the run.
    drop(office);
    let of = key.clone();
    let answer = object.call(move |sender| async move {
        let channel = sender.channels[channel].clone();
        match what {
            0..7 => stage(&sender.scheduler, channel, of, value)
                .await
                .map(|()| None),
            7 => {
                let discarded = sender
                    .scheduler
                    .transaction(move |transaction| channel.discard(transaction, &of));
                discarded.await.map(|_| None)
            }
            _ => channel.publish_now(&of).await.map(Some),
        }
    });
    match answer.await {
        Ok(Ok(Some(true))) => {
            run.cover("told to be out");
            side.entries.told(&run, &name, before);
        }
        Ok(Ok(Some(false))) => run.cover("told not to be out yet"),
        Ok(Ok(None)) if what == 7 => {
            run.cover("told to be taken back");
            side.entries.told_back(&run, &name, before);
        }
        Ok(Ok(None)) => {}
        Ok(Err(error)) => run.note(&key, format_args!("refused: {error}")),
        Err(ended) => {
            run.cover("wish cut off by a death");
            run.note(&key, format_args!("cut off: {ended}"));
        }
    }
}

async fn stage(
    scheduler: &Scheduler,
    channel: Channel,
    key: String,
    value: u64,
) -> Result<(), OutboxError> {
    let staged = scheduler.transaction(move |transaction| {
        let version = channel.stage(transaction, &key, &json!(value))?;
        transaction.sql().execute(
            "INSERT INTO wanted (channel, key, version, value) VALUES (?, ?, ?, ?)
             ON CONFLICT (channel, key) DO UPDATE SET
                version = excluded.version, value = excluded.value",
            &[
                channel.name().into(),
                (&key).into(),
                version.into(),
                value.into(),
            ],
        )?;
        Ok::<_, OutboxError>(())
    });
    staged.await
}

/// The scenario as the run sees it.
struct Running(Rc<Office>);

impl Scenario for Running {
    fn check(&self) {
        let Running(office) = self;
        for side in office.sides.borrow().iter() {
            side.entries.follow(&office.run, side.object.storage());
        }
    }

    fn scan(&self) {
        let Running(office) = self;
        for side in office.sides.borrow().iter() {
            awake::check_outbox(&office.run, &side.node, side.object.storage(), &side.name);
        }
    }

    fn heal(&self) {
        troubles::mend(&self.0.nodes);
    }

    fn left_to_do(&self) -> Option<(String, String)> {
        let Running(office) = self;
        let received = office.received.borrow();
        let sides = office.sides.borrow();
        sides.iter().enumerate().find_map(|(place, side)| {
            side.entries
                .left(|name| received.get(&(place, name.clone())).copied())
        })
    }

    fn finish(&self) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.sides.take();
    }
}
