//! Calls: shared commits, and what callers hear when something goes wrong.

mod common;

use std::future::pending;
use std::sync::mpsc;
use std::time::Duration;

use common::{Call, Event, Fixture, Notes, eventually};
use durably::StorageError;
use durably::host::Object;
use durably_native::CallError;
use futures::future::join_all;
use tokio::sync::oneshot;

/// Has 64 callers write at once, all of them waiting when their object's thread comes to them, and
/// returns how many flushes that took.
async fn flushes_of_64_writes(fixture: &Fixture) -> u64 {
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write("first").await;
    let (open_gate, gate) = mpsc::channel::<()>();
    let (closed, at_gate) = oneshot::channel();
    let blocked = object.call(move |_| async move {
        let _ = closed.send(());
        let _ = gate.recv();
    });
    let release = async {
        at_gate.await.expect("the thread is at the gate");
        let before = system.counters().flushes;
        let writes = (0..64).map(|number| {
            let object = object.clone();
            async move { object.write(&number.to_string()).await }
        });
        let mut writes = Box::pin(join_all(writes));
        // Polled once, all are on their way.
        assert!(futures::poll!(&mut writes).is_pending());
        open_gate.send(()).expect("the gate is there");
        writes.await;
        system.counters().flushes - before
    };
    let (blocked, flushes) = futures::join!(blocked, release);
    blocked.expect("the gate opens");
    let mut texts = object.texts().await;
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 65);
    system.shutdown().await;
    flushes
}

#[tokio::test]
async fn callers_that_wait_together_share_a_commit() {
    let fixture = Fixture::new();
    assert_eq!(flushes_of_64_writes(&fixture).await, 1);
}

#[tokio::test]
async fn a_batch_of_one_gives_each_its_own_commit() {
    let mut fixture = Fixture::new();
    fixture.config.max_batch = 1;
    assert_eq!(flushes_of_64_writes(&fixture).await, 64);
}

#[tokio::test]
async fn a_batch_is_bounded() {
    let mut fixture = Fixture::new();
    fixture.config.max_batch = 16;
    assert_eq!(flushes_of_64_writes(&fixture).await, 4);
}

#[tokio::test]
async fn names_and_classes_that_cannot_be_are_refused() {
    struct Unknown;
    impl Object for Unknown {
        const CLASS: &'static str = "Unknown";
        fn alarm(
            self: std::rc::Rc<Self>,
        ) -> durably::host::LocalFuture<Result<(), durably::error::BoxError>> {
            Box::pin(async { Ok(()) })
        }
    }
    let fixture = Fixture::new();
    let system = fixture.open();
    for name in [String::new(), "x".repeat(513)] {
        let refused = system.object::<Notes>(&name).call(|_| async {}).await;
        assert_eq!(refused, Err(CallError::BadName(name.len())));
    }
    system.object::<Notes>(&"x".repeat(512)).write("fits").await;
    let refused = system.object::<Unknown>("one").call(|_| async {}).await;
    assert_eq!(refused, Err(CallError::UnknownClass("Unknown")));
    assert_eq!(
        fixture
            .files()
            .iter()
            .filter(|file| file.extension().is_some_and(|end| end == "sqlite"))
            .count(),
        1
    );
    system.shutdown().await;
}

#[tokio::test]
async fn an_object_exists_once_it_was_called() {
    let fixture = Fixture::new();
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    assert_eq!(object.exists(), Ok(false));
    assert_eq!(system.open_objects(), 0);
    object.write("a note").await;
    assert_eq!(object.exists(), Ok(true));
    assert_eq!(system.object::<Notes>("two").exists(), Ok(false));
    assert_eq!(system.open_objects(), 1);
    system.shutdown().await;
}

#[tokio::test]
async fn a_turn_goes_on_when_its_caller_has_gone() {
    let fixture = Fixture::new();
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    let (begun, has_begun) = oneshot::channel();
    let (go_on, may_go_on) = oneshot::channel::<()>();
    let (ended, has_ended) = oneshot::channel();
    let mut call = Box::pin(object.call(|notes| async move {
        let _ = begun.send(());
        let _ = may_go_on.await;
        let written = notes.write("written alone".into(), None).await;
        let _ = ended.send(written);
    }));
    assert!(futures::poll!(&mut call).is_pending());
    has_begun.await.expect("the turn begins");
    drop(call);
    go_on.send(()).expect("the turn waits");
    has_ended.await.expect("the turn ends").expect("it writes");
    assert_eq!(object.texts().await, ["written alone"]);
    system.shutdown().await;
}

#[tokio::test]
async fn a_panic_is_heard_by_all_callers_of_that_instance_and_nobody_else() {
    let mut fixture = Fixture::new();
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    let other = system.object::<Notes>("other");
    other.write("kept").await;
    object.write("kept").await;
    type Panics = fn(std::rc::Rc<Notes>) -> durably::host::LocalFuture<()>;
    let panics: [(&str, Panics); 4] = [
        ("a call", |_| Box::pin(async { panic!("on purpose") })),
        ("a task", |notes| {
            Box::pin(async move {
                notes.host.spawn(Box::pin(async { panic!("on purpose") }));
                pending().await
            })
        }),
        ("a transaction", |notes| {
            Box::pin(async move {
                let work = |_: &dyn durably::host::Transaction| -> Result<(), StorageError> {
                    panic!("on purpose")
                };
                let _ = notes.host.transaction(work).await;
            })
        }),
        ("a hook", |notes| {
            Box::pin(async move {
                let work = |transaction: &dyn durably::host::Transaction| {
                    transaction.execute("DELETE FROM notes", &[])?;
                    transaction.on_release(Box::new(|| panic!("on purpose")));
                    Ok::<_, StorageError>(())
                };
                let _ = notes.host.transaction(work).await;
            })
        }),
    ];
    for (what, panic) in panics {
        let (begun, has_begun) = oneshot::channel();
        let bystander = object.call(|_| async move {
            let _ = begun.send(());
            pending::<()>().await;
        });
        let culprit = async {
            has_begun.await.expect("the bystander is inside");
            object.call(panic).await
        };
        let (bystander, culprit) = futures::join!(bystander, culprit);
        for heard in [bystander, culprit] {
            match heard {
                Err(CallError::Panicked(text)) => assert!(text.contains("on purpose"), "{text}"),
                other => panic!("{what}: {other:?}"),
            }
        }
        assert_eq!(object.texts().await, ["kept"], "{what}");
    }
    assert_eq!(other.texts().await, ["kept"]);
    let opened = |name: &str| Event::Opened(name.to_owned());
    let events = fixture.events();
    let count = |event: &Event| events.iter().filter(|found| *found == event).count();
    assert_eq!((count(&opened("one")), count(&opened("other"))), (5, 1));
    system.shutdown().await;
}

#[tokio::test]
async fn eviction_ends_calls_and_loses_what_was_not_committed() {
    let fixture = Fixture::new();
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write("kept").await;
    let (begun, has_begun) = oneshot::channel();
    let call = object.call(|_| async move {
        let _ = begun.send(());
        pending::<()>().await;
    });
    let evict = async {
        has_begun.await.expect("the call is inside");
        system.evict::<Notes>("one").await.expect("it is evicted");
        system
            .evict::<Notes>("nobody")
            .await
            .expect("nothing to do");
    };
    let (call, ()) = futures::join!(call, evict);
    assert!(matches!(call, Err(CallError::Ended(_))), "{call:?}");
    assert_eq!(object.texts().await, ["kept"]);
    system.shutdown().await;
}

#[tokio::test]
async fn calls_beyond_the_bound_are_refused() {
    let mut fixture = Fixture::new();
    fixture.config.max_calls = 2;
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    let mut gates = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..2 {
        let (open, gate) = oneshot::channel::<()>();
        gates.push(open);
        let mut call = Box::pin(object.call(|_| async move {
            let _ = gate.await;
        }));
        assert!(futures::poll!(&mut call).is_pending());
        calls.push(call);
    }
    let refused = object.call(|_| async {}).await;
    assert!(
        matches!(refused, Err(CallError::Overloaded(_))),
        "{refused:?}"
    );
    drop(gates);
    for call in join_all(calls).await {
        call.expect("the gate opens");
    }
    object.write("again").await;
    system.shutdown().await;
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_stores_nothing() {
    let mut fixture = Fixture::new();
    fixture.config.max_object_bytes = Some(16 * 4_096);
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write("kept").await;
    let large = "x".repeat(100_000);
    let text = large.clone();
    let full = object
        .call(|notes| async move { notes.write(text, None).await })
        .await;
    match full {
        Ok(Err(StorageError::Full(_))) | Err(CallError::Storage(StorageError::Full(_))) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(object.texts().await, ["kept"]);
    object.write("small").await;
    assert_eq!(object.texts().await, ["kept", "small"]);
    system.object::<Notes>("two").write("elsewhere").await;
    system.shutdown().await;
}

#[tokio::test]
async fn objects_call_objects() {
    let fixture = Fixture::new();
    let builder = fixture.builder();
    let others = builder.system();
    let nobody = others.object::<Notes>("other").call(|_| async {}).await;
    assert_eq!(
        nobody,
        Err(CallError::Stopping),
        "the system is not open yet"
    );
    let system = builder.open().expect("the system opens");
    let answer = system
        .object::<Notes>("one")
        .call(move |notes| async move {
            let other = others.object::<Notes>("other");
            other.write("from one").await;
            notes
                .write("told other".into(), None)
                .await
                .expect("it is written");
            other.texts().await
        })
        .await;
    assert_eq!(answer, Ok(vec!["from one".to_owned()]));
    system.shutdown().await;
}

#[tokio::test]
async fn the_log_is_moved_into_the_file_while_the_object_works() {
    let mut fixture = Fixture::new();
    fixture.config.checkpoint_pages = 50;
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write("first").await;
    let file = fixture.file("one");
    let before = std::fs::metadata(&file).expect("a file").len();
    let text = "x".repeat(3_000);
    for _ in 0..100 {
        object.write(&text).await;
    }
    let path = file.clone();
    eventually("the file grows", move || {
        std::fs::metadata(&path).is_ok_and(|file| file.len() > before)
    })
    .await;
    let log = file.with_extension("sqlite-wal");
    let length = std::fs::metadata(log).expect("a log").len();
    assert!(length < 100 * 4_096, "the log starts over: {length} bytes");
    system.shutdown().await;
}

#[tokio::test]
async fn turns_of_many_objects_run_side_by_side() {
    let fixture = Fixture::new();
    let system = fixture.open();
    let objects: Vec<_> = (0..40)
        .map(|number| system.object::<Notes>(&number.to_string()))
        .collect();
    // Each waits for the next one's call, so none could end if they ran one after the other.
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..40).map(|_| oneshot::channel::<()>()).unzip();
    let mut senders = senders.into_iter().map(Some).collect::<Vec<_>>();
    senders.rotate_left(1);
    let calls = objects
        .iter()
        .zip(receivers)
        .zip(senders)
        .map(|((object, wait), tell)| {
            object.call(|_| async move {
                if let Some(tell) = tell {
                    let _ = tell.send(());
                }
                wait.await.is_ok()
            })
        });
    let answers = tokio::time::timeout(Duration::from_secs(60), join_all(calls)).await;
    assert!(
        answers
            .expect("all end")
            .into_iter()
            .all(|answer| answer == Ok(true))
    );
    system.shutdown().await;
}
