//! Topology: coordinators, the members of their groups, the store that they publish in, and readers.

mod client;
mod coordinator;
mod member;
mod reader;
mod restore;
mod store;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use self::coordinator::CoordinatorSide;
pub(super) use self::coordinator::hear_outbox;
use self::member::MemberSide;
use self::reader::ReaderSide;
use self::store::Store;
use super::{Plan, Scenario};
use crate::node::Node;
use crate::simulation::dice::Dice;
use crate::simulation::invariants::awake;
use crate::simulation::knobs::Knob;
use crate::simulation::run::Run;
use crate::simulation::troubles;

/// The knobs of all kinds of stores.
const KNOBS: &[Knob] = &[
    Knob::range("coordinators", 1, 2, "coordinators"),
    Knob::range("groups", 1, 4, "groups of a coordinator"),
    Knob::scale("members", 1, 8, "who may be a member of them"),
    Knob::range("channels", 0, 2, "state channels"),
    Knob::range("readers", 1, 3, "readers"),
    Knob::scale("changes", 1, 60, "how many times somebody changes a group"),
    Knob::choice(
        "overlap-never",
        &[0, 1],
        "whether entries wait for the slowest of their batch",
    ),
    Knob::scale("in-flight", 1, 64, "calls on their way at once"),
    Knob::scale(
        "attempt-ms",
        200,
        20_000,
        "how long a write or a delivery may take, in ms",
    ),
    Knob::scale(
        "landing-ms",
        1_000,
        300_000,
        "how long after that a write may land, in ms",
    ),
    Knob::scale(
        "backoff-ms",
        10,
        5_000,
        "the first delay between attempts, in ms",
    ),
    Knob::scale("ttl-ms", 100, 30_000, "how long readers use a copy, in ms"),
    Knob::scale(
        "negative-ttl-ms",
        100,
        5_000,
        "how long readers remember a failure, in ms",
    ),
    Knob::choice(
        "stale-ms",
        &[0, 10_000, 600_000],
        "how long they use a copy on if reads fail, in ms",
    ),
    Knob::scale("reading-ms", 100, 5_000, "how often they are asked, in ms"),
    Knob::fault(
        "store-ms",
        3_000,
        "how long a write takes each way at most, in ms",
    ),
    Knob::fault("write-fails-percent", 50, "of 100 writes, how many fail"),
    Knob::fault(
        "write-lost-percent",
        30,
        "of 100 writes, how many are lost in silence",
    ),
    Knob::fault(
        "write-late-percent",
        50,
        "of 100 writes, how many land late",
    ),
    Knob::fault(
        "store-outages",
        5,
        "how many times the store is out of reach",
    ),
    Knob::fault("outage-ms", 30_000, "how long that lasts at most, in ms"),
    Knob::fault("read-ms", 1_500, "how long a read takes at most, in ms"),
    Knob::fault("read-fails-percent", 50, "of 100 reads, how many fail"),
    Knob::fault(
        "read-old-percent",
        50,
        "of 100 reads, how many find an older copy",
    ),
    Knob::fault(
        "read-damaged-percent",
        20,
        "of 100 reads, how many find a damaged copy",
    ),
    Knob::fault(
        "reader-restarts-percent",
        5,
        "of 100 reads, how many are a new reader's first",
    ),
    Knob::fault(
        "member-fails-percent",
        50,
        "of 100 deliveries, how many the member refuses",
    ),
    Knob::fault(
        "member-hangs-percent",
        50,
        "of 100 deliveries, how many take their time",
    ),
    Knob::fault("member-ms", 60_000, "how long that is at most, in ms"),
];

/// Those of stores that keep the newest: what is lost with a copy may still land in others, and nothing
/// is promised of them.
const CONDITIONAL_KNOBS: &[Knob] = &{
    let mut knobs = [Knob::fault(
        "restores",
        3,
        "how many times a coordinator is put back to an older copy",
    ); KNOBS.len() + 2];
    let mut place = 0;
    while place < KNOBS.len() {
        knobs[place] = KNOBS[place];
        place += 1;
    }
    knobs[place] = Knob::choice(
        "operator",
        &[1, 0],
        "whether somebody tells it to begin a new incarnation then",
    );
    knobs
};

const SHORT: &[(&str, u64)] = &[
    ("duration-s", 5),
    ("shuffled-percent", 0),
    ("coordinators", 1),
    ("groups", 1),
    ("members", 2),
    ("channels", 2),
    ("readers", 1),
    ("changes", 5),
    ("in-flight", 4),
    ("attempt-ms", 500),
    ("landing-ms", 3_000),
    ("backoff-ms", 100),
    ("ttl-ms", 5_000),
    ("reading-ms", 2_000),
    ("write-late-percent", 30),
    ("member-fails-percent", 30),
];

/// The same with a restored copy.
const CONDITIONAL_SHORT: &[(&str, u64)] = &{
    let mut short = [("restores", 1); SHORT.len() + 1];
    let mut place = 0;
    while place < SHORT.len() {
        short[place] = SHORT[place];
        place += 1;
    }
    short
};

/// Published in a store without conditions.
pub(super) const TOPOLOGY: Plan = Plan {
    name: "topology",
    about: "groups published in a store where old writes may land late",
    knobs: KNOBS,
    expects: &[
        "object evicted",
        "process killed",
        "commit failed",
        "clock stepped",
        "change cut off by a death",
        "told to be published",
        "told not to be published yet",
        "older write landed over a newer one",
        "publication waits for an older write",
        "write out of time",
        "write failed",
        "write without an answer",
        "store out of reach",
        "value applied",
        "older or known value passed over",
        "value superseded",
        "value taken back",
        "delivery out of time",
        "member failed",
        "member took its time",
        "member left as its delivery was called",
        "member removed by the end of its time",
        "member removed as drained",
        "group deleted",
        "version conflict",
        "arrived at a later attempt",
        "fresh copy answered",
        "cached copy answered",
        "stale copy answered",
        "group unavailable",
        "older copy read",
        "damaged copy read",
        "read failed",
        "change told",
        "deletion told",
        "reader started anew",
    ],
    short: SHORT,
    start: |run| Region::start(run, false),
};

/// Published in a store that keeps the newest.
pub(super) const CONDITIONAL: Plan = Plan {
    name: "topology-conditional",
    about: "groups published in a store that keeps the newest edition",
    knobs: CONDITIONAL_KNOBS,
    expects: &[
        "object evicted",
        "process killed",
        "change cut off by a death",
        "told to be published",
        "told not to be published yet",
        "older write refused",
        "older copy restored",
        "operator asked for an incarnation",
        "incarnation begun",
        "restored copy found by its store",
        "write out of time",
        "write failed",
        "value applied",
        "member removed by the end of its time",
        "group deleted",
        "change told",
        "deletion told",
    ],
    short: CONDITIONAL_SHORT,
    start: |run| Region::start(run, true),
};

/// Everything of the scenario.
struct Region {
    run: Rc<Run>,
    dice: Dice,
    nodes: Vec<Node>,
    store: Rc<Store>,
    coordinators: RefCell<Vec<Rc<CoordinatorSide>>>,
    members: RefCell<Vec<Rc<MemberSide>>>,
    readers: RefCell<Vec<Rc<ReaderSide>>>,
    stamps: Cell<u64>,
    /// Groups of restored coordinators are yet to be changed.
    to_change: Cell<bool>,
}

impl Region {
    fn start(run: &Rc<Run>, has_conditions: bool) -> Box<dyn Scenario> {
        let nodes: Vec<Node> = (0..3)
            .map(|index| run.world.node(&format!("node-{index}")))
            .collect();
        let region = Rc::new(Region {
            run: run.clone(),
            dice: Dice::new(run, "topology"),
            nodes,
            store: Store::new(run, has_conditions),
            coordinators: RefCell::default(),
            members: RefCell::default(),
            readers: RefCell::default(),
            stamps: Cell::new(0),
            to_change: Cell::new(false),
        });
        for index in 0..run.knob("coordinators") {
            let side = coordinator::open(&region, index as usize);
            region.coordinators.borrow_mut().push(side);
        }
        for index in 0..run.knob("members") {
            let side = member::open(&region, index as usize);
            region.members.borrow_mut().push(side);
        }
        for index in 0..run.knob("readers") {
            let side = reader::open(&region, index as usize);
            region.readers.borrow_mut().push(side);
        }
        troubles::trouble(run, &region.nodes);
        for _ in 0..run.knob("changes") {
            region.dice.sometime(&region, client::act);
        }
        for _ in 0..run.knob("store-outages") {
            let lasts = Duration::from_millis(region.dice.below(run.knob("outage-ms") + 1));
            region.dice.sometime(&region, move |region| async move {
                region.store.go_down(lasts);
            });
        }
        for _ in 0..run.knob("restores") {
            region.dice.sometime(&region, restore::put_back);
        }
        Box::new(Running(region))
    }

    fn coordinator(&self, place: usize) -> Option<Rc<CoordinatorSide>> {
        self.coordinators.borrow().get(place).cloned()
    }

    fn member(&self, id: &str) -> Option<Rc<MemberSide>> {
        let members = self.members.borrow();
        members.iter().find(|side| side.id == id).cloned()
    }

    /// The names of all groups, each with its coordinator's in front.
    fn groups(&self) -> Vec<String> {
        let (owners, groups) = (self.run.knob("coordinators"), self.run.knob("groups"));
        let names = |owner| (0..groups).map(move |group| format!("c{owner}-g{group}"));
        (0..owners).flat_map(names).collect()
    }

    /// The coordinator of a group.
    fn owner(&self, group: &str) -> Option<Rc<CoordinatorSide>> {
        let sides = self.coordinators.borrow();
        sides.iter().find(|side| side.owns(group)).cloned()
    }

    /// A number that nobody had before.
    fn next_stamp(&self) -> u64 {
        self.stamps.set(self.stamps.get() + 1);
        self.stamps.get()
    }

    /// The first reader that has not heard of what is published.
    fn left_to_read(&self) -> Option<(String, String)> {
        for group in self.groups() {
            let Some(stored) = self.store.published.current(&group) else {
                continue;
            };
            let exists = stored.members.is_some();
            for (index, reader) in self.readers.borrow().iter().enumerate() {
                let alike = match &stored.members {
                    Some(members) => {
                        let published = &self.store.published;
                        published.editions(&group, stored.edition.version, members)
                    }
                    None => Vec::new(),
                };
                if !reader.has(&group, exists.then_some(&alike)) {
                    let text = format!("reader-{index} has not answered {}", stored.edition);
                    return Some((group, text));
                }
            }
        }
        None
    }
}

/// The scenario as the run sees it.
struct Running(Rc<Region>);

impl Scenario for Running {
    fn check(&self) {
        let Running(region) = self;
        for side in region.coordinators.borrow().iter() {
            side.follow(region);
        }
        for side in region.members.borrow().iter() {
            side.applied
                .follow(&region.run, &side.id, side.object.storage());
        }
    }

    fn scan(&self) {
        let Running(region) = self;
        for side in region.coordinators.borrow().iter() {
            awake::check_coordinator(&region.run, &side.node, side.object.storage(), &side.name);
        }
    }

    fn heal(&self) {
        let Running(region) = self;
        troubles::mend(&region.nodes);
        let sides = region.coordinators.borrow();
        if region.run.knob("operator") == 0 && sides.iter().any(|side| side.restored.is_unnoticed())
        {
            region.to_change.set(true);
            let weak = Rc::downgrade(region);
            region.run.world.spawn(async move {
                restore::change_all(weak.clone()).await;
                if let Some(region) = weak.upgrade() {
                    region.to_change.set(false);
                }
            });
        }
    }

    fn left_to_do(&self) -> Option<(String, String)> {
        let Running(region) = self;
        let under_way = region.store.under_way();
        if under_way > 0 {
            return Some((String::new(), format!("{under_way} writes may still land")));
        }
        if region.to_change.get() {
            let text = "groups of a restored coordinator are to be changed";
            return Some((String::new(), text.to_owned()));
        }
        let sides = region.coordinators.borrow();
        let left = sides.iter().find_map(|side| side.left(region));
        left.or_else(|| region.left_to_read())
    }

    fn finish(&self) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.coordinators.take();
        self.0.members.take();
        self.0.readers.take();
    }
}
