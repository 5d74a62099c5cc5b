//! Virtual objects: what a call, a crash and an alarm do.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::StorageError;
use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object, Transaction};
use durably_sim::{Alarms, CallError, VirtualObject, World};

/// Remembers in memory and in storage how often its alarm went off.
struct Bell {
    host: Rc<dyn Host>,
    failures: Rc<Cell<u32>>,
}

impl Object for Bell {
    const CLASS: &'static str = "bell";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move {
            let now = self.host.now();
            let rung = self
                .host
                .transaction(move |transaction| ring(transaction, now.as_sql()));
            rung.await?;
            match self.failures.get() {
                0 => Ok(()),
                left => {
                    self.failures.set(left - 1);
                    Err("the clapper is stuck".into())
                }
            }
        })
    }
}

fn ring(transaction: &dyn Transaction, at: i64) -> Result<(), StorageError> {
    transaction
        .execute("INSERT INTO rung VALUES (?)", &[at.into()])
        .map(drop)
}

impl Bell {
    async fn set(self: Rc<Self>, millis: u64) -> Result<(), StorageError> {
        let at = self.host.now() + Duration::from_millis(millis);
        self.host
            .transaction(move |transaction| transaction.set_alarm(Some(at)))
            .await
    }
}

/// A bell in a world that began at 1 s, and how often its alarm handler is to fail.
fn bell(alarms: Alarms) -> (World, VirtualObject<Bell>, Rc<Cell<u32>>) {
    let world = World::new(1_000);
    let failures = Rc::<Cell<u32>>::default();
    let told = failures.clone();
    let object = world.object("bell", alarms, move |host: Rc<dyn Host>| {
        let failures = told.clone();
        async move {
            let create = "CREATE TABLE IF NOT EXISTS rung (at INTEGER NOT NULL) STRICT";
            host.transaction(move |transaction| transaction.script(create))
                .await?;
            Ok(Rc::new(Bell { host, failures }))
        }
    });
    (world, object, failures)
}

fn rung(object: &VirtualObject<Bell>) -> Vec<i64> {
    let rung = object.storage().transaction(|transaction| {
        transaction
            .sql()
            .all("SELECT at FROM rung", &[], |row| row.integer(0))
    });
    rung.expect("readable storage")
}

#[test]
fn automatic_alarms_fire_at_their_time_also_after_a_crash() {
    let (world, object, _) = bell(Alarms::Automatic);
    world
        .block_on(object.call(|bell| bell.set(500)))
        .unwrap()
        .unwrap();
    object.crash();
    assert!(!object.is_open());
    world.advance(Duration::from_millis(499));
    assert!(rung(&object).is_empty());
    assert_eq!(object.alarm().map(|at| at.as_millis()), Some(1_500));
    world.advance(Duration::from_millis(1));
    assert_eq!(rung(&object), [1_500]);
    assert_eq!(object.alarm(), None);
    assert_eq!(object.instances(), 2);
}

#[test]
fn storage_that_is_put_back_has_the_rows_and_the_alarm_of_its_copy() {
    let (world, object, _) = bell(Alarms::Automatic);
    let set = |millis| {
        let set = object.call(move |bell| bell.set(millis));
        world.block_on(set).unwrap().unwrap();
    };
    set(500);
    let copy = object.storage().copy().unwrap();
    world.advance(Duration::from_millis(600));
    assert_eq!(rung(&object), [1_500]);
    for _ in 0..2 {
        object.crash();
        object.storage().restore(&copy).unwrap();
        assert!(rung(&object).is_empty());
        assert_eq!(object.alarm().map(|at| at.as_millis()), Some(1_500));
        // It is overdue, and goes on like any other.
        world.advance(Duration::from_millis(1));
        assert_eq!(rung(&object).len(), 1);
        assert_eq!(object.alarm(), None);
        set(10);
        world.advance(Duration::from_millis(10));
        assert_eq!(rung(&object).len(), 2);
    }
}

#[test]
fn failing_alarms_are_retried_with_growing_delays() {
    let (world, object, failures) = bell(Alarms::Automatic);
    failures.set(3);
    world
        .block_on(object.call(|bell| bell.set(0)))
        .unwrap()
        .unwrap();
    world.advance(Duration::from_secs(60));
    assert_eq!(rung(&object), [1_000, 3_000, 7_000, 15_000]);
    assert_eq!(object.alarm(), None);
}

#[test]
fn manual_alarms_fire_only_when_told() {
    let (world, object, failures) = bell(Alarms::Manual);
    world
        .block_on(object.call(|bell| bell.set(10)))
        .unwrap()
        .unwrap();
    world.advance(Duration::from_secs(60));
    assert!(rung(&object).is_empty());
    failures.set(1);
    assert!(world.block_on(object.fire_alarm()).is_err());
    assert_eq!(object.alarm().map(|at| at.as_millis()), Some(1_010));
    world.block_on(object.fire_alarm()).unwrap();
    assert_eq!(object.alarm(), None);
    assert_eq!(rung(&object).len(), 2);
}

#[test]
fn a_crash_drops_the_instance_with_everything_in_it() {
    let (world, object, _) = bell(Alarms::Manual);
    let seen: Rc<RefCell<Weak<Bell>>> = Rc::default();
    let look = seen.clone();
    let waiting = object.call(move |bell| async move {
        *look.borrow_mut() = Rc::downgrade(&bell);
        let _bell = bell;
        pending::<()>().await;
    });
    let answer = Rc::new(RefCell::new(None));
    let slot = answer.clone();
    world.spawn(async move { *slot.borrow_mut() = Some(waiting.await) });
    world.run_until_idle();
    assert!(seen.borrow().upgrade().is_some());
    object.crash();
    assert!(seen.borrow().upgrade().is_none(), "the instance leaked");
    world.run_until_idle();
    let answer = answer.take();
    assert!(
        matches!(answer, Some(Err(CallError::Ended(_)))),
        "{answer:?}"
    );
}

#[test]
fn closures_that_were_not_committed_are_lost_with_the_instance() {
    let (world, object, _) = bell(Alarms::Manual);
    world.block_on(object.open()).unwrap();
    let crashing = object.clone();
    let call = object.call(move |bell| async move {
        let done = bell.host.transaction(|transaction| ring(transaction, 1));
        crashing.crash();
        done.await
    });
    let answer = world.block_on(call);
    assert!(
        matches!(answer, Ok(Err(StorageError::Ended(_)))),
        "{answer:?}"
    );
    world.run_until_idle();
    assert!(rung(&object).is_empty());
}

#[test]
fn closures_handed_in_at_one_instant_share_a_commit() {
    let (world, object, _) = bell(Alarms::Manual);
    world.block_on(object.open()).unwrap();
    let before = object.storage().commits();
    for at in 0..10 {
        let ring = object.call(move |bell| async move {
            bell.host
                .transaction(move |transaction| ring(transaction, at))
                .await
        });
        world.spawn(async move { ring.await.unwrap().unwrap() });
    }
    world.run_until_idle();
    assert_eq!(rung(&object), (0..10).collect::<Vec<_>>());
    // One commit of ten closures, and the one that has just read them.
    assert_eq!(object.storage().commits() - before, 2);
}

#[test]
fn a_call_goes_on_when_nobody_waits_for_its_answer() {
    let (world, object, _) = bell(Alarms::Manual);
    let ring = object.call(|bell| async move {
        bell.host.sleep(Duration::from_millis(5)).await;
        bell.host
            .transaction(|transaction| ring(transaction, 5))
            .await
    });
    let mut ring = Box::pin(ring);
    let inside = world.clone();
    world.block_on(async {
        let soon = Box::pin(inside.sleep(Duration::from_millis(1)));
        futures::future::select(&mut ring, soon).await;
    });
    drop(ring);
    world.advance(Duration::from_millis(10));
    assert_eq!(rung(&object), [5]);
}

#[test]
fn objects_that_cannot_be_opened_say_why_and_are_tried_again() {
    let world = World::new(0);
    let tries = Rc::new(Cell::new(0));
    let counted = tries.clone();
    let object = world.object::<Bell, _>("bell", Alarms::Manual, move |_| {
        counted.set(counted.get() + 1);
        async { Err("no rope".into()) }
    });
    for _ in 0..2 {
        let opened = world.block_on(object.open());
        assert_eq!(opened, Err(CallError::Open("no rope".into())));
    }
    assert_eq!(tries.get(), 2);
}

#[test]
fn storage_outlives_the_object() {
    let (world, object, _) = bell(Alarms::Automatic);
    world
        .block_on(object.call(|bell| bell.set(100)))
        .unwrap()
        .unwrap();
    let storage = object.storage().clone();
    drop(object);
    world.advance(Duration::from_millis(500));
    let again = world.object_on(storage, "bell", Alarms::Automatic, |host| async {
        Ok(Rc::new(Bell {
            host,
            failures: Rc::default(),
        }))
    });
    world.run_until_idle();
    assert_eq!(rung(&again), [1_500]);
}
