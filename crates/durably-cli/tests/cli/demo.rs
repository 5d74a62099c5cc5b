//! The demo on a short day, as CI runs it.

use std::path::Path;
use std::process::Output;

use tempfile::TempDir;

use crate::support::{PATIENCE, durably};

async fn demo(args: &[&str]) -> Output {
    let output = durably().arg("demo").args(args).output();
    tokio::time::timeout(PATIENCE, output)
        .await
        .unwrap()
        .unwrap()
}

#[track_caller]
fn clean(output: &Output, jobs: usize) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(
        text.contains(&format!("{jobs} of {jobs} jobs done")),
        "{text}"
    );
    assert!(
        text.contains("every job ran, and no limit was passed"),
        "{text}"
    );
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_day_ends_clean() {
    let text = clean(&demo(&["--jobs=120", "--speed=4"]).await, 120);
    for part in ["admission wait  p50", "p99", "UA ", "EWR", "0 restarts"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_day_with_kills_ends_clean() {
    let text = clean(
        &demo(&["--until=500", "--speed=2", "--kill-every=700ms"]).await,
        213,
    );
    assert!(!text.contains(" 0 restarts"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_may_be_used_again() {
    let folder = TempDir::new().unwrap();
    let data_dir = folder.path().join("data").to_string_lossy().into_owned();
    for _ in 0..2 {
        let args = ["--jobs=20", "--speed=20", "--data-dir", &data_dir];
        clean(&demo(&args).await, 20);
    }
    assert!(Path::new(&data_dir).is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_flags_end_with_2() {
    for wrong in [
        "--speed=0",
        "--speed=NaN",
        "--jobs=0",
        "--kill-every=0s",
        "--until=-1",
        "--until=3",
    ] {
        assert_eq!(demo(&[wrong]).await.status.code(), Some(2), "{wrong}");
    }
}
