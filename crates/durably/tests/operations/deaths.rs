//! What the death of an object, or a build without the handler, does to calls.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;

use durably::operations::{HandlerConfig, HandlerError, OperationResult, TerminalReason};
use serde_json::json;

use crate::support::{Fixture, Object, behaviour, completed, every, seconds};

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
    fixture.register("slow", "a", json!(1));
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
    let object = Rc::new(RefCell::new(None::<Object>));
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
    fixture.register("hang", "a", json!(1));
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
    fixture.register("old", "a", json!(7));
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
fn a_long_attempt_is_handed_from_alarm_to_alarm() {
    let fixture = Fixture::new();
    let mut config = every(seconds(1));
    config.attempt_timeout = seconds(3_600);
    let world = fixture.world.clone();
    fixture.handle("long", config, move |call| {
        let sleep = world.sleep(seconds(40 * 60));
        async move {
            sleep.await;
            Ok(call.payload)
        }
    });
    fixture.open();
    fixture.register("long", "a", json!(1));
    fixture.world.advance(seconds(39 * 60));
    assert!(
        fixture.object.alarm().is_some(),
        "its alarm is there in case it dies"
    );
    assert_eq!(fixture.attempts("a"), [1]);
    fixture.world.advance(seconds(60));
    assert_eq!(fixture.result("a"), completed(json!(1)));
    assert_eq!(fixture.attempts("a"), [1]);
    fixture.world.advance(seconds(15 * 60));
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn an_alarm_pass_ends_with_the_last_of_its_calls_also_if_two_end_in_one_commit() {
    let fixture = Fixture::new();
    let world = fixture.world.clone();
    // Both wait for one thing, so they end in one turn.
    let gate = futures::FutureExt::shared(world.sleep(seconds(60)));
    fixture.handle("slow", HandlerConfig::default(), move |call| {
        let gate = gate.clone();
        async move {
            gate.await;
            Ok(call.payload)
        }
    });
    fixture.open();
    fixture.register("slow", "a", json!(1));
    fixture.register("slow", "b", json!(2));
    let end = fixture.world.now() + seconds(60);
    let passed = fixture.world.block_on(fixture.object.fire_alarm());
    passed.expect("storage works");
    // Not before its calls, and not by handing them over later.
    assert_eq!(fixture.world.now(), end);
    assert_eq!(fixture.result("a"), completed(json!(1)));
    assert_eq!(fixture.result("b"), completed(json!(2)));
}
