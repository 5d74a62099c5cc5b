//! State channels and what is known of how far they have come.

use durably::topology::{Audience, Draft, NewMember};
use serde_json::json;

use crate::support::{Fixture, Reaction, TIMEOUT, seconds};

fn three() -> Draft {
    Draft::members(["a", "b", "c"].map(NewMember::active))
}

#[test]
fn a_member_that_hangs_or_fails_delays_nobody() {
    let (fixture, _) = Fixture::with_store(true);
    fixture.react("a", Reaction::Hang);
    fixture.react("b", Reaction::Fail);
    fixture
        .draft(three().state("limits", 1))
        .expect("a good draft");
    assert_eq!(fixture.delivered(), [("c".to_owned(), 1, json!(1))]);
    fixture
        .draft(Draft::default().state("limits", 2))
        .expect("a good draft");
    assert_eq!(fixture.delivered(), [("c".to_owned(), 2, json!(2))]);
    let convergence = fixture.convergence();
    assert!(!convergence.converged);
    assert!(convergence.reached(1, Audience::Published));
    assert!(!convergence.reached(1, Audience::Quorum));
    assert!(
        !convergence.reached(2, Audience::Published),
        "there is no version 2"
    );
    let members = &convergence.channels[0].members;
    assert_eq!(members.len(), 3);
    assert_eq!(
        members[1].progress.last_error.as_deref(),
        Some("the member is away")
    );
    assert!(members[1].progress.next_attempt_at.is_some() && members[1].progress.attempts > 0);
    assert!(members[2].progress.done);

    // Whoever comes back is sent the newest only.
    fixture.react("a", Reaction::Take);
    fixture.react("b", Reaction::Take);
    fixture.world.advance(TIMEOUT + seconds(2));
    let mut delivered = fixture.delivered();
    delivered.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(
        delivered,
        [("a".to_owned(), 2, json!(2)), ("b".to_owned(), 2, json!(2))]
    );
    assert!(fixture.convergence().converged);
}

#[test]
fn waiting_ends_when_the_audience_has_it_or_the_time_is_up() {
    let (fixture, _) = Fixture::with_store(true);
    fixture.react("a", Reaction::Fail);
    fixture
        .draft(three().state("limits", 1))
        .expect("a good draft");
    let wait = |audience, timeout| {
        fixture.call(
            move |topology| async move { topology.wait_until("g", 1, audience, timeout).await },
        )
    };
    let begun = fixture.world.now();
    let quorum = wait(Audience::Quorum, seconds(60)).expect("the group exists");
    assert!(quorum.reached(1, Audience::Quorum));
    assert_eq!(fixture.world.now(), begun, "two of three have it already");
    let all = wait(Audience::All, seconds(30)).expect("the group exists");
    assert!(!all.reached(1, Audience::All));
    assert_eq!(fixture.world.now(), begun + seconds(30));
    let around = fixture.around.clone();
    let world = fixture.world.clone();
    fixture.world.spawn(async move {
        world.sleep(seconds(5)).await;
        around.reactions.borrow_mut().clear();
    });
    let all = wait(Audience::All, seconds(3_600)).expect("the group exists");
    assert!(all.reached(1, Audience::All));
    assert!(fixture.world.now() <= begun + seconds(37));
    let unknown = fixture.call(|topology| async move {
        topology
            .wait_until("nobody", 1, Audience::All, seconds(1))
            .await
    });
    assert_eq!(unknown.expect_err("refused").code(), "unknown_group");
}

#[test]
fn an_update_that_changes_nothing_publishes_and_delivers_nothing() {
    let (fixture, store) = Fixture::with_store(true);
    fixture
        .draft(three().state("limits", json!({"a": 1, "b": 2})))
        .expect("a good draft");
    fixture.delivered();
    let calls = store.calls.get();
    let same = fixture.update(|current| {
        let mut members: Vec<NewMember> = current.members.iter().map(NewMember::from).collect();
        members.reverse();
        Ok(Draft::members(members).state("limits", json!({"b": 2.0, "a": 1})))
    });
    let same = same.expect("a good draft");
    assert_eq!((same.snapshot.version, same.published), (1, true));
    assert_eq!(store.calls.get(), calls);
    assert!(fixture.delivered().is_empty());
}

#[test]
fn groups_are_listed_without_the_deleted_ones() {
    let (fixture, _) = Fixture::with_store(true);
    let listed = fixture.call(|topology| async move {
        for number in 0..5 {
            topology
                .update(&format!("g{number}"), |_| Ok(three()))
                .await?;
        }
        for number in [0, 1, 3] {
            topology.delete(&format!("g{number}"), None).await?;
        }
        let first = topology.groups("", 2).await?;
        let second = topology.groups(&first[first.len() - 1], 2).await?;
        let third = topology.groups(&second[second.len() - 1], 2).await?;
        Ok::<_, durably::topology::TopologyError>([first, second, third])
    });
    let none: [&str; 0] = [];
    assert_eq!(
        listed.expect("storage answers"),
        [vec!["g2"], vec!["g4"], none.to_vec()]
    );
}
