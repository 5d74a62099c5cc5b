//! Cancelling and purging.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use durably::operations::{
    CancelOutcome, HandlerConfig, HandlerError, OperationResult, TerminalReason,
};
use serde_json::json;

use crate::support::{Fixture, behaviour, completed, every, seconds};

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
    fixture.register("slow", "a", json!("old"));
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.purge_before(fixture.world.now(), 10), 1);
    assert_eq!(fixture.result("a"), OperationResult::NotFound);
    fixture.register("slow", "a", json!("new"));
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
    fixture.register("slow", "a", json!("newest"));
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
fn only_ended_calls_make_way_for_a_new_meaning_of_their_ids() {
    let fixture = Fixture::new();
    fixture.handle("one", HandlerConfig::default(), behaviour::answer);
    fixture.handle("fail", every(seconds(60)), behaviour::fail);
    fixture.open();
    fixture.register("one", "ended", json!(1));
    fixture.register("fail", "waits", json!(1));
    fixture.world.advance(seconds(1));
    let before = fixture.world.now();
    fixture.register("one", "young", json!(1));
    fixture.world.run_until_idle();
    let purged = fixture.purge_ended(&["young", "waits", "ended", "nobody"], before);
    assert_eq!(purged, ["ended"]);
    fixture.register("fail", "ended", json!(2));
    assert_eq!(fixture.result("young"), completed(json!(1)));
    assert!(matches!(
        fixture.result("waits"),
        OperationResult::Pending { .. }
    ));
}
