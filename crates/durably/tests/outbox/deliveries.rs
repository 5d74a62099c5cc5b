//! What reaches a receiver, how often, and what becomes of its answers.

use durably::OpenError;
use durably::outbox::{Ending, OutboxError, Outcome, Overlap};
use serde_json::json;

use crate::support::{Act, Fixture, How, after, config, seconds};

const BOTH: [Overlap; 2] = [Overlap::PerKey, Overlap::Never];

#[test]
fn a_staged_value_is_delivered_with_the_transaction_that_staged_it() {
    for overlap in BOTH {
        let (fixture, receiver) = Fixture::one(config(overlap), How::Each);
        let refused = fixture.transaction(|transaction, channel| {
            channel.stage(transaction, "a", &json!(1))?;
            Err::<(), _>(OutboxError::InvalidKey(0))
        });
        assert!(refused.is_err());
        fixture.world.advance(seconds(60));
        assert!(
            receiver.got().is_empty(),
            "what was undone is not delivered"
        );

        assert_eq!(fixture.stage("a", 7), 1);
        assert_eq!(receiver.got(), ["a 1 1"]);
        assert_eq!(receiver.last("a").expect("it came").value, json!(7));
        let status = fixture.status("a");
        assert_eq!(status.ended, Some(Ending::Delivered));
        assert_eq!(status.next_attempt_at, None);
        assert_eq!(
            fixture.events(),
            ["a staged 1 0", "a attempt 1 1", "a delivered 1 1"]
        );
    }
}

#[test]
fn versions_count_on_through_delivery_discard_and_crash() {
    let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
    assert_eq!(fixture.stage("a", 1), 1);
    receiver.script("a", [Act::Hang]);
    assert_eq!(fixture.stage("a", 2), 2);
    assert!(fixture.discard("a"));
    assert!(!fixture.discard("a"), "nothing is pending any more");
    fixture.object.crash();
    assert_eq!(fixture.stage("a", 3), 3);
    assert_eq!(fixture.stage("b", 1), 1, "each key counts for itself");
    assert_eq!(receiver.got(), ["a 1 1", "a 2 1", "a 3 1", "b 1 1"]);
}

#[test]
fn the_latest_value_wins_and_an_old_outcome_does_not_count() {
    let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
    receiver.script("a", [after(seconds(3), Act::Done)]);
    fixture.stage("a", 1);
    fixture.stage("a", 2);
    fixture.stage("a", 3);
    assert_eq!(
        receiver.got(),
        ["a 1 1"],
        "calls for one key do not overlap"
    );
    fixture.world.advance(seconds(3));
    assert_eq!(
        receiver.got(),
        ["a 1 1", "a 3 1"],
        "version 2 has no occasion any more"
    );
    assert_eq!(fixture.status("a").ended, Some(Ending::Delivered));
    let superseded: Vec<_> = fixture
        .events()
        .into_iter()
        .filter(|event| event.contains("superseded"))
        .collect();
    assert_eq!(superseded, ["a superseded 1 1", "a superseded 2 0"]);
}

#[test]
fn failures_are_tried_again_and_said() {
    for act in [Act::Fail, Act::Panic, Act::Hang] {
        let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
        let hangs = matches!(act, Act::Hang);
        receiver.script("a", [act]);
        fixture.stage("a", 1);
        if hangs {
            fixture.world.advance(seconds(10));
        }
        let status = fixture.status("a");
        assert_eq!((status.ended, status.attempts), (None, 1));
        assert_eq!(
            status.next_attempt_at,
            Some(fixture.world.now() + seconds(1))
        );
        let error = status.last_error.expect("why");
        let reasons = [
            "the receiver is away",
            "panicked: a callback that fails",
            "longer than 10000 ms",
        ];
        assert!(
            reasons.iter().any(|reason| error.contains(reason)),
            "{error}"
        );
        assert_eq!(fixture.pending(), [fixture.status("a")]);
        fixture.world.advance(seconds(1));
        assert_eq!(receiver.got(), ["a 1 1", "a 1 2"]);
        assert_eq!(fixture.status("a").last_error, None);
        assert!(fixture.pending().is_empty());
    }
}

#[test]
fn a_callback_asks_for_a_delay_or_drops_an_entry() {
    let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
    let later = Outcome::Retry {
        after: Some(seconds(100)),
        error: Some("not yet".to_owned()),
    };
    receiver.script("a", [Act::Answer(later), Act::Answer(Outcome::Dropped)]);
    fixture.stage("a", 1);
    let status = fixture.status("a");
    assert_eq!(
        status.next_attempt_at,
        Some(fixture.world.now() + seconds(100))
    );
    assert_eq!(status.last_error.as_deref(), Some("not yet"));
    fixture.world.advance(seconds(99));
    assert_eq!(receiver.got().len(), 1);
    fixture.world.advance(seconds(1));
    assert_eq!(receiver.got().len(), 2);
    assert_eq!(fixture.status("a").ended, Some(Ending::Discarded));
    assert_eq!(
        fixture.events().last().map(String::as_str),
        Some("a discarded 1 2")
    );
}

#[test]
fn a_discarded_entry_that_is_on_its_way_ends_whatever_its_call_answers() {
    for act in [Act::Done, Act::Fail] {
        let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
        receiver.script("a", [after(seconds(2), act)]);
        fixture.stage("a", 1);
        assert!(fixture.discard("a"));
        fixture.world.advance(seconds(60));
        assert_eq!(receiver.got(), ["a 1 1"]);
        assert_eq!(fixture.status("a").ended, Some(Ending::Discarded));
    }
}

#[test]
fn an_attempt_that_a_crash_cut_off_counts_and_is_repeated_at_once() {
    for overlap in BOTH {
        let (fixture, receiver) = Fixture::one(config(overlap), How::Each);
        receiver.script("a", [Act::Hang]);
        fixture.stage("a", 1);
        fixture.object.crash();
        // Nobody calls: the alarm brings the object back.
        fixture.world.advance(seconds(15));
        assert_eq!(receiver.got(), ["a 1 1", "a 1 2"]);
        assert_eq!(fixture.status("a").ended, Some(Ending::Delivered));
        assert_eq!(fixture.object.storage().alarm(), None);
    }
}

#[test]
fn staging_resets_attempts_and_delay() {
    let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
    receiver.script("a", [Act::Fail, Act::Fail]);
    fixture.stage("a", 1);
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.status("a").attempts, 2);
    assert_eq!(fixture.stage("a", 2), 2);
    assert_eq!(receiver.got(), ["a 1 1", "a 1 2", "a 2 1"]);
}

#[test]
fn publish_now_does_not_wait_for_the_due_time_and_tells_the_truth() {
    for overlap in BOTH {
        let (fixture, receiver) = Fixture::one(config(overlap), How::Each);
        assert!(fixture.publish_now("a"), "nothing is pending");
        receiver.script("a", [Act::Fail, Act::Fail]);
        fixture.stage("a", 1);
        assert!(!fixture.publish_now("a"));
        assert_eq!(receiver.got(), ["a 1 1", "a 1 2"]);
        assert!(fixture.publish_now("a"));
        assert_eq!(receiver.got(), ["a 1 1", "a 1 2", "a 1 3"]);
    }
}

#[test]
fn publish_now_is_answered_after_the_call_that_is_on_its_way() {
    for overlap in BOTH {
        let (fixture, receiver) = Fixture::one(config(overlap), How::Each);
        receiver.script(
            "a",
            [after(seconds(2), Act::Fail), after(seconds(2), Act::Done)],
        );
        fixture.stage("a", 1);
        let begun = fixture.world.now();
        assert!(fixture.publish_now("a"));
        assert_eq!(fixture.world.now().since(begun), seconds(4));
        assert_eq!(receiver.got(), ["a 1 1", "a 1 2"]);
    }
}

#[test]
fn an_instance_that_ends_takes_its_waiting_callers_with_it() {
    let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
    receiver.script("a", [Act::Hang]);
    fixture.stage("a", 1);
    let asked = fixture
        .object
        .call(|sender| async move { sender.channels["c"].publish_now("a").await });
    let answer = std::rc::Rc::new(std::cell::RefCell::new(None));
    let slot = answer.clone();
    fixture
        .world
        .spawn(async move { *slot.borrow_mut() = Some(asked.await.is_err()) });
    fixture.world.run_until_idle();
    assert_eq!(*answer.borrow(), None, "it waits");
    fixture.object.crash();
    fixture.world.run_until_idle();
    assert_eq!(*answer.borrow(), Some(true));
}

#[test]
fn entries_of_a_channel_that_is_not_there_wait_for_it() {
    let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
    receiver.script("a", [Act::Fail]);
    fixture.stage("a", 1);
    fixture.object.crash();
    fixture.forget();
    let other = fixture.channel("d", config(Overlap::PerKey), How::Each);
    fixture.world.advance(seconds(600));
    assert!(other.got().is_empty());
    assert_eq!(receiver.got(), ["a 1 1"]);
    fixture.object.crash();
    fixture.forget();
    let back = fixture.channel("c", config(Overlap::PerKey), How::Each);
    fixture
        .world
        .block_on(fixture.object.open())
        .expect("it opens");
    fixture.world.run_until_idle();
    assert_eq!(back.got(), ["a 1 2"]);
}

#[test]
fn an_object_has_one_outbox() {
    let (fixture, _) = Fixture::one(config(Overlap::PerKey), How::Each);
    fixture.stage("a", 1);
    let second =
        fixture.call(|sender| async move { durably::outbox::Outbox::new(&sender.scheduler).err() });
    assert!(matches!(
        second,
        Some(OpenError::AttachedLate(_) | OpenError::AttachedTwice(_))
    ));
}
