//! What the tests of publishers share.

use std::rc::Rc;

use durably::Timestamp;
use durably::testing::published;
use durably::topology::{Edition, Member, MemberState, Publication, decode};

pub(crate) fn edition(version: u64) -> Edition {
    published::edition("coordinator-1", Timestamp::from_millis(1_000), version)
}

/// A snapshot of `group` with so many members.
pub(crate) fn snapshot_of(group: &str, version: u64, members: u64) -> Rc<Publication> {
    let members = (0..members)
        .map(|number| {
            let id = format!("{version}-{number}");
            Member::new(id, MemberState::Active, Timestamp::from_millis(version))
        })
        .collect();
    Rc::new(published::write(group, &edition(version), members))
}

pub(crate) fn snapshot(group: &str, version: u64) -> Rc<Publication> {
    snapshot_of(group, version, 2)
}

pub(crate) fn deletion(group: &str, version: u64) -> Rc<Publication> {
    Rc::new(published::deletion(group, &edition(version)))
}

/// The version that a stored text is of.
pub(crate) fn version(group: &str, text: Option<Vec<u8>>) -> Option<u64> {
    let text = text?;
    let read = decode(group, &text).expect("what is stored is whole");
    Some(read.edition.version)
}

/// Fails the test unless all cases of an exam were passed.
pub(crate) fn passed(verdicts: Vec<(&'static str, Result<(), String>)>) {
    assert!(!verdicts.is_empty());
    let failures: Vec<String> = verdicts
        .into_iter()
        .filter_map(|(case, verdict)| Some(format!("{case}: {}", verdict.err()?)))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
