//! Ten thousand names that do nothing cost next to nothing. Alone in its file, since it looks at the
//! memory of its process.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{Call, Event, Fixture, Notes, Plan, builder};
use durably_native::sqlite::{Database, Settings, Synchronous};
use tokio::sync::mpsc;

const FOLDER: &str = "DURABLY_TEST_NAMES_FOLDER";
const NAMES: u32 = 10_000;

fn name(number: u32) -> String {
    format!("n{number}")
}

/// Does nothing unless told to be the child: then it opens the folder and looks at itself.
#[tokio::test]
async fn child() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let (events, mut heard) = mpsc::unbounded_channel();
    let fixture = Fixture::new();
    let system = builder(
        Path::new(&folder),
        fixture.config.clone(),
        events,
        Arc::new(Plan::default()),
    )
    .open()
    .expect("it opens");
    let object = system.object::<Notes>(&name(7));
    assert_eq!(object.texts().await, ["a note"]);
    assert_eq!(common::next_event(&mut heard).await, Event::Opened(name(7)));
    assert_eq!(system.open_objects(), 1, "the others sleep");
    assert!(
        system
            .object::<Notes>(&name(NAMES - 1))
            .exists()
            .expect("a good name")
    );
    if let Some(kib) = resident_kib() {
        assert!(kib < 100 * 1_024, "{kib} KiB are resident");
    }
    system.shutdown().await;
}

/// The resident memory of this process, where it can be known.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[tokio::test]
async fn ten_thousand_sleeping_names_take_no_memory_and_none_is_opened() {
    if std::env::var(FOLDER).is_ok() {
        return;
    }
    let mut fixture = Fixture::in_memory();
    fixture.config.synchronous = Synchronous::Normal;
    fixture.config.threads = 8;
    fixture.config.max_open_objects = 64;
    fixture.config.open_wait = Duration::from_secs(600);
    let system = fixture.open();
    for start in (0..NAMES).step_by(500) {
        let writes = (start..start + 500).map(|number| {
            let object = system.object::<Notes>(&name(number));
            async move { object.write_with_alarm("a note", 3_600_000_000).await }
        });
        futures::future::join_all(writes).await;
    }
    system.shutdown().await;
    assert_eq!(fixture.journal(), (0, i64::from(NAMES)));
    let child = Command::new(std::env::current_exe().expect("the test binary"))
        .args(["child", "--exact", "--nocapture"])
        .env(FOLDER, fixture.data())
        .status()
        .expect("a child");
    assert!(child.success());
    // Any one of them is found by its name alone.
    let database = Database::open(
        &fixture.file(&name(4_711)),
        "Notes",
        &name(4_711),
        &Settings::default(),
    )
    .expect("its file");
    assert!(database.alarm().is_some());
}
