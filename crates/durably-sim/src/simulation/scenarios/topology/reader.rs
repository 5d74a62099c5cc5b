//! A reader of the region, which asks for groups now and then and follows one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::Timestamp;
use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::layers::Timer;
use durably::topology::{
    Change, Edition, ReaderOptions, Source, TopologyReader, UnavailableReason, decode,
};
use futures::StreamExt;

use super::Region;
use super::store::Store;
use crate::clock::Sleep;
use crate::node::Node;
use crate::simulation::invariants::readers::{Answered, check_age};

/// The clock of a reader's process.
#[derive(Clone)]
pub(super) struct Clock(Node);

impl Timer for Clock {
    type Sleep = Sleep;

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }
}

/// The store, as readers read it.
pub(super) struct Copies {
    store: Rc<Store>,
    clock: Clock,
    told: Told,
}

/// When the store told something useful of each group last.
type Told = Rc<RefCell<BTreeMap<String, Timestamp>>>;

impl Source for Copies {
    type Text = String;
    type Read = LocalFuture<Result<Option<String>, BoxError>>;

    fn read(&self, group: &str) -> Self::Read {
        let (store, clock, told) = (self.store.clone(), self.clock.clone(), self.told.clone());
        let group = group.to_owned();
        Box::pin(async move {
            let text = store.read(group.clone()).await?;
            let is_good = |text: &String| decode(&group, text.as_bytes()).is_ok();
            if text.as_ref().is_none_or(is_good) {
                told.borrow_mut().insert(group, clock.now());
            }
            Ok(text)
        })
    }
}

/// What readers draw from.
type Chance = Box<dyn Fn() -> u64>;

pub(super) struct ReaderSide {
    name: String,
    options: ReaderOptions,
    reader: RefCell<TopologyReader<Copies, Clock, Chance>>,
    answered: RefCell<Answered>,
    missing: RefCell<BTreeSet<String>>,
    /// What its present reader was told: the one before may go on being told, by a clock that was set back.
    told: RefCell<Told>,
}

impl ReaderSide {
    /// Whether it has answered one of these editions of a group, which are alike, or that the group is
    /// missing.
    pub(super) fn has(&self, group: &str, alike: Option<&Vec<Edition>>) -> bool {
        match alike {
            Some(alike) => {
                let newest = self.answered.borrow().newest(group);
                newest.is_some_and(|newest| alike.contains(&newest))
            }
            None => self.missing.borrow().contains(group),
        }
    }
}

fn new_reader(
    region: &Rc<Region>,
    options: &ReaderOptions,
    node: &Node,
    told: &Told,
) -> TopologyReader<Copies, Clock, Chance> {
    let weak = Rc::downgrade(region);
    let random: Chance = Box::new(move || {
        weak.upgrade()
            .map_or(0, |region| region.dice.below(u64::MAX))
    });
    let source = Copies {
        store: region.store.clone(),
        clock: Clock(node.clone()),
        told: told.clone(),
    };
    match TopologyReader::new(options.clone(), source, Clock(node.clone()), random) {
        Ok(reader) => reader,
        Err(error) => panic!("the knobs make no reader: {error}"),
    }
}

pub(super) fn open(region: &Rc<Region>, index: usize) -> Rc<ReaderSide> {
    let run = &region.run;
    let node = region.nodes[(index + 2) % region.nodes.len()].clone();
    let mut options = ReaderOptions::default();
    options.ttl = run.knob_ms("ttl-ms");
    options.negative_ttl = run.knob_ms("negative-ttl-ms");
    let stale = run.knob_ms("stale-ms");
    options.stale_if_error = (!stale.is_zero()).then_some(stale);
    let told = Told::default();
    let side = Rc::new(ReaderSide {
        name: format!("reader-{index}"),
        reader: RefCell::new(new_reader(region, &options, &node, &told)),
        options,
        answered: RefCell::default(),
        missing: RefCell::default(),
        told: RefCell::new(told),
    });
    let world = run.world.clone();
    world.spawn(ask(Rc::downgrade(region), side.clone(), node));
    world.spawn(follow(Rc::downgrade(region), side.clone()));
    side
}

/// Asks for one group after the other.
async fn ask(region: Weak<Region>, side: Rc<ReaderSide>, node: Node) {
    for turn in 0.. {
        let Some(known) = region.upgrade() else {
            return;
        };
        let pause = 1 + known.dice.below(2 * known.run.knob("reading-ms"));
        // What is left takes long, and nobody needs to look that often.
        let pause = pause.max(if known.run.is_healed() { 5_000 } else { 0 });
        let world = known.run.world.clone();
        drop(known);
        world.sleep(Duration::from_millis(pause)).await;
        let Some(known) = region.upgrade() else {
            return;
        };
        if known.dice.fails("reader-restarts-percent") {
            known.run.cover("reader started anew");
            let told = Told::default();
            let anew = new_reader(&known, &side.options, &node, &told);
            side.told.replace(told);
            side.reader.replace(anew);
            side.answered.take();
        }
        let groups = known.groups();
        let group = groups[turn % groups.len()].clone();
        let reader = side.reader.borrow().clone();
        drop(known);
        let answer = reader.get(&group).await;
        let Some(known) = region.upgrade() else {
            return;
        };
        let run = &known.run;
        match answer {
            Ok(reading) => {
                side.missing.borrow_mut().remove(&group);
                let (version, origin) = (reading.version(), reading.origin());
                run.note(
                    &side.name,
                    format_args!("{group} is at {version}, {}", origin.as_str()),
                );
                run.cover(match origin.as_str() {
                    "fresh" => "fresh copy answered",
                    "stale" => "stale copy answered",
                    _ => "cached copy answered",
                });
                let told = side.told.borrow().borrow().get(&group).copied();
                let ago = node.now().since(told.unwrap_or(Timestamp::ZERO));
                check_age(run, &side.name, &reading, ago, &side.options);
                let published = &known.store.published;
                side.answered
                    .borrow()
                    .check(run, &side.name, published, &reading);
            }
            Err(error) => {
                run.note(&side.name, format_args!("{error}"));
                run.cover("group unavailable");
                if matches!(error.reason, UnavailableReason::Missing) {
                    side.missing.borrow_mut().insert(group);
                }
            }
        }
    }
}

/// Follows the first group.
async fn follow(region: Weak<Region>, side: Rc<ReaderSide>) {
    let (reader, group) = {
        let Some(known) = region.upgrade() else {
            return;
        };
        (side.reader.borrow().clone(), known.groups()[0].clone())
    };
    let told = Answered::default();
    let mut changes = Box::pin(reader.changes(&group));
    while let Some(change) = changes.next().await {
        let Some(known) = region.upgrade() else {
            return;
        };
        match change {
            Change::Snapshot(snapshot) => {
                let published = &known.store.published;
                told.check(&known.run, &side.name, published, &snapshot);
                known.run.cover("change told");
            }
            Change::Deleted => known.run.cover("deletion told"),
        }
    }
}
