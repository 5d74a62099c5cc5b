//! Every single eviction of a short run, and pairs of them: whatever an object was doing, it may go
//! away at any of its awaits.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::campaign::Finding;
use super::drive::{Order, drive};
use super::knobs::Knob;
use super::run::COMMON;
use super::scenarios::Plan;
use crate::random::Random;

/// What came out.
pub struct Evictions {
    /// Awaits of objects in the undisturbed run: as many single evictions were tried.
    pub places: u64,
    /// Pairs that were tried.
    pub pairs: u64,
    /// A failing run, if there was one.
    pub finding: Option<Finding>,
}

/// The short run of a scenario without any other faults.
pub fn short(plan: &Plan, seed: u64) -> Order {
    let mut order = Order::of(seed);
    let knobs = COMMON.iter().chain(plan.knobs);
    for knob in knobs.filter(|knob| Knob::is_fault(knob)) {
        order.set.insert(knob.name.to_owned(), 0);
    }
    for (name, value) in plan.short {
        order.set.insert((*name).to_owned(), *value);
    }
    order
}

/// Tries all single evictions of a short run, and so many pairs.
pub fn exhaust(plan: &'static Plan, seed: u64, pairs: u64, jobs: NonZeroUsize) -> Evictions {
    let order = short(plan, seed);
    let undisturbed = drive(plan, &order);
    let places = undisturbed.polls_of_objects;
    let finding = |failure, order| Finding {
        plan,
        order,
        failure,
    };
    if let Some(failure) = undisturbed.failure {
        return Evictions {
            places,
            pairs: 0,
            finding: Some(finding(failure, order)),
        };
    }
    let total = places + pairs;
    let next = AtomicU64::new(1);
    let stop = AtomicBool::new(false);
    let found: Mutex<Option<Finding>> = Mutex::default();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number > total {
                return;
            }
            let mut order = order.clone();
            order.evictions = if number <= places {
                vec![number]
            } else {
                // The second comes soon after the first, while that is being recovered from.
                let mut random = Random::of(seed, &format!("pair {number}"));
                let first = 1 + random.below(places);
                vec![first, first + 1 + random.below(40)]
            };
            if let Some(failure) = drive(plan, &order).failure {
                stop.store(true, Ordering::Relaxed);
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.get_or_insert(finding(failure, order));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs.get() {
            scope.spawn(work);
        }
    });
    Evictions {
        places,
        pairs,
        finding: found.into_inner().unwrap_or_else(PoisonError::into_inner),
    }
}
