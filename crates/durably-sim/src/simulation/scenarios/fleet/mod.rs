//! Holders and shards: queues that ask holders over the network, and work that runs outside of any
//! object. Four scenarios differ in their knobs: grants alone, leases, limits that move, requests
//! that wait.

mod holder;
mod liar;
mod shard;
mod work;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use super::{Plan, Scenario};
use crate::node::Node;
use crate::simulation::dice::Dice;
use crate::simulation::invariants::{awake, books::Books, jobs, returned, running, sums};
use crate::simulation::knobs::Knob;
use crate::simulation::run::Run;
use crate::simulation::troubles;

use holder::{HolderSide, open_holder};
use shard::{ShardSide, open_shard};
use work::Work;

macro_rules! fleet_knobs {
    ($($own:expr),* $(,)?) => {
        &[
            Knob::scale("jobs", 1, 120, "jobs that are submitted"),
            Knob::range("keys", 1, 2, "holders"),
            Knob::range("shards", 1, 4, "shards with a queue"),
            Knob::range("groups", 1, 3, "groups of every key"),
            Knob::scale("limit", 1, 16, "permits of every key"),
            Knob::choice("ceiling", &[0, 1, 2, 5], "the ceiling of every group; 0 for none"),
            Knob::range("max-admitted", 1, 8, "items of a shard that hold permits at once"),
            Knob::scale("work-ms", 1, 8_000, "how long a job runs at most, in ms"),
            Knob::scale("round-wait-ms", 1, 1_000, "how long a round waits for others, in ms"),
            Knob::scale("round-period-ms", 50, 3_000, "time between rounds, in ms"),
            Knob::scale("grant-timeout-ms", 200, 10_000, "until a claim is too late, in ms"),
            Knob::choice("apart", &[1, 0], "whether holders and shards are processes apart"),
            Knob::range("cancels", 0, 10, "jobs that are cancelled"),
            Knob::fault("admit-fails-percent", 50, "of 100 calls of `admit`, how many fail"),
            Knob::fault("admit-ms", 5_000, "how long `admit` takes at most, in ms"),
            Knob::fault("finished-fails-percent", 50, "of 100 calls of `finished`, how many fail"),
            Knob::fault("release-lost-percent", 60, "of 100 ends of work, how many go unheard"),
            Knob::fault("limit-fails-percent", 40, "of 100 questions for limits, how many fail"),
            Knob::fault("limit-lies-percent", 30, "of 100 limits and ceilings, how many make no sense"),
            Knob::fault("finished-lies-percent", 40, "of 100 answers of `finished`, how many name strangers"),
            Knob::fault("limit-ms", 4_000, "how long an answer about limits takes at most, in ms"),
            $($own),*
        ]
    };
}

const NO_LEASES: Knob = Knob::choice("lease-mode", &[0], "no leases");
const LEASE_MODES: Knob = Knob::choice("lease-mode", &[1, 2, 3], "1 strict, 2 under, 3 over");
const ANY_LEASES: Knob = Knob::choice(
    "lease-mode",
    &[0, 1, 2, 3],
    "0 no leases, 1 strict, 2 under, 3 over",
);
const LEASE_PERMITS: Knob = Knob::range("lease-permits", 1, 8, "the most permits of a lease");
const LEASE_TTL: Knob = Knob::scale(
    "lease-ttl-ms",
    1_000,
    120_000,
    "how long a lease lasts, in ms",
);
const LEASE_PART: Knob = Knob::range(
    "lease-part",
    0,
    8,
    "the reserve under the limit, or the permits above it",
);
const LEASES_IN_LIMITED: Knob = Knob::choice(
    "lease-limited-groups",
    &[0, 1],
    "whether groups with a ceiling have leases",
);
const NO_WAIT: Knob = Knob::choice("request-wait-ms", &[0], "requests do not wait");
const ANY_WAIT: Knob = Knob::choice(
    "request-wait-ms",
    &[0, 500, 5_000, 20_000],
    "how long a request may wait in the holder, in ms",
);
const LIMIT_MOVES: Knob = Knob::range("limit-moves", 1, 20, "how many times a limit moves");
const STILL_LIMITS: Knob = Knob::choice("limit-moves", &[0], "limits stay as they are");
const LEASE_SWITCHES: Knob = Knob::range(
    "lease-switches",
    0,
    4,
    "how many times leases are switched off and on",
);

/// Holders with grants alone.
pub(super) const GRANTS: Plan = Plan {
    name: "grants",
    about: "shards ask holders for grants, claim them and give them back",
    knobs: fleet_knobs![NO_LEASES, NO_WAIT, STILL_LIMITS],
    expects: EXPECTED,
    short: SHORT,
    start: Fleet::start,
};

/// Leases in three modes.
pub(super) const LEASES: Plan = Plan {
    name: "leases",
    about: "shards draw from leases, strict, under and over the limit",
    knobs: fleet_knobs![
        LEASE_MODES,
        LEASE_PERMITS,
        LEASE_TTL,
        LEASE_PART,
        LEASES_IN_LIMITED,
        ANY_WAIT,
        STILL_LIMITS,
    ],
    expects: EXPECTED_OF_LEASES,
    short: SHORT_LEASES,
    start: Fleet::start,
};

/// Limits that move.
pub(super) const LIMITS: Plan = Plan {
    name: "limits",
    about: "limits, ceilings and gates move up, down and to zero while work runs",
    knobs: fleet_knobs![
        ANY_LEASES,
        LEASE_PERMITS,
        LEASE_TTL,
        LEASE_PART,
        LEASES_IN_LIMITED,
        ANY_WAIT,
        LIMIT_MOVES,
        LEASE_SWITCHES,
    ],
    expects: EXPECTED_OF_LIMITS,
    short: SHORT,
    start: Fleet::start,
};

/// Clients that lie.
pub(super) const FOREIGN: Plan = Plan {
    name: "foreign",
    about: "beside honest shards, clients lie about their permits and those of others",
    knobs: fleet_knobs![
        ANY_LEASES,
        LEASE_PERMITS,
        LEASE_TTL,
        LEASE_PART,
        LEASES_IN_LIMITED,
        ANY_WAIT,
        STILL_LIMITS,
        Knob::range("liars", 1, 4, "clients that lie"),
    ],
    expects: EXPECTED_OF_FOREIGN,
    short: SHORT_LEASES,
    start: Fleet::start,
};

/// Requests that wait in the holder.
pub(super) const WAITING: Plan = Plan {
    name: "waiting",
    about: "requests wait in their holder until there is something for them",
    knobs: fleet_knobs![
        ANY_LEASES,
        LEASE_PERMITS,
        LEASE_TTL,
        LEASE_PART,
        Knob::choice("request-wait-ms", &[5_000, 500, 20_000], "how long, in ms"),
        STILL_LIMITS,
    ],
    expects: EXPECTED_OF_WAITING,
    short: SHORT,
    start: Fleet::start,
};

const SHORT: &[(&str, u64)] = &[
    ("duration-s", 5),
    ("shuffled-percent", 0),
    ("jobs", 4),
    ("keys", 1),
    ("shards", 2),
    ("groups", 1),
    ("limit", 2),
    ("cancels", 1),
    ("apart", 1),
];

/// The same with leases for certain.
const SHORT_LEASES: &[(&str, u64)] = &[
    ("duration-s", 5),
    ("shuffled-percent", 0),
    ("jobs", 5),
    ("keys", 1),
    ("shards", 2),
    ("groups", 1),
    ("limit", 3),
    ("ceiling", 0),
    ("lease-permits", 2),
    ("lease-ttl-ms", 3_000),
    ("cancels", 0),
    ("apart", 1),
];

const EXPECTED: &[&str] = &[
    "object evicted",
    "process killed",
    "clock stepped",
    "processes parted",
    "commit failed",
    "message lost",
    "answer lost",
    "message repeated by the network",
    "grant claimed too late",
    "grant reclaimed",
    "request repeated",
    "job admitted again",
    "release unheard",
    "job cancelled in the queue",
    "job cancelled while claiming",
    "limit unreadable",
    "message cut off by a death",
];

const EXPECTED_OF_LEASES: &[&str] = &[
    "object evicted",
    "lease given",
    "lease retired",
    "lease expired at the client",
    "lease given back idle",
    "retired lease settled",
    "job drawn at once",
    "job drawn from a lease that came",
    "request repeated",
];

const EXPECTED_OF_LIMITS: &[&str] = &[
    "limit raised",
    "limit lowered",
    "limit zero",
    "ceiling moved",
    "gate moved",
    "leases switched",
];

const EXPECTED_OF_FOREIGN: &[&str] = &[
    "object evicted",
    "permits of a silent client taken back",
    "permits taken away by an operator",
    "retired lease settled",
];

const EXPECTED_OF_WAITING: &[&str] = &["request waited", "object evicted", "processes parted"];

/// Everything of the scenario.
pub(super) struct Fleet {
    run: Rc<Run>,
    nodes: Vec<Node>,
    holders: RefCell<Vec<Rc<HolderSide>>>,
    shards: RefCell<Vec<Rc<ShardSide>>>,
    work: Work,
    books: Rc<Books>,
    dice: Dice,
}

/// A handle for what lives in objects, whose factories would keep the fleet otherwise.
type WeakFleet = Weak<Fleet>;

impl Fleet {
    fn start(run: &Rc<Run>) -> Box<dyn Scenario> {
        let fleet = Rc::new(Fleet {
            run: run.clone(),
            nodes: nodes(run),
            holders: RefCell::default(),
            shards: RefCell::default(),
            work: Work::default(),
            books: Rc::default(),
            dice: Dice::new(run, "fleet"),
        });
        for key in 0..run.knob("keys") {
            let holder = open_holder(&fleet, key);
            fleet.holders.borrow_mut().push(holder);
        }
        for index in 0..run.knob("shards") {
            let shard = open_shard(&fleet, index);
            fleet.shards.borrow_mut().push(shard);
        }
        troubles::trouble(run, &fleet.nodes);
        fleet.submit();
        fleet.cancel();
        fleet.move_limits();
        for index in 0..run.knob("liars") {
            fleet
                .dice
                .sometime(&fleet, move |fleet| liar::lie(fleet, index));
        }
        Box::new(Running {
            fleet,
            worked: Cell::new(0),
        })
    }

    fn holder(&self, key: &str) -> Option<Rc<HolderSide>> {
        let holders = self.holders.borrow();
        holders.iter().find(|holder| holder.key == key).cloned()
    }

    fn shard(&self, name: &str) -> Option<Rc<ShardSide>> {
        let shards = self.shards.borrow();
        shards.iter().find(|shard| shard.name == name).cloned()
    }

    fn submit(self: &Rc<Self>) {
        let mut left = self.run.knob("jobs");
        let mut next = 0;
        while left > 0 {
            let batch = 1 + self.dice.below(left.min(6));
            left -= batch;
            let shard = format!("shard-{}", self.dice.below(self.run.knob("shards")));
            let key = format!("key-{}", self.dice.below(self.run.knob("keys")));
            let group = format!("group-{}", self.dice.below(self.run.knob("groups")));
            let ids: Vec<String> = (next..next + batch)
                .map(|n| format!("job-{n:03}"))
                .collect();
            next += batch;
            for id in &ids {
                self.work.expect(id, &shard, &key, &group);
            }
            self.dice.sometime(self, move |fleet| {
                shard::submit(fleet, shard, key, group, ids)
            });
        }
    }

    fn cancel(self: &Rc<Self>) {
        for _ in 0..self.run.knob("cancels") {
            let id = format!("job-{:03}", self.dice.below(self.run.knob("jobs")));
            self.dice
                .sometime(self, move |fleet| shard::cancel(fleet, id));
        }
    }

    fn move_limits(self: &Rc<Self>) {
        for _ in 0..self.run.knob("limit-moves") {
            self.dice
                .sometime(self, |fleet| async move { holder::move_limit(&fleet) });
        }
        for switch in 0..self.run.knob("lease-switches") {
            self.dice.sometime(self, move |fleet| async move {
                holder::switch_leases(&fleet, switch % 2 == 1);
            });
        }
    }
}

fn nodes(run: &Run) -> Vec<Node> {
    match run.knob("apart") {
        0 => vec![run.world.node("node-0")],
        _ => (0..=run.knob("shards").min(2))
            .map(|index| run.world.node(&format!("node-{index}")))
            .collect(),
    }
}

/// The fleet as the run sees it. Handles go round in a circle through the objects; here they are
/// let go.
struct Running {
    fleet: Rc<Fleet>,
    /// How far the work has come when it was last looked at.
    worked: Cell<u64>,
}

impl Scenario for Running {
    fn check(&self) {
        let Running { fleet, worked } = self;
        let work = fleet.work.changes();
        let has_worked = worked.replace(work) != work;
        for holder in fleet.holders.borrow().iter() {
            let (run, storage) = (&fleet.run, holder.object.storage());
            let books = &fleet.books;
            let has_changed = books.follow(run, &holder.key, storage, || holder.allowed());
            if has_changed || has_worked {
                fleet.work.with_running(&holder.key, |runs| {
                    running::check(run, books, &holder.key, runs, shard::client_id);
                });
            }
        }
        for shard in fleet.shards.borrow().iter() {
            shard
                .order
                .follow(&fleet.run, &shard.name, shard.object.storage());
        }
    }

    fn scan(&self) {
        let Running { fleet, .. } = self;
        for holder in fleet.holders.borrow().iter() {
            let storage = holder.object.storage();
            if let Some(open) = holder.open.borrow().upgrade() {
                sums::check_holder(&fleet.run, storage, open.semaphore.clone(), &holder.key);
            }
            awake::check_holder(&fleet.run, &holder.node, storage, &holder.key);
        }
        for shard in fleet.shards.borrow().iter() {
            let storage = shard.object.storage();
            if let Some(open) = shard.open.borrow().upgrade() {
                sums::check_queue(&fleet.run, storage, open.queue.clone(), &shard.name);
            }
            awake::check_queue(&fleet.run, storage, &shard.name);
        }
    }

    fn heal(&self) {
        let Running { fleet, .. } = self;
        troubles::mend(&fleet.nodes);
        for holder in fleet.holders.borrow().iter() {
            holder.heal();
        }
    }

    fn left_to_do(&self) -> Option<(String, String)> {
        let Running { fleet, .. } = self;
        if let Some(left) = jobs::left(&fleet.work.jobs()) {
            return Some(left);
        }
        for holder in fleet.holders.borrow().iter() {
            if let Some(left) = returned::left_at_holder(holder.object.storage()) {
                return Some((holder.key.clone(), left));
            }
        }
        for shard in fleet.shards.borrow().iter() {
            if let Some(left) = returned::left_at_queue(shard.object.storage()) {
                return Some((shard.name.clone(), left));
            }
        }
        None
    }

    fn finish(&self) {
        let Running { fleet, .. } = self;
        jobs::finish(&fleet.run, &fleet.work.jobs());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.fleet.holders.take();
        self.fleet.shards.take();
    }
}
