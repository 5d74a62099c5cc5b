//! Alarms: they fire without calls, whatever was closed, stopped or failed meanwhile.

mod common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::{Call, Event, Fixture, Notes, eventually};
use durably_native::System;

fn alarm(name: &str, highest: i64) -> Event {
    Event::Alarm(name.to_owned(), highest)
}

fn dropped(name: &str) -> Event {
    Event::Dropped(name.to_owned())
}

#[tokio::test]
async fn an_alarm_wakes_an_object_that_hibernates() {
    let mut fixture = Fixture::new();
    fixture.config.idle_timeout = Duration::from_millis(5);
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write_with_alarm("a note", 500).await;
    // Unless the machine is very slow it hibernates before; the alarm fires either way.
    fixture.wait_for(alarm("one", 1)).await;
    fixture.wait_for(dropped("one")).await;
    eventually("it is closed", || system.open_objects() == 0).await;
    system.shutdown().await;
    assert_eq!(
        fixture.journal(),
        (0, 0),
        "neither active names nor alarms are left"
    );
}

#[tokio::test]
async fn alarms_that_came_due_while_the_system_was_closed_fire_when_it_opens() {
    let mut fixture = Fixture::new();
    let system = fixture.open();
    for number in 0..30 {
        let object = system.object::<Notes>(&format!("n{number}"));
        object.write_with_alarm("a note", 3_600_000).await;
        // The last setting counts, and costs the journal nothing.
        object.write_with_alarm("another", 1).await;
    }
    // Some of them fire before, which is fine; those that do not must fire later.
    system.shutdown().await;
    let fired = fixture.events();
    let missing: Vec<String> = (0..30)
        .map(|number| format!("n{number}"))
        .filter(|name| !fired.contains(&alarm(name, 2)))
        .collect();
    assert_eq!(fixture.journal().0, 0, "no name is left active");
    let system = fixture.open();
    for _ in &missing {
        while !matches!(fixture.event().await, Event::Alarm(_, 2)) {}
    }
    for number in 0..30 {
        let notes = system.object::<Notes>(&format!("n{number}")).read().await;
        assert!(
            notes.iter().all(|(_, handled)| *handled),
            "n{number}: {notes:?}"
        );
    }
    system.shutdown().await;
}

#[tokio::test]
async fn changing_an_alarm_costs_no_flush_of_its_own() {
    let fixture = Fixture::new();
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write_with_alarm("first", 3_600_000).await;
    let journal = system.journal_counters().flushes;
    let objects = system.counters().flushes;
    for number in 0..20 {
        object.write_with_alarm("more", 3_600_000 + number).await;
    }
    assert_eq!(system.counters().flushes - objects, 20, "one for each note");
    assert_eq!(system.journal_counters().flushes, journal);
    system.shutdown().await;
    assert_eq!(fixture.journal(), (0, 1));
}

#[tokio::test]
async fn a_handler_that_fails_or_panics_is_called_again_and_keeps_its_alarm() {
    let mut fixture = Fixture::new();
    fixture.plan.failures.store(1, SeqCst);
    let system = fixture.open();
    system
        .object::<Notes>("one")
        .write_with_alarm("a note", 1)
        .await;
    fixture.wait_for(alarm("one", 1)).await;
    assert_eq!(fixture.plan.failures.load(SeqCst), 0);
    fixture.plan.panics.store(1, SeqCst);
    system
        .object::<Notes>("two")
        .write_with_alarm("a note", 1)
        .await;
    fixture.wait_for(alarm("two", 1)).await;
    assert_eq!(fixture.plan.panics.load(SeqCst), 0);
    system.shutdown().await;
    assert_eq!(fixture.journal(), (0, 0));
}

#[tokio::test]
async fn a_failed_alarm_survives_hibernation_and_restart() {
    let mut fixture = Fixture::new();
    fixture.config.idle_timeout = Duration::from_millis(1);
    fixture.plan.failures.store(1, SeqCst);
    let system = fixture.open();
    system
        .object::<Notes>("one")
        .write_with_alarm("a note", 1)
        .await;
    let plan = fixture.plan.clone();
    eventually("it has failed", || plan.failures.load(SeqCst) == 0).await;
    fixture.wait_for(dropped("one")).await;
    system.shutdown().await;
    let system = fixture.open();
    fixture.wait_for(alarm("one", 1)).await;
    system.shutdown().await;
}

#[tokio::test]
async fn alarms_of_a_class_that_is_missing_wait_for_it() {
    let mut fixture = Fixture::new();
    let system = fixture.open();
    system
        .object::<Notes>("one")
        .write_with_alarm("a note", 3_600_000)
        .await;
    system.shutdown().await;
    assert_eq!(fixture.journal(), (0, 1));
    // As if an hour had passed.
    let journal = rusqlite::Connection::open(fixture.data().join("journal.sqlite"))
        .expect("the journal opens");
    journal
        .execute("UPDATE durability_system SET alarm_at = 1", [])
        .expect("it is writable");
    drop(journal);
    let objects = rusqlite::Connection::open(fixture.file("one")).expect("the file opens");
    objects
        .execute("UPDATE durability_object SET alarm_at = 1", [])
        .expect("it is writable");
    drop(objects);
    let without = System::builder(fixture.data())
        .open()
        .expect("it opens without the class");
    without.shutdown().await;
    assert_eq!(fixture.journal(), (0, 1));
    let system = fixture.open();
    fixture.wait_for(alarm("one", 1)).await;
    system.shutdown().await;
}
