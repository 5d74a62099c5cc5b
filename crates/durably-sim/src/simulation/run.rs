//! One run of a scenario: its world, what the seed decided, what has happened, and what went wrong
//! first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use durably::Timestamp;

use super::failure::{Failure, FailureKind};
use super::history::{History, Keep};
use super::knobs::{Knob, Knobs};
use super::network::Network;
use crate::chaos::Chaos;
use crate::executor::World;
use crate::random::Random;

/// What the world's clock shows when a run begins, in ms: some way from the epoch, so that clocks can
/// step back.
const BEGINNING: u64 = 1_000_000_000;

/// Knobs that every scenario has.
pub const COMMON: &[Knob] = &[
    Knob::range("duration-s", 5, 60, "how long things go wrong, in s"),
    Knob::choice(
        "shuffled-percent",
        &[0, 100, 50, 10],
        "of 100 choices of the next task, how many are random",
    ),
    Knob::fault(
        "evictions",
        20_000,
        "of a million polls of objects, how many evict it instead",
    ),
    Knob::fault("commit-ms", 200, "how long a commit takes at most, in ms"),
    Knob::fault(
        "commit-failures",
        20_000,
        "of a million commits, how many fail",
    ),
    Knob::fault("kills", 12, "how many times a process is killed"),
    Knob::fault("down-ms", 20_000, "how long it stays down at most, in ms"),
    Knob::fault(
        "clock-ahead-ms",
        30_000,
        "how far clocks are apart at most, in ms",
    ),
    Knob::fault(
        "clock-drift",
        50_000,
        "how wrong clocks run at most, in parts per million",
    ),
    Knob::fault("clock-steps", 8, "how many times a clock steps"),
    Knob::fault(
        "clock-step-ms",
        60_000,
        "how far a clock steps at most, either way, in ms",
    ),
    Knob::fault("lost-percent", 50, "of 100 messages, how many are lost"),
    Knob::fault(
        "answer-lost-percent",
        50,
        "of 100 answers, how many are lost",
    ),
    Knob::fault(
        "broken-percent",
        50,
        "of 100 lost messages or answers, how many break noticeably",
    ),
    Knob::fault(
        "twice-percent",
        40,
        "of 100 messages, how many arrive more than once",
    ),
    Knob::fault(
        "copy-late-ms",
        60_000,
        "how late a copy arrives at most, in ms",
    ),
    Knob::fault(
        "delay-ms",
        3_000,
        "how long a message or answer travels at most, in ms",
    ),
    Knob::fault(
        "partitions",
        8,
        "how many times two processes cannot reach each other",
    ),
    Knob::fault("partition-ms", 30_000, "how long that lasts at most, in ms"),
];

/// One run. Everything in it is reached from here, but the scenario's objects.
pub struct Run {
    /// Its clock and tasks.
    pub world: World,
    /// From which all else follows.
    pub seed: u64,
    /// What goes wrong on the way between processes.
    pub network: Rc<Network>,
    knobs: Knobs,
    chaos: Rc<Chaos>,
    begun: Timestamp,
    history: RefCell<History>,
    coverage: RefCell<BTreeMap<&'static str, u64>>,
    failure: RefCell<Option<Failure>>,
    healed: Cell<bool>,
}

impl Run {
    pub(super) fn new(seed: u64, knobs: Knobs, keep: Keep) -> Rc<Run> {
        let world = World::with_seed(BEGINNING, Random::of(seed, "hosts").next());
        let chaos = Rc::new(Chaos::new(Random::of(seed, "chaos")));
        chaos.shuffled_percent.set(knobs.get("shuffled-percent"));
        chaos.evictions_per_million.set(knobs.get("evictions"));
        chaos.slowest_commit.set(knobs.get("commit-ms"));
        chaos.failures_per_million.set(knobs.get("commit-failures"));
        world.interfere(chaos.clone());
        let network = Rc::new(Network::new(&world, &knobs, Random::of(seed, "network")));
        Rc::new(Run {
            begun: world.now(),
            world,
            seed,
            network,
            knobs,
            chaos,
            history: RefCell::new(History::new(keep)),
            coverage: RefCell::default(),
            failure: RefCell::default(),
            healed: Cell::new(false),
        })
    }

    /// The value of a knob.
    pub fn knob(&self, name: &str) -> u64 {
        self.knobs.get(name)
    }

    /// The same as a time.
    pub fn knob_ms(&self, name: &str) -> Duration {
        Duration::from_millis(self.knob(name))
    }

    pub(super) fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    /// A stream of numbers for one purpose.
    pub(super) fn random(&self, purpose: &str) -> Random {
        Random::of(self.seed, purpose)
    }

    pub(super) fn chaos(&self) -> &Chaos {
        &self.chaos
    }

    /// When things stop going wrong.
    pub fn end_of_faults(&self) -> Timestamp {
        self.begun + Duration::from_secs(self.knob("duration-s"))
    }

    /// Whether they have stopped.
    pub fn is_healed(&self) -> bool {
        self.healed.get()
    }

    /// From now on nothing goes wrong that has not gone wrong already.
    pub(super) fn heal(&self) {
        self.healed.set(true);
        self.chaos.calm();
        self.network.calm();
        self.note("run", format_args!("all faults end"));
    }

    /// Writes down what happened to `subject`.
    pub fn note(&self, subject: &str, text: fmt::Arguments<'_>) {
        let now = self.world.now();
        let mut history = self.history.borrow_mut();
        history.note(self.begun, now, subject, text);
    }

    /// Counts something interesting, so that a run which exercises nothing is seen.
    pub fn cover(&self, event: &'static str) {
        self.cover_times(event, 1);
    }

    pub(super) fn cover_times(&self, event: &'static str, times: u64) {
        if times > 0 {
            *self.coverage.borrow_mut().entry(event).or_default() += times;
        }
    }

    /// Something happened that must not. The first one counts.
    pub fn fail(&self, invariant: &'static str, subject: &str, message: String) {
        self.fail_with(FailureKind::Safety, invariant, subject, message);
    }

    pub(super) fn fail_with(
        &self,
        kind: FailureKind,
        invariant: &'static str,
        subject: &str,
        message: String,
    ) {
        let mut failure = self.failure.borrow_mut();
        if failure.is_none() {
            self.note(subject, format_args!("BROKEN {invariant}: {message}"));
            *failure = Some(Failure {
                kind,
                invariant,
                subject: subject.to_owned(),
                message,
            });
        }
    }

    /// What went wrong first.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.borrow().clone()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    pub(super) fn take_history(&self) -> History {
        self.history.replace(History::new(Keep::Digest))
    }

    pub(super) fn take_coverage(&self) -> BTreeMap<&'static str, u64> {
        self.coverage.take()
    }
}
