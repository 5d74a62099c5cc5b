//! Requests that wait for capacity, and requests that are asked again.

use std::cell::Cell;
use std::rc::Rc;

use durably::Timestamp;
use durably::semaphore::protocol::{BlockedReason, GrantReply, Reply};
use durably::semaphore::{LeaseOptions, SemaphoreEvent};
use serde_json::{Value, json};

use crate::setup::{START, Setup, claim, ms, request, sync};

fn waiting(client: &str, demand: &[(&str, u64)], wait: u64) -> Value {
    let mut message = request(client, demand);
    message["waitMs"] = wait.into();
    message
}

fn named(mut message: Value, request_id: &str) -> Value {
    message["requestId"] = request_id.into();
    message
}

fn with_leases(mut message: Value, leases: Value) -> Value {
    message["leases"] = leases;
    message
}

/// Has `client` hold `permits`, and gives the id of its grant.
fn held(setup: &Setup, client: &str, permits: u64) -> String {
    let sent = setup.send(request(client, &[("a", permits)]));
    setup.world.advance(ms(300));
    let grant_id = sent.granted().grants[0].grant_id.clone();
    setup.sync(claim(client, &grant_id, permits, 0));
    setup.events();
    grant_id
}

fn blocked(events: &[SemaphoreEvent]) -> usize {
    let is_blocked = |event: &&SemaphoreEvent| matches!(event, SemaphoreEvent::Blocked { .. });
    events.iter().filter(is_blocked).count()
}

fn permits(reply: &GrantReply) -> u64 {
    reply.grants.iter().map(|grant| grant.permits).sum()
}

#[test]
fn a_waiting_request_is_answered_by_the_round_after_a_release() {
    let setup = Setup::new(|builder| builder.limit(2));
    let grant = held(&setup, "c1", 2);
    let sent = setup.send(waiting("c2", &[("a", 2)], 20_000));
    setup.world.advance(ms(5_000));
    assert!(sent.is_waiting());
    assert_eq!(blocked(&setup.events()), 1);

    setup.sync(claim("c1", &grant, 2, 1));
    setup.world.advance(ms(99));
    assert!(sent.is_waiting());
    setup.world.advance(ms(1));
    let reply = sent.granted();
    assert_eq!(permits(&reply), 1);
    // What is still missing is told with the answer, and was told by an event before.
    assert_eq!(reply.blocked[0].reason, BlockedReason::Limit);
    assert_eq!(blocked(&setup.events()), 0);
}

#[test]
fn the_wait_ends_with_the_reason_and_is_cut_to_what_is_allowed() {
    let setup = Setup::new(|builder| builder.limit(0).max_wait(ms(3_000)));
    let short = setup.send(waiting("c1", &[("a", 1)], 1_000));
    let long = setup.send(waiting("c2", &[("a", 1)], 60_000));
    setup.world.advance(ms(999));
    assert!(short.is_waiting());
    setup.world.advance(ms(1));
    let reply = short.granted();
    assert_eq!(reply.blocked[0].reason, BlockedReason::Limit);
    assert_eq!(reply.next_request_at, Timestamp::from_millis(START + 300));
    setup.world.advance(ms(1_999));
    assert!(long.is_waiting());
    setup.world.advance(ms(1));
    assert_eq!(long.granted().blocked.len(), 1);
    // Nobody waits any more, so nothing keeps the object from sleeping.
    assert_eq!(setup.world.next_timer(), None);
}

#[test]
fn whatever_adds_capacity_has_a_round_held() {
    let limit = Rc::new(Cell::new(0));
    let ceiling = Rc::new(Cell::new(0));
    let open = Rc::new(Cell::new(false));
    let setup = {
        let (limit, ceiling, open) = (limit.clone(), ceiling.clone(), open.clone());
        Setup::new(move |builder| {
            let (limit, ceiling, open) = (limit.clone(), ceiling.clone(), open.clone());
            builder
                .limit_with(move || std::future::ready(Ok(limit.get())))
                .group_limit(move |group| {
                    std::future::ready(Ok((group == "capped").then(|| ceiling.get())))
                })
                .can_grant(move |group| std::future::ready(Ok(group != "gated" || open.get())))
        })
    };
    let sent: Vec<_> = ["a", "capped", "gated"]
        .map(|group| setup.send(waiting(group, &[(group, 1)], 60_000)))
        .into();
    setup.world.advance(ms(1_000));
    let told = || {
        let call = setup
            .object
            .call(|object| async move { object.semaphore.limits_changed() });
        setup.world.block_on(call).expect("the object is open");
        setup.world.advance(ms(200));
        sent.iter()
            .map(|sent| sent.is_waiting())
            .collect::<Vec<_>>()
    };
    assert_eq!(told(), [true, true, true]);
    limit.set(5);
    assert_eq!(told(), [false, true, true]);
    ceiling.set(1);
    assert_eq!(told(), [false, false, true]);
    open.set(true);
    assert_eq!(told(), [false, false, false]);
}

#[test]
fn permits_that_nobody_claims_go_to_who_waits() {
    let setup = Setup::new(|builder| builder.limit(1));
    let lost = setup.send(request("c1", &[("a", 1)]));
    let sent = setup.send(waiting("c2", &[("a", 1)], 20_000));
    setup.world.advance(ms(100));
    assert_eq!(permits(&lost.granted()), 1);
    // The claim deadline is 1 s after the round, the next round 100 ms after that.
    setup.world.advance(ms(1_099));
    assert!(sent.is_waiting());
    setup.world.advance(ms(1));
    assert_eq!(permits(&sent.granted()), 1);
}

#[test]
fn a_returned_lease_goes_to_who_waits() {
    let setup = Setup::new(|builder| builder.limit(8).leases(LeaseOptions::default()));
    let first = setup.send(with_leases(request("c1", &[("a", 1)]), json!([])));
    setup.world.advance(ms(300));
    let reply = first.granted();
    setup.sync(claim("c1", &reply.grants[0].grant_id, 1, 0));
    let lease = reply.leases.expect("they were wanted")[0].clone();
    assert_eq!(lease.permits, 7);
    let sent = setup.send(with_leases(waiting("c2", &[("b", 3)], 20_000), json!([])));
    setup.world.advance(ms(300));
    assert!(sent.is_waiting());
    let report = json!([{"leaseId": lease.lease_id, "drawn": 2, "released": 0, "retired": true}]);
    let echo = setup.sync(with_leases(sync("c1"), report));
    assert!(echo.contended);
    setup.world.advance(ms(200));
    let reply = sent.granted();
    assert_eq!(permits(&reply), 3);
    assert_eq!(reply.leases.expect("they were wanted")[0].permits, 2);
}

#[test]
fn a_request_with_reports_of_claims_does_not_wait_for_more() {
    let setup = Setup::new(|builder| builder.limit(1));
    let first = setup.send(request("c1", &[("a", 1)]));
    setup.world.advance(ms(300));
    let grant_id = first.granted().grants[0].grant_id.clone();
    let mut message = waiting("c1", &[("a", 1)], 20_000);
    message["grants"] = json!([{"grantId": grant_id, "claimed": 1, "released": 0}]);
    let sent = setup.send(message);
    setup.world.advance(ms(100));
    let reply = sent.granted();
    assert_eq!(reply.grant_results[0].claimed, 1);
    assert_eq!(reply.blocked.len(), 1);
}

#[test]
fn whoever_hangs_up_does_not_wait_any_more() {
    let setup = Setup::new(|builder| builder.limit(1));
    let grant = held(&setup, "c1", 1);
    let json = waiting("c2", &[("a", 1)], 20_000).to_string().into_bytes();
    let gone = setup.object.call(move |object| async move {
        let answer = object.semaphore.handle_json(&json);
        drop(answer);
    });
    setup.world.block_on(gone).expect("the object is open");
    setup.world.advance(ms(1_000));
    setup.sync(claim("c1", &grant, 1, 1));
    setup.world.advance(ms(1_000));
    assert_eq!(setup.usage().unwrap().granted, 0);
}

#[test]
fn a_lost_reply_strands_nothing() {
    let setup = Setup::new(|builder| builder.limit(8).leases(LeaseOptions::default()));
    let asked = || {
        let message = with_leases(request("c1", &[("a", 2), ("b", 1)]), json!([]));
        let sent = setup.send(named(message, "r1"));
        setup.world.advance(ms(300));
        sent.granted()
    };
    let first = asked();
    assert_eq!(permits(&first), 3);
    let leases = first.leases.clone().expect("they were wanted");
    assert_eq!(leases.len(), 2);
    // The same again, also from an object that was lost meanwhile.
    let second = asked();
    assert_eq!(
        (&second.grants, &second.leases),
        (&first.grants, &first.leases)
    );
    setup.object.crash();
    let third = asked();
    assert_eq!(
        (&third.grants, &third.leases),
        (&first.grants, &first.leases)
    );
    assert_eq!(setup.usage().unwrap().granted, 3);

    // Another request is told of the leases as stopped, and they are settled by giving them back.
    let other = setup.send(named(
        with_leases(request("c1", &[("a", 1)]), json!([])),
        "r2",
    ));
    setup.world.advance(ms(300));
    let told = other.granted().leases.expect("they were wanted");
    let now = setup.world.now();
    for lease in &leases {
        let told = told.iter().find(|told| told.lease_id == lease.lease_id);
        assert!(told.is_some_and(|told| told.expires_at <= now), "{lease:?}");
    }
    let unknown: Vec<Value> = leases
        .iter()
        .map(|lease| json!({"leaseId": lease.lease_id, "drawn": 0, "released": 0, "retired": true}))
        .collect();
    setup.sync(with_leases(sync("c1"), unknown.into()));
    assert_eq!(setup.usage().unwrap().leased, 0);

    // Once nothing lives that was given for it, the name may be used again.
    for grant in &first.grants {
        setup.sync(claim("c1", &grant.grant_id, grant.permits, grant.permits));
    }
    let fresh = asked();
    assert_eq!(permits(&fresh), 3);
    assert_ne!(fresh.grants, first.grants);
}

#[test]
fn a_request_is_repeated_as_long_as_a_grant_or_a_lease_of_it_lives() {
    let ask = |setup: &Setup, leases: Value| {
        let message = with_leases(request("c1", &[("a", 2)]), leases);
        let sent = setup.send(named(message, "r1"));
        setup.world.advance(ms(300));
        sent.granted()
    };
    let grants_alone = Setup::new(|builder| builder.limit(8));
    let first = ask(&grants_alone, json!([]));
    assert_eq!(ask(&grants_alone, json!([])).grants, first.grants);
    assert_eq!(grants_alone.usage().unwrap().granted, 2);

    let setup = Setup::new(|builder| builder.limit(8).leases(LeaseOptions::default()));
    let first = ask(&setup, json!([]));
    // Nobody claims the grant.
    setup.world.advance(ms(1_000));
    let second = ask(&setup, json!([]));
    assert_eq!((permits(&second), &second.leases), (0, &first.leases));
    let usage = setup.usage().unwrap();
    assert_eq!((usage.granted, usage.leased), (0, 6));
}

#[test]
fn a_request_asked_again_while_it_waits_takes_the_place_of_the_first() {
    let setup = Setup::new(|builder| builder.limit(2));
    let grant = held(&setup, "c1", 2);
    let ask = |groups: &[(&str, u64)]| setup.send(named(waiting("c2", groups, 20_000), "r1"));
    // While it waits for its first round:
    let first = ask(&[("a", 1)]);
    let second = ask(&[("a", 1), ("b", 1)]);
    setup.world.advance(ms(300));
    assert_eq!(permits(&first.granted()), 0);
    assert!(second.is_waiting());
    // While it is parked:
    let third = ask(&[("b", 2)]);
    assert_eq!(second.granted().blocked.len(), 2);
    setup.world.advance(ms(300));
    assert!(third.is_waiting());
    setup.sync(claim("c1", &grant, 2, 2));
    setup.world.advance(ms(300));
    let reply = third.granted();
    assert_eq!((reply.grants[0].group.as_str(), permits(&reply)), ("b", 2));
    assert_eq!(setup.usage().unwrap().granted, 2);
}

#[test]
fn a_request_is_only_repeated_by_its_own_client() {
    let setup = Setup::new(|builder| builder.limit(4));
    let mine = setup.send(named(request("c1", &[("a", 1)]), "r"));
    let theirs = setup.send(named(request("c2", &[("a", 1)]), "r"));
    setup.world.advance(ms(100));
    assert_eq!(
        (permits(&mine.granted()), permits(&theirs.granted())),
        (1, 1)
    );
}

#[test]
fn a_waiting_request_fails_with_its_instance_and_when_the_limit_cannot_be_read() {
    let readable = Rc::new(Cell::new(true));
    let limit = readable.clone();
    let setup = Setup::new(move |builder| {
        let readable = limit.clone();
        builder.limit_with(move || {
            let limit = if readable.get() {
                Ok(0)
            } else {
                Err("away".into())
            };
            std::future::ready(limit)
        })
    });
    let sent = setup.send(waiting("c1", &[("a", 1)], 60_000));
    setup.world.advance(ms(1_000));
    readable.set(false);
    let other = setup.send(request("c2", &[("a", 1)]));
    setup.world.advance(ms(300));
    assert_eq!(
        (sent.failure(), other.failure()),
        ("limit".into(), "limit".into())
    );
    readable.set(true);
    let sent = setup.send(waiting("c1", &[("a", 1)], 60_000));
    setup.world.advance(ms(1_000));
    setup.object.crash();
    setup.world.run_until_idle();
    assert_eq!(sent.failure(), "ended");
}

#[test]
fn what_still_runs_under_a_retired_lease_keeps_nobody_from_waiting() {
    let setup = Setup::new(|builder| builder.limit(3).leases(LeaseOptions::default()));
    let first = setup.send(with_leases(request("c1", &[("a", 1)]), json!([])));
    setup.world.advance(ms(300));
    let first = first.granted();
    setup.sync(claim("c1", &first.grants[0].grant_id, 1, 0));
    let lease = first.leases.expect("leases")[0].lease_id.clone();
    let report = |released: u64| json!([{"leaseId": lease, "drawn": 2, "released": released, "retired": true}]);
    setup.sync(with_leases(sync("c1"), report(0)));

    // The same again is not written again.
    let rows = setup.rows_changed();
    setup.sync(with_leases(sync("c1"), report(0)));
    assert_eq!(setup.rows_changed(), rows);

    // It says nothing new about its lease, and neither does the holder.
    let message = with_leases(waiting("c1", &[("a", 1)], 20_000), report(0));
    let sent = setup.send(named(message, "r2"));
    setup.world.advance(ms(5_000));
    assert!(sent.is_waiting());
    // Nor do they in a round for others.
    setup.send(request("c2", &[("b", 1)]));
    setup.world.advance(ms(300));
    assert!(sent.is_waiting());
    setup.sync(with_leases(sync("c1"), report(1)));
    setup.world.advance(ms(100));
    assert_eq!(permits(&sent.granted()), 1);

    // That a lease is settled is news.
    let message = with_leases(waiting("c1", &[("b", 1)], 20_000), report(2));
    let sent = setup.send(message);
    setup.world.advance(ms(300));
    assert!(!sent.is_waiting());
}

#[test]
fn that_a_lease_has_ended_is_told_at_once_though_nothing_can_be_given() {
    let setup = Setup::new(|builder| builder.limit(0).leases(LeaseOptions::default()));
    let report = json!([{"leaseId": "lost", "drawn": 0, "released": 0, "retired": false}]);
    let sent = setup.send(with_leases(waiting("c1", &[("a", 1)], 20_000), report));
    setup.world.advance(ms(300));
    let reply = sent.granted();
    assert_eq!((reply.grants.len(), reply.blocked.len()), (0, 1));
    let leases = reply.leases.expect("one was reported");
    assert_eq!(leases.len(), 1);
    // The holder knows no such lease.
    assert_eq!((&*leases[0].lease_id, &*leases[0].group), ("lost", ""));

    // One that is over must not be drawn from, though its permits are not back.
    let setup = Setup::new(|builder| builder.limit(8).leases(LeaseOptions::default()));
    let first = setup.send(with_leases(request("c1", &[("a", 1)]), json!([])));
    setup.world.advance(ms(300));
    let first = first.granted();
    setup.sync(claim("c1", &first.grants[0].grant_id, 1, 0));
    let lease = first.leases.expect("leases")[0].lease_id.clone();
    setup.world.advance(LeaseOptions::default().ttl);
    let report = json!([{"leaseId": lease, "drawn": 2, "released": 0, "retired": false}]);
    let sent = setup.send(with_leases(waiting("c1", &[("a", 1)], 20_000), report));
    setup.world.advance(ms(300));
    let reply = sent.granted();
    assert_eq!((reply.grants.len(), reply.blocked.len()), (0, 1));
    let told = reply.leases.expect("one was reported");
    assert!(told[0].expires_at <= setup.world.now());
}

#[test]
fn an_answer_that_tells_of_very_many_leases_can_be_read() {
    for have_expired in [false, true] {
        tell_of_very_many_leases(have_expired);
    }
}

fn tell_of_very_many_leases(have_expired: bool) {
    let options = LeaseOptions {
        max_groups: 10_000,
        permits_per_lease: 1,
        ..LeaseOptions::default()
    };
    let ttl = options.ttl;
    let setup = Setup::new(move |builder| builder.limit(100_000).leases(options.clone()));
    for (id, groups) in [("r1", 0..3_000), ("r2", 3_000..6_000)] {
        let groups: Vec<String> = groups.map(|n| format!("g{n}")).collect();
        let demand: Vec<(&str, u64)> = groups.iter().map(|group| (group.as_str(), 1)).collect();
        setup.send(named(with_leases(request("c1", &demand), json!([])), id));
        setup.world.advance(ms(300));
    }
    if have_expired {
        // The next round retires them all.
        setup.world.advance(ttl);
    }
    // None of these answers arrived.
    let mut left = 6_000;
    while left > 0 {
        let message = with_leases(request("c1", &[]), json!([]));
        let sent = setup.send(named(message, "r3"));
        setup.world.advance(ms(300));
        let answer = Reply::Grant(sent.granted());
        let json = serde_json::to_vec(&answer).expect("answers have a JSON form");
        let Ok(Reply::Grant(answer)) = Reply::from_json(&json) else {
            panic!("it cannot be read");
        };
        let told = answer.leases.expect("leases");
        left -= told.len();
        let reports: Vec<Value> = told
            .iter()
            .map(|lease| {
                json!({"leaseId": lease.lease_id, "drawn": 0, "released": 0, "retired": true})
            })
            .collect();
        setup.sync(with_leases(sync("c1"), json!(reports)));
    }
    assert_eq!(setup.usage().expect("usage").leased, 0);
}

#[test]
fn what_a_round_has_seen_has_no_other_round_held() {
    let setup = Setup::new(|builder| {
        builder
            .limit(2)
            .group_limit(|group| std::future::ready(Ok((group == "stopped").then_some(0))))
    });
    let grant = held(&setup, "c1", 2);
    let parked = setup.send(waiting("c2", &[("stopped", 1)], 60_000));
    setup.world.advance(ms(300));
    // A permit comes back with a request, whose round cannot give it to who waits.
    let mut report = request("c1", &[]);
    report["grants"] = json!([{"grantId": grant, "claimed": 2, "released": 1}]);
    let answered = setup.send(report);
    setup.world.advance(ms(100));
    assert!(!answered.is_waiting());
    setup.events();
    setup.world.advance(ms(3_000));
    assert_eq!(setup.events(), []);
    assert!(parked.is_waiting());
    // One that comes back later has one held.
    setup.sync(claim("c1", &grant, 2, 2));
    setup.world.advance(ms(300));
    assert_eq!(setup.events().len(), 1);
    // What is given to others frees nothing.
    let given = setup.send(request("c1", &[("a", 1)]));
    setup.world.advance(ms(100));
    assert_eq!((permits(&given.granted()), setup.events().len()), (1, 1));
    setup.world.advance(ms(800));
    assert_eq!(setup.events(), []);
}

#[test]
fn what_comes_back_behind_a_round_in_one_commit_has_another_held() {
    let setup = Setup::new(|builder| builder.limit(2));
    let grant = held(&setup, "c1", 2);
    let parked = setup.send(waiting("c2", &[("a", 1)], 60_000));
    setup.world.advance(ms(1_000));
    let other = setup.send(request("c3", &[("a", 1)]));
    // The round of the other is held in 100 ms, and then the report comes as well.
    let (world, object) = (setup.world.clone(), setup.object.clone());
    setup.world.spawn(async move {
        world.sleep(ms(100)).await;
        let json = claim("c1", &grant, 2, 1).to_string().into_bytes();
        let call =
            object.call(move |object| async move { object.semaphore.handle_json(&json).await });
        call.await
            .expect("the object is open")
            .expect("a report is taken");
    });
    setup.world.advance(ms(100));
    assert_eq!(permits(&other.granted()), 0);
    assert!(parked.is_waiting());
    setup.world.advance(ms(200));
    assert_eq!(permits(&parked.granted()), 1);
}

fn numbered(message: Value, request_id: &str, number: u64) -> Value {
    let mut message = named(message, request_id);
    message["requestNumber"] = number.into();
    message
}

#[test]
fn a_request_that_arrives_after_a_later_one_is_given_nothing_even_by_the_next_instance() {
    for restart in [false, true] {
        let setup = Setup::new(|builder| builder.limit(10).leases(LeaseOptions::default()));
        let ask = |id, number| {
            let message = with_leases(request("c1", &[("a", 1)]), json!([]));
            let sent = setup.send(numbered(message, id, number));
            setup.world.advance(ms(2_500));
            sent.granted()
        };
        let reply = ask("r1", 7);
        assert_eq!(reply.request_number, Some(7));
        let lease = &reply.leases.as_ref().expect("it was asked for")[0];
        // All that it was given is settled.
        let mut settled = claim("c1", &reply.grants[0].grant_id, 1, 1);
        settled["leases"] =
            json!([{"leaseId": lease.lease_id, "drawn": 0, "released": 0, "retired": true}]);
        setup.sync(settled);
        if restart {
            setup.object.crash();
        }
        // Its copy, and what was sent before it under whatever name.
        for (id, number) in [("r1", 7), ("r0", 6)] {
            let late = ask(id, number);
            assert_eq!((late.grants.len(), late.blocked.len()), (0, 0));
            assert_eq!(late.leases, Some(Vec::new()));
            assert_eq!(late.request_number, Some(7));
        }
        let next = ask("r2", 8);
        assert_eq!(permits(&next), 1);
        assert_eq!(next.leases.map(|leases| leases.len()), Some(1));
    }
}

#[test]
fn what_a_client_asked_before_it_wanted_nothing_is_given_nothing_even_by_the_next_instance() {
    let setup = Setup::new(|builder| builder.limit(10).leases(LeaseOptions::default()));
    let ask = |demand: &[(&str, u64)], id, number| {
        let message = with_leases(request("c1", demand), json!([]));
        let sent = setup.send(numbered(message, id, number));
        setup.world.advance(ms(300));
        sent.granted()
    };
    ask(&[], "r2", 2);
    setup.object.crash();
    let late = ask(&[("a", 1)], "r1", 1);
    assert_eq!((late.grants.len(), late.leases), (0, Some(Vec::new())));
    assert_eq!(late.request_number, Some(2));
}

#[test]
fn a_waiting_request_that_was_overtaken_is_answered_and_gets_nothing() {
    let setup = Setup::new(|builder| builder.limit(1));
    let grant = held(&setup, "c1", 1);
    let first = setup.send(numbered(waiting("c2", &[("a", 1)], 20_000), "r1", 1));
    setup.world.advance(ms(3_000));
    let second = setup.send(numbered(waiting("c2", &[("a", 1)], 20_000), "r2", 2));
    setup.world.advance(ms(3_000));
    assert_eq!(permits(&first.granted()), 0);
    setup.sync(claim("c1", &grant, 1, 1));
    setup.world.advance(ms(3_000));
    assert_eq!(permits(&second.granted()), 1);
}

#[test]
fn a_number_without_a_name_is_refused() {
    let setup = Setup::new(|builder| builder.limit(1));
    let mut message = request("c1", &[("a", 1)]);
    message["requestNumber"] = 1.into();
    let sent = setup.send(message);
    setup.world.advance(ms(3_000));
    assert_eq!(sent.failure(), "malformed");
}
