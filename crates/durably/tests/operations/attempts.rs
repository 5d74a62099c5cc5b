//! Failures, timeouts and what follows them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::operations::{Backoff, HandlerConfig, HandlerError, OperationResult, TerminalReason};
use serde_json::json;

use crate::support::{Fixture, behaviour, completed, every, seconds};

#[test]
fn failures_are_tried_again_after_a_growing_delay_and_end() {
    let fixture = Fixture::new();
    fixture.handle("fail", HandlerConfig::default(), behaviour::fail);
    fixture.open();
    fixture.register("fail", "a", json!(1));
    fixture.world.run_until_idle();
    let mut last = fixture.world.now();
    for attempt in 1..=4u64 {
        let OperationResult::Pending {
            attempt: failed,
            next_attempt_at,
            last_error,
        } = fixture.result("a")
        else {
            panic!("attempts are left");
        };
        assert_eq!(failed, attempt);
        assert_eq!(last_error.as_deref(), Some("it failed: the reason"));
        let ceiling = Duration::from_secs(1 << (attempt - 1));
        let delay = next_attempt_at.since(last);
        assert!(
            delay >= ceiling / 2 && delay <= ceiling,
            "{delay:?} after {attempt}"
        );
        fixture.world.advance_to(next_attempt_at);
        last = next_attempt_at;
    }
    assert_eq!(
        fixture.result("a"),
        OperationResult::Failed {
            attempt: 5,
            reason: TerminalReason::AttemptsExhausted,
            error: "it failed: the reason".into(),
        }
    );
    assert_eq!(fixture.attempts("a"), [1, 2, 3, 4, 5]);
    assert_eq!(fixture.object.alarm(), None);
    let events = fixture.events();
    assert_eq!(events.first().map(String::as_str), Some("a registered 0"));
    assert!(events.contains(&"a retrying 4".to_owned()));
    assert_eq!(
        events[events.len() - 2..],
        ["a failed 5", "a attempts_exhausted 5"]
    );
}

#[test]
fn a_retry_comes_by_the_alarm_after_an_eviction() {
    let fixture = Fixture::new();
    let failing = Rc::new(Cell::new(true));
    let fails = failing.clone();
    fixture.handle("flaky", every(seconds(120)), move |call| {
        let fails = fails.get();
        async move {
            if fails {
                return Err(HandlerError::retry("not yet"));
            }
            Ok(call.payload)
        }
    });
    fixture.open();
    fixture.register("flaky", "a", json!(1));
    fixture.world.run_until_idle();
    failing.set(false);
    fixture.object.crash();
    fixture.world.advance(seconds(119));
    assert_eq!(fixture.attempts("a"), [1]);
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.attempts("a"), [1, 2]);
    assert_eq!(fixture.result("a"), completed(json!(1)));
}

#[test]
fn a_delay_of_nothing_does_not_wait_for_the_alarm() {
    let fixture = Fixture::new();
    fixture.handle("fail", every(Duration::ZERO), behaviour::fail);
    fixture.open();
    fixture.register("fail", "a", json!(1));
    fixture.world.run_until_idle();
    assert_eq!(fixture.attempts("a"), [1, 2, 3, 4, 5]);
}

#[test]
fn an_unusable_delay_function_gives_way_to_the_default() {
    let fixture = Fixture::new();
    let mut panics = HandlerConfig::default();
    panics.backoff = Backoff::Delay(Arc::new(|_| panic!("no delay")));
    fixture.handle("panics", panics, behaviour::fail);
    fixture.handle("endless", every(Duration::MAX), behaviour::fail);
    fixture.open();
    for name in ["panics", "endless"] {
        fixture.register(name, name, json!(1));
    }
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.attempts("panics"), [1, 2]);
    assert_eq!(fixture.attempts("endless"), [1, 2]);
}

#[test]
fn some_failures_are_final() {
    let fixture = Fixture::new();
    fixture.handle("never", HandlerConfig::default(), |_| async {
        Err(HandlerError::non_retryable("no such thing"))
    });
    fixture.open();
    fixture.register("never", "a", json!(1));
    fixture.world.run_until_idle();
    assert_eq!(
        fixture.result("a"),
        OperationResult::Failed {
            attempt: 1,
            reason: TerminalReason::NonRetryable,
            error: "no such thing".into(),
        }
    );
    assert_eq!(fixture.events()[2..], ["a failed 1", "a non_retryable 1"]);
}

#[test]
fn a_panic_is_a_failed_attempt_and_not_the_end_of_the_object() {
    let fixture = Fixture::new();
    fixture.handle("panic", every(seconds(1)), |call| async move {
        assert!(call.attempt > 1, "the first attempt always breaks");
        Ok(call.payload)
    });
    // Also one that panics before it has a future.
    fixture.handle("at once", every(seconds(1)), |call| {
        assert!(call.attempt > 1, "nor does this one");
        async move { Ok(call.payload) }
    });
    fixture.open();
    for name in ["panic", "at once"] {
        fixture.register(name, name, json!(1));
    }
    fixture.world.run_until_idle();
    let OperationResult::Pending { last_error, .. } = fixture.result("panic") else {
        panic!("attempts are left");
    };
    let error = last_error.expect("an error");
    assert!(
        error.contains("panicked") && error.contains("always breaks"),
        "{error}"
    );
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.result("panic"), completed(json!(1)));
    assert_eq!(fixture.result("at once"), completed(json!(1)));
    assert_eq!(fixture.object.instances(), 1);
}

#[test]
fn a_timeout_cancels_the_token_and_counts() {
    let fixture = Fixture::new();
    let mut config = every(seconds(2));
    config.attempt_timeout = seconds(10);
    config.max_attempts = 2;
    fixture.handle("listens", config, |call| async move {
        assert!(!call.token.is_cancelled());
        call.token.cancelled().await;
        assert!(call.token.is_cancelled());
        Ok(json!("too late to count"))
    });
    fixture.open();
    fixture.register("listens", "a", json!(1));
    fixture.world.advance(seconds(10));
    let OperationResult::Pending {
        attempt,
        next_attempt_at,
        last_error,
    } = fixture.result("a")
    else {
        panic!("an attempt is left");
    };
    assert_eq!(attempt, 1);
    assert_eq!(next_attempt_at, fixture.world.now() + seconds(2));
    assert_eq!(
        last_error.as_deref(),
        Some("the attempt took longer than 10000 ms")
    );
    fixture.world.advance(seconds(12));
    assert_eq!(
        fixture.result("a"),
        OperationResult::Failed {
            attempt: 2,
            reason: TerminalReason::AttemptsExhausted,
            error: "the attempt took longer than 10000 ms".into(),
        }
    );
    assert_eq!(
        fixture.events()[1..],
        [
            "a started 1",
            "a retrying 1",
            "a started 2",
            "a failed 2",
            "a attempts_exhausted 2"
        ]
    );
}

#[test]
fn a_handler_that_ignores_its_token_keeps_its_slot_and_is_not_overtaken_by_its_own_retry() {
    let fixture = Fixture::new();
    fixture.scheduler(|config| config.alarm_concurrency = 1);
    let mut config = every(seconds(1));
    config.attempt_timeout = seconds(10);
    let world = fixture.world.clone();
    fixture.handle("deaf", config, move |call| {
        let sleep = world.sleep(seconds(60));
        async move {
            if call.attempt == 1 && call.id == "a" {
                sleep.await;
            }
            Ok(json!(call.attempt))
        }
    });
    fixture.open();
    fixture.register("deaf", "a", json!(1));
    fixture.register("deaf", "b", json!(1));
    fixture.world.advance(seconds(59));
    assert_eq!(
        fixture.attempts("a"),
        [1],
        "its retry has been due for long"
    );
    assert_eq!(fixture.attempts("b"), [0; 0], "the slot is taken");
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.most_running.get(), 1);
    assert_eq!(fixture.result("a"), completed(json!(2)));
    assert_eq!(fixture.result("b"), completed(json!(1)));
}

#[test]
fn a_call_whose_last_attempt_timed_out_ends_when_the_handler_does() {
    let fixture = Fixture::new();
    let mut config = every(seconds(1));
    config.attempt_timeout = seconds(10);
    config.max_attempts = 1;
    let world = fixture.world.clone();
    fixture.handle("deaf", config, move |_| {
        let sleep = world.sleep(seconds(60));
        async move {
            sleep.await;
            Ok(json!("late"))
        }
    });
    fixture.open();
    fixture.register("deaf", "a", json!(1));
    fixture.register("deaf", "b", json!(1));
    fixture.world.advance(seconds(59));
    assert!(matches!(
        fixture.result("a"),
        OperationResult::Pending { attempt: 1, .. }
    ));
    assert!(
        !fixture
            .events()
            .iter()
            .any(|event| event.contains("exhausted"))
    );
    fixture.world.advance(seconds(1));
    let ended = OperationResult::Failed {
        attempt: 1,
        reason: TerminalReason::AttemptsExhausted,
        error: "the attempt took longer than 10000 ms".into(),
    };
    assert_eq!(fixture.result("a"), ended);
    assert_eq!(fixture.attempts("a"), [1]);

    // The same if the object dies between the timeout and the handler's end: nothing runs again.
    fixture.register("deaf", "c", json!(1));
    fixture.world.advance(seconds(20));
    fixture.object.crash();
    assert_eq!(fixture.result("c"), ended);
    assert_eq!(fixture.attempts("c"), [1]);
}

#[test]
fn a_result_that_storage_refuses_ends_its_call() {
    let fixture = Fixture::new();
    fixture.handle("large", HandlerConfig::default(), |_| async {
        Ok(json!("x".repeat(64 << 20)))
    });
    fixture.open();
    fixture.register("large", "a", json!(1));
    fixture.world.run_until_idle();
    let OperationResult::Failed { reason, error, .. } = fixture.result("a") else {
        panic!("another attempt would not help");
    };
    assert_eq!(reason, TerminalReason::NonRetryable);
    assert!(error.contains("could not be stored"), "{error}");
}
