//! The table of deliberate bugs is whole, and traces and simulation find what it says they find. What
//! tests find is proved by the test binaries of `durably` themselves.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, take_hook};
use std::path::{Path, PathBuf};

use durably::bugs::{self, Bug};
use durably_sim::proof::{Finder, Simulation, table};
use durably_sim::replay::{Outcome, replay_file};
use durably_sim::simulation::drive::{Order, drive};
use durably_sim::simulation::panics;

#[test]
fn deliberate_bugs_stand_in_the_table_once() {
    let mut listed: Vec<Bug> = table().iter().map(|row| row.bug).collect();
    listed.sort_unstable();
    assert_eq!(listed, Bug::ALL);
}

fn trace(name: &str) -> PathBuf {
    let conformance = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    let folders = ["semaphore", "semaphore-async", "topology"];
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

#[test]
fn deliberate_bugs_are_found_by_simulation() {
    panics::collect();
    let mut problems = Vec::new();
    let mut clean: BTreeMap<&str, u64> = BTreeMap::new();
    for row in table() {
        let Some(Simulation { scenario, seeds }) = row.simulation else {
            continue;
        };
        let fails =
            |bug, seed| bugs::with(bug, || drive(scenario, &Order::of(seed)).failure.is_some());
        let Some(found) = (0..seeds).find(|seed| fails(Some(row.bug), *seed)) else {
            let (scenario, bug) = (scenario.name, row.bug.name());
            problems.push(format!("{seeds} seeds of {scenario} do not find {bug}"));
            continue;
        };
        // The same seeds find nothing where there is nothing.
        let known = clean.entry(scenario.name).or_default();
        for seed in *known..=found {
            if fails(None, seed) {
                problems.push(format!(
                    "seed {seed} of {} fails without any bug",
                    scenario.name
                ));
            }
        }
        *known = (*known).max(found + 1);
    }
    // From here on a panic is one of this test.
    drop(take_hook());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
