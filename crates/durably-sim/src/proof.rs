//! Proof that faults are found: each deliberate bug of the library by what `docs/deliberate-bugs.md`
//! names for it, within what it states. The table there is what is carried out here, so it is true.
//!
//! Not decided here: what the bugs are (`durably::bugs`).

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use durably::bugs::{Bug, VARIABLE};

use crate::simulation::scenarios::{self, Plan};

/// Within this time a named test ends; one that goes on for longer has found something, too.
const TEST_LIMIT: Duration = Duration::from_secs(30);

/// What finds a bug, and within what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finder {
    /// One trace of the conformance suite.
    Trace(String),
    /// One test of the library.
    Test {
        /// The test binary; `lib` for the tests within the library.
        target: String,
        /// The test.
        name: String,
    },
}

/// A row of the table.
pub struct Row {
    /// The bug.
    pub bug: Bug,
    /// What is cheapest to find it.
    pub finder: Finder,
    /// What simulation finds it, if one does.
    pub simulation: Option<Simulation>,
}

/// Seeds of a scenario, from 0.
pub struct Simulation {
    /// The scenario.
    pub scenario: &'static Plan,
    /// How many seeds.
    pub seeds: u64,
}

/// The table of the docs.
///
/// # Panics
///
/// If it is missing or a row cannot be read.
pub fn table() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deliberate-bugs.md");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| match row(line) {
        Some(row) => row,
        None => panic!("{}: this row cannot be read: {line}", path.display()),
    })
    .collect()
}

fn row(line: &str) -> Option<Row> {
    let mut cells = line.split('|').skip(1).map(str::trim);
    let bug = code(cells.next()?)?.parse().ok()?;
    let (_, found_by, budget) = (cells.next()?, cells.next()?, cells.next()?);
    let finder = match found_by.split_once(' ') {
        None if found_by == "trace" => Finder::Trace(code(budget)?.to_owned()),
        Some(("test", of)) => Finder::Test {
            target: code(of.strip_prefix("of ")?)?.to_owned(),
            name: code(budget)?.to_owned(),
        },
        _ => return None,
    };
    let simulation = match cells.next()? {
        "-" => None,
        cell => Some(simulation(cell)?),
    };
    Some(Row {
        bug,
        finder,
        simulation,
    })
}

fn simulation(cell: &str) -> Option<Simulation> {
    let (scenario, seeds) = cell.split_once(", ")?;
    Some(Simulation {
        scenario: scenarios::named(code(scenario)?)?,
        seeds: seeds.strip_suffix(" seeds")?.parse().ok()?,
    })
}

fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    TookTooLong,
    /// There is no such test.
    Missing,
}

/// Has this very test binary run the tests that the table names for it: each must pass, and must not
/// with the bug on that it is to find.
///
/// # Panics
///
/// If anything is otherwise.
pub fn by_own_tests(own: &str) {
    let mut clean = BTreeSet::new();
    let mut problems = Vec::new();
    for Row { bug, finder, .. } in table() {
        let Finder::Test { target, name } = finder else {
            continue;
        };
        if target != own {
            continue;
        }
        if clean.insert(name.clone()) {
            let end = run(&name, None);
            if end != End::Passed {
                problems.push(format!("{name}, without any bug: {end:?}"));
            }
        }
        let end = run(&name, Some(bug));
        if matches!(end, End::Passed | End::Missing) {
            problems.push(format!("{name} does not find {}: {end:?}", bug.name()));
        }
    }
    assert!(!clean.is_empty(), "the table names no test of {own}");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn run(name: &str, bug: Option<Bug>) -> End {
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => panic!("this test binary cannot be found: {error}"),
    };
    let mut command = Command::new(own);
    command
        .args(["--exact", name])
        // Property tests draw the same every time, and do not find where to keep what failed.
        .env("PROPTEST_RNG_SEED", "1")
        .current_dir(std::env::temp_dir())
        .env_remove(VARIABLE)
        .envs(bug.map(|bug| (VARIABLE, bug.name())))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => panic!("this test binary cannot be run again: {error}"),
    };
    let Some(mut stdout) = child.stdout.take() else {
        unreachable!("its output is piped");
    };
    let (told, output) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.read_to_end(&mut text);
        let _ = told.send(String::from_utf8_lossy(&text).into_owned());
    });
    let text = match output.recv_timeout(TEST_LIMIT) {
        Ok(text) => Some(text),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let _ = child.kill();
            None
        }
    };
    let status = child.wait();
    match (text, status) {
        (None, _) => End::TookTooLong,
        (Some(text), _) if text.contains("running 0 tests") => End::Missing,
        (Some(_), Ok(status)) if status.success() => End::Passed,
        _ => End::Failed,
    }
}
