//! Which copies are taken: never an older one, never a damaged one.

use durably::topology::{Origin, SnapshotError, UnavailableReason};

use crate::setup::{Answer, Stand, edition, ms, text, tombstone, version};

#[test]
fn an_older_copy_is_not_taken_and_the_store_is_looked_at_again_soon() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(7));
    stand.get("g").expect("published");
    stand.store.set(version(6));
    stand.at(40_000);
    let kept = stand.get("g").expect("the newer one");
    assert_eq!((kept.version(), kept.origin()), (7, Origin::Cached));
    assert_eq!(kept.age(), ms(40_000));
    stand.at(44_999);
    assert_eq!(stand.get("g").expect("kept").version(), 7);
    assert_eq!(stand.store.reads(), 2);
    stand.store.set(version(8));
    stand.at(45_000);
    let fresh = stand.get("g").expect("published");
    assert_eq!((fresh.version(), fresh.origin()), (8, Origin::Fresh));
}

#[test]
fn the_same_edition_again_is_fresh() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(7));
    stand.get("g").expect("published");
    stand.at(40_000);
    let again = stand.get("g").expect("published");
    assert_eq!((again.origin(), again.age()), (Origin::Fresh, ms(0)));
}

#[test]
fn an_older_incarnation_is_refused_a_newer_one_and_another_coordinator_are_taken() {
    let stand = Stand::new(|_| {});
    let steps = [
        (edition("c", 5, 9), 9),
        // Restored from a copy, it counts anew.
        (edition("c", 6, 2), 2),
        (edition("c", 5, 10), 2),
        (edition("d", 1, 1), 1),
        (edition("d", 1, 0), 1),
    ];
    for (step, (edition, version)) in steps.into_iter().enumerate() {
        stand.store.set(text("g", &edition));
        stand.at(40_000 * step as u64);
        let read = stand.get("g").expect("published");
        assert_eq!(read.version(), version, "{edition}");
    }
}

#[test]
fn a_deleted_group_is_missing_and_what_was_before_does_not_come_back() {
    let stand = Stand::new(|options| options.stale_if_error = Some(ms(1_000_000)));
    stand.store.set(version(3));
    stand.get("g").expect("published");
    stand.store.set(tombstone(4));
    let mut at = 40_000;
    let mut missing = |answer: Option<Answer>| {
        if let Some(answer) = answer {
            stand.store.set(answer);
        }
        stand.at(at);
        at += 5_000;
        stand.get("g").expect_err("deleted").reason
    };
    assert!(matches!(missing(None), UnavailableReason::Missing));
    assert!(matches!(
        missing(Some(version(3))),
        UnavailableReason::Missing
    ));
    assert!(matches!(
        missing(Some(Answer::Nothing)),
        UnavailableReason::Missing
    ));
    assert!(matches!(
        missing(Some(version(3))),
        UnavailableReason::Missing
    ));
    // Nor while the store is away.
    assert!(matches!(
        missing(Some(Answer::Error)),
        UnavailableReason::Failed(_)
    ));
    stand.store.set(version(5));
    stand.at(at);
    assert_eq!(stand.get("g").expect("made again").version(), 5);
    // The tombstone is the older one now.
    stand.store.set(tombstone(4));
    stand.at(at + 40_000);
    assert_eq!(stand.get("g").expect("made again").version(), 5);
}

#[test]
fn a_copy_that_was_away_comes_back_but_none_before_it() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(3));
    stand.get("g").expect("published");
    stand.store.set(Answer::Nothing);
    stand.at(40_000);
    stand.get("g").expect_err("missing");
    stand.store.set(version(2));
    stand.at(45_000);
    assert_eq!(
        stand.get("g").expect_err("older").code(),
        "topology_missing"
    );
    stand.store.set(version(3));
    stand.at(50_000);
    assert_eq!(stand.get("g").expect("there again").version(), 3);
}

#[test]
fn what_cannot_be_used_is_told_by_its_reason() {
    let Answer::Text(good) = version(1) else {
        unreachable!("a text")
    };
    let cut = good[..good.len() / 2].to_owned();
    let changed = good.replace("member-of-1", "member-of-2");
    let newer = r#"{"schema":2,"content":{}}"#.to_owned();
    let Answer::Text(other) = text("other", &edition("c", 1, 1)) else {
        unreachable!("a text")
    };
    let invalid = |text: String| {
        let stand = Stand::new(|_| {});
        stand.store.set(Answer::Text(text));
        let error = stand.get("g").expect_err("not to be used");
        assert_eq!(error.code(), "topology_invalid");
        let UnavailableReason::Invalid(problem) = error.reason.clone() else {
            panic!("{error}")
        };
        (problem, error.to_string())
    };
    assert_eq!(invalid(cut).0.code(), "snapshot_malformed");
    assert_eq!(invalid(String::new()).0.code(), "snapshot_malformed");
    assert_eq!(invalid(changed).0, SnapshotError::Checksum);
    let (problem, message) = invalid(newer);
    assert_eq!(problem, SnapshotError::NewerSchema { found: 2 });
    assert!(message.contains("schema is 2"), "{message}");
    let found = "other".to_owned();
    assert_eq!(invalid(other).0, SnapshotError::OtherGroup { found });
}

#[test]
fn what_cannot_be_used_takes_nothing_away() {
    let stand = Stand::new(|options| options.stale_if_error = Some(ms(60_000)));
    stand.store.set(version(4));
    stand.get("g").expect("published");
    stand.store.set(Answer::Text("{".to_owned()));
    stand.at(40_000);
    assert_eq!(stand.get("g").expect("stale").version(), 4);
    stand.store.set(version(3));
    stand.at(45_000);
    assert_eq!(stand.get("g").expect("refused").version(), 4);
}
