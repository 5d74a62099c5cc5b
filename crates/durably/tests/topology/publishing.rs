//! Publication: late writes, stores that compare versions, restored copies.

use std::time::Duration;

use durably::testing::published;
use durably::topology::{
    Draft, Edition, Incarnation, Landing, NewMember, Publication, Publisher, Snapshot,
    TopologyEventKind, decode,
};

use crate::support::{Course, Fixture, TIMEOUT, seconds};

fn members(count: usize) -> Draft {
    Draft::members((0..count).map(|number| NewMember::active(format!("m{number}"))))
}

/// A write whose answer is lost, and which lands that much later.
fn lands_late(after: Duration) -> Course {
    Course {
        lands_after: Some(after),
        answers_after: None,
    }
}

#[test]
fn an_old_write_that_lands_late_is_overwritten_in_time() {
    // After the newer write, before the end of the landing window, in every kind of instance.
    for crash in [false, true] {
        for late in [
            TIMEOUT + seconds(5),
            TIMEOUT + seconds(60),
            TIMEOUT + seconds(299),
        ] {
            let (fixture, store) = Fixture::with_store(false);
            store.courses([lands_late(late)]);
            fixture.start(|topology| async move { topology.update("g", |_| Ok(members(1))).await });
            if crash {
                fixture.object.crash();
            } else {
                fixture.world.advance(TIMEOUT);
            }
            let second = fixture.draft(members(2)).expect("a good draft");
            assert_eq!(second.snapshot.version, 2);
            assert!(!second.published, "the older write may still land over it");
            assert_eq!(store.version("g"), Some(2));
            fixture.world.advance(late);
            assert!(store.landed.borrow().contains(&1), "it did land");
            fixture.world.advance(TIMEOUT + seconds(300 + 15));
            assert_eq!(store.version("g"), Some(2), "{late:?} {crash}");
            assert!(fixture.convergence().converged);
            let calls = store.calls.get();
            fixture.world.advance(seconds(3_600));
            assert_eq!(store.calls.get(), calls, "final is final");
        }
    }
}

#[test]
fn a_write_whose_publisher_panicked_may_land_as_well() {
    let (fixture, store) = Fixture::with_store(false);
    store.courses([lands_late(seconds(60))]);
    store.panics.set(true);
    let first = fixture.draft(members(1)).expect("a good draft");
    assert!(!first.published);
    let second = fixture.draft(members(2)).expect("a good draft");
    assert!(!second.published, "the first may still land over it");
    fixture.world.advance(TIMEOUT + seconds(300 + 15));
    assert!(store.landed.borrow().contains(&1), "it did land");
    assert_eq!(store.version("g"), Some(2));
    assert!(fixture.convergence().converged);
}

#[test]
fn on_a_version_aware_store_the_same_write_never_lands_and_nothing_waits_for_it() {
    for crash in [false, true] {
        let (fixture, store) = Fixture::with_store(true);
        store.courses([lands_late(TIMEOUT + seconds(60))]);
        fixture.start(|topology| async move { topology.update("g", |_| Ok(members(1))).await });
        if crash {
            fixture.object.crash();
        } else {
            fixture.world.advance(TIMEOUT);
        }
        let second = fixture.draft(members(2)).expect("a good draft");
        assert!(second.published);
        fixture.world.advance(seconds(600));
        assert_eq!(*store.landed.borrow(), [2]);
        assert_eq!(store.version("g"), Some(2));
    }
}

#[test]
fn a_deletion_is_published_and_a_recreated_group_is_newer() {
    for aware in [false, true] {
        let (fixture, store) = Fixture::with_store(aware);
        fixture.draft(members(1)).expect("a good draft");
        let deleted = fixture.call(|topology| async move { topology.delete("g", None).await });
        let deleted = deleted.expect("deleted");
        assert_eq!((deleted.version, deleted.published), (Some(2), true));
        assert_eq!(store.version("g"), None);
        let again = fixture.call(|topology| async move { topology.delete("g", None).await });
        assert_eq!(again.expect("nothing to do").version, None);
        let back = fixture.draft(members(1)).expect("a good draft");
        assert_eq!(back.snapshot.version, 3);
        assert_eq!(store.version("g"), Some(3));
    }
}

#[test]
fn a_slow_group_does_not_hold_up_another() {
    let (fixture, store) = Fixture::with_store(true);
    store.courses([lands_late(seconds(1 << 20))]);
    fixture.start(|topology| async move { topology.update("slow", |_| Ok(members(1))).await });
    let begun = fixture.world.now();
    assert!(fixture.draft(members(1)).expect("a good draft").published);
    assert_eq!(fixture.world.now(), begun);
}

#[test]
fn a_coordinator_that_finds_what_it_has_not_published_begins_anew() {
    // As if its storage had been restored from an older copy: the store is ahead of it, or at the
    // same version with other members.
    for stored in [9, 2] {
        let (fixture, store) = Fixture::with_memory();
        let incarnation = fixture.call(|topology| async move { topology.incarnation() });
        let incarnation = incarnation.expect("it has one");
        let coordinator = fixture
            .draft(members(1))
            .expect("a good draft")
            .snapshot
            .coordinator;
        let edition = Edition {
            coordinator: coordinator.clone(),
            incarnation: incarnation.clone(),
            version: stored,
        };
        let newer = Publication::Write {
            snapshot: Snapshot::new("g", stored, coordinator, Vec::new()),
            encoded: published::text("g", &edition, Some(&[])),
            edition,
        };
        let landed = fixture.world.block_on(store.publish(newer.into()));
        assert_eq!(landed.expect("the store answers"), Landing::Stored);

        fixture.draft(members(2)).expect("a good draft");
        fixture.world.advance(seconds(60));
        let text = store.read("g").expect("published");
        let read = decode("g", text.as_bytes()).expect("a good text");
        assert!(read.edition.incarnation > incarnation);
        assert_eq!(read.edition.version, 2);
        assert_eq!(read.members.map(|members| members.len()), Some(2));
        assert!(fixture.convergence().converged);
        let renewed = |(_, kind): &(String, TopologyEventKind)| {
            matches!(kind, TopologyEventKind::Incarnation(_))
        };
        let events = fixture.around.events.borrow();
        assert_eq!(events.iter().filter(|event| renewed(event)).count(), 1);
    }
}

#[test]
fn an_operator_begins_a_new_incarnation_and_all_groups_are_published_again() {
    let (fixture, store) = Fixture::with_memory();
    fixture.draft(members(1)).expect("a good draft");
    fixture
        .call(|topology| async move {
            topology.update("h", |_| Ok(members(1))).await?;
            topology.delete("h", Some(1)).await
        })
        .expect("made and deleted");
    let incarnation_of = |group: &str| -> Incarnation {
        let text = store.read(group).expect("published");
        decode(group, text.as_bytes())
            .expect("a good text")
            .edition
            .incarnation
    };
    let before = incarnation_of("g");
    let begun = fixture.call(|topology| async move { topology.new_incarnation().await });
    let begun = begun.expect("storage answers");
    fixture.world.advance(seconds(1));
    assert!(begun > before);
    for group in ["g", "h"] {
        assert_eq!(incarnation_of(group), begun, "{group}");
    }
    fixture.object.crash();
    let kept = fixture.call(|topology| async move { topology.incarnation() });
    assert_eq!(kept, Some(begun));
}

#[test]
fn opening_again_publishes_and_writes_nothing() {
    let (fixture, store) = Fixture::with_store(false);
    fixture
        .draft(members(3).state("limits", 1))
        .expect("a good draft");
    fixture.world.advance(seconds(60));
    fixture.delivered();
    let rows = |fixture: &Fixture| {
        fixture
            .object
            .storage()
            .read(|sql| sql.first("SELECT total_changes()", &[], |row| row.count(0)))
    };
    let (calls, before) = (store.calls.get(), rows(&fixture));
    fixture.object.crash();
    assert_eq!(fixture.members().len(), 3);
    fixture.world.advance(seconds(60));
    assert_eq!(store.calls.get(), calls);
    assert!(fixture.delivered().is_empty());
    assert_eq!(rows(&fixture), before);
}
