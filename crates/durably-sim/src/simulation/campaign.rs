//! Many runs, over all processors: progress, the first failure with all that is needed to look into
//! it, and what the runs have come across.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::drive::{Order, Outcome, drive};
use super::failure::{Failure, FailureKind};
use super::history::{Keep, excerpt};
use super::scenarios::Plan;
use super::shrink::shrink;

/// Of how many runs one is repeated, to see whether it does the same again.
const REPEAT_PERIOD: u64 = 32;

/// The most lines of history in a report.
const EXCERPT: usize = 60;

/// What is to be run.
pub struct Campaign {
    /// Every seed runs one of these, by its number.
    pub plans: Vec<&'static Plan>,
    /// Which seeds.
    pub seeds: Range<u64>,
    /// Knobs that are not left to the seed.
    pub set: BTreeMap<String, u64>,
    /// Stop after so long, whatever is left.
    pub budget: Option<Duration>,
    /// Threads.
    pub jobs: NonZeroUsize,
}

/// What many runs of one scenario came to.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Runs.
    pub runs: u64,
    /// Awaits that went on.
    pub polls: u64,
    /// On the virtual clock.
    pub lasted: Duration,
    /// How often what interesting happened.
    pub coverage: BTreeMap<&'static str, u64>,
}

/// A failing run.
pub struct Finding {
    /// Its scenario.
    pub plan: &'static Plan,
    /// Which run.
    pub order: Order,
    /// What went wrong.
    pub failure: Failure,
}

/// What a campaign came to.
pub struct Summary {
    /// By scenario.
    pub tallies: BTreeMap<&'static str, Tally>,
    /// The failure of the lowest seed among those that were run.
    pub finding: Option<Finding>,
    /// On the wall clock.
    pub took: Duration,
}

impl Campaign {
    /// Runs the seeds until all are done, the budget is used up or one fails. `progress` is told now
    /// and then.
    pub fn run(&self, progress: &(dyn Fn(u64, u64, Duration) + Sync)) -> Summary {
        let begun = Instant::now();
        let next = AtomicU64::new(self.seeds.start);
        let stop = AtomicBool::new(false);
        let done = AtomicU64::new(0);
        let polls = AtomicU64::new(0);
        let tallies: Mutex<BTreeMap<&'static str, Tally>> = Mutex::default();
        let finding: Mutex<Option<Finding>> = Mutex::default();
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let is_late = self.budget.is_some_and(|budget| begun.elapsed() > budget);
                if seed >= self.seeds.end || is_late {
                    break;
                }
                let plan = self.plans[(seed % self.plans.len() as u64) as usize];
                let mut order = Order::of(seed);
                order.set = self.set.clone();
                let outcome = drive(plan, &order);
                let failure = failure_of(plan, &order, &outcome);
                polls.fetch_add(outcome.polls, Ordering::Relaxed);
                done.fetch_add(1, Ordering::Relaxed);
                let mut tallies = tallies.lock().unwrap_or_else(PoisonError::into_inner);
                tallies.entry(plan.name).or_default().add(outcome);
                drop(tallies);
                if let Some(failure) = failure {
                    stop.store(true, Ordering::Relaxed);
                    let mut finding = finding.lock().unwrap_or_else(PoisonError::into_inner);
                    if finding.as_ref().is_none_or(|known| known.order.seed > seed) {
                        *finding = Some(Finding {
                            plan,
                            order,
                            failure,
                        });
                    }
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.get()).map(|_| scope.spawn(work)).collect();
            let mut told = Instant::now();
            while workers.iter().any(|worker| !worker.is_finished()) {
                thread::park_timeout(Duration::from_millis(100));
                if told.elapsed() > Duration::from_secs(5) {
                    told = Instant::now();
                    let (done, polls) =
                        (done.load(Ordering::Relaxed), polls.load(Ordering::Relaxed));
                    progress(done, polls, begun.elapsed());
                }
            }
        });
        Summary {
            tallies: tallies.into_inner().unwrap_or_else(PoisonError::into_inner),
            finding: finding.into_inner().unwrap_or_else(PoisonError::into_inner),
            took: begun.elapsed(),
        }
    }
}

/// What a run failed with; one that did not is sometimes repeated, and must do the same again.
fn failure_of(plan: &Plan, order: &Order, outcome: &Outcome) -> Option<Failure> {
    let repeats = outcome.failure.is_some() || order.seed.is_multiple_of(REPEAT_PERIOD);
    if !repeats {
        return None;
    }
    let again = drive(plan, order);
    if again.digest == outcome.digest && again.polls == outcome.polls {
        return outcome.failure.clone();
    }
    Some(Failure {
        kind: FailureKind::NonDeterminism,
        invariant: "the same seed does the same again",
        subject: String::new(),
        message: format!(
            "{} polls and the digest {:016x}, then {} and {:016x} (first failure: {:?})",
            outcome.polls, outcome.digest, again.polls, again.digest, outcome.failure
        ),
    })
}

impl Tally {
    /// What the runs should have come across and have not.
    pub fn missed(&self, plan: &Plan) -> Vec<&'static str> {
        let expects = plan.expects.iter().copied();
        expects
            .filter(|event| !self.coverage.contains_key(event))
            .collect()
    }

    fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.polls += outcome.polls;
        self.lasted += outcome.lasted;
        for (event, count) in outcome.coverage {
            *self.coverage.entry(event).or_default() += count;
        }
    }
}

impl Summary {
    /// What was run and come across, as text.
    pub fn table(&self, plans: &[&'static Plan]) -> String {
        let mut text = String::new();
        let total: u64 = self.tallies.values().map(|tally| tally.polls).sum();
        let runs: u64 = self.tallies.values().map(|tally| tally.runs).sum();
        for plan in plans {
            let Some(tally) = self.tallies.get(plan.name) else {
                continue;
            };
            let hours = tally.lasted.as_secs_f64() / 3_600.0;
            let _ = writeln!(
                text,
                "{}: {} seeds, {} awaits, {hours:.1} h on the virtual clock",
                plan.name, tally.runs, tally.polls
            );
            for (event, count) in &tally.coverage {
                let _ = writeln!(text, "  {count:>9}  {event}");
            }
            for event in tally.missed(plan) {
                let _ = writeln!(text, "      NEVER  {event}");
            }
        }
        let seconds = self.took.as_secs_f64();
        let _ = writeln!(
            text,
            "{runs} seeds, {total} awaits in {seconds:.1} s: {:.0} awaits a second",
            total as f64 / seconds.max(0.001)
        );
        text
    }
}

impl Finding {
    /// The command that runs it again.
    pub fn command(plan: &Plan, order: &Order) -> String {
        let mut command = format!(
            "durably-sim run --seeds {} --scenario {}",
            order.seed, plan.name
        );
        for (knob, value) in &order.set {
            let _ = write!(command, " --set {knob}={value}");
        }
        if !order.evictions.is_empty() {
            let places: Vec<String> = order.evictions.iter().map(u64::to_string).collect();
            let _ = write!(command, " --evict-at {}", places.join(","));
        }
        command
    }

    /// Everything that is needed to look into it, as text; made smaller first if `budget` is given.
    pub fn report(&self, budget: Option<Duration>) -> String {
        let mut text = format!(
            "FAILED {}\n  again: {}\n",
            self.failure,
            Finding::command(self.plan, &self.order)
        );
        let mut order = self.order.clone();
        if let Some(budget) = budget {
            let shrunk = shrink(self.plan, &order, &self.failure, budget);
            order = shrunk.order;
            let _ = writeln!(
                text,
                "  smaller, of {} tried: {}\n  {}",
                shrunk.tried,
                Finding::command(self.plan, &order),
                shrunk.failure
            );
        }
        order.keep = Keep::Lines;
        let outcome = drive(self.plan, &order);
        let subject = outcome.failure.map(|failure| failure.subject);
        let subject = subject.unwrap_or_default();
        let lines = excerpt(&outcome.lines, &subject, EXCERPT);
        let _ = writeln!(
            text,
            "  the last {} of {} lines{}:",
            lines.len(),
            outcome.lines.len(),
            if subject.is_empty() {
                String::new()
            } else {
                format!(" about {subject}")
            }
        );
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
        text
    }
}
