//! Draining with an end.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use durably::topology::{Draft, DrainEnd, MemberState, NewMember, TopologyEventKind};

use crate::support::{Fixture, seconds};

fn draining(end: Option<DrainEnd>) -> Draft {
    let drained = match end {
        Some(end) => NewMember::active("b").drain(end),
        None => NewMember::draining("b"),
    };
    Draft::members([NewMember::active("a"), drained])
}

#[test]
fn a_member_is_removed_when_its_time_is_up_also_after_a_crash() {
    for crash in [false, true] {
        let (fixture, store) = Fixture::with_store(true);
        fixture
            .draft(draining(Some(DrainEnd::within(seconds(100)))))
            .expect("a good draft");
        if crash {
            fixture.object.crash();
        }
        fixture.world.advance(seconds(99));
        assert_eq!(fixture.members(), ["a", "b"]);
        fixture.world.advance(seconds(16));
        assert_eq!(fixture.members(), ["a"]);
        assert_eq!(store.version("g"), Some(2), "and that is published");
        let drained = TopologyEventKind::Drained {
            member: "b".to_owned(),
            by_deadline: true,
        };
        assert!(
            fixture
                .around
                .events
                .borrow()
                .contains(&("g".to_owned(), drained))
        );
        assert_eq!(fixture.object.storage().alarm(), None);
    }
}

#[test]
fn without_an_end_a_draining_member_stays_until_a_draft_omits_it() {
    let (fixture, _) = Fixture::with_store(true);
    fixture.draft(draining(None)).expect("a good draft");
    fixture.world.advance(seconds(100_000));
    assert_eq!(fixture.members(), ["a", "b"]);
    fixture
        .draft(Draft::members([NewMember::active("a")]))
        .expect("a good draft");
    assert_eq!(fixture.members(), ["a"]);
}

#[test]
fn a_member_is_removed_as_soon_as_the_application_says_so() {
    let (fixture, _) = Fixture::with_store(true);
    let left = Rc::new(Cell::new(3));
    let asked = left.clone();
    fixture.configure(move |builder| {
        let left = asked.clone();
        let drained = move |group: String, member: durably::topology::Member| {
            assert_eq!((group.as_str(), member.id.as_str()), ("g", "b"));
            assert_eq!(member.state, MemberState::Draining);
            left.set(left.get() - 1);
            let answer = match left.get() {
                1 => Err("nobody knows".into()),
                left => Ok(left == 0),
            };
            async move { answer }
        };
        builder.drained(drained).drain_check_period(seconds(20))
    });
    fixture
        .draft(draining(Some(DrainEnd::when_drained())))
        .expect("a good draft");
    assert_eq!(fixture.members(), ["a", "b"]);
    fixture.world.advance(seconds(61));
    assert_eq!(fixture.members(), ["a"]);
    assert_eq!(left.get(), 0);
}

#[test]
fn an_update_that_restates_the_members_keeps_the_end_and_another_ends_it() {
    let (fixture, _) = Fixture::with_store(true);
    fixture
        .draft(draining(Some(DrainEnd::within(seconds(100)))))
        .expect("a good draft");
    let restated =
        fixture.update(|current| Ok(Draft::members(&current.members).state("limits", 1)));
    assert_eq!(restated.expect("a good draft").snapshot.version, 1);
    fixture.world.advance(seconds(50));
    // Active again: it is not removed any more, and draining anew without an end does not bring it back.
    fixture
        .draft(Draft::members([
            NewMember::active("a"),
            NewMember::active("b"),
        ]))
        .expect("a good draft");
    fixture.draft(draining(None)).expect("a good draft");
    fixture.world.advance(seconds(1_000));
    assert_eq!(fixture.members(), ["a", "b"]);
}

#[test]
fn the_last_member_of_a_group_stays() {
    let (fixture, _) = Fixture::with_store(true);
    let only = NewMember::active("a").drain(DrainEnd::within(Duration::from_millis(1)));
    fixture.draft(Draft::members([only])).expect("a good draft");
    fixture.world.advance(seconds(200));
    assert_eq!(fixture.members(), ["a"]);
    // With another one there it goes at the next look.
    let joined = fixture.update(|current| {
        let others = current.members.iter().map(NewMember::from);
        Ok(Draft::members(others.chain([NewMember::active("b")])))
    });
    joined.expect("a good draft");
    fixture.world.advance(seconds(46));
    assert_eq!(fixture.members(), ["b"]);
}
