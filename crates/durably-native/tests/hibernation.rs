//! Memory follows the objects that are active: the others close, and come back from their files.

mod common;

use std::time::Duration;

use common::{Call, Event, Fixture, Notes, eventually};
use durably_native::CallError;
use tokio::sync::oneshot;

fn opened(name: &str) -> Event {
    Event::Opened(name.to_owned())
}

fn dropped(name: &str) -> Event {
    Event::Dropped(name.to_owned())
}

#[tokio::test]
async fn an_idle_object_is_freed_and_comes_back() {
    let mut fixture = Fixture::new();
    fixture.config.idle_timeout = Duration::from_millis(20);
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write("kept").await;
    fixture.wait_for(dropped("one")).await;
    eventually("it is closed", || system.open_objects() == 0).await;
    assert_eq!(fixture.files(), [fixture.file("one")], "the log is gone");
    let flushes = (system.counters().flushes, system.journal_counters().flushes);
    assert_eq!(object.texts().await, ["kept"]);
    fixture.wait_for(opened("one")).await;
    fixture.wait_for(dropped("one")).await;
    system.shutdown().await;
    let after = (system.counters().flushes, system.journal_counters().flushes);
    assert_eq!(after.0, flushes.0, "reading wakes without a flush");
    // At most the note that it had become idle the first time, which nobody waits for.
    assert!(after.1 <= flushes.1 + 1, "{after:?} after {flushes:?}");
}

#[tokio::test]
async fn an_object_with_something_to_do_stays() {
    let mut fixture = Fixture::new();
    fixture.config.idle_timeout = Duration::from_millis(5);
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    let (open, gate) = oneshot::channel::<()>();
    object
        .call(|notes| async move {
            let host = notes.host.clone();
            notes.host.spawn(Box::pin(async move {
                let _ = gate.await;
                drop(host);
            }));
        })
        .await
        .expect("it spawns");
    // Another object comes and goes meanwhile.
    system.object::<Notes>("other").write("a note").await;
    fixture.wait_for(dropped("other")).await;
    eventually("the other is closed", || system.open_objects() == 1).await;
    open.send(()).expect("the task waits");
    fixture.wait_for(dropped("one")).await;
    system.shutdown().await;
}

#[tokio::test]
async fn an_instance_that_leaks_leaves_its_file_to_the_next() {
    let mut fixture = Fixture::new();
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write("kept").await;
    let (begun, has_begun) = oneshot::channel();
    let late = object.call(|notes| async move {
        let _ = begun.send(());
        *notes.own.borrow_mut() = Some(notes.clone());
        // Resolves in the leaked instance only, if ever.
        let write = notes.write("late".into(), None);
        notes.host.sleep(Duration::from_secs(3_600)).await;
        write.await
    });
    let evict = async {
        has_begun.await.expect("the call is inside");
        system.evict::<Notes>("one").await
    };
    let (late, evicted) = futures::join!(late, evict);
    evicted.expect("it is evicted");
    assert!(matches!(late, Err(CallError::Ended(_))), "{late:?}");
    let texts = object.texts().await;
    assert_eq!(texts.first().map(String::as_str), Some("kept"));
    object.write("after").await;
    assert!(!fixture.events().contains(&dropped("one")), "it does leak");
    system.shutdown().await;
}

#[tokio::test]
async fn the_object_unused_longest_makes_room() {
    let mut fixture = Fixture::new();
    fixture.config.max_open_objects = 3;
    let system = fixture.open();
    for name in ["a", "b", "c", "a"] {
        system.object::<Notes>(name).write(name).await;
    }
    for name in ["a", "b", "c"] {
        fixture.wait_for(opened(name)).await;
    }
    system.object::<Notes>("d").write("d").await;
    assert_eq!(fixture.event().await, dropped("b"));
    assert_eq!(fixture.event().await, opened("d"));
    system.object::<Notes>("b").write("b").await;
    assert_eq!(fixture.event().await, dropped("c"));
    assert!(system.open_objects() <= 3);
    assert_eq!(system.object::<Notes>("a").texts().await, ["a", "a"]);
    assert_eq!(system.object::<Notes>("b").texts().await, ["b", "b"]);
    system.shutdown().await;
}

#[tokio::test]
async fn a_call_waits_for_room_that_a_busy_object_makes_when_it_is_done() {
    let mut fixture = Fixture::new();
    fixture.config.max_open_objects = 1;
    fixture.config.open_wait = Duration::from_secs(600);
    let system = fixture.open();
    let (open, gate) = oneshot::channel::<()>();
    let (begun, has_begun) = oneshot::channel();
    let busy = system.object::<Notes>("busy");
    let busy = busy.call(|_| async move {
        let _ = begun.send(());
        let _ = gate.await;
    });
    let waiting = async {
        has_begun.await.expect("it is busy");
        let object = system.object::<Notes>("waiting");
        let mut write = Box::pin(object.write("a note"));
        assert!(futures::poll!(&mut write).is_pending());
        // A thread has taken the call and found no room by the time this one is answered.
        let _ = system.evict::<Notes>("nobody").await;
        open.send(()).expect("it waits");
        write.await;
    };
    let (busy, ()) = futures::join!(busy, waiting);
    busy.expect("it ends");
    fixture.wait_for(dropped("busy")).await;
    fixture.wait_for(opened("waiting")).await;
    system.shutdown().await;
}

#[tokio::test]
async fn a_call_that_finds_no_room_in_time_is_refused() {
    let mut fixture = Fixture::new();
    fixture.config.max_open_objects = 1;
    fixture.config.open_wait = Duration::from_millis(20);
    let system = fixture.open();
    let (open, gate) = oneshot::channel::<()>();
    let (begun, has_begun) = oneshot::channel();
    let busy = system.object::<Notes>("busy");
    let busy = busy.call(|_| async move {
        let _ = begun.send(());
        let _ = gate.await;
    });
    let refused = async {
        has_begun.await.expect("it is busy");
        let refused = system.object::<Notes>("other").call(|_| async {}).await;
        assert!(
            matches!(refused, Err(CallError::Overloaded(_))),
            "{refused:?}"
        );
        open.send(()).expect("it waits");
    };
    let (busy, ()) = futures::join!(busy, refused);
    busy.expect("it ends");
    system
        .object::<Notes>("other")
        .write("now there is room")
        .await;
    system.shutdown().await;
}

#[tokio::test]
async fn many_more_objects_than_may_be_open_are_served() {
    let mut fixture = Fixture::new();
    fixture.config.max_open_objects = 5;
    fixture.config.open_wait = Duration::from_secs(600);
    let system = fixture.open();
    let writes = (0..120).map(|number| {
        let object = system.object::<Notes>(&format!("n{}", number % 40));
        async move { object.write(&number.to_string()).await }
    });
    futures::future::join_all(writes).await;
    assert!(system.open_objects() <= 5);
    for number in 0..40 {
        let mut texts = system.object::<Notes>(&format!("n{number}")).texts().await;
        texts.sort_by_key(|text| text.parse::<u32>().ok());
        let expected: Vec<String> = (0..3)
            .map(|round| (number + 40 * round).to_string())
            .collect();
        assert_eq!(texts, expected);
    }
    system.shutdown().await;
    assert_eq!(fixture.files().len(), 40);
}
