//! The data folder: one owner, damage that stays where it is, and an end that leaves it tidy.

mod common;

use std::future::pending;
use std::time::Duration;

use common::{Call, Fixture, Notes};
use durably_native::{CallError, SystemError};
use tokio::sync::oneshot;

#[tokio::test]
async fn a_folder_has_one_owner() {
    let fixture = Fixture::new();
    let system = fixture.open();
    let second = fixture.builder().open();
    match second {
        Err(error @ SystemError::FolderLocked(_)) => {
            let text = error.to_string();
            assert!(text.contains(&*fixture.data().to_string_lossy()), "{text}");
            assert_eq!(error.code(), "folder_locked");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two systems own one folder"),
    }
    system.object::<Notes>("one").write("still at work").await;
    system.shutdown().await;
    let system = fixture.open();
    assert_eq!(
        system.object::<Notes>("one").texts().await,
        ["still at work"]
    );
    // Dropping it stops it too, though nobody waits for that.
    drop(system);
    common::eventually("the folder is free", || fixture.builder().open().is_ok()).await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_is_named() {
    let fixture = Fixture::new();
    let file = fixture.data().join("file");
    std::fs::write(&file, "not a folder").expect("a file");
    let refused = durably_native::System::builder(file.join("data")).open();
    match refused {
        Err(error @ SystemError::Folder { .. }) => assert!(error.to_string().contains("file/data")),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opened"),
    }
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused_by_name() {
    let mut fixture = Fixture::new();
    fixture.config.max_batch = 0;
    match fixture.builder().open() {
        Err(SystemError::Config(error)) => assert_eq!(error.field(), "max_batch"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opened"),
    }
    fixture.config.max_batch = 1;
    fixture.config.idle_timeout = Duration::ZERO;
    match fixture.builder().open() {
        Err(SystemError::Config(error)) => assert_eq!(error.field(), "idle_timeout"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opened"),
    }
}

#[tokio::test]
async fn a_damaged_file_fails_its_object_alone() {
    let fixture = Fixture::new();
    let system = fixture.open();
    for name in ["well", "garbage", "cut", "swapped"] {
        system.object::<Notes>(name).write(name).await;
    }
    system.shutdown().await;
    let garbage = fixture.file("garbage");
    let length = std::fs::metadata(&garbage).expect("a file").len();
    std::fs::write(&garbage, vec![0x5a; length as usize]).expect("garbage");
    let cut = std::fs::File::options()
        .write(true)
        .open(fixture.file("cut"))
        .expect("a file");
    cut.set_len(1_000).expect("it is cut");
    std::fs::copy(fixture.file("well"), fixture.file("swapped")).expect("a wrong copy");

    let system = fixture.open();
    for name in ["garbage", "cut", "swapped"] {
        for _ in 0..2 {
            let failed = system.object::<Notes>(name).call(|_| async {}).await;
            match failed {
                Err(error @ CallError::Damaged(_)) => {
                    assert_eq!(error.code(), "storage_damaged");
                    assert!(error.to_string().contains(name), "{error}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    assert_eq!(system.object::<Notes>("well").texts().await, ["well"]);
    assert_eq!(system.open_objects(), 1);
    system.shutdown().await;
}

#[tokio::test]
async fn a_damaged_journal_is_told_when_the_system_opens() {
    let fixture = Fixture::new();
    fixture.open().shutdown().await;
    let journal = fixture.data().join("journal.sqlite");
    std::fs::write(journal, "x".repeat(20_000)).expect("garbage");
    match fixture.builder().open() {
        Err(error @ SystemError::Journal(_)) => assert_eq!(error.code(), "storage_damaged"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opened"),
    }
}

#[tokio::test]
async fn a_shutdown_lets_calls_finish_and_leaves_nothing_behind() {
    let fixture = Fixture::new();
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    let (begun, has_begun) = oneshot::channel();
    let (open, gate) = oneshot::channel::<()>();
    let call = object.call(|notes| async move {
        // A task that never ends must not keep the system from ending.
        notes.host.spawn(Box::pin(pending()));
        let _ = begun.send(());
        let _ = gate.await;
        notes.write("written last".into(), None).await
    });
    let shutdown = async {
        has_begun.await.expect("the call is inside");
        let mut shutdown = Box::pin(system.shutdown());
        assert!(futures::poll!(&mut shutdown).is_pending());
        let refused = object.call(|_| async {}).await;
        assert_eq!(refused, Err(CallError::Stopping));
        open.send(()).expect("the call waits");
        shutdown.await;
    };
    let (call, ()) = futures::join!(call, shutdown);
    call.expect("the call is answered").expect("it writes");
    assert_eq!(object.call(|_| async {}).await, Err(CallError::Stopping));
    assert_eq!(fixture.files(), [fixture.file("one")], "no logs are left");
    assert_eq!(fixture.journal(), (0, 0), "no name is left active");
    let system = fixture.open();
    assert_eq!(
        system.object::<Notes>("one").texts().await,
        ["written last"]
    );
    system.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_ever() {
    let mut fixture = Fixture::new();
    fixture.config.shutdown_timeout = Duration::from_millis(20);
    let system = fixture.open();
    let object = system.object::<Notes>("one");
    object.write("kept").await;
    let (begun, has_begun) = oneshot::channel();
    let call = object.call(|_| async move {
        let _ = begun.send(());
        pending::<()>().await;
    });
    let shutdown = async {
        has_begun.await.expect("the call is inside");
        system.shutdown().await;
    };
    let (call, ()) = futures::join!(call, shutdown);
    assert_eq!(call, Err(CallError::Stopping));
    let system = fixture.open();
    assert_eq!(system.object::<Notes>("one").texts().await, ["kept"]);
    system.shutdown().await;
}
