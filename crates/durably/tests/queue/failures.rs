//! What fails, dies or is away, and that nothing is lost by it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use durably::semaphore::client::ClientError;
use durably::semaphore::queue::{ItemStatus, QueueEvent, WaitReason};

use crate::setup::{Fate, MINUTE, SECOND, START, Setup, at, ms};

#[test]
fn a_holder_that_is_away_is_asked_on_and_on_and_nothing_is_lost() {
    let setup = Setup::new(&[("acme", 3)], |builder| builder);
    setup.fate(|_| Fate::Refused);
    setup.enqueue_many("job", 5, "acme", "g");
    setup.world.advance(10 * MINUTE);
    let ItemStatus::Queued { waiting, .. } = setup.status("job-004") else {
        panic!("it waits");
    };
    let waiting = waiting.expect("a reason");
    assert_eq!(waiting.reason, WaitReason::Unreachable);
    assert_eq!(waiting.since, at(START));
    let events = setup.events();
    let unreachable = events
        .iter()
        .filter(|event| event.r#type() == "holder_unreachable");
    assert_eq!(unreachable.count(), 1);
    let calls = setup.outside.calls.borrow().len();
    assert!(
        (200..2_000).contains(&calls),
        "asked {calls} times in 10 min"
    );

    setup.fate(|_| Fate::Arrives);
    setup.run_until_done(5, MINUTE);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
}

#[test]
fn a_holder_that_says_nothing_is_given_up_on_and_asked_again() {
    let setup = Setup::new(&[("acme", 3)], |builder| builder);
    let calls = Rc::new(Cell::new(0));
    let counted = calls.clone();
    setup.fate(move |_| {
        counted.set(counted.get() + 1);
        if counted.get() < 4 {
            Fate::Lost
        } else {
            Fate::Arrives
        }
    });
    setup.enqueue_many("job", 5, "acme", "g");
    setup.run_until_done(5, MINUTE);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
}

#[test]
fn admit_is_repeated_until_it_succeeds() {
    let setup = Setup::new(&[("acme", 3)], |builder| builder);
    setup.outside.failing_admits.set(3);
    setup.outside.late_failing_admits.set(2);
    setup.outside.takes.set(Duration::from_secs(20));
    setup.enqueue_many("job", 3, "acme", "g");
    setup.run_until_done(3, MINUTE);
    assert_eq!(setup.outside.admissions.get(), 6);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
    let admitted = setup.events();
    let admitted = admitted.iter().filter(|event| event.r#type() == "admitted");
    assert_eq!(admitted.count(), 3);
}

#[test]
fn work_that_ends_while_it_is_handed_over_leaves_nothing_that_keeps_the_shard_awake() {
    let setup = Setup::new(&[("acme", 3)], |builder| builder);
    setup.outside.admit_takes.set(10 * SECOND);
    setup.enqueue_many("job", 2, "acme", "g");
    setup.run_until_done(2, SECOND);
    setup.world.advance(2 * SECOND);
    setup.assert_settled(&["acme"]);
    setup.world.advance(MINUTE);
    let alarm = setup.shard.alarm().expect("retention ends some day");
    assert!(alarm.since(setup.world.now()) > 23 * 60 * MINUTE);
    setup.enqueue_many("more", 2, "acme", "g");
    setup.run_until_done(4, MINUTE);
}

#[test]
fn finished_items_that_cannot_be_forgotten_are_forgotten_as_soon_as_they_can() {
    let setup = Setup::new(&[("acme", 4)], |builder| builder.retention(MINUTE));
    setup.enqueue_many("job", 4, "acme", "g");
    setup.run_until_done(4, MINUTE);
    setup.alter(
        "CREATE TRIGGER refuse BEFORE DELETE ON durability_semaphore_queue_finished
         BEGIN SELECT RAISE(ABORT, 'nothing is forgotten'); END",
    );
    setup.world.advance(3 * MINUTE);
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 4);
    setup.alter("DROP TRIGGER refuse");
    setup.world.advance(5 * SECOND);
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 0);
    assert_eq!(setup.shard.instances(), 1);
    assert_eq!(setup.shard.alarm(), None);
}

#[test]
fn a_crash_at_any_moment_loses_nothing() {
    for moment in (0..1_600).step_by(20) {
        let setup = Setup::new(&[("acme", 2)], |builder| builder);
        setup.enqueue_many("job", 5, "acme", "g");
        setup.world.advance(ms(moment));
        setup.shard.crash();
        setup.run_until_done(5, MINUTE);
        let mut sorted = setup.started();
        sorted.sort();
        assert_eq!(setup.started(), sorted, "crash at {moment}");
        setup.world.advance(10 * SECOND);
        setup.assert_settled(&["acme"]);
    }
}

#[test]
fn a_crash_of_the_holder_at_any_moment_loses_nothing() {
    for moment in (0..1_600).step_by(20) {
        let setup = Setup::new(&[("acme", 2)], |builder| builder);
        setup.enqueue_many("job", 5, "acme", "g");
        setup.world.advance(ms(moment));
        setup.crash_holder("acme");
        setup.run_until_done(5, MINUTE);
        setup.world.advance(10 * SECOND);
        setup.assert_settled(&["acme"]);
    }
}

#[test]
fn a_refusal_is_told_apart_from_silence_but_waited_out_alike() {
    let setup = Setup::new(&[("acme", 1)], |builder| builder);
    setup.script(|_| {
        Some(Err(ClientError::Refused {
            code: "unauthorized".into(),
            message: "who are you?".into(),
            retryable: false,
        }))
    });
    setup.enqueue_many("job", 1, "acme", "g");
    setup.world.advance(MINUTE);
    let events = setup.events();
    assert!(events.contains(&QueueEvent::HolderUnreachable {
        key: "acme".into(),
        error: "unauthorized".into()
    }));
    setup.outside.script.take();
    setup.run_until_done(1, MINUTE);
}
