//! The table of deliberate bugs is whole, and traces find what it says they find. What tests find is
//! proved by the test binaries of `durably` themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use durably::bugs::{self, Bug};
use durably_sim::proof::{Finder, table};
use durably_sim::replay::{Outcome, replay_file};

#[test]
fn deliberate_bugs_stand_in_the_table_once() {
    let mut listed: Vec<Bug> = table().iter().map(|row| row.bug).collect();
    listed.sort_unstable();
    assert_eq!(listed, Bug::ALL);
}

fn trace(name: &str) -> PathBuf {
    let conformance = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    let folders = ["semaphore", "semaphore-async"];
    let files = folders.map(|folder| conformance.join(folder).join(format!("{name}.jsonl")));
    let file = files.into_iter().find(|file| file.exists());
    file.unwrap_or_else(|| panic!("there is no trace {name}"))
}

#[test]
fn deliberate_bugs_are_found_by_traces() {
    let mut missed = Vec::new();
    for row in table() {
        let Finder::Trace(name) = row.finder else {
            continue;
        };
        let file = trace(&name);
        let replay = |bug| {
            bugs::with(bug, || {
                let outcome = catch_unwind(AssertUnwindSafe(|| replay_file(&file)));
                matches!(outcome, Ok(Outcome::Ok))
            })
        };
        assert!(replay(None), "{name} differs without any bug");
        if replay(Some(row.bug)) {
            missed.push(format!("{name} does not find {}", row.bug.name()));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
