//! Claims and releases: what an answer of the holder does to the items, and what becomes of cancelled
//! ones.

use std::cell::Cell;
use std::time::Duration;

use durably::semaphore::protocol::{
    Grant, GrantReply, GrantResult, GrantStatus, Message, Reply, SyncReply,
};
use durably::semaphore::queue::{CancelOutcome, ItemStatus, Outcome, QueueEvent, RequeueReason};

use crate::setup::{Fate, MINUTE, SECOND, START, Setup, at, ms};

#[test]
fn a_claim_without_an_answer_is_repeated_and_nothing_is_admitted_before() {
    let setup = Setup::new(&[("acme", 3)], |builder| builder);
    setup.fate(|call| match call.message {
        Message::Request(_) => Fate::Arrives,
        Message::Sync(_) => Fate::AnswerLost,
    });
    setup.enqueue_many("job", 3, "acme", "g");
    setup.world.advance(Duration::from_secs(30));
    assert!(setup.started().is_empty());
    assert!(matches!(
        setup.status("job-000"),
        ItemStatus::Claiming { .. }
    ));
    // The holder has the claim, so the permits are kept for as long as it takes.
    assert_eq!(setup.usage("acme").granted, 3);
    setup.fate(|_| Fate::Arrives);
    setup.run_until_done(3, MINUTE);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
    assert!(
        setup
            .events()
            .iter()
            .all(|event| event.r#type() != "requeued")
    );
}

#[test]
fn a_claim_that_comes_too_late_sends_the_items_back_to_their_places() {
    for crash in [false, true] {
        come_too_late(crash);
    }
}

fn come_too_late(crash: bool) {
    let setup = Setup::new(&[("acme", 2)], |builder| builder);
    setup.fate(|call| match call.message {
        Message::Request(_) => Fate::Arrives,
        Message::Sync(_) => Fate::Lost,
    });
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.advance(ms(500));
    assert!(matches!(
        setup.status("job-001"),
        ItemStatus::Claiming { .. }
    ));
    if crash {
        setup.shard.crash();
    }
    setup.enqueue_many("after", 2, "acme", "g");
    setup.assert_sums();
    // The grant is taken back; the claim finds nothing.
    setup.world.advance(Duration::from_secs(5));
    let status = setup.status("job-001");
    // Only an answer sends it back.
    assert!(matches!(status, ItemStatus::Claiming { .. }), "{status:?}");
    setup.fate(|_| Fate::Arrives);
    while matches!(setup.status("job-001"), ItemStatus::Claiming { .. }) {
        setup.world.advance(ms(50));
    }
    setup.assert_sums();
    setup.run_until_done(4, MINUTE);
    assert_eq!(
        setup.started(),
        ["job-000", "job-001", "after-000", "after-001"]
    );
    let requeued: Vec<_> = setup
        .events()
        .into_iter()
        .filter_map(|event| match event {
            QueueEvent::Requeued { id, reason, .. } => Some((id, reason)),
            _ => None,
        })
        .collect();
    assert!(
        requeued.contains(&("job-000".into(), RequeueReason::NotFound)),
        "{requeued:?}"
    );
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
}

/// A holder that grants what is asked, once, and answers claims with `confirmed` permits.
fn grudging(setup: &Setup, confirmed: u64, status: GrantStatus) {
    let granted = Cell::new(false);
    setup.script(move |call| {
        Some(Ok(match &call.message {
            Message::Request(request) => {
                let grants = match granted.replace(true) {
                    true => Vec::new(),
                    false => vec![Grant {
                        grant_id: "g1".into(),
                        group: request.demand[0].group.clone(),
                        permits: request.demand[0].count,
                    }],
                };
                Reply::Grant(GrantReply {
                    grants,
                    blocked: Vec::new(),
                    grant_results: Vec::new(),
                    next_request_at: at(START + 1_000),
                    leases: None,
                    contended: false,
                    request_number: None,
                    now: Some(at(START)),
                })
            }
            Message::Sync(sync) => Reply::Synced(SyncReply {
                grant_results: sync
                    .grants
                    .iter()
                    .map(|report| GrantResult {
                        grant_id: report.grant_id.clone(),
                        claimed: report.claimed.min(confirmed),
                        status,
                    })
                    .collect(),
                leases: None,
                contended: false,
                now: Some(at(START)),
            }),
        }))
    });
}

#[test]
fn a_smaller_claim_admits_the_oldest_and_sends_the_newest_back() {
    let setup = Setup::new(&[], |builder| builder);
    grudging(&setup, 3, GrantStatus::Expired);
    setup.enqueue_many("job", 5, "acme", "g");
    setup.world.advance(ms(200));
    assert_eq!(setup.started(), ["job-000", "job-001", "job-002"]);
    let place = |id| match setup.status(id) {
        ItemStatus::Queued { place, .. } => place,
        other => panic!("{id} does not wait: {other:?}"),
    };
    assert_eq!((place("job-003"), place("job-004")), (1, 2));
    setup.assert_sums();
    setup.enqueue_many("later", 1, "acme", "g");
    assert_eq!(place("later-000"), 3);
    // What the claim stands for is remembered by the next instance too.
    setup.shard.crash();
    setup.world.advance(ms(500));
    let marks = setup
        .outside
        .calls
        .borrow()
        .iter()
        .rev()
        .find_map(|call| match &call.message {
            Message::Sync(sync) => sync
                .grants
                .first()
                .map(|grant| (grant.claimed, grant.released)),
            Message::Request(_) => None,
        });
    assert_eq!(marks, Some((3, 3)));
    assert_eq!(setup.rows("durability_semaphore_queue_grants"), 0);
}

#[test]
fn who_goes_back_waits_before_those_that_came_meanwhile() {
    let setup = Setup::new(&[], |builder| builder);
    grudging(&setup, 3, GrantStatus::Expired);
    setup.fate(|call| match call.message {
        Message::Request(_) => Fate::Arrives,
        Message::Sync(_) => Fate::AnswerLate(500),
    });
    setup.enqueue_many("job", 5, "acme", "g");
    setup.world.advance(ms(100));
    setup.enqueue_many("after", 2, "acme", "g");
    setup.world.advance(ms(400));
    let place = |id| match setup.status(id) {
        ItemStatus::Queued { place, .. } => place,
        other => panic!("{id} does not wait: {other:?}"),
    };
    assert_eq!((place("job-003"), place("job-004")), (1, 2));
    assert_eq!((place("after-000"), place("after-001")), (3, 4));
    setup.assert_sums();
}

#[test]
fn permits_that_nobody_needs_are_left_unclaimed() {
    let setup = Setup::new(&[("acme", 5)], |builder| builder);
    setup.enqueue_many("job", 3, "acme", "g");
    assert_eq!(setup.cancel("job-001"), CancelOutcome::Cancelled);
    assert_eq!(setup.cancel("job-002"), CancelOutcome::Cancelled);
    setup.run_until_done(1, MINUTE);
    setup.world.advance(3 * SECOND);
    setup.assert_settled(&["acme"]);
    assert_eq!(setup.started(), ["job-000"]);
    let claims: Vec<u64> = setup
        .outside
        .calls
        .borrow()
        .iter()
        .filter_map(|call| match &call.message {
            Message::Sync(sync) => sync.grants.first().map(|grant| grant.claimed),
            Message::Request(_) => None,
        })
        .collect();
    assert!(claims.iter().all(|claimed| *claimed == 1), "{claims:?}");
}

#[test]
fn cancelling_says_how_far_the_item_had_come() {
    let setup = Setup::new(&[("acme", 1)], |builder| builder);
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.advance(ms(200));
    assert!(matches!(
        setup.status("job-000"),
        ItemStatus::Admitted { .. }
    ));
    assert_eq!(setup.cancel("job-000"), CancelOutcome::Admitted);
    assert_eq!(setup.cancel("job-001"), CancelOutcome::Cancelled);
    assert_eq!(setup.status("job-001"), ItemStatus::Unknown);
    assert_eq!(setup.cancel("job-001"), CancelOutcome::Unknown);
    setup.run_until_done(1, MINUTE);
    setup.world.advance(SECOND);
    assert_eq!(setup.cancel("job-000"), CancelOutcome::Finished);
    // A cancelled id is free again, a finished one is not.
    let again = setup.enqueue(&[("job-000", "acme", "g"), ("job-001", "acme", "g")]);
    assert_eq!(again, [Outcome::Duplicate, Outcome::Queued]);
    setup.run_until_done(2, MINUTE);
}

#[test]
fn a_claiming_item_that_is_cancelled_gives_its_permit_back_when_the_claim_is_answered() {
    for crash in [false, true] {
        let setup = Setup::new(&[("acme", 2)], |builder| builder);
        setup.fate(|call| match call.message {
            Message::Request(_) => Fate::Arrives,
            Message::Sync(_) => Fate::AnswerLost,
        });
        setup.enqueue_many("job", 2, "acme", "g");
        setup.world.advance(ms(200));
        assert_eq!(setup.cancel("job-000"), CancelOutcome::Releasing);
        assert_eq!(setup.cancel("job-000"), CancelOutcome::Releasing);
        setup.assert_sums();
        setup
            .outside
            .forbidden
            .borrow_mut()
            .insert("job-000".into());
        if crash {
            setup.shard.crash();
        }
        setup.fate(|_| Fate::Arrives);
        setup.run_until_done(1, MINUTE);
        setup.world.advance(SECOND);
        assert_eq!(setup.started(), ["job-001"]);
        let status = setup.status("job-000");
        assert!(matches!(status, ItemStatus::Finished { .. }), "{status:?}");
        setup.assert_settled(&["acme"]);
    }
}

#[test]
fn a_permit_comes_back_while_others_of_its_grant_are_in_use() {
    let setup = Setup::new(&[("acme", 2)], |builder| builder);
    let long = ("job-001".to_owned(), 10 * SECOND);
    setup.outside.takes_of.borrow_mut().extend([long]);
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.advance(SECOND);
    assert_eq!((setup.done(), setup.usage("acme").granted), (1, 1));
    setup.run_until_done(2, MINUTE);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
}

#[test]
fn a_holder_that_has_forgotten_a_grant_is_not_told_of_it_for_ever() {
    let setup = Setup::new(&[("acme", 2)], |builder| builder);
    let long = ("job-001".to_owned(), 10 * SECOND);
    setup.outside.takes_of.borrow_mut().extend([long]);
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.advance(ms(300));
    assert_eq!(setup.started().len(), 2);
    setup.outside.calls.borrow_mut().clear();
    grudging(&setup, 0, GrantStatus::NotFound);
    setup.world.advance(5 * SECOND);
    assert_eq!((setup.done(), setup.outside.calls.borrow().len()), (1, 1));
    setup.run_until_done(2, MINUTE);
    setup.world.advance(SECOND);
    assert_eq!(setup.rows("durability_semaphore_queue_grants"), 0);
}

#[test]
fn a_holder_that_leaves_reports_unanswered_is_not_asked_in_a_circle() {
    let setup = Setup::new(&[("acme", 1)], |builder| builder);
    setup.enqueue_many("job", 1, "acme", "g");
    setup.world.advance(ms(150));
    assert_eq!(setup.started().len(), 1);
    setup.outside.calls.borrow_mut().clear();
    setup.script(|call| match call.message {
        Message::Request(_) => None,
        Message::Sync(_) => Some(Ok(Reply::Synced(SyncReply {
            grant_results: Vec::new(),
            leases: None,
            contended: false,
            now: None,
        }))),
    });
    setup.world.advance(MINUTE);
    let calls = setup.outside.calls.borrow().len();
    assert!((5..200).contains(&calls), "told {calls} times in a minute");
    *setup.outside.script.borrow_mut() = None;
    setup.world.advance(MINUTE);
    setup.assert_settled(&["acme"]);
}

#[test]
fn releases_that_are_repeated_unknown_or_too_early_change_nothing() {
    let setup = Setup::new(&[("acme", 1)], |builder| builder);
    setup.outside.lost_releases.set(100);
    setup.outside.takes.set(ms(100));
    setup.enqueue_many("job", 2, "acme", "g");
    setup.release("job-001");
    setup.release("nobody");
    setup.world.advance(ms(250));
    assert!(matches!(
        setup.status("job-000"),
        ItemStatus::Admitted { .. }
    ));
    assert!(matches!(setup.status("job-001"), ItemStatus::Queued { .. }));
    for _ in 0..3 {
        setup.release("job-000");
    }
    setup.run_until_done(2, MINUTE);
    setup.release("job-000");
    setup.release("job-001");
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
    let released = setup.events();
    let released = released.iter().filter(|event| event.r#type() == "released");
    assert_eq!(released.count(), 2);
}

#[test]
fn a_lost_release_is_found_by_asking_which_items_have_finished() {
    let setup = Setup::new(&[("acme", 2)], |builder| builder);
    setup.outside.lost_releases.set(2);
    setup.enqueue_many("job", 4, "acme", "g");
    setup.world.advance(Duration::from_secs(4));
    assert_eq!(setup.done(), 2);
    setup.run_until_done(4, MINUTE);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
    // Nothing is left that would wake the object but the end of retention.
    setup.world.advance(MINUTE);
    let alarm = setup.shard.alarm().expect("retention ends some day");
    assert!(alarm.since(setup.world.now()) > Duration::from_secs(23 * 60 * 60));
}

#[test]
fn a_lost_release_is_found_however_long_the_work_took() {
    let setup = Setup::new(&[("acme", 2)], |builder| builder);
    setup.outside.lost_releases.set(2);
    // It is asked about every five seconds.
    setup.outside.takes.set(Duration::from_secs(12));
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.advance(Duration::from_secs(14));
    assert_eq!((setup.done(), setup.usage("acme").granted), (2, 2));
    setup.world.advance(Duration::from_secs(3));
    setup.assert_settled(&["acme"]);
}

#[test]
fn what_an_earlier_instance_admitted_is_asked_about_at_once() {
    let setup = Setup::new(&[("acme", 2)], |builder| builder);
    setup.outside.lost_releases.set(2);
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.advance(Duration::from_secs(4));
    assert_eq!(setup.done(), 2);
    assert_eq!(setup.usage("acme").granted, 2, "nobody has told the queue");
    setup.shard.crash();
    setup.status("job-000");
    // Long before it would have been time to ask.
    setup.world.advance(Duration::from_millis(100));
    setup.assert_settled(&["acme"]);
}
