//! Durable calls on the virtual host: attempts, deaths of the object, cancelling, purging.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use durably::operations::{
    Backoff, CancelOutcome, HandlerConfig, HandlerError, OperationError, OperationResult,
    RunOutcome, TerminalReason,
};
use durably::{OpenError, SchedulerConfig};
use serde_json::json;
use support::{Fixture, behaviour, seconds};

fn completed(result: serde_json::Value) -> OperationResult {
    OperationResult::Completed { result }
}

/// A delay that tests can count on.
fn every(delay: Duration) -> HandlerConfig {
    let mut config = HandlerConfig::default();
    config.backoff = Backoff::Delay(Rc::new(move |_| delay));
    config
}

#[test]
fn a_call_starts_at_once_and_keeps_its_result() {
    let fixture = Fixture::new();
    fixture.handle("double", HandlerConfig::default(), |call| async move {
        Ok(json!(call.payload.as_u64().unwrap_or(0) * 2))
    });
    fixture.open();
    let start = fixture.world.now();
    let commits = fixture.object.storage().commits();
    assert_eq!(
        fixture.run("double", "a", json!(21)),
        Ok(RunOutcome::Registered)
    );
    fixture.world.run_until_idle();
    assert_eq!(fixture.object.storage().commits() - commits, 2);
    assert_eq!(fixture.result("a"), completed(json!(42)));
    assert_eq!(fixture.world.now(), start, "nothing waited for a timer");
    assert_eq!(fixture.object.alarm(), None);
    assert_eq!(
        fixture.events(),
        ["a registered 0", "a started 1", "a completed 1"]
    );
}

#[test]
fn the_same_id_again_changes_nothing() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.handle("other", HandlerConfig::default(), behaviour::answer);
    fixture.open();
    assert_eq!(
        fixture.run("one", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
    assert_eq!(fixture.run("one", "a", json!(2)), Ok(RunOutcome::Duplicate));
    fixture.world.run_until_idle();
    assert_eq!(fixture.run("one", "a", json!(3)), Ok(RunOutcome::Duplicate));
    assert_eq!(fixture.result("a"), completed(json!(1)));
    let refused = fixture.run("other", "a", json!(4));
    assert_eq!(
        refused,
        Err(OperationError::DuplicateCall {
            id: "a".into(),
            name: "one".into()
        })
    );
    assert_eq!(refused.expect_err("refused").code(), "duplicate_call");
    assert_eq!(fixture.attempts("a"), [1]);
}

#[test]
fn a_batch_is_one_commit_in_which_one_bad_call_stands_alone() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.handle("other", HandlerConfig::default(), behaviour::answer);
    fixture.open();
    assert_eq!(
        fixture.run("other", "taken", json!(0)),
        Ok(RunOutcome::Registered)
    );
    fixture.world.run_until_idle();
    let commits = fixture.object.storage().commits();
    let long = "x".repeat(257);
    let batch: Vec<_> = ["a", "", "taken", "b", "a", &long]
        .iter()
        .map(|id| ((*id).to_owned(), json!(id)))
        .collect();
    let outcomes = fixture
        .call(|worker| async move { worker.operations.run_all("one", batch).await })
        .expect("the batch is stored");
    assert_eq!(fixture.object.storage().commits() - commits, 1);
    assert_eq!(
        outcomes,
        [
            Ok(RunOutcome::Registered),
            Err(OperationError::InvalidId(0)),
            Err(OperationError::DuplicateCall {
                id: "taken".into(),
                name: "other".into()
            }),
            Ok(RunOutcome::Registered),
            Ok(RunOutcome::Duplicate),
            Err(OperationError::InvalidId(257)),
        ]
    );
    fixture.world.run_until_idle();
    assert_eq!(
        fixture.results(&["b", "a", "nobody"]),
        [
            completed(json!("b")),
            completed(json!("a")),
            OperationResult::NotFound
        ]
    );
    let refused = fixture.run("nobody", "c", json!(1));
    assert_eq!(
        refused,
        Err(OperationError::UnknownHandler("nobody".into()))
    );
    assert_eq!(fixture.result("c"), OperationResult::NotFound);
}

#[test]
fn a_caller_that_stops_waiting_takes_nothing_with_it() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.open();
    fixture.call(|worker| async move {
        let run = worker.operations.run("one", "a", json!(1));
        // Polled once, so that the call is on its way, then dropped.
        assert!(futures::FutureExt::now_or_never(run).is_none());
    });
    fixture.world.run_until_idle();
    assert_eq!(fixture.result("a"), completed(json!(1)));
}

#[test]
fn calls_beyond_the_pool_run_in_order_as_slots_free() {
    let fixture = Fixture::new();
    fixture.scheduler(|config| config.alarm_concurrency = 3);
    let world = fixture.world.clone();
    fixture.handle("slow", HandlerConfig::default(), move |call| {
        let sleep = world.sleep(seconds(1));
        async move {
            sleep.await;
            Ok(call.payload)
        }
    });
    fixture.open();
    let start = fixture.world.now();
    let ids: Vec<String> = (0..40).map(|number| format!("{number:02}")).collect();
    fixture.run_all("slow", &ids);
    fixture.world.advance(seconds(14));
    assert_eq!(fixture.order(), ids);
    assert_eq!(fixture.most_running.get(), 3);
    for id in &ids {
        assert_eq!(fixture.result(id), completed(json!(id)));
    }
    assert_eq!(
        fixture.world.now().since(start),
        seconds(14),
        "forty calls, three at once"
    );
}

#[test]
fn a_long_backlog_drains_without_waiting_for_the_alarm() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.open();
    let ids: Vec<String> = (0..2_000).map(|number| format!("{number:04}")).collect();
    for ids in ids.chunks(500) {
        fixture.run_all("one", ids);
    }
    fixture.world.run_until_idle();
    let ended = fixture.results(&ids);
    assert!(
        ended
            .iter()
            .all(|result| matches!(result, OperationResult::Completed { .. }))
    );
    assert_eq!(fixture.runs.borrow().len(), 2_000);
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn failures_are_tried_again_after_a_growing_delay_and_end() {
    let fixture = Fixture::new();
    fixture.handle("fail", HandlerConfig::default(), behaviour::fail);
    fixture.open();
    assert_eq!(
        fixture.run("fail", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
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
    assert_eq!(
        fixture.run("flaky", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
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
    assert_eq!(
        fixture.run("fail", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
    fixture.world.run_until_idle();
    assert_eq!(fixture.attempts("a"), [1, 2, 3, 4, 5]);
}

#[test]
fn an_unusable_delay_function_gives_way_to_the_default() {
    let fixture = Fixture::new();
    let mut panics = HandlerConfig::default();
    panics.backoff = Backoff::Delay(Rc::new(|_| panic!("no delay")));
    fixture.handle("panics", panics, behaviour::fail);
    fixture.handle("endless", every(Duration::MAX), behaviour::fail);
    fixture.open();
    for name in ["panics", "endless"] {
        assert_eq!(
            fixture.run(name, name, json!(1)),
            Ok(RunOutcome::Registered)
        );
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
    assert_eq!(
        fixture.run("never", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
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
        assert_eq!(
            fixture.run(name, name, json!(1)),
            Ok(RunOutcome::Registered)
        );
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
    assert_eq!(
        fixture.run("listens", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
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
    assert_eq!(
        fixture.run("deaf", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
    assert_eq!(
        fixture.run("deaf", "b", json!(1)),
        Ok(RunOutcome::Registered)
    );
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
    assert_eq!(
        fixture.run("deaf", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
    assert_eq!(
        fixture.run("deaf", "b", json!(1)),
        Ok(RunOutcome::Registered)
    );
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
    assert_eq!(
        fixture.run("deaf", "c", json!(1)),
        Ok(RunOutcome::Registered)
    );
    fixture.world.advance(seconds(20));
    fixture.object.crash();
    assert_eq!(fixture.result("c"), ended);
    assert_eq!(fixture.attempts("c"), [1]);
}

#[test]
fn a_death_before_the_commit_leaves_nothing() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.open();
    let object = fixture.object.clone();
    let answer = fixture
        .world
        .block_on(fixture.object.call(move |worker| async move {
            let mut run = Box::pin(worker.operations.run("one", "a", json!(1)));
            assert!(futures::FutureExt::now_or_never(&mut run).is_none());
            object.crash();
            run.await
        }));
    assert!(
        !matches!(answer, Ok(Ok(_))),
        "nobody was told that it is stored"
    );
    assert_eq!(fixture.result("a"), OperationResult::NotFound);
    assert_eq!(fixture.runs.borrow().len(), 0);
}

#[test]
fn an_attempt_cut_off_by_death_is_repeated_at_opening_and_not_counted() {
    let fixture = Fixture::new();
    let mut config = every(seconds(1));
    config.max_attempts = 2;
    let world = fixture.world.clone();
    let deaths = Rc::new(Cell::new(3));
    let left = deaths.clone();
    fixture.handle("slow", config, move |call| {
        let sleep = world.sleep(seconds(5));
        let left = left.clone();
        async move {
            if left.get() > 0 {
                left.set(left.get() - 1);
                pending::<()>().await;
            }
            sleep.await;
            if call.attempt == 1 {
                return Err(HandlerError::retry("counts"));
            }
            Ok(call.payload)
        }
    });
    fixture.open();
    assert_eq!(
        fixture.run("slow", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
    for _ in 0..3 {
        fixture.world.advance(seconds(2));
        assert!(matches!(
            fixture.result("a"),
            OperationResult::Pending { attempt: 1, .. }
        ));
        fixture.object.crash();
        fixture.open();
    }
    fixture.world.advance(seconds(12));
    assert_eq!(fixture.attempts("a"), [1, 1, 1, 1, 2]);
    assert_eq!(fixture.result("a"), completed(json!(1)));
}

#[test]
fn a_death_between_the_side_effect_and_the_commit_repeats_the_attempt() {
    let fixture = Fixture::new();
    let object = Rc::new(RefCell::new(None::<support::Object>));
    let dies = object.clone();
    fixture.handle("dies", HandlerConfig::default(), move |call| {
        let dies = dies.clone();
        async move {
            // The side effect is done; the answer never gets anywhere.
            let object = dies.borrow_mut().take();
            if let Some(object) = object {
                object.crash();
            }
            Ok(call.payload)
        }
    });
    fixture.open();
    *object.borrow_mut() = Some(fixture.object.clone());
    // The caller may or may not hear of it.
    let run = fixture.object.call(|worker| async move {
        let _ = worker.operations.run("dies", "a", json!(1)).await;
    });
    let _ = fixture.world.block_on(run);
    fixture.world.run_until_idle();
    assert!(!fixture.object.is_open());
    // Nobody calls: the alarm brings it back.
    fixture.world.advance(seconds(15));
    assert_eq!(fixture.attempts("a"), [1, 1]);
    assert_eq!(fixture.result("a"), completed(json!(1)));
    fixture.object.crash();
    fixture.world.advance(seconds(60));
    assert_eq!(
        fixture.attempts("a"),
        [1, 1],
        "what has ended is not run again"
    );
}

#[test]
fn interruptions_have_a_limit_of_their_own() {
    let fixture = Fixture::new();
    let mut config = HandlerConfig::default();
    config.max_interruptions = 3;
    fixture.handle("hang", config, |_| pending());
    fixture.open();
    assert_eq!(
        fixture.run("hang", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
    for _ in 0..4 {
        fixture.world.run_until_idle();
        assert!(matches!(
            fixture.result("a"),
            OperationResult::Pending { attempt: 1, .. }
        ));
        fixture.object.crash();
        fixture.open();
    }
    fixture.world.run_until_idle();
    assert_eq!(
        fixture.result("a"),
        OperationResult::Failed {
            attempt: 0,
            reason: TerminalReason::Interrupted,
            error: "interrupted".into(),
        }
    );
    assert_eq!(fixture.attempts("a"), [1, 1, 1, 1]);
    assert_eq!(
        fixture.events().last().map(String::as_str),
        Some("a interrupted 0")
    );
}

#[test]
fn a_call_without_its_handler_waits_for_a_build_that_has_it() {
    let fixture = Fixture::new();
    fixture.handle("old", every(seconds(30)), behaviour::fail);
    fixture.open();
    assert_eq!(
        fixture.run("old", "a", json!(7)),
        Ok(RunOutcome::Registered)
    );
    fixture.world.run_until_idle();
    fixture.object.crash();
    fixture.forget("old");
    fixture.world.advance(seconds(3_600));
    let OperationResult::Pending {
        attempt,
        last_error,
        next_attempt_at,
    } = fixture.result("a")
    else {
        panic!("it is never lost");
    };
    assert_eq!(attempt, 1, "nothing was counted");
    assert_eq!(last_error.as_deref(), Some("no handler is named \"old\""));
    fixture.object.crash();
    fixture.handle("old", HandlerConfig::default(), behaviour::answer);
    fixture.world.advance_to(next_attempt_at);
    assert_eq!(fixture.attempts("a"), [1, 2]);
    assert_eq!(fixture.result("a"), completed(json!(7)));
}

#[test]
fn a_waiting_call_is_cancelled_at_once() {
    let fixture = Fixture::new();
    fixture.scheduler(|config| config.alarm_concurrency = 1);
    fixture.handle("hang", HandlerConfig::default(), |call| async move {
        call.token.cancelled().await;
        Err(HandlerError::retry("stopped"))
    });
    fixture.open();
    fixture.run_all("hang", &["a", "b"]);
    fixture.world.run_until_idle();
    assert_eq!(fixture.cancel("b"), CancelOutcome::Cancelled);
    let cancelled = |attempt, error: &str| OperationResult::Failed {
        attempt,
        reason: TerminalReason::Cancelled,
        error: error.into(),
    };
    assert_eq!(fixture.result("b"), cancelled(0, "cancelled"));
    assert_eq!(fixture.cancel("a"), CancelOutcome::Cancelling);
    fixture.world.run_until_idle();
    assert_eq!(fixture.result("a"), cancelled(1, "stopped"));
    assert_eq!(fixture.cancel("a"), CancelOutcome::AlreadyEnded);
    assert_eq!(fixture.cancel("c"), CancelOutcome::NotFound);
    assert_eq!(fixture.attempts("b"), [0; 0]);
    assert_eq!(
        fixture.events()[3..],
        ["b cancelled 0", "a failed 1", "a cancelled 1"]
    );
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn a_running_call_ends_as_cancelled_only_when_its_handler_ends() {
    let fixture = Fixture::new();
    let world = fixture.world.clone();
    fixture.handle("deaf", HandlerConfig::default(), move |call| {
        let sleep = world.sleep(seconds(60));
        async move {
            sleep.await;
            Ok(call.payload)
        }
    });
    fixture.open();
    fixture.run_all("deaf", &["a"]);
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.cancel("a"), CancelOutcome::Cancelling);
    assert_eq!(fixture.cancel("a"), CancelOutcome::Cancelling);
    fixture.world.advance(seconds(58));
    assert!(matches!(
        fixture.result("a"),
        OperationResult::Pending { .. }
    ));
    fixture.world.advance(seconds(1));
    assert!(matches!(
        fixture.result("a"),
        OperationResult::Failed {
            reason: TerminalReason::Cancelled,
            ..
        }
    ));
    // A death in between does not bring it back.
    fixture.run_all("deaf", &["b"]);
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.cancel("b"), CancelOutcome::Cancelling);
    fixture.object.crash();
    fixture.world.advance(seconds(20));
    assert!(matches!(
        fixture.result("b"),
        OperationResult::Failed {
            reason: TerminalReason::Cancelled,
            ..
        }
    ));
    assert_eq!(fixture.attempts("b"), [1]);
}

#[test]
fn a_late_result_of_a_purged_call_does_not_touch_the_next_use_of_its_id() {
    let fixture = Fixture::new();
    let world = fixture.world.clone();
    let tokens = Rc::new(RefCell::new(BTreeMap::new()));
    let seen = tokens.clone();
    fixture.handle("slow", HandlerConfig::default(), move |call| {
        let sleep = world.sleep(seconds(30));
        seen.borrow_mut()
            .insert(call.generation, call.token.clone());
        async move {
            if call.payload == json!("old") {
                sleep.await;
            }
            Ok(call.payload)
        }
    });
    fixture.open();
    assert_eq!(
        fixture.run("slow", "a", json!("old")),
        Ok(RunOutcome::Registered)
    );
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.purge_before(fixture.world.now(), 10), 1);
    assert_eq!(fixture.result("a"), OperationResult::NotFound);
    assert_eq!(
        fixture.run("slow", "a", json!("new")),
        Ok(RunOutcome::Registered)
    );
    fixture.world.run_until_idle();
    let generations: Vec<u64> = tokens.borrow().keys().copied().collect();
    assert_eq!(generations, [1, 2]);
    assert!(tokens.borrow()[&1].is_cancelled());
    assert!(!tokens.borrow()[&2].is_cancelled());
    fixture.world.advance(seconds(60));
    assert_eq!(fixture.result("a"), completed(json!("new")));
    assert!(fixture.events().contains(&"a purged 0".to_owned()));
    // A generation is not given out again even if no row and no instance remembers it.
    assert_eq!(
        fixture.purge_before(fixture.world.now() + seconds(1), 10),
        1
    );
    fixture.object.crash();
    assert_eq!(
        fixture.run("slow", "a", json!("newest")),
        Ok(RunOutcome::Registered)
    );
    fixture.world.run_until_idle();
    assert_eq!(
        tokens.borrow().keys().copied().collect::<Vec<_>>(),
        [1, 2, 3]
    );
}

#[test]
fn purging_takes_the_oldest_up_to_its_limit() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.handle("fail", every(seconds(86_400)), behaviour::fail);
    fixture.open();
    let ids: Vec<String> = (0..1_200).map(|number| format!("{number:04}")).collect();
    fixture.run_all("one", &ids[..600]);
    fixture.run_all("fail", &["waits"]);
    fixture.run_all("one", &ids[600..]);
    fixture.world.advance(seconds(1));
    let before = fixture.world.now();
    fixture.run_all("one", &["young"]);
    fixture.world.run_until_idle();
    // What has ended only: the one that waits stays, though it is old.
    assert_eq!(fixture.purge_ended_before(before, 550), 550);
    assert_eq!(fixture.result("0549"), OperationResult::NotFound);
    assert_eq!(fixture.result("0550"), completed(json!("0550")));
    assert_eq!(fixture.purge_ended_before(before, 10_000), 650);
    assert!(matches!(
        fixture.result("waits"),
        OperationResult::Pending { .. }
    ));
    assert_eq!(fixture.result("young"), completed(json!("young")));
    assert_eq!(fixture.purge_ended_before(before, 10_000), 0);
    assert_eq!(fixture.purge_before(before, 10_000), 1);
    assert_eq!(fixture.result("waits"), OperationResult::NotFound);
    assert_eq!(fixture.result("young"), completed(json!("young")));
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn a_failing_hook_changes_nothing() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.hook_panics.set(true);
    fixture.open();
    assert_eq!(
        fixture.run("one", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
    fixture.world.run_until_idle();
    assert_eq!(fixture.result("a"), completed(json!(1)));
    assert_eq!(fixture.object.instances(), 1);
}

#[test]
fn a_result_that_storage_refuses_ends_its_call() {
    let fixture = Fixture::new();
    fixture.handle("large", HandlerConfig::default(), |_| async {
        Ok(json!("x".repeat(64 << 20)))
    });
    fixture.open();
    assert_eq!(
        fixture.run("large", "a", json!(1)),
        Ok(RunOutcome::Registered)
    );
    fixture.world.run_until_idle();
    let OperationResult::Failed { reason, error, .. } = fixture.result("a") else {
        panic!("another attempt would not help");
    };
    assert_eq!(reason, TerminalReason::NonRetryable);
    assert!(error.contains("could not be stored"), "{error}");
}

#[test]
fn an_instance_that_ends_is_freed() {
    let fixture = Fixture::new();
    fixture.scheduler(|config| config.alarm_concurrency = 2);
    let kept = Rc::new(());
    let held = kept.clone();
    fixture.handle("hang", HandlerConfig::default(), move |_| {
        let held = held.clone();
        async move {
            let _held = held;
            pending().await
        }
    });
    fixture.open();
    fixture.run_all("hang", &["a", "b", "c", "d"]);
    fixture.world.advance(seconds(40));
    let worker = fixture.call(|worker| async move { Rc::downgrade(&worker) });
    // The test and the handler that it would register again hold one each.
    assert!(Rc::strong_count(&kept) > 2);
    fixture.object.crash();
    assert!(worker.upgrade().is_none());
    assert_eq!(Rc::strong_count(&kept), 2);
}

#[test]
fn wrong_settings_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut HandlerConfig)| {
        let mut config = HandlerConfig::default();
        change(&mut config);
        let fixture = Fixture::new();
        fixture.handle("one", config, behaviour::answer);
        fixture.build_error()
    };
    let field = |error: OpenError| match error {
        OpenError::Config(error) => error.field().to_owned(),
        other => panic!("{other}"),
    };
    assert_eq!(
        field(refused(&|config| config.max_attempts = 0)),
        "max_attempts"
    );
    assert_eq!(
        field(refused(&|config| config.attempt_timeout = Duration::ZERO)),
        "attempt_timeout"
    );
    assert_eq!(
        field(refused(
            &|config| config.attempt_timeout = Duration::from_millis(1 << 31)
        )),
        "attempt_timeout"
    );
    assert_eq!(
        field(refused(&|config| config.max_interruptions = 1 << 53)),
        "max_interruptions"
    );
    assert_eq!(
        field(refused(&|config| config.backoff = Backoff::Exponential {
            base: Duration::ZERO,
            max: seconds(1)
        })),
        "backoff.base"
    );
    let twice = Fixture::new();
    twice.handle("one", HandlerConfig::default(), behaviour::answer);
    twice.handle("one", HandlerConfig::default(), behaviour::answer);
    assert_eq!(field(twice.build_error()), "handler");
    assert_eq!(SchedulerConfig::default().alarm_concurrency, 10);
}
