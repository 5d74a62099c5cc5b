//! The executor and the virtual clock.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use durably_sim::World;
use futures::channel::oneshot;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A task that sleeps and then writes down its name and the time.
fn sleeper(world: &World, log: &Rc<RefCell<Vec<String>>>, name: &str, time: u64) {
    let (inside, log, name) = (world.clone(), log.clone(), name.to_owned());
    world.spawn(async move {
        inside.sleep(millis(time)).await;
        log.borrow_mut().push(format!("{name}@{}", inside.now()));
    });
}

#[test]
fn timers_fire_at_their_own_instant_in_the_order_they_were_set() {
    let world = World::new(1_000);
    let log = Rc::default();
    sleeper(&world, &log, "late", 30);
    sleeper(&world, &log, "one", 10);
    sleeper(&world, &log, "two", 10);
    world.advance(millis(9));
    assert_eq!(world.now().as_millis(), 1_009);
    assert!(log.borrow().is_empty());
    assert_eq!(world.next_timer().map(|at| at.as_millis()), Some(1_010));
    world.advance(millis(21));
    assert_eq!(*log.borrow(), ["one@1010", "two@1010", "late@1030"]);
}

#[test]
fn what_follows_from_a_timer_sees_its_time_within_a_long_advance() {
    let world = World::new(0);
    let ticks = Rc::new(RefCell::new(Vec::new()));
    let (inside, seen) = (world.clone(), ticks.clone());
    world.spawn(async move {
        loop {
            inside.sleep(millis(10)).await;
            seen.borrow_mut().push(inside.now().as_millis());
        }
    });
    world.advance(millis(35));
    assert_eq!(*ticks.borrow(), [10, 20, 30]);
    assert_eq!(world.now().as_millis(), 35);
}

#[test]
fn idle_means_that_nothing_is_left_at_this_instant() {
    let world = World::new(5);
    let log = Rc::default();
    sleeper(&world, &log, "now", 0);
    sleeper(&world, &log, "later", 1);
    world.run_until_idle();
    assert_eq!(*log.borrow(), ["now@5"]);
    assert_eq!(world.now().as_millis(), 5);
}

#[test]
fn fractions_of_a_millisecond_are_never_cut() {
    let world = World::new(0);
    world.block_on(world.sleep(Duration::from_micros(1_001)));
    assert_eq!(world.now().as_millis(), 2);
}

#[test]
fn dropped_sleeps_leave_no_timer() {
    let world = World::new(0);
    let log = Rc::default();
    sleeper(&world, &log, "kept", 20);
    let sleep = world.sleep(millis(5));
    let winner = world.block_on(async {
        futures::future::select(Box::pin(world.sleep(millis(1))), Box::pin(sleep)).await;
        world.now().as_millis()
    });
    assert_eq!(winner, 1);
    assert_eq!(world.next_timer().map(|at| at.as_millis()), Some(20));
}

#[test]
fn waiting_for_what_cannot_happen_is_reported() {
    let world = World::new(0);
    let deadlock = catch_unwind(AssertUnwindSafe(|| world.block_on(pending::<()>())));
    let message = deadlock.expect_err("a panic");
    let message = message.downcast_ref::<String>().expect("a message");
    assert!(message.starts_with("deadlock at 0"), "{message}");
    // The world can be used after that.
    world.block_on(world.sleep(millis(1)));
}

#[test]
fn a_panic_in_a_task_of_the_world_reaches_the_test() {
    let world = World::new(0);
    world.spawn(async { panic!("an assertion in a task") });
    assert!(catch_unwind(AssertUnwindSafe(|| world.run_until_idle())).is_err());
}

#[test]
fn tasks_wake_each_other() {
    let world = World::new(0);
    let (send, receive) = oneshot::channel();
    let got = Rc::new(Cell::new(0));
    let result = got.clone();
    world.spawn(async move {
        result.set(receive.await.unwrap_or(0));
    });
    let inside = world.clone();
    world.spawn(async move {
        inside.sleep(millis(3)).await;
        let _ = send.send(7);
    });
    world.run_until_idle();
    assert_eq!(got.get(), 0);
    world.advance(millis(3));
    assert_eq!(got.get(), 7);
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let draw = |seed| {
        let world = World::with_seed(0, seed);
        [world.random(), world.random()]
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}
