//! The queue on the virtual host, against real holders: what is admitted when, what survives, and
//! that every permit comes back.

mod claims;
mod failures;
mod leases;
mod lender;
mod random;
mod setup;
mod waiting;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use durably::semaphore::protocol::Message;
use durably::semaphore::queue::{ItemStatus, Outcome, Refusal, WaitReason};

use setup::{Fate, MINUTE, SECOND, START, Setup, at, item, ms};

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
fn what_waits_keeps_its_age_and_its_place_through_cancelling_and_a_crash() {
    let setup = Setup::new(&[("acme", 1)], |builder| builder);
    setup.outside.takes.set(10 * SECOND);
    setup.enqueue_many("job", 4, "acme", "g");
    setup.world.advance(ms(500));
    let usage = |setup: &Setup| {
        let call = setup
            .shard
            .call(|shard| async move { shard.queue.usage("acme") });
        let usage = setup.world.block_on(call).expect("the shard is there");
        (usage.waiting, usage.held, usage.undrawn)
    };
    assert_eq!(usage(&setup), (3, 1, 0));
    // The oldest that waits, and one behind it.
    setup.cancel("job-001");
    setup.assert_sums();
    setup.cancel("job-003");
    setup.assert_sums();
    assert_eq!(usage(&setup), (1, 1, 0));

    setup.shard.crash();
    setup.outside.calls.borrow_mut().clear();
    setup.enqueue_many("after", 2, "acme", "g");
    setup.assert_sums();
    setup.world.advance(SECOND);
    let oldest = setup
        .outside
        .calls
        .borrow()
        .iter()
        .find_map(|call| match &call.message {
            Message::Request(request) => Some(request.demand[0].oldest_at),
            Message::Sync(_) => None,
        });
    assert_eq!(oldest, Some(at(START)));
    setup.run_until_done(4, MINUTE);
    let in_order = ["job-000", "job-002", "after-000", "after-001"];
    assert_eq!(setup.started(), in_order);
    setup.world.advance(SECOND);
    setup.assert_settled(&["acme"]);
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
fn a_known_item_is_a_duplicate_also_while_the_queue_is_full() {
    let setup = Setup::new(&[("acme", 0)], |builder| builder.max_queue_length(1));
    let outcomes = setup.enqueue(&[("a", "acme", "g"), ("a", "acme", "g"), ("b", "acme", "g")]);
    assert_eq!(outcomes[..2], [Outcome::Queued, Outcome::Duplicate]);
    let full = Refusal::QueueFull { max_items: 1 };
    assert_eq!(outcomes[2], Outcome::Refused { reason: full });
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
fn places_that_one_key_has_asked_for_are_not_asked_for_by_another() {
    let limits = [("acme", 2), ("bolt", 2)];
    let setup = Setup::new(&limits, |builder| builder.max_admitted(2));
    setup.fate(|_| Fate::AnswerLate(500));
    setup.enqueue_many("a", 2, "acme", "g");
    setup.enqueue_many("b", 2, "bolt", "g");
    setup.world.advance(ms(300));
    assert_eq!(setup.outside.calls.borrow().len(), 1);
    setup.fate(|_| Fate::Arrives);
    setup.run_until_done(4, MINUTE);
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
fn a_group_that_was_refused_shares_its_next_turn_only_with_those_that_wait() {
    let setup = Setup::new(&[("acme", 8)], |builder| builder);
    for group in ["a", "b", "c", "d"] {
        setup.enqueue_many(group, 2, "acme", group);
    }
    setup.run_until_done(8, MINUTE);
    setup.set_limit("acme", 0);
    setup.enqueue_many("job", 8, "acme", "g");
    setup.world.advance(SECOND);
    let calls = setup.outside.calls.borrow();
    let last = calls.iter().rev().find_map(|call| match &call.message {
        Message::Request(request) => Some(request.demand.clone()),
        Message::Sync(_) => None,
    });
    let counts: Vec<u64> = last.iter().flatten().map(|demand| demand.count).collect();
    assert_eq!(counts, [8]);
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

#[cfg(feature = "deliberate-bugs")]
#[test]
fn deliberate_bugs_are_found() {
    durably_sim::proof::by_own_tests("queue");
}
