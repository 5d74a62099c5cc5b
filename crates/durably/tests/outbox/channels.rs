//! What runs beside what.

use durably::outbox::{Ending, Outcome, Overlap};

use crate::support::{Act, Fixture, How, after, config, seconds};

#[test]
fn one_entry_that_hangs_holds_up_nobody_else() {
    let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
    receiver.script("a", [Act::Hang]);
    fixture.stage("a", 1);
    for value in 0..5 {
        fixture.stage("b", value);
    }
    assert_eq!(receiver.got().len(), 6);
    assert_eq!(fixture.status("b").ended, Some(Ending::Delivered));
    assert_eq!(fixture.status("a").ended, None);
}

#[test]
fn at_most_so_many_are_on_their_way_and_the_rest_follows() {
    let mut few = config(Overlap::PerKey);
    few.max_in_flight = 3;
    let (fixture, receiver) = Fixture::one(few, How::Each);
    for key in 0..10 {
        receiver.script(&format!("k{key}"), [after(seconds(1), Act::Done)]);
    }
    let staged = fixture.transaction(|transaction, channel| {
        for key in 0..10 {
            channel.stage(transaction, &format!("k{key}"), &serde_json::json!(key))?;
        }
        Ok(())
    });
    staged.expect("staged");
    fixture.world.run_until_idle();
    assert_eq!(receiver.got(), ["k0 1 1", "k1 1 1", "k2 1 1"]);
    fixture.world.advance(seconds(4));
    assert_eq!(
        receiver.got().len(),
        10,
        "without waiting for the next alarm"
    );
    assert_eq!(receiver.most_running.get(), 3);
    assert!(fixture.pending().is_empty());
}

#[test]
fn without_overlap_a_batch_settles_when_its_last_entry_has_ended() {
    let (fixture, receiver) = Fixture::one(config(Overlap::Never), How::Each);
    receiver.script("a", [after(seconds(5), Act::Done)]);
    receiver.script("b", [Act::Fail]);
    let staged = fixture.transaction(|transaction, channel| {
        channel.stage(transaction, "a", &1.into())?;
        channel.stage(transaction, "b", &1.into())
    });
    staged.expect("staged");
    fixture.world.run_until_idle();
    fixture.stage("c", 1);
    assert_eq!(receiver.got(), ["a 1 1", "b 1 1"], "one batch at a time");
    assert_eq!(fixture.status("b").last_error, None, "not settled yet");
    fixture.world.advance(seconds(5));
    // What was due meanwhile follows at once; the delay of what failed counts from the settlement.
    assert_eq!(receiver.got(), ["a 1 1", "b 1 1", "c 1 1"]);
    assert_eq!(
        fixture.status("b").next_attempt_at,
        Some(fixture.world.now() + seconds(1))
    );
    fixture.world.advance(seconds(1));
    assert_eq!(receiver.got().len(), 4);
}

#[test]
fn channels_do_not_wait_for_each_other() {
    let fixture = Fixture::new();
    let slow = fixture.channel("c", config(Overlap::Never), How::Each);
    let quick = fixture.channel("d", config(Overlap::Never), How::Each);
    slow.script("a", [Act::Hang]);
    fixture.stage("a", 1);
    fixture.object.crash();
    slow.script("a", [Act::Hang]);
    quick.script("b", [Act::Fail]);
    let staged = fixture.call(|sender| {
        let channel = sender.channels["d"].clone();
        sender
            .scheduler
            .transaction(move |transaction| channel.stage(transaction, "b", &1.into()))
    });
    staged.expect("staged");
    // The pass of the alarm hangs on the one, and the other goes on.
    fixture.world.advance(seconds(9));
    assert_eq!(quick.got(), ["b 1 1", "b 1 2"]);
}

#[test]
fn a_batch_is_one_call_with_an_outcome_for_each_entry() {
    for overlap in [Overlap::PerKey, Overlap::Never] {
        let (fixture, receiver) = Fixture::one(config(overlap), How::Batch);
        let later = Outcome::Retry {
            after: Some(seconds(50)),
            error: None,
        };
        receiver.script("b", [Act::Answer(later)]);
        // It is not handed back, which means another attempt.
        receiver.script("c", [Act::Fail]);
        let staged = fixture.transaction(|transaction, channel| {
            for key in ["a", "b", "c"] {
                channel.stage(transaction, key, &1.into())?;
            }
            Ok(())
        });
        staged.expect("staged");
        fixture.world.run_until_idle();
        assert_eq!(fixture.status("a").ended, Some(Ending::Delivered));
        assert_eq!(
            fixture.status("b").next_attempt_at,
            Some(fixture.world.now() + seconds(50))
        );
        assert_eq!(
            fixture.status("c").next_attempt_at,
            Some(fixture.world.now() + seconds(1))
        );
        fixture.world.advance(seconds(50));
        assert_eq!(
            receiver.got(),
            ["a 1 1", "b 1 1", "c 1 1", "c 1 2", "b 1 2"]
        );
        assert!(fixture.pending().is_empty());
    }
}
