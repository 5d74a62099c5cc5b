//! Requests that wait at their holder for capacity.

use std::time::Duration;

use durably::semaphore::protocol::{Message, PermitRequest};
use durably::semaphore::queue::{CancelOutcome, ItemStatus, SemaphoreQueueBuilder, WaitReason};

use crate::lender::Lender;
use crate::setup::{Fate, MINUTE, SECOND, START, Setup, ms};

fn patient(builder: SemaphoreQueueBuilder) -> SemaphoreQueueBuilder {
    let builder = builder.answer_timeout(30 * SECOND);
    builder.request_wait(20 * SECOND)
}

fn requests(setup: &Setup) -> Vec<PermitRequest> {
    let calls = setup.outside.calls.borrow();
    let requests = calls.iter().filter_map(|call| match &call.message {
        Message::Request(request) => Some(request.clone()),
        Message::Sync(_) => None,
    });
    requests.collect()
}

fn waiting(setup: &Setup, id: &str) -> (WaitReason, u64) {
    match setup.status(id) {
        ItemStatus::Queued {
            waiting: Some(waiting),
            ..
        } => (waiting.reason, waiting.since.as_millis() - START),
        other => panic!("{id} does not wait for a reason: {other:?}"),
    }
}

#[test]
fn a_freed_permit_goes_to_who_waits_within_one_round_and_nobody_polls() {
    let setup = Setup::new(&[("acme", 1)], patient);
    setup.outside.takes.set(10 * SECOND);
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.advance(9 * SECOND);
    assert_eq!(setup.started(), ["job-000"]);
    let sent = requests(&setup);
    assert!(sent.len() <= 4, "asked {} times in 9 s", sent.len());
    // The first one is answered by the next round, so that a reason is known from then on.
    assert_eq!(sent[0].wait_ms, None);
    assert_eq!(sent.last().expect("requests").wait_ms, Some(20_000));
    assert_eq!(waiting(&setup, "job-001"), (WaitReason::Limit, 100));
    setup.world.advance(ms(1_100));
    assert_eq!(setup.done(), 1);
    setup.world.advance(ms(300));
    assert_eq!(setup.started(), ["job-000", "job-001"]);
    setup.run_until_done(2, MINUTE);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
    // Nothing is left that would wake the object but the end of retention.
    setup.world.advance(MINUTE);
    let alarm = setup.shard.alarm().expect("retention ends some day");
    assert!(alarm.since(setup.world.now()) > 23 * 60 * MINUTE);
}

#[test]
fn the_reason_stays_known_while_requests_wait_and_when_their_wait_ends() {
    let setup = Setup::new(&[("acme", 0)], patient);
    setup.enqueue_many("job", 1, "acme", "g");
    setup.world.advance(MINUTE);
    assert_eq!(waiting(&setup, "job-000"), (WaitReason::Limit, 100));
    let sent = requests(&setup);
    assert!((3..=5).contains(&sent.len()), "asked {} times", sent.len());
    // They have the same id, since none was given anything.
    assert!(sent.iter().all(|one| one.request_id == sent[0].request_id));
    setup.set_limit("acme", 1);
    setup.limits_changed("acme");
    setup.world.advance(ms(300));
    assert_eq!(setup.started().len(), 1);
}

#[test]
fn a_group_that_a_waiting_request_does_not_name_is_asked_for_at_once() {
    let setup = Setup::new(&[("acme", 10)], patient);
    setup.limit_group("stuck", 0);
    setup.enqueue_many("stuck", 3, "acme", "stuck");
    setup.world.advance(5 * SECOND);
    assert_eq!(requests(&setup).last().expect("one").wait_ms, Some(20_000));
    setup.enqueue_many("job", 3, "acme", "free");
    setup.world.advance(ms(500));
    assert_eq!(setup.started(), ["job-000", "job-001", "job-002"]);
    assert_eq!(waiting(&setup, "stuck-000"), (WaitReason::GroupLimit, 100));
    let sent = requests(&setup);
    let anew = &sent[sent.len() - 2];
    assert_eq!((anew.demand.len(), anew.wait_ms), (2, None));
    // Another key is not kept waiting either.
    setup.set_limit("bolt", 1);
    setup.enqueue_many("other", 1, "bolt", "g");
    setup.world.advance(ms(500));
    assert_eq!(setup.started().len(), 4);
}

#[test]
fn no_more_is_left_waiting_at_holders_than_could_run() {
    let setup = Setup::new(&[("acme", 0), ("bolt", 0)], |builder| {
        patient(builder).max_admitted(1)
    });
    for key in ["acme", "bolt"] {
        setup.enqueue_many(key, 5, key, "g");
    }
    setup.world.advance(5 * SECOND);
    let calls = setup.outside.calls.borrow();
    let waiting = calls.iter().filter_map(|call| match &call.message {
        Message::Request(request) => request.wait_ms.map(|_| &*call.key),
        Message::Sync(_) => None,
    });
    let waiting: std::collections::BTreeSet<&str> = waiting.collect();
    assert_eq!(waiting.len(), 1, "{waiting:?}");
}

#[test]
fn a_request_that_nobody_needs_any_more_is_withdrawn() {
    for crash in [false, true] {
        let setup = Setup::new(&[("acme", 0)], patient);
        setup.enqueue_many("job", 1, "acme", "g");
        setup.world.advance(5 * SECOND);
        assert_eq!(setup.cancel("job-000"), CancelOutcome::Cancelled);
        if crash {
            setup.shard.crash();
            // The alarm that was set while the request waited finds what it left.
            setup.world.advance(20 * SECOND);
        }
        setup.world.advance(SECOND);
        let sent = requests(&setup);
        let last = sent.last().expect("a request");
        assert_eq!((last.demand.len(), last.wait_ms), (0, None));
        setup.set_limit("acme", 5);
        setup.limits_changed("acme");
        setup.world.advance(SECOND);
        assert_eq!(setup.usage("acme").granted, 0, "nothing is given to nobody");
        setup.enqueue_many("more", 1, "acme", "g");
        setup.run_until_done(1, MINUTE);
        setup.world.advance(SECOND);
        setup.assert_settled(&["acme"]);
    }
}

#[test]
fn a_waiting_request_that_breaks_off_is_made_again() {
    let setup = Setup::new(&[("acme", 0)], patient);
    setup.enqueue_many("job", 1, "acme", "g");
    setup.world.advance(5 * SECOND);
    setup.crash_holder("acme");
    setup.world.advance(SECOND);
    setup.shard.crash();
    setup.set_limit("acme", 1);
    // The shard's alarm is at most 15 s away.
    setup.run_until_done(1, 20 * SECOND);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
}

#[test]
fn a_request_waits_also_while_others_of_its_key_have_a_lease_to_draw_from() {
    let setup = Setup::new(&[], patient);
    let lender = Lender::new(&setup, 10, 10);
    setup.fate(|call| match call.message {
        Message::Request(_) => Fate::Arrives,
        Message::Sync(_) => Fate::Refused,
    });
    setup.enqueue_many("job", 3, "acme", "g");
    // The claim comes too late, so they wait again, with a lease.
    setup.world.advance(2 * SECOND);
    lender.limit.set(0);
    setup.alter(
        "CREATE TRIGGER refuse BEFORE INSERT ON durability_semaphore_queue_grants
         WHEN NEW.lease_id IS NOT NULL BEGIN SELECT RAISE(ABORT, 'nothing is drawn'); END",
    );
    setup.fate(|_| Fate::Arrives);
    setup.enqueue_many("other", 1, "acme", "h");
    setup.world.advance(5 * SECOND);
    assert!(matches!(setup.status("job-000"), ItemStatus::Queued { .. }));
    setup.outside.calls.borrow_mut().clear();
    setup.world.advance(5 * SECOND);
    let sent = requests(&setup);
    assert!(!sent.is_empty());
    for request in sent {
        let groups: Vec<&str> = request.demand.iter().map(|one| &*one.group).collect();
        assert_eq!((&*groups, request.wait_ms), (&["h"][..], Some(20_000)));
    }
}

#[test]
fn a_request_waits_only_when_the_reason_is_known() {
    let setup = Setup::new(&[("acme", 2)], patient);
    setup.outside.takes.set(2 * SECOND);
    setup.enqueue_many("job", 1, "acme", "free");
    setup.world.advance(SECOND);
    setup.limit_group("stuck", 0);
    // Nobody answers a request, and then a report is answered.
    setup.fate(|call| match call.message {
        Message::Request(_) => Fate::Refused,
        Message::Sync(_) => Fate::Arrives,
    });
    setup.enqueue_many("stuck", 1, "acme", "stuck");
    setup.world.advance(SECOND + ms(50));
    assert_eq!(waiting(&setup, "stuck-000").0, WaitReason::Unreachable);
    setup.fate(|_| Fate::Arrives);
    setup.world.advance(SECOND);
    assert_eq!(setup.done(), 1);
    assert_eq!(waiting(&setup, "stuck-000").0, WaitReason::GroupLimit);
}

#[test]
fn a_holder_that_falls_silent_is_noticed_after_the_wait() {
    let setup = Setup::new(&[("acme", 0)], patient);
    setup.enqueue_many("job", 1, "acme", "g");
    setup.world.advance(SECOND);
    setup.fate(|_| Fate::Lost);
    setup.world.advance(40 * SECOND);
    // One that was sent before, and the one that was lost.
    setup.world.advance(20 * SECOND);
    assert_eq!(waiting(&setup, "job-000").0, WaitReason::Unreachable);
    // Then nothing waits at the holder that it may not have.
    assert_eq!(requests(&setup).last().expect("one").wait_ms, None);
    setup.fate(|_| Fate::Arrives);
    setup.set_limit("acme", 1);
    setup.run_until_done(1, MINUTE);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
}

#[test]
fn the_wait_leaves_time_for_the_answer() {
    let opens = |wait: Duration| {
        let setup = Setup::new(&[], move |builder| {
            let builder = builder.answer_timeout(10 * SECOND);
            builder.request_wait(wait)
        });
        let opened = setup.world.block_on(setup.shard.open());
        opened.map_err(|error| error.to_string())
    };
    let error = opens(ms(5_001)).expect_err("too long");
    assert!(error.contains("request_wait"), "{error}");
    assert_eq!(opens(ms(5_000)), Ok(()));
    assert_eq!(opens(Duration::ZERO), Ok(()));
}
