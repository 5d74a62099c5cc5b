//! Looking for a smaller run that fails the same way: knob by knob towards its simplest value, as long
//! as the same invariant breaks.

use std::time::{Duration, Instant};

use super::drive::{Order, drive};
use super::failure::Failure;
use super::knobs::Knob;
use super::run::COMMON;
use super::scenarios::Plan;

/// The smallest run that was found, as an order, and how many were tried.
pub struct Shrunk {
    /// What to run.
    pub order: Order,
    /// What it fails with.
    pub failure: Failure,
    /// Runs that it took to find it.
    pub tried: u64,
}

/// Makes a failing run smaller for at most `budget`.
pub fn shrink(plan: &Plan, order: &Order, failure: &Failure, budget: Duration) -> Shrunk {
    let begun = Instant::now();
    let mut found = Shrunk {
        order: order.clone(),
        failure: failure.clone(),
        tried: 0,
    };
    let mut values = drive(plan, &found.order).knobs;
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for knob in COMMON.iter().chain(plan.knobs) {
            for simpler in knob.simpler(values.get(knob.name)) {
                if begun.elapsed() > budget {
                    return found;
                }
                if try_one(plan, knob, simpler, &mut found) {
                    values = drive(plan, &found.order).knobs;
                    has_changed = true;
                    break;
                }
            }
        }
    }
    found
}

/// Keeps the change if the run still fails the same way.
fn try_one(plan: &Plan, knob: &Knob, value: u64, found: &mut Shrunk) -> bool {
    let mut order = found.order.clone();
    order.set.insert(knob.name.to_owned(), value);
    found.tried += 1;
    let failure = drive(plan, &order).failure.filter(|failure| {
        failure.kind == found.failure.kind && failure.invariant == found.failure.invariant
    });
    let Some(failure) = failure else {
        return false;
    };
    found.order = order;
    found.failure = failure;
    true
}
