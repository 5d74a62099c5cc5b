//! Messages and their rounds: when they take place, what survives, and what is told.

use std::cell::RefCell;
use std::rc::Rc;

use durably::Timestamp;
use durably::semaphore::LeaseOptions;
use durably::semaphore::protocol::{BlockedReason, GrantStatus, Message, Reply};
use serde_json::json;

use crate::setup::{START, Setup, claim, ms, request, sync};

#[test]
fn requests_of_one_wait_share_a_round_and_rounds_keep_their_distance() {
    let setup = Setup::new(|builder| builder.limit(10));
    let first = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(60));
    let second = setup.send(request("c2", &[("a", 3)]));
    setup.world.advance(ms(39));
    assert!(first.is_waiting() && second.is_waiting());
    setup.world.advance(ms(1));
    let reply = first.granted();
    assert_eq!(reply.grants[0].permits, 2);
    assert_eq!(reply.next_request_at, Timestamp::from_millis(START + 300));
    assert_eq!(second.granted().grants[0].permits, 3);

    // The next round is a period after the start of the last, though the wait would be over.
    setup.world.advance(ms(10));
    let third = setup.send(request("c1", &[("a", 1)]));
    setup.world.advance(ms(189));
    assert!(third.is_waiting());
    setup.world.advance(ms(1));
    assert_eq!(third.granted().grants.len(), 1);

    // Long after, only the wait counts.
    setup.world.advance(ms(5_000));
    let fourth = setup.send(request("c1", &[("a", 1)]));
    setup.world.advance(ms(100));
    assert!(!fourth.is_waiting());
}

#[test]
fn the_oldest_demand_is_served_first_and_the_rest_is_told_why_it_waits() {
    let setup = Setup::new(|builder| builder.limit(3));
    let young = setup.send(
        json!({"type": "request", "v": 1, "clientId": "c1", "grants": [],
        "demand": [{"group": "a", "count": 3, "oldestAt": START}]}),
    );
    let old = setup.send(
        json!({"type": "request", "v": 1, "clientId": "c2", "grants": [],
        "demand": [{"group": "a", "count": 2, "oldestAt": START - 1}]}),
    );
    setup.world.advance(ms(100));
    assert_eq!(old.granted().grants[0].permits, 2);
    assert_eq!(young.granted().grants[0].permits, 1);
    assert_eq!(young.granted().blocked[0].reason, BlockedReason::Limit);
    let events = setup.events();
    assert_eq!(
        serde_json::to_value(&events).unwrap(),
        json!([
            {"entityKind": "semaphore", "type": "round", "timestamp": START + 100,
             "requested": 5, "granted": 3,
             "usage": {"limit": 3, "granted": 3, "leased": 0, "available": 0,
                       "groups": {"a": {"granted": 3}}}},
            {"entityKind": "semaphore", "type": "blocked", "timestamp": START + 100,
             "group": "a", "reason": "limit", "count": 2},
        ])
    );
}

#[test]
fn who_asks_twice_in_a_round_has_waited_since_the_first_of_both_began() {
    let options = LeaseOptions {
        max_clients_per_group: 1,
        ..LeaseOptions::default()
    };
    let setup = Setup::new(move |builder| builder.limit(10).leases(options.clone()));
    let ask = |client, waits_since: u64| {
        let mut message = request(client, &[("a", 1)]);
        message["demand"][0]["oldestAt"] = (START - 1_000 + waits_since).into();
        message["leases"] = json!([]);
        setup.send(message)
    };
    let sent = [ask("c1", 30), ask("c2", 20), ask("c1", 10)];
    setup.world.advance(ms(300));
    let leases = sent.map(|sent| sent.granted().leases.map_or(0, |leases| leases.len()));
    // What is told to a client is told in both of its answers.
    assert_eq!(leases, [1, 0, 1]);
}

#[test]
fn what_is_not_claimed_in_time_comes_back_by_itself() {
    let setup = Setup::new(|builder| builder.limit(5));
    let sent = setup.send(request("c1", &[("a", 4)]));
    setup.world.advance(ms(100));
    let grant_id = sent.granted().grants[0].grant_id.clone();
    setup.sync(claim("c1", &grant_id, 1, 0));
    setup.events();

    // No message, no request: the deadline alone does it, long before the alarm's minimum delay.
    setup.world.advance(ms(1_000));
    let events = setup.events();
    assert_eq!(
        serde_json::to_value(&events).unwrap(),
        json!([{"entityKind": "semaphore", "type": "grant_reclaimed", "timestamp": START + 1_100,
                "grantId": grant_id, "clientId": "c1", "group": "a", "permits": 3}])
    );
    assert_eq!(setup.usage().unwrap().available, 4);
    assert_eq!(setup.object.alarm(), None);

    let late = setup.sync(claim("c1", &grant_id, 3, 0));
    assert_eq!(late.grant_results[0].claimed, 1);
    assert_eq!(late.grant_results[0].status, GrantStatus::Expired);
}

#[test]
fn a_crash_loses_who_waits_and_nothing_that_was_answered() {
    let setup = Setup::new(|builder| builder.limit(5));
    let sent = setup.send(request("c1", &[("a", 3)]));
    setup.world.advance(ms(100));
    let grant_id = sent.granted().grants[0].grant_id.clone();
    let waiting = setup.send(request("c2", &[("a", 3)]));
    setup.object.crash();
    setup.world.run_until_idle();
    assert_eq!(waiting.failure(), "ended");

    assert_eq!(setup.usage().unwrap().granted, 3);
    let claimed = setup.sync(claim("c1", &grant_id, 2, 1));
    assert_eq!(claimed.grant_results[0].claimed, 2);
    setup.object.crash();

    // The alarm alone opens the object again and takes the unclaimed permit back.
    setup.world.advance(ms(60_000));
    assert!(setup.object.is_open());
    let usage = setup.usage().unwrap();
    assert_eq!((usage.granted, usage.available), (1, 4));
    assert_eq!(setup.object.alarm(), None);
    setup.sync(claim("c1", &grant_id, 2, 2));
    assert_eq!(setup.usage().unwrap().granted, 0);
}

#[test]
fn reports_count_once_however_often_they_come() {
    let setup = Setup::new(|builder| builder.limit(4));
    let sent = setup.send(request("c1", &[("a", 4)]));
    setup.world.advance(ms(100));
    let grant_id = sent.granted().grants[0].grant_id.clone();
    setup.sync(claim("c1", &grant_id, 4, 2));
    let written = setup.rows_changed();
    setup.sync(claim("c1", &grant_id, 4, 2));
    setup.sync(claim("c1", &grant_id, 3, 1));
    assert_eq!(
        setup.sync(claim("c2", &grant_id, 4, 4)).grant_results[0].status,
        GrantStatus::NotFound
    );
    assert_eq!(
        setup.rows_changed(),
        written,
        "a repeated report wrote something"
    );
    assert_eq!(setup.usage().unwrap().available, 2);
}

#[test]
fn a_caller_that_gave_up_still_takes_part() {
    let setup = Setup::new(|builder| builder.limit(5));
    setup.world.block_on(setup.object.open()).unwrap();
    let message = request("c1", &[("a", 2)]);
    let message = Message::from_json(message.to_string().as_bytes()).unwrap();
    setup
        .world
        .block_on(setup.object.call(|object| async move {
            drop(object.semaphore.handle(message));
        }))
        .unwrap();
    setup.world.advance(ms(100));
    assert_eq!(setup.usage().unwrap().granted, 2);
}

#[test]
fn too_many_waiting_requests_are_refused() {
    let setup = Setup::new(|builder| builder.limit(9).max_waiting(2).max_waiting_entries(4));
    // The first one is taken whatever its size; beside it there is no more room.
    let big = setup.send(request(
        "c1",
        &[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)],
    ));
    assert_eq!(
        setup.send(request("c2", &[("a", 1)])).failure(),
        "overloaded"
    );
    setup.world.advance(ms(100));
    assert_eq!(big.granted().grants.len(), 5);

    let taken = [
        setup.send(request("c1", &[("a", 1)])),
        setup.send(request("c2", &[("a", 1)])),
    ];
    assert_eq!(setup.send(request("c3", &[])).failure(), "overloaded");
    // A sync never waits.
    setup.sync(sync("c3"));
    setup.world.advance(ms(200));
    assert!(taken.iter().all(|sent| sent.granted().grants.len() == 1));
}

#[test]
fn clocks_that_differ_do_not_change_who_is_oldest() {
    let setup = Setup::new(|builder| builder.limit(1));
    // This clock is an hour ahead: its item has waited 500 ms, the other one 400 ms.
    let hour = 3_600_000;
    let ahead = setup.send(
        json!({"type": "request", "v": 1, "clientId": "c9", "grants": [],
        "sentAt": START + hour, "leases": [],
        "demand": [{"group": "a", "count": 1, "oldestAt": START + hour - 500}]}),
    );
    let plain = setup.send(
        json!({"type": "request", "v": 1, "clientId": "c1", "grants": [],
        "demand": [{"group": "a", "count": 1, "oldestAt": START - 400}]}),
    );
    setup.world.advance(ms(100));
    let reply = ahead.granted();
    assert_eq!(reply.grants.len(), 1);
    assert_eq!(reply.now, Some(Timestamp::from_millis(START + 100)));
    assert_eq!(reply.leases, Some(Vec::new()));
    let reply = plain.granted();
    assert_eq!(
        (reply.grants.len(), reply.now, reply.leases),
        (0, None, None)
    );

    let answer = setup.sync(
        json!({"type": "sync", "v": 1, "clientId": "c1", "grants": [],
        "leases": [], "sentAt": 1}),
    );
    assert_eq!(answer.now, Some(Timestamp::from_millis(START + 100)));
    assert_eq!(answer.leases, None);
}

#[test]
fn a_malformed_message_changes_nothing() {
    let setup = Setup::new(|builder| builder.limit(5));
    let sent = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(100));
    let grant_id = sent.granted().grants[0].grant_id.clone();
    let written = setup.rows_changed();
    let malformed = setup.send(json!({"type": "sync", "v": 1, "clientId": "c1",
        "grants": [{"grantId": grant_id, "claimed": 2, "released": 0}, {"grantId": "x"}]}));
    assert_eq!(malformed.failure(), "malformed");
    // The same rules hold for a message that was built, not read.
    let mut built = Message::from_json(request("c1", &[("a", 1)]).to_string().as_bytes()).unwrap();
    if let Message::Request(request) = &mut built {
        request.demand[0].count = 1 << 53;
    }
    let refused = setup.world.block_on(
        setup
            .object
            .call(|object| async move { object.semaphore.handle(built).await }),
    );
    assert_eq!(refused.unwrap().unwrap_err().code(), "malformed");
    assert_eq!(setup.rows_changed(), written);
}

#[test]
fn a_thousand_requests_share_one_commit() {
    let setup = Setup::new(|builder| builder.limit(2_000));
    setup.world.block_on(setup.object.open()).unwrap();
    let sent: Vec<_> = (0..1_000)
        .map(|client| setup.send(request(&format!("c{client}"), &[("a", 1), ("b", 1)])))
        .collect();
    let commits = setup.object.storage().commits();
    setup.world.advance(ms(100));
    assert_eq!(setup.object.storage().commits(), commits + 1);
    assert!(sent.iter().all(|sent| sent.granted().grants.len() == 2));
    let (sums, scanned) = setup.compare_sums();
    assert_eq!(sums, scanned);
    assert_eq!(sums.grants(), 2_000);
}

#[test]
fn answers_leave_in_order_of_arrival_and_after_the_commit() {
    let setup = Setup::new(|builder| builder.limit(1));
    let order: Rc<RefCell<Vec<usize>>> = Rc::default();
    setup.world.block_on(setup.object.open()).unwrap();
    for (place, client) in ["c3", "c1", "c2"].into_iter().enumerate() {
        let message = request(client, &[("a", 1)]).to_string().into_bytes();
        let object = setup.object.clone();
        let order = order.clone();
        setup.world.spawn(async move {
            let answer = object
                .call(move |object| async move { object.semaphore.handle_json(&message).await });
            assert!(matches!(answer.await, Ok(Ok(Reply::Grant(_)))));
            assert!(
                object.alarm().is_some(),
                "the alarm commits with the grants"
            );
            order.borrow_mut().push(place);
        });
    }
    setup.world.advance(ms(100));
    assert_eq!(order.take(), [0, 1, 2]);
}

#[test]
fn a_round_that_cannot_be_stored_gives_nothing() {
    let setup = Setup::new(|builder| builder.limit(5));
    setup.world.block_on(setup.object.open()).unwrap();
    let storage = setup.object.storage().clone();
    let rename = |from: &'static str, to: &'static str| {
        storage
            .transaction(move |transaction| {
                transaction.script(&format!("ALTER TABLE {from} RENAME TO {to}"))
            })
            .unwrap();
    };
    rename("durability_semaphore_grants", "hidden");
    let sent = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(100));
    assert!(sent.failure().starts_with("storage"), "{}", sent.failure());
    rename("hidden", "durability_semaphore_grants");
    let sent = setup.send(request("c1", &[("a", 5)]));
    setup.world.advance(ms(200));
    assert_eq!(sent.granted().grants[0].permits, 5);
}

#[test]
fn a_hook_that_panics_changes_nothing() {
    let setup = Setup::new(|builder| builder.limit(5).on_event(|_| panic!("a bad hook")));
    let sent = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(100));
    assert_eq!(sent.granted().grants.len(), 1);
    let sent = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(200));
    assert_eq!(sent.granted().grants.len(), 1);
}

#[test]
fn a_hibernated_holder_is_freed() {
    let setup = Setup::new(|builder| builder.limit(5));
    let sent = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(100));
    sent.granted();
    let alive = Rc::downgrade(
        &setup
            .world
            .block_on(setup.object.call(|object| async move { object }))
            .unwrap(),
    );
    setup.world.advance(ms(1_000));
    setup.object.crash();
    setup.world.run_until_idle();
    assert!(alive.upgrade().is_none());
}
