//! The holder on the virtual host: when rounds take place, what survives, and what is told.

mod setup;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use durably::semaphore::protocol::{BlockedReason, GrantStatus, Message, Reply};
use durably::semaphore::{Semaphore, SemaphoreEvent};
use durably::{OpenError, Timestamp};
use durably_sim::{Alarms, World};
use serde_json::json;

use setup::{AccountLimit, START, Setup, claim, ms, request, sync};

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
fn zero_no_ceiling_closed_and_unreadable_are_four_states() {
    let setup = Setup::new(|builder| {
        builder
            .limit(9)
            .group_limit(|group| async move {
                match group.as_str() {
                    "stopped" => Ok(Some(0)),
                    "capped" => Ok(Some(1)),
                    "unreadable" => Err("the table is gone".into()),
                    "nonsense" => Ok(Some(u64::MAX)),
                    "closed" => {
                        panic!("a group that may have nothing is not asked for its ceiling")
                    }
                    _ => Ok(None),
                }
            })
            .can_grant(|group| async move {
                match group.as_str() {
                    "closed" => Ok(false),
                    "unjudged" => Err("nobody knows".into()),
                    _ => Ok(true),
                }
            })
    });
    let groups = [
        "free",
        "capped",
        "stopped",
        "closed",
        "unreadable",
        "nonsense",
        "unjudged",
    ];
    let demand: Vec<_> = groups.iter().map(|group| (*group, 2)).collect();
    let sent = setup.send(request("c1", &demand));
    setup.world.advance(ms(100));
    let reply = sent.granted();
    let given: Vec<_> = reply
        .grants
        .iter()
        .map(|grant| (grant.group.as_str(), grant.permits))
        .collect();
    assert_eq!(given, [("free", 2), ("capped", 1)]);
    let blocked: Vec<_> = reply
        .blocked
        .iter()
        .map(|blocked| (blocked.group.as_str(), blocked.reason))
        .collect();
    assert_eq!(
        blocked,
        [
            ("capped", BlockedReason::GroupLimit),
            ("stopped", BlockedReason::GroupLimit),
            ("closed", BlockedReason::NotPermitted),
            ("unreadable", BlockedReason::LimitResolutionError),
            ("nonsense", BlockedReason::LimitResolutionError),
            ("unjudged", BlockedReason::LimitResolutionError),
        ]
    );
    let usage = setup.usage().unwrap();
    assert_eq!(usage.groups["capped"].limit, Some(1));
    assert_eq!(usage.groups["free"].limit, None);
}

#[test]
fn every_callback_is_asked_once_a_round() {
    let asked: Rc<RefCell<Vec<String>>> = Rc::default();
    let (limit, ceiling, gate) = (asked.clone(), asked.clone(), asked.clone());
    let setup = Setup::new(move |builder| {
        let (limit, ceiling, gate) = (limit.clone(), ceiling.clone(), gate.clone());
        builder
            .limit_with(move || {
                limit.borrow_mut().push("limit".into());
                async { Ok(9) }
            })
            .group_limit(move |group| {
                ceiling.borrow_mut().push(format!("ceiling {group}"));
                async { Ok(None) }
            })
            .can_grant(move |group| {
                gate.borrow_mut().push(format!("gate {group}"));
                async { Ok(true) }
            })
    });
    let _first = setup.send(request("c1", &[("a", 1), ("b", 1), ("a", 1)]));
    let _second = setup.send(request("c2", &[("b", 1)]));
    setup.world.advance(ms(100));
    let mut asked = asked.take();
    assert_eq!(asked.remove(0), "limit");
    asked.sort();
    assert_eq!(asked, ["ceiling a", "ceiling b", "gate a", "gate b"]);
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
fn while_a_round_asks_for_the_limit_syncs_apply_and_requests_wait_for_the_next() {
    let world = World::new(START);
    let clock = world.clone();
    let setup = Setup::in_world(world, move |builder| {
        let clock = clock.clone();
        builder.limit_with(move || {
            let answer = clock.sleep(ms(50));
            async {
                answer.await;
                Ok(5)
            }
        })
    });
    let first = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(120));
    let second = setup.send(request("c2", &[("a", 1)]));
    setup.world.advance(ms(30));
    // Dated by its start, ended 50 ms later.
    assert_eq!(
        first.granted().next_request_at,
        Timestamp::from_millis(START + 300)
    );
    assert!(matches!(
        setup.events()[..],
        [SemaphoreEvent::Round { timestamp, .. }] if timestamp.as_millis() == START + 150
    ));
    setup.world.advance(ms(180));
    let grant_id = first.granted().grants[0].grant_id.clone();
    setup.sync(claim("c1", &grant_id, 2, 1));
    setup.world.advance(ms(19));
    assert!(second.is_waiting());
    setup.world.advance(ms(1));
    assert_eq!(second.granted().grants.len(), 1);
}

#[test]
fn without_a_limit_a_round_fails_and_its_reports_are_dropped() {
    let limit: Rc<RefCell<Result<u64, String>>> = Rc::new(RefCell::new(Ok(5)));
    let current = limit.clone();
    let setup = Setup::new(move |builder| {
        let current = current.clone();
        builder.limit_with(move || {
            let limit = current.borrow().clone();
            async move { Ok(limit?) }
        })
    });
    let sent = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(100));
    let grant_id = sent.granted().grants[0].grant_id.clone();

    for failure in [Err("no connection".to_owned()), Ok(1 << 53)] {
        *limit.borrow_mut() = failure;
        let failed = setup.send(json!({"type": "request", "v": 1, "clientId": "c1",
            "demand": [{"group": "a", "count": 1, "oldestAt": START}],
            "grants": [{"grantId": grant_id, "claimed": 2, "released": 0}]}));
        setup.world.advance(ms(200));
        assert_eq!(failed.failure(), "limit");
        assert_eq!(setup.usage().unwrap_err().code(), "limit");
    }
    *limit.borrow_mut() = Ok(5);
    // Nothing was claimed, so all of it comes back.
    setup.world.advance(ms(1_000));
    assert_eq!(setup.usage().unwrap().granted, 0);
    let sent = setup.send(request("c1", &[("a", 5)]));
    setup.world.advance(ms(200));
    assert_eq!(sent.granted().grants[0].permits, 5);
}

#[test]
fn a_callback_that_never_answers_does_not_stop_the_holder() {
    let setup = Setup::new(|builder| {
        builder
            .limit(5)
            .answer_timeout(ms(500))
            .can_grant(|group| async move {
                if group == "hangs" {
                    std::future::pending::<()>().await;
                }
                Ok(true)
            })
    });
    let sent = setup.send(request("c1", &[("hangs", 1), ("a", 1)]));
    setup.world.advance(ms(599));
    assert!(sent.is_waiting());
    setup.world.advance(ms(1));
    let reply = sent.granted();
    assert_eq!(reply.grants[0].group, "a");
    assert_eq!(reply.blocked[0].reason, BlockedReason::LimitResolutionError);
}

#[test]
fn a_lowered_limit_stops_new_permits_and_never_running_work() {
    let limit = Rc::new(RefCell::new(4));
    let current = limit.clone();
    let setup = Setup::new(move |builder| {
        let current = current.clone();
        builder.limit_with(move || {
            let limit = *current.borrow();
            async move { Ok(limit) }
        })
    });
    let sent = setup.send(request("c1", &[("a", 4)]));
    setup.world.advance(ms(100));
    let grant_id = sent.granted().grants[0].grant_id.clone();
    setup.sync(claim("c1", &grant_id, 4, 0));
    *limit.borrow_mut() = 2;
    let sent = setup.send(request("c2", &[("a", 1)]));
    setup.world.advance(ms(200));
    assert_eq!(sent.granted().blocked[0].reason, BlockedReason::Limit);
    let usage = setup.usage().unwrap();
    assert_eq!((usage.limit, usage.granted, usage.available), (2, 4, 0));
    setup.sync(claim("c1", &grant_id, 4, 3));
    let sent = setup.send(request("c2", &[("a", 5)]));
    setup.world.advance(ms(200));
    assert_eq!(sent.granted().grants[0].permits, 1);
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
fn wrong_settings_are_refused_by_name() {
    type Configure =
        fn(durably::semaphore::SemaphoreBuilder) -> durably::semaphore::SemaphoreBuilder;
    let cases: [(&str, Configure); 9] = [
        ("limit", |builder| builder),
        ("limit", |builder| builder.limit(1 << 53)),
        ("round_wait", |builder| {
            builder.limit(1).round_wait(Duration::ZERO)
        }),
        ("round_period", |builder| {
            builder.limit(1).round_period(ms(1 << 31))
        }),
        ("round_period", |builder| {
            builder.limit(1).round_period(Duration::from_micros(1_500))
        }),
        ("grant_timeout", |builder| {
            builder.limit(1).grant_timeout(Duration::ZERO)
        }),
        ("answer_timeout", |builder| {
            builder.limit(1).answer_timeout(Duration::ZERO)
        }),
        ("max_waiting", |builder| builder.limit(1).max_waiting(0)),
        ("max_waiting_entries", |builder| {
            builder.limit(1).max_waiting_entries(1 << 53)
        }),
    ];
    for (field, configure) in cases {
        let world = World::new(START);
        let found: Rc<RefCell<Option<OpenError>>> = Rc::default();
        let slot = found.clone();
        let object = world.object("a", Alarms::Automatic, move |host| {
            let built = durably::Scheduler::of(host)
                .and_then(|scheduler| configure(Semaphore::builder(&scheduler)).build());
            *slot.borrow_mut() = built.err();
            async { Err::<Rc<AccountLimit>, _>("refused".into()) }
        });
        assert!(world.block_on(object.open()).is_err());
        match found.take() {
            Some(OpenError::Config(error)) => assert_eq!(error.field(), field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn one_holder_for_each_object() {
    let world = World::new(START);
    let object = world.object("a", Alarms::Automatic, |host| async {
        let scheduler = durably::Scheduler::of(host)?;
        let semaphore = Semaphore::builder(&scheduler).limit(1).build()?;
        let second = Semaphore::builder(&scheduler).limit(1).build();
        assert!(matches!(
            second.err(),
            Some(OpenError::AttachedTwice("semaphore"))
        ));
        scheduler.open().await?;
        Ok(Rc::new(AccountLimit {
            scheduler,
            semaphore,
        }))
    });
    world.block_on(object.open()).unwrap();
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
