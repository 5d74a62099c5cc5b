//! The folder of files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use durably::testing::publishers::{Examinee, run_all};
use durably::topology::{Landing, Publication, Publisher};
use durably_native::publishers::{FolderError, FolderPublisher, FolderReader, stored_name};
use futures::FutureExt;
use futures::future::{LocalBoxFuture, join_all};
use tempfile::TempDir;

use super::setup::{deletion, edition, passed, snapshot, version};

struct Folder {
    folder: PathBuf,
    reader: FolderReader,
}

impl Examinee for Folder {
    fn publisher(&self) -> Rc<dyn Publisher> {
        Rc::new(FolderPublisher::open(&self.folder).expect("the folder opens"))
    }

    fn read<'a>(&'a self, group: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, String>> {
        let read = self.reader.read(group);
        async { read.await.map_err(|error| error.to_string()) }.boxed_local()
    }

    fn damage<'a>(
        &'a self,
        group: &'a str,
        text: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<bool, String>> {
        let file = self.folder.join(stored_name(group));
        let written = fs::write(file, text).map_err(|error| error.to_string());
        async { written.map(|()| true) }.boxed_local()
    }

    /// It documents no limit.
    fn longest_group(&self) -> usize {
        100_000
    }
}

struct Fixture {
    directory: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Fixture {
            directory: TempDir::new().expect("a folder"),
        }
    }

    fn folder(&self) -> PathBuf {
        self.directory.path().join("deep/below/topology")
    }

    fn open(&self) -> FolderPublisher {
        FolderPublisher::open(self.folder()).expect("the folder opens")
    }

    fn file(&self, group: &str) -> PathBuf {
        self.folder().join(stored_name(group))
    }

    /// A file beside those of the group.
    fn beside(&self, group: &str, name: &str) -> PathBuf {
        self.file(group).with_file_name(name)
    }
}

async fn publish(publisher: &FolderPublisher, publication: Rc<Publication>) -> Landing {
    let published = publisher.publish(publication).await;
    published.unwrap_or_else(|error| panic!("{error}"))
}

async fn refused(publisher: &FolderPublisher, publication: Rc<Publication>) -> FolderError {
    let published = publisher.publish(publication).await;
    let error = published.expect_err("it cannot be published");
    *error.downcast().expect("an error of the folder")
}

async fn stored(publisher: &FolderPublisher, group: &str) -> Option<u64> {
    let text = publisher.reader().read(group).await;
    version(group, text.unwrap_or_else(|error| panic!("{error}")))
}

#[tokio::test]
async fn a_folder_passes_the_exam() {
    let fixture = Fixture::new();
    let examinee = Folder {
        folder: fixture.folder(),
        reader: FolderReader::new(fixture.folder()),
    };
    passed(run_all(&examinee).await);
    // Whatever the groups were called, nothing lies where it should not.
    let mut folders = 0;
    for entry in fs::read_dir(fixture.folder()).expect("the folder") {
        let folder = entry.expect("an entry").path();
        folders += 1;
        for entry in fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name");
            assert!(name == "lock" || name.ends_with(".json"), "{name}");
        }
    }
    assert_eq!(folders, 256);
    let above = fs::read_dir(fixture.directory.path().join("deep/below"));
    assert_eq!(above.expect("the folder").count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_passes_the_exam_on_several_threads() {
    let fixture = Fixture::new();
    let examinee = Folder {
        folder: fixture.folder(),
        reader: FolderReader::new(fixture.folder()),
    };
    passed(run_all(&examinee).await);
}

#[tokio::test]
async fn what_was_published_is_there_after_a_restart() {
    let fixture = Fixture::new();
    let publisher = fixture.open();
    publish(&publisher, snapshot("a", 3)).await;
    publish(&publisher, deletion("b", 2)).await;
    drop(publisher);
    let publisher = fixture.open();
    assert_eq!(stored(&publisher, "a").await, Some(3));
    let landing = publish(&publisher, snapshot("a", 2)).await;
    assert_eq!(landing, Landing::Superseded(edition(3)));
    let landing = publish(&publisher, snapshot("b", 1)).await;
    assert_eq!(landing, Landing::Superseded(edition(2)));
}

#[tokio::test]
async fn a_text_cut_off_by_a_crash_is_never_read_and_is_overwritten() {
    let fixture = Fixture::new();
    let publisher = fixture.open();
    let leftover = fixture.beside("a", "writing");
    fs::write(&leftover, &snapshot("a", 1).text().as_bytes()[..40]).expect("a leftover");
    assert_eq!(stored(&publisher, "a").await, None);
    publish(&publisher, snapshot("a", 2)).await;
    assert_eq!(stored(&publisher, "a").await, Some(2));
    assert!(!leftover.exists());
    // It lasts no longer than the next call that writes there.
    fs::write(&leftover, vec![b'x'; 1_000_000]).expect("a leftover");
    publish(&publisher, snapshot("a", 1)).await;
    publish(&publisher, snapshot("a", 3)).await;
    assert_eq!(stored(&publisher, "a").await, Some(3));
    assert!(!leftover.exists());
}

#[tokio::test]
async fn a_lock_that_somebody_holds_is_waited_for_and_delays_no_other_group() {
    let fixture = Fixture::new();
    let publisher = fixture.open();
    publish(&publisher, snapshot("a", 1)).await;
    let lock = File::open(fixture.beside("a", "lock")).expect("the lock's file");
    lock.lock().expect("nobody holds it");

    let mut waiting = publisher.publish(snapshot("a", 3));
    assert!((&mut waiting).now_or_never().is_none());
    let elsewhere = (0..100)
        .map(|number| format!("g{number}"))
        .filter(|group| fixture.beside(group, "") != fixture.beside("a", ""));
    let others = elsewhere.map(|group| {
        let publisher = publisher.clone();
        async move { publish(&publisher, snapshot(&group, 1)).await }
    });
    let (others, still_waiting) = {
        let mut others = Box::pin(join_all(others));
        let both = futures::future::select(&mut others, &mut waiting);
        match both.await {
            futures::future::Either::Left((others, _)) => (others, true),
            futures::future::Either::Right(_) => (Vec::new(), false),
        }
    };
    assert!(still_waiting, "it went past the lock");
    assert!(others.iter().all(|landing| *landing == Landing::Stored));
    assert_eq!(
        stored(&publisher, "a").await,
        Some(1),
        "readers need no lock"
    );

    // Nobody waits for this one any more, nor for the one behind it; the lock is free for the next.
    let mut behind = publisher.publish(snapshot("a", 2));
    assert!((&mut behind).now_or_never().is_none());
    drop((waiting, behind));
    lock.unlock().expect("it is held");
    assert_eq!(publish(&publisher, snapshot("a", 4)).await, Landing::Stored);
    assert_eq!(stored(&publisher, "a").await, Some(4));
}

#[tokio::test]
async fn a_folder_that_cannot_be_is_refused_when_it_is_opened() {
    let fixture = Fixture::new();
    let file = fixture.directory.path().join("file");
    fs::write(&file, "not a folder").expect("a file");
    // Permissions would not do: tests may run as root.
    for folder in [
        file.clone(),
        file.join("below"),
        "/proc/durably".into(),
        "".into(),
    ] {
        match FolderPublisher::open(&folder) {
            Err(error @ FolderError::Folder { .. }) => {
                assert_eq!(error.code(), "publisher_folder_unusable");
                let text = error.to_string();
                assert!(text.contains(&*folder.to_string_lossy()), "{text}");
            }
            other => panic!("{}: {other:?}", folder.display()),
        }
    }
    // The lock cannot be had.
    fs::create_dir_all(fixture.folder().join("00/lock")).expect("a folder");
    let refused = FolderPublisher::open(fixture.folder());
    assert!(
        matches!(refused, Err(FolderError::Folder { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_the_disk_refuses_is_an_error_of_the_call_and_of_that_group_alone() {
    let fixture = Fixture::new();
    let publisher = fixture.open();
    for group in ["well", "folder", "unwritable", "unlockable", "gone"] {
        publish(&publisher, snapshot(group, 1)).await;
    }
    let replace_by_folder = |path: &Path| {
        let _ = fs::remove_file(path);
        fs::create_dir(path).expect("a folder in its place");
        fs::write(path.join("kept"), "").expect("a file in it");
    };
    replace_by_folder(&fixture.file("folder"));
    replace_by_folder(&fixture.beside("unwritable", "writing"));
    replace_by_folder(&fixture.beside("unlockable", "lock"));
    fs::remove_dir_all(fixture.beside("gone", "")).expect("its folder goes");

    for group in ["folder", "unwritable", "unlockable", "gone"] {
        for _ in 0..2 {
            let error = refused(&publisher, snapshot(group, 2)).await;
            assert_eq!(error.code(), "publisher_folder_write", "{group}");
            assert!(error.to_string().contains(&stored_name(group)), "{error}");
        }
    }
    for group in ["unwritable", "unlockable"] {
        assert_eq!(stored(&publisher, group).await, Some(1), "{group}");
    }
    for group in ["folder", "gone"] {
        let error = publisher.reader().read(group).await.expect_err("no file");
        assert_eq!(error.code(), "publisher_folder_read", "{group}");
        assert!(error.to_string().contains(&stored_name(group)), "{error}");
    }
    assert_eq!(
        publish(&publisher, snapshot("well", 2)).await,
        Landing::Stored
    );

    // Mended, it goes on.
    fs::remove_dir_all(fixture.beside("unwritable", "writing")).expect("a folder");
    assert_eq!(
        publish(&publisher, snapshot("unwritable", 2)).await,
        Landing::Stored
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_changes_nothing() {
    let fixture = Fixture::new();
    let publisher = fixture.open();
    publish(&publisher, snapshot("a", 1)).await;
    // Whatever is written there does not fit.
    std::os::unix::fs::symlink("/dev/full", fixture.beside("a", "writing")).expect("a link");
    let error = refused(&publisher, snapshot("a", 2)).await;
    assert_eq!(error.code(), "publisher_folder_write");
    assert_eq!(stored(&publisher, "a").await, Some(1));
    assert_eq!(publish(&publisher, snapshot("a", 2)).await, Landing::Stored);
    assert_eq!(stored(&publisher, "a").await, Some(2));
}

#[tokio::test]
async fn a_folder_that_is_gone_is_not_one_without_groups() {
    let fixture = Fixture::new();
    let publisher = fixture.open();
    let reader = publisher.reader();
    assert_eq!(reader.read("a").await.expect("it is there"), None);
    fs::remove_dir_all(fixture.folder()).expect("it goes");
    let error = reader.read("a").await.expect_err("it is gone");
    assert_eq!(error.code(), "publisher_folder_read");
}

#[test]
fn without_a_runtime_it_says_so() {
    let fixture = Fixture::new();
    let publisher = fixture.open();
    let read = publisher.reader().read("a").now_or_never();
    assert!(
        matches!(read, Some(Err(FolderError::NoRuntime))),
        "{read:?}"
    );
    let published = publisher.publish(snapshot("a", 1)).now_or_never();
    let error = published.expect("at once").expect_err("no runtime");
    assert!(error.to_string().contains("tokio"), "{error}");
}
