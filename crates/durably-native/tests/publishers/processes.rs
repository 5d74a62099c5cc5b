//! Several processes publish into one folder and are killed at random moments: readers never see a
//! text that is not whole, and never one older than what they saw before.
//!
//! The children are this test binary, told by their environment to be some.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use durably::topology::{Landing, Publisher};
use durably_native::publishers::{FolderPublisher, FolderReader};
use tempfile::TempDir;

use super::setup::{snapshot, snapshot_of, version};

const FOLDER: &str = "DURABLY_TEST_PUBLISH_FOLDER";
const FIRST: &str = "DURABLY_TEST_PUBLISH_FIRST";
const GROUPS: [&str; 3] = ["a", "b", "c"];

/// Does nothing unless told to be a child: then it publishes every other version, until it is killed.
#[tokio::test]
async fn child() {
    let (Ok(folder), Ok(first)) = (std::env::var(FOLDER), std::env::var(FIRST)) else {
        return;
    };
    let first: u64 = first.parse().expect("the parent says where to begin");
    let publisher = FolderPublisher::open(folder).expect("the folder opens");
    for number in (first..).step_by(2) {
        for group in GROUPS {
            let snapshot = snapshot_of(group, number, number % 500);
            let landing = publisher.publish(snapshot).await;
            if let Err(error) = landing {
                panic!("{error}");
            }
        }
    }
}

fn start(folder: &TempDir, first: u64) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["processes::child", "--exact", "--nocapture"])
        .env(FOLDER, folder.path())
        .env(FIRST, first.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("a child starts")
}

#[tokio::test]
async fn processes_that_are_killed_leave_whole_texts_that_never_go_back() {
    const ROUNDS: u64 = 6;
    let folder = TempDir::new().expect("a folder");
    let publisher = FolderPublisher::open(folder.path()).expect("the folder opens");
    let reader = FolderReader::new(folder.path());
    let mut newest = [None; GROUPS.len()];
    for round in 0..ROUNDS {
        let begin = newest.iter().flatten().max().copied().unwrap_or(0);
        let mut children = [start(&folder, begin + 1), start(&folder, begin + 2)];
        // Each round ends when the children have come so far, at another moment each.
        let end = Some(begin + 20 + 3 * round);
        while newest.iter().any(|version| *version < end) {
            for (group, newest) in GROUPS.into_iter().zip(&mut newest) {
                let text = reader.read(group).await.expect("the folder is there");
                let found = version(group, text);
                assert!(found >= *newest, "{group}: {found:?} after {newest:?}");
                *newest = found;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            for child in &mut children {
                let ended = child.try_wait().expect("its state");
                assert_eq!(ended, None, "a child has ended by itself");
            }
        }
        for child in &mut children {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }
    // Whatever they left behind, this process goes on.
    for (group, newest) in GROUPS.into_iter().zip(newest) {
        let read = reader.read(group).await.expect("the folder is there");
        let stored = version(group, read).max(newest).expect("published");
        let older = publisher.publish(snapshot(group, stored - 1)).await;
        assert!(matches!(older, Ok(Landing::Superseded(by)) if by.version >= stored));
        let newer = publisher.publish(snapshot(group, stored + 1_000)).await;
        assert!(matches!(newer, Ok(Landing::Stored)));
        let read = reader.read(group).await.expect("the folder is there");
        assert_eq!(version(group, read), Some(stored + 1_000));
    }
}
