//! What the application says - limits, ceilings, gates, settings - and what follows from it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use durably::semaphore::protocol::BlockedReason;
use durably::semaphore::{Semaphore, SemaphoreEvent};
use durably::{OpenError, Timestamp};
use durably_sim::{Alarms, World};
use serde_json::json;

use crate::setup::{AccountLimit, START, Setup, claim, ms, request};

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
fn limits_may_stand_in_a_table_of_the_application() {
    let world = World::new(START);
    let object = world.object("a", Alarms::Automatic, |host| async {
        let scheduler = durably::Scheduler::of(host)?;
        let reader = scheduler.clone();
        let semaphore = Semaphore::builder(&scheduler)
            .round_wait(ms(100))
            .limit_with(move || {
                let limit = reader.transaction(|transaction| {
                    let sql = transaction.sql();
                    sql.first("SELECT permits FROM limits", &[], |row| row.count(0))
                });
                async move {
                    let limit: Result<Option<u64>, durably::StorageError> = limit.await;
                    limit?.ok_or_else(|| "no limit was set".into())
                }
            })
            .build()?;
        scheduler.open().await?;
        let create = scheduler.transaction(|transaction| {
            let sql = transaction.sql();
            sql.script("CREATE TABLE IF NOT EXISTS limits (permits INTEGER NOT NULL) STRICT")
        });
        create.await?;
        Ok(Rc::new(AccountLimit {
            scheduler,
            semaphore,
        }))
    });
    let setup = Setup::of(world, object);
    let unset = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(2_000));
    assert_eq!(unset.failure(), "limit");
    let set = setup.object.call(|object| async move {
        let set = object.scheduler.transaction(|transaction| {
            transaction.execute("INSERT INTO limits VALUES (?)", &[1u64.into()])
        });
        set.await
    });
    setup.world.block_on(set).unwrap().unwrap();
    setup.object.crash();
    let limited = setup.send(request("c1", &[("a", 2)]));
    setup.world.advance(ms(2_000));
    assert_eq!(limited.granted().grants[0].permits, 1);
}
