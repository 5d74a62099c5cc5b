//! The fuzz targets on a stable toolchain: on every seed that is kept, and on seeds that were changed.

use std::fs;
use std::path::{Path, PathBuf};

use durably_sim::fuzz::{TARGETS, Target};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Changed seeds that are tried, for each target.
const CASES: u32 = 60;

fn seeds(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(name);
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// How one input is made of others: some lines of one, some of another, and changed bytes.
#[derive(Clone, Debug)]
struct Change {
    from: [usize; 2],
    lines: [usize; 2],
    bytes: Vec<(usize, Option<u8>)>,
}

fn changes() -> impl Strategy<Value = Change> {
    let interesting = prop::sample::select(b"0123456789-.e\"{}[]:, anul\n\x00\xff".as_slice());
    let bytes = prop::collection::vec((any::<usize>(), prop::option::of(interesting)), 0..4);
    (any::<[usize; 2]>(), any::<[usize; 2]>(), bytes).prop_map(|(from, lines, bytes)| Change {
        from,
        lines,
        bytes,
    })
}

impl Change {
    fn apply(&self, seeds: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
        let [head, tail] = self.from.map(|index| {
            let lines = seeds[index % seeds.len()].1.split(|byte| *byte == b'\n');
            lines.map(<[u8]>::to_vec).collect::<Vec<_>>()
        });
        let head = head[..self.lines[0] % (head.len() + 1)].iter();
        let lines: Vec<_> = head
            .chain(&tail[self.lines[1] % tail.len()..])
            .cloned()
            .collect();
        let mut input = lines.join(&b'\n');
        for (place, byte) in &self.bytes {
            if input.is_empty() {
                break;
            }
            let place = place % input.len();
            match byte {
                Some(byte) => input[place] = *byte,
                None => drop(input.remove(place)),
            }
        }
        input
    }
}

fn run(name: &str) {
    let target: Target = TARGETS
        .into_iter()
        .find(|(known, _)| *known == name)
        .unwrap()
        .1;
    let seeds = seeds(name);
    assert!(!seeds.is_empty(), "{name} has no seeds");
    for (path, seed) in &seeds {
        let tried = std::panic::catch_unwind(|| target(seed));
        assert!(tried.is_ok(), "{}", path.display());
    }
    let mut config = Config::with_cases(CASES);
    config.failure_persistence = None;
    let outcome = TestRunner::new(config).run(&changes(), |change| {
        let input = change.apply(&seeds);
        let tried = std::panic::catch_unwind(|| target(&input));
        prop_assert!(tried.is_ok(), "{:?}", String::from_utf8_lossy(&input));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{name}: {error}");
    }
}

#[test]
fn messages_are_refused_or_answered() {
    run("wire");
}

#[test]
fn settings_are_refused_or_worked_with() {
    run("configuration");
}

#[test]
fn damaged_rows_are_told_or_survived() {
    run("rows");
}
