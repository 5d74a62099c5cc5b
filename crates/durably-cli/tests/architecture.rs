//! Maps that name rooms long gone mislead: every path that `ARCHITECTURE.md` names must exist.
//!
//! Decided here: what counts as the name of a path. Three places are read.
//! - The tree of rooms, that is a fenced block without a language in which some line begins with a
//!   folder: each line begins with one or more paths, two spaces apart, below the less indented line
//!   above it; a description may follow, whose file names are looked for below the line's own path.
//! - `Code spans` that end with `/` or with a file ending that the project uses: a path from the
//!   root, or the tail of one, so that `round.rs` or `semaphore/store.rs` will do.
//! - Links to files, from the root.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// File endings that make a word the name of a file.
const ENDINGS: [&str; 7] = [".rs", ".md", ".toml", ".lock", ".jsonl", ".ts", ".yml"];

/// Folders that hold what was built or fetched, or Git's own.
const NOT_OURS: [&str; 4] = [".git", "target", "node_modules", "durably-data"];

#[test]
fn every_path_named_in_the_architecture_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let map = fs::read_to_string(root.join("ARCHITECTURE.md"))
        .unwrap_or_else(|error| panic!("ARCHITECTURE.md at the root of the project: {error}"));
    let mut existing = BTreeSet::new();
    collect(&root, "", &mut existing);

    let named = named_paths(&map);
    assert!(
        named.iter().any(|name| name.place == Place::Exact),
        "ARCHITECTURE.md has no tree of rooms: a fenced block without a language, a path a line"
    );
    let mut missing = String::new();
    for name in &named {
        if !exists(name, &existing) {
            let _ = writeln!(missing, "  line {}: {}", name.line, name.path);
        }
    }
    assert!(
        missing.is_empty(),
        "ARCHITECTURE.md names what does not exist; mend the map or the code:\n{missing}"
    );
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The path starts at the root.
    Exact,
    /// The path is the tail of one or more paths.
    Anywhere,
}

#[derive(Debug)]
struct Named {
    line: usize,
    path: String,
    place: Place,
}

fn exists(name: &Named, existing: &BTreeSet<String>) -> bool {
    let path = name.path.trim_end_matches('/');
    existing.contains(path)
        || name.place == Place::Anywhere
            && existing.iter().any(|known| {
                known
                    .strip_suffix(path)
                    .is_some_and(|rest| rest.ends_with('/'))
            })
}

fn named_paths(map: &str) -> Vec<Named> {
    let mut named = Vec::new();
    // The block that is open: its language, and its lines so far.
    let mut block: Option<(&str, Vec<(usize, &str)>)> = None;
    for (index, text) in map.lines().enumerate() {
        let line = index + 1;
        if let Some(language) = text.trim_start().strip_prefix("```") {
            match block.take() {
                None => block = Some((language.trim(), Vec::new())),
                Some(("", lines)) if is_tree(&lines) => {
                    let mut above = Vec::new();
                    for (line, text) in lines {
                        tree_line(line, text, &mut above, &mut named);
                    }
                }
                Some(_) => {}
            }
        } else if let Some((_, lines)) = &mut block {
            lines.push((line, text));
        } else {
            prose_line(line, text, &mut named);
        }
    }
    named
}

/// Tells a tree of rooms from a drawing: some line of it begins with a folder.
fn is_tree(lines: &[(usize, &str)]) -> bool {
    lines.iter().any(|(_, text)| {
        let first = text.split_whitespace().next().unwrap_or_default();
        is_path(first) && first.ends_with('/')
    })
}

/// Reads a line of the tree of rooms; `above` holds the folders it may stand in, with their indents.
fn tree_line(line: usize, text: &str, above: &mut Vec<(usize, String)>, named: &mut Vec<Named>) {
    let text = text.replace(['│', '├', '└', '─'], " ");
    let indent = text.len() - text.trim_start().len();
    while above.last().is_some_and(|(outer, _)| *outer >= indent) {
        above.pop();
    }
    let parent = above
        .last()
        .map_or(String::new(), |(_, folder)| format!("{folder}/"));
    let mut parts = text
        .split("  ")
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let mut paths = Vec::new();
    let mut description = String::new();
    for part in parts.by_ref() {
        let first = paths.is_empty();
        // Further paths of a line look like ones; a lone word may be its description.
        if is_path(part) && (first || part.contains(['.', '/']) || part == "justfile") {
            paths.push(format!("{parent}{}", part.trim_end_matches('/')));
        } else {
            description = part.to_owned();
            break;
        }
    }
    for rest in parts {
        description.push(' ');
        description.push_str(rest);
    }
    if let [only] = &paths[..] {
        above.push((indent, only.clone()));
        for word in description
            .split(|character: char| character.is_whitespace() || "(),;".contains(character))
        {
            let word = word.trim_matches('`').trim_end_matches('.');
            if is_path(word) && names_a_file(word) {
                named.push(Named {
                    line,
                    path: format!("{only}/{word}"),
                    place: Place::Exact,
                });
            }
        }
    }
    named.extend(paths.into_iter().map(|path| Named {
        line,
        path,
        place: Place::Exact,
    }));
}

fn prose_line(line: usize, text: &str, named: &mut Vec<Named>) {
    // The odd parts stand between backticks.
    for span in text.split('`').skip(1).step_by(2) {
        if is_path(span) && !span.starts_with('/') && (span.ends_with('/') || names_a_file(span)) {
            named.push(Named {
                line,
                path: span.to_owned(),
                place: Place::Anywhere,
            });
        }
    }
    for link in text.split("](").skip(1) {
        let target = link.split([')', '#', ' ']).next().unwrap_or_default();
        if !target.is_empty() && !target.contains(':') {
            named.push(Named {
                line,
                path: target.trim_start_matches("./").to_owned(),
                place: Place::Exact,
            });
        }
    }
}

fn is_path(word: &str) -> bool {
    !word.is_empty()
        && word
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || "-_./".contains(character))
}

fn names_a_file(word: &str) -> bool {
    ENDINGS
        .iter()
        .any(|ending| word.len() > ending.len() && word.ends_with(ending))
}

/// Adds every file and folder below `folder`, as paths from the root.
fn collect(root: &Path, folder: &str, into: &mut BTreeSet<String>) {
    let entries = fs::read_dir(root.join(folder))
        .unwrap_or_else(|error| panic!("cannot list {folder:?} of the project: {error}"));
    for entry in entries {
        let entry = entry.expect("an entry of a folder of the project");
        let name = entry.file_name().to_string_lossy().into_owned();
        if NOT_OURS.contains(&name.as_str()) {
            continue;
        }
        let path = if folder.is_empty() {
            name
        } else {
            format!("{folder}/{name}")
        };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(root, &path, into);
        }
        into.insert(path);
    }
}

mod reading {
    use super::*;

    fn paths(map: &str) -> Vec<String> {
        let mut paths: Vec<String> = named_paths(map).into_iter().map(|name| name.path).collect();
        paths.sort();
        paths
    }

    #[test]
    fn a_tree_of_rooms_gives_the_full_path_of_each_room() {
        let map = "```\n\
                   README.md  justfile  deny.toml\n\
                   crates/\n\
                   \x20 durably/          the library: no tokio. It decides.\n\
                   \x20   clippy.toml       bans clocks\n\
                   \x20   src/error.rs  src/time.rs\n\
                   \x20 durably-cli/      serve, demo\n\
                   docs/               tables.md (all), decisions/\n\
                   ```\n";
        assert_eq!(
            paths(map),
            [
                "README.md",
                "crates",
                "crates/durably",
                "crates/durably-cli",
                "crates/durably/clippy.toml",
                "crates/durably/src/error.rs",
                "crates/durably/src/time.rs",
                "deny.toml",
                "docs",
                "docs/tables.md",
                "justfile",
            ]
        );
    }

    #[test]
    fn a_drawing_is_no_tree() {
        assert!(paths("```\nenqueue -> draw\n   claim  release\n```\n").is_empty());
    }

    #[test]
    fn branches_drawn_with_lines_read_the_same() {
        let map = "```\ncrates/\n├── durably/\n│   └── src/\n└── durably-cli/\n```\n";
        assert_eq!(
            paths(map),
            [
                "crates",
                "crates/durably",
                "crates/durably-cli",
                "crates/durably/src"
            ]
        );
    }

    #[test]
    fn prose_names_files_in_code_spans_and_links() {
        let map = "SQL lives in `store.rs`, not in `round`; `POST /v1/jobs` and `a/b` are none.\n\
                   See [tables](docs/tables.md#semaphore), [site](https://example.com/a.md).\n\
                   ```rust\nlet path = \"gone.rs\";\n```\n";
        assert_eq!(paths(map), ["docs/tables.md", "store.rs"]);
    }

    #[test]
    fn a_name_in_prose_may_be_the_tail_of_a_path_and_a_room_may_not() {
        let existing = BTreeSet::from(["src/store.rs".to_owned()]);
        let named = |path: &str, place| Named {
            line: 1,
            path: path.to_owned(),
            place,
        };
        assert!(exists(&named("store.rs", Place::Anywhere), &existing));
        assert!(!exists(&named("ore.rs", Place::Anywhere), &existing));
        assert!(!exists(&named("store.rs", Place::Exact), &existing));
    }
}
