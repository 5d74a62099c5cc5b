//! Calls whose handlers do anything, in an object that dies at any time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use durably::operations::{CancelOutcome, HandlerError, OperationResult, TerminalReason};
use serde_json::json;

use crate::support::{Fixture, every, seconds};

/// Counts runs of one call at the same time.
struct Inside {
    id: String,
    inside: Rc<RefCell<BTreeMap<String, u64>>>,
}

impl Inside {
    fn enter(id: &str, inside: &Rc<RefCell<BTreeMap<String, u64>>>) -> Self {
        let mut counts = inside.borrow_mut();
        let count = counts.entry(id.to_owned()).or_default();
        *count += 1;
        assert_eq!(*count, 1, "two attempts of {id} at once");
        Inside {
            id: id.to_owned(),
            inside: inside.clone(),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(count) = self.inside.borrow_mut().get_mut(&self.id) {
            *count -= 1;
        }
    }
}

fn one_in(fixture: &Fixture, odds: u64) -> bool {
    fixture.world.random().is_multiple_of(odds)
}

/// Runs one seed to its end.
fn run(seed: u64) {
    let fixture = Fixture::with_seed(seed);
    fixture.scheduler(|config| config.alarm_concurrency = 4);
    let mut config = every(seconds(3));
    config.attempt_timeout = seconds(10);
    config.max_attempts = 3;
    let healed = Rc::new(Cell::new(false));
    let inside = Rc::<RefCell<BTreeMap<String, u64>>>::default();
    let answered = Rc::<RefCell<BTreeMap<String, u64>>>::default();
    let (world, whole) = (fixture.world.clone(), healed.clone());
    let (counts, answers) = (inside.clone(), answered.clone());
    fixture.handle("any", config, move |call| {
        let inside = Inside::enter(&call.id, &counts);
        let choice = if whole.get() { 0 } else { world.random() % 7 };
        let sleep = world.sleep(Duration::from_millis(world.random() % 30_000));
        let answers = answers.clone();
        async move {
            let _inside = inside;
            match choice {
                0 => {}
                1 => sleep.await,
                2 => return Err(HandlerError::retry("fails")),
                // As a panic, but without its report.
                3 => resume_unwind(Box::new("a handler that panics")),
                4 => {
                    call.token.cancelled().await;
                    return Err(HandlerError::retry("stopped"));
                }
                5 => return Err(HandlerError::non_retryable("final")),
                _ => {
                    sleep.await;
                    return Err(HandlerError::retry("fails late"));
                }
            }
            *answers.borrow_mut().entry(call.id).or_default() += 1;
            Ok(json!(call.attempt))
        }
    });
    fixture.open();
    let mut ids = Vec::new();
    let mut cancelled = Vec::new();
    for step in 0..40 {
        let batch: Vec<String> = (0..fixture.world.random() % 4)
            .map(|number| format!("{step:02}-{number}"))
            .collect();
        fixture.run_all("any", &batch);
        ids.extend(batch);
        fixture
            .world
            .advance(Duration::from_millis(fixture.world.random() % 5_000));
        if one_in(&fixture, 5) {
            fixture.object.crash();
        }
        if one_in(&fixture, 5) && !ids.is_empty() {
            let id = ids[(fixture.world.random() % ids.len() as u64) as usize].clone();
            match fixture.cancel(&id) {
                CancelOutcome::Cancelled | CancelOutcome::Cancelling => cancelled.push(id),
                CancelOutcome::AlreadyEnded => {}
                CancelOutcome::NotFound => panic!("{id} is lost"),
            }
        }
    }
    healed.set(true);
    // What is still running ends within the longest handler; the rest runs by itself.
    fixture.world.advance(seconds(300));
    for (id, result) in ids.iter().zip(fixture.results(&ids)) {
        match result {
            OperationResult::Completed { .. } => {
                assert!(
                    answered.borrow().contains_key(id),
                    "{id} has a result from nowhere"
                );
                assert!(!cancelled.contains(id), "{id} was cancelled");
            }
            OperationResult::Failed {
                reason, attempt, ..
            } => {
                assert!(attempt <= 3);
                let expected = match reason {
                    TerminalReason::Cancelled => cancelled.contains(id),
                    TerminalReason::AttemptsExhausted => attempt == 3,
                    TerminalReason::NonRetryable => attempt > 0,
                    _ => false,
                };
                assert!(expected, "{id} ended as {reason:?} after {attempt}");
            }
            other => panic!("{id} never ended: {other:?}"),
        }
    }
    assert_eq!(fixture.object.alarm(), None);
    assert!(fixture.most_running.get() <= 4);
    assert!(inside.borrow().values().all(|count| *count == 0));
}

#[test]
fn every_call_ends_once_whatever_its_handler_and_its_object_do() {
    for seed in 0..50 {
        run(seed);
    }
}
