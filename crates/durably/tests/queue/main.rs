//! The queue on the virtual host, against real holders: what is admitted when, what survives, and
//! that every permit comes back.

mod random;
mod setup;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use durably::semaphore::client::ClientError;
use durably::semaphore::protocol::{
    Grant, GrantReply, GrantResult, GrantStatus, Message, Reply, SyncReply,
};
use durably::semaphore::queue::{
    CancelOutcome, ItemStatus, Outcome, QueueEvent, Refusal, RequeueReason, WaitReason,
};

use setup::{Fate, START, Setup, at, item, ms};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn jobs_run_oldest_first_within_the_limit_and_their_permits_come_back() {
    let setup = Setup::new(&[("acme", 3)], |builder| builder);
    setup.enqueue_many("job", 20, "acme", "nightly");
    setup.run_until_done(20, MINUTE);
    let started = setup.started();
    let mut sorted = started.clone();
    sorted.sort();
    assert_eq!(started, sorted);
    assert_eq!(setup.most("acme"), 3);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
    let finished = setup.status("job-000");
    assert!(
        matches!(finished, ItemStatus::Finished { .. }),
        "{finished:?}"
    );
}

#[test]
fn groups_and_keys_share_the_shard_and_keep_their_own_limits() {
    let setup = Setup::new(&[("acme", 5), ("bolt", 2)], |builder| builder);
    setup.set_group_limit(2);
    setup.enqueue_many("a1", 6, "acme", "one");
    setup.enqueue_many("a2", 6, "acme", "two");
    setup.enqueue_many("b1", 6, "bolt", "one");
    setup.run_until_done(18, MINUTE);
    assert!(setup.most("acme") <= 4);
    assert!(setup.most("bolt") <= 2);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme", "bolt"]);
}

#[test]
fn known_items_are_duplicates_and_bad_ones_are_refused_by_themselves() {
    let setup = Setup::new(&[("acme", 0)], |builder| {
        builder.max_body_bytes(20).max_queue_length(4)
    });
    let long = "x".repeat(30);
    let too_long = "x".repeat(257);
    let outcomes = setup.enqueue(&[
        ("a", "acme", "g"),
        ("a", "acme", "g"),
        ("", "acme", "g"),
        ("b", &too_long, "g"),
        ("c", "acme", ""),
        (&long, "acme", "g"),
        ("d", "acme", "g"),
    ]);
    let field = |outcome: &Outcome| match outcome {
        Outcome::Refused {
            reason: Refusal::InvalidField { field, .. },
        } => *field,
        other => panic!("not refused for a field: {other:?}"),
    };
    assert_eq!(outcomes[0], Outcome::Queued);
    assert_eq!(outcomes[1], Outcome::Duplicate);
    assert_eq!(field(&outcomes[2]), "id");
    assert_eq!(field(&outcomes[3]), "key");
    assert_eq!(field(&outcomes[4]), "group");
    let reason = Refusal::BodyTooLarge {
        bytes: 32,
        max_bytes: 20,
    };
    assert_eq!(outcomes[5], Outcome::Refused { reason });
    assert_eq!(outcomes[6], Outcome::Queued);
    let outcomes = setup.enqueue(&[("e", "acme", "g"), ("f", "acme", "g"), ("h", "acme", "g")]);
    let reason = Refusal::QueueFull { max_items: 4 };
    assert_eq!(outcomes[2], Outcome::Refused { reason });
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 4);
}

#[test]
fn a_batch_that_is_too_long_changes_nothing() {
    let setup = Setup::new(&[], |builder| builder.max_batch_items(2));
    let items = ["a", "b", "c"].map(|id| item(id, "acme", "g")).to_vec();
    let call = setup
        .shard
        .call(|shard| async move { shard.queue.enqueue(items).await });
    let error = setup
        .world
        .block_on(call)
        .expect("open")
        .expect_err("too long");
    assert_eq!(error.code(), "batch_too_long");
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 0);
}

#[test]
fn a_waiting_item_knows_its_place_and_why_it_waits() {
    let setup = Setup::new(&[("acme", 0)], |builder| builder);
    setup.enqueue_many("job", 3, "acme", "g");
    let status = |id| match setup.status(id) {
        ItemStatus::Queued { place, waiting, .. } => (place, waiting),
        other => panic!("{id} does not wait: {other:?}"),
    };
    assert_eq!(status("job-002"), (3, None));
    setup.world.advance(ms(200));
    let (place, waiting) = status("job-001");
    let waiting = waiting.expect("a reason");
    assert_eq!((place, waiting.reason), (2, WaitReason::Limit));
    assert_eq!(waiting.since, at(START + 100));
    setup.world.advance(SECOND);
    assert_eq!(
        status("job-001").1.expect("a reason").since,
        at(START + 100)
    );

    setup.set_limit("acme", 5);
    setup.set_group_limit(0);
    setup.world.advance(SECOND);
    let waiting = status("job-000").1.expect("a reason");
    assert_eq!(waiting.reason, WaitReason::GroupLimit);
    assert!(waiting.since > at(START + 100));
    assert_eq!(setup.status("nobody"), ItemStatus::Unknown);
}

#[test]
fn it_asks_again_when_the_holder_wants_to_be_asked_and_no_sooner() {
    let setup = Setup::new(&[("acme", 0)], |builder| builder);
    setup.enqueue_many("job", 3, "acme", "g");
    setup.world.advance(ms(2_000));
    let requests: Vec<u64> = setup
        .outside
        .calls
        .borrow()
        .iter()
        .filter_map(|call| match &call.message {
            Message::Request(request) => request.sent_at.map(|at| at.as_millis() - START),
            Message::Sync(_) => None,
        })
        .collect();
    // Sent at 0, answered at 100 with "again at 300": 200 ms after it was sent.
    assert_eq!(requests[..3], [0, 200, 400]);
    assert!(requests.windows(2).all(|two| two[1] - two[0] >= 200));
}

#[test]
fn it_asks_for_no_more_than_it_can_run() {
    let setup = Setup::new(&[("acme", 100), ("bolt", 100)], |builder| builder);
    setup.enqueue_many("a", 30, "acme", "g");
    setup.enqueue_many("b", 30, "bolt", "g");
    setup.run_until_done(60, MINUTE);
    assert!(setup.most("acme") + setup.most("bolt") <= 16);
    let outside = &setup.outside;
    for call in outside.calls.borrow().iter() {
        if let Message::Request(request) = &call.message {
            let asked: u64 = request.demand.iter().map(|demand| demand.count).sum();
            assert!((1..=8).contains(&asked), "asked for {asked}");
        }
    }
    let started = setup.started();
    assert!(
        started[..8].iter().all(|id| id.starts_with('a')),
        "{started:?}"
    );
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme", "bolt"]);
}

#[test]
fn keys_that_get_nothing_do_not_hold_up_the_others() {
    let keys: Vec<String> = (0..12).map(|n| format!("stuck-{n}")).collect();
    let mut limits: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 0)).collect();
    limits.push(("free", 4));
    let setup = Setup::new(&limits, |builder| builder);
    for key in &keys {
        setup.enqueue_many(key, 20, key, "g");
    }
    setup.world.advance(SECOND);
    setup.enqueue_many("job", 20, "free", "g");
    setup.run_until_done(20, Duration::from_secs(20));
    // And they get theirs as soon as there is something.
    setup.set_limit("stuck-7", 2);
    setup.run_until_done(40, MINUTE);
    setup.world.advance(SECOND);
    setup.assert_settled(&["free", "stuck-7"]);
}

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
    setup.enqueue_many("later", 2, "acme", "g");
    // The grant is taken back; the claim finds nothing.
    setup.world.advance(Duration::from_secs(5));
    let status = setup.status("job-001");
    // Only an answer sends it back.
    assert!(matches!(status, ItemStatus::Claiming { .. }), "{status:?}");
    setup.fate(|_| Fate::Arrives);
    setup.run_until_done(4, MINUTE);
    assert_eq!(
        setup.started(),
        ["job-000", "job-001", "later-000", "later-001"]
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
fn many_items_of_one_grant_are_admitted_in_batches() {
    let setup = Setup::new(&[("acme", 50)], |builder| {
        builder.max_admitted(50).max_admit_items(7)
    });
    setup.enqueue_many("job", 50, "acme", "g");
    setup.run_until_done(50, MINUTE);
    assert_eq!(setup.outside.admissions.get(), 8);
    let mut sorted = setup.started();
    sorted.sort();
    assert_eq!(setup.started(), sorted);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
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
fn finished_items_are_known_for_the_retention_and_forgotten_after() {
    let setup = Setup::new(&[("acme", 4)], |builder| {
        builder.retention(Duration::from_secs(100))
    });
    setup.enqueue_many("job", 10, "acme", "g");
    setup.run_until_done(10, MINUTE);
    setup.world.advance(SECOND);
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 10);
    setup.world.advance(Duration::from_secs(90));
    assert!(matches!(
        setup.status("job-009"),
        ItemStatus::Finished { .. }
    ));
    // By the alarm, also if nobody is there.
    setup.shard.crash();
    setup.world.advance(Duration::from_secs(30));
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 0);
    assert_eq!(setup.rows("durability_semaphore_queue_finished"), 0);
    assert_eq!(setup.status("job-009"), ItemStatus::Unknown);
    assert_eq!(setup.shard.alarm(), None);
}

#[test]
fn an_id_may_be_used_again_after_the_retention_also_while_its_old_grant_is_out() {
    let setup = Setup::new(&[("acme", 4)], |builder| {
        builder.retention(Duration::from_secs(20))
    });
    // One of two items of a grant runs for minutes.
    let takes = |id: &str, seconds| {
        let mut takes = setup.outside.takes_of.borrow_mut();
        takes.insert(id.to_owned(), Duration::from_secs(seconds));
    };
    takes("short", 1);
    takes("long", 300);
    setup.enqueue(&[("short", "acme", "g"), ("long", "acme", "g")]);
    setup.world.advance(Duration::from_secs(12));
    assert!(matches!(setup.status("short"), ItemStatus::Finished { .. }));
    assert_eq!(
        setup.enqueue(&[("short", "acme", "g")]),
        [Outcome::Duplicate]
    );
    setup.world.advance(Duration::from_secs(11));
    assert_eq!(setup.status("short"), ItemStatus::Unknown);
    setup.outside.done.borrow_mut().clear();
    takes("short", 600);
    assert_eq!(setup.enqueue(&[("short", "acme", "g")]), [Outcome::Queued]);
    setup.world.advance(SECOND);
    assert!(matches!(setup.status("short"), ItemStatus::Admitted { .. }));
    setup.shard.crash();
    // The first grant settles and is forgotten; the second life of the id is not.
    setup.world.advance(Duration::from_secs(330));
    assert!(matches!(setup.status("short"), ItemStatus::Admitted { .. }));
    assert_eq!(setup.status("long"), ItemStatus::Unknown);
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 1);
    assert_eq!(setup.usage("acme").granted, 1);
    setup.world.advance(Duration::from_secs(300));
    setup.assert_settled(&["acme"]);
}

#[test]
fn concurrent_callers_share_commits() {
    let setup = Setup::new(&[("acme", 0)], |builder| builder);
    setup.world.block_on(setup.shard.open()).expect("it opens");
    let before = setup.shard.storage().commits();
    let taken = Rc::new(RefCell::new(0));
    for n in 0..64 {
        let call = setup.shard.call(move |shard| async move {
            let items = vec![item(&format!("job-{n}"), "acme", "g")];
            shard.queue.enqueue(items).await
        });
        let taken = taken.clone();
        setup.world.spawn(async move {
            let outcomes = call.await.expect("open").expect("stored");
            assert_eq!(outcomes, [Outcome::Queued]);
            *taken.borrow_mut() += 1;
        });
    }
    setup.world.run_until_idle();
    assert_eq!(*taken.borrow(), 64);
    assert!(setup.shard.storage().commits() - before <= 3);
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

#[test]
fn a_job_costs_few_rows() {
    let setup = Setup::new(&[("acme", 50)], |builder| {
        builder.max_admitted(50).retention(MINUTE)
    });
    setup.world.block_on(setup.shard.open()).expect("it opens");
    let before = setup.rows_changed();
    let jobs = 500;
    setup.enqueue_many("job", jobs, "acme", "g");
    setup.run_until_done(jobs, MINUTE);
    setup.world.advance(2 * MINUTE);
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 0);
    let grants = setup.outside.grants.get();
    assert!(jobs as u64 / grants >= 10, "{grants} grants");
    // Stored, assigned, finished, forgotten, and an entry of the index written and removed; five
    // for a grant, and now and then the alarm.
    let index_entries = 2 * jobs as u64;
    let per_job = (setup.rows_changed() - before + index_entries) as f64 / jobs as f64;
    assert!(
        (6.0..6.7).contains(&per_job),
        "{per_job} rows a job with {grants} grants"
    );
}
