//! One run: faults for a while, then none; invariants all the way; and whether all is done in the end.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::failure::{Failure, FailureKind};
use super::history::{Keep, Line};
use super::knobs::Knobs;
use super::panics;
use super::run::{COMMON, Run};
use super::scenarios::{Plan, Scenario};
use crate::executor::Step;

/// Of how many steps one is followed by full scans.
const SCAN_PERIOD: u64 = 64;

/// How long after the last fault everything must be done, on the virtual clock.
const PATIENCE: Duration = Duration::from_secs(60 * 60);

/// Polls without an end in sight are taken for a livelock.
const MOST_POLLS: u64 = 20_000_000;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Order {
    /// From which all follows.
    pub seed: u64,
    /// Knobs that are not left to the seed.
    pub set: BTreeMap<String, u64>,
    /// Polls of objects, from 1, at which one is evicted for certain.
    pub evictions: Vec<u64>,
    /// What becomes of the history.
    pub keep: Keep,
}

impl Order {
    /// What `seed` decides, all of it.
    pub fn of(seed: u64) -> Order {
        Order {
            seed,
            set: BTreeMap::new(),
            evictions: Vec::new(),
            keep: Keep::Digest,
        }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What went wrong first, if anything did.
    pub failure: Option<Failure>,
    /// What happened, if lines were to be kept.
    pub lines: Vec<Line>,
    /// Of all that happened.
    pub digest: u64,
    /// How many awaits went on.
    pub polls: u64,
    /// How many of them in objects.
    pub polls_of_objects: u64,
    /// How long it took on the virtual clock.
    pub lasted: Duration,
    /// How often what interesting happened.
    pub coverage: BTreeMap<&'static str, u64>,
    /// The values of the knobs.
    pub knobs: Knobs,
}

/// Runs a scenario once.
pub fn drive(plan: &Plan, order: &Order) -> Outcome {
    let knobs = Knobs::draw(&[COMMON, plan.knobs], order.seed, &order.set);
    let run = Run::new(order.seed, knobs, order.keep);
    run.chaos()
        .evictions
        .borrow_mut()
        .extend(order.evictions.iter().copied());
    let begun = run.world.now();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let scenario = (plan.start)(&run);
        pass(&run, &*scenario);
        scenario
    }));
    let scenario = match ran {
        Ok(scenario) => Some(scenario),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let message = panics::last().or(message).unwrap_or_default();
            run.fail_with(FailureKind::Crash, "nothing panics", "", message);
            None
        }
    };
    let chaos = run.chaos();
    run.cover_times("object evicted", chaos.evicted.get());
    run.cover_times("commit failed", chaos.failed.get());
    let history = run.take_history();
    let outcome = Outcome {
        failure: run.failure(),
        digest: history.digest(),
        lines: history.into_lines(),
        polls: run.world.polls(),
        polls_of_objects: run.world.polls_of_objects(),
        lasted: run.world.now().since(begun),
        coverage: run.take_coverage(),
        knobs: run.knobs().clone(),
    };
    // What the tasks keep keeps them.
    let ended = catch_unwind(AssertUnwindSafe(|| run.world.end()));
    drop(ended);
    drop(scenario);
    outcome
}

fn pass(run: &Run, scenario: &dyn Scenario) {
    let mut steps = 0;
    let end = run.end_of_faults();
    while let Some(step) = step(run, scenario, &mut steps, end) {
        if step == Step::Idle {
            break;
        }
    }
    run.heal();
    scenario.heal();
    let last = run.world.now() + PATIENCE;
    while let Some(step) = step(run, scenario, &mut steps, last) {
        let is_over = step == Step::Idle;
        if !is_over && !steps.is_multiple_of(SCAN_PERIOD) {
            continue;
        }
        let left = scenario.left_to_do();
        match left {
            None if run.network.in_flight() == 0 => break,
            Some((subject, left)) if is_over => {
                let message = format!("{} s after the last fault: {left}", PATIENCE.as_secs());
                let kind = FailureKind::Liveness;
                run.fail_with(kind, "everything is done in time", &subject, message);
                return;
            }
            None if is_over => {
                let message = format!("{} messages are handled for ever", run.network.in_flight());
                let kind = FailureKind::Liveness;
                run.fail_with(kind, "everything is done in time", "", message);
                return;
            }
            _ => {}
        }
    }
    if !run.has_failed() {
        scenario.scan();
        scenario.finish();
    }
}

/// One step and what must hold after it; `None` if something does not.
fn step(
    run: &Run,
    scenario: &dyn Scenario,
    steps: &mut u64,
    end: durably::Timestamp,
) -> Option<Step> {
    let step = run.world.step(end);
    *steps += 1;
    scenario.check();
    if steps.is_multiple_of(SCAN_PERIOD) {
        scenario.scan();
    }
    let panicked = run.world.panics().first().cloned();
    if let Some(message) = panicked {
        let message = panics::last().unwrap_or(message);
        run.fail_with(FailureKind::Crash, "nothing panics", "", message);
    }
    if run.world.polls() > MOST_POLLS {
        let message = format!("{MOST_POLLS} polls and no end");
        run.fail_with(
            FailureKind::Liveness,
            "everything is done in time",
            "",
            message,
        );
    }
    (!run.has_failed()).then_some(step)
}
