//! Registering calls and having them run.

use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use durably::operations::{Backoff, HandlerConfig, OperationError, OperationResult, RunOutcome};
use durably::{OpenError, SchedulerConfig};
use serde_json::json;

use crate::support::{Fixture, behaviour, completed, seconds};

#[test]
fn a_call_starts_at_once_and_keeps_its_result() {
    let fixture = Fixture::new();
    fixture.handle("double", HandlerConfig::default(), |call| async move {
        Ok(json!(call.payload.as_u64().unwrap_or(0) * 2))
    });
    fixture.open();
    let start = fixture.world.now();
    let commits = fixture.object.storage().commits();
    fixture.register("double", "a", json!(21));
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
    fixture.register("one", "a", json!(1));
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
    fixture.register("other", "taken", json!(0));
    fixture.world.run_until_idle();
    let commits = fixture.object.storage().commits();
    let long = "x".repeat(2_049);
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
            Err(OperationError::InvalidId(2_049)),
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
fn a_failing_hook_changes_nothing() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.hook_panics.set(true);
    fixture.open();
    fixture.register("one", "a", json!(1));
    fixture.world.run_until_idle();
    assert_eq!(fixture.result("a"), completed(json!(1)));
    assert_eq!(fixture.object.instances(), 1);
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
