//! What is refused, with nothing stored.

use std::time::Duration;

use durably::OpenError;
use durably::outbox::{Backoff, ChannelConfig, OutboxError, Overlap, Publish};
use serde_json::{Value, json};

use crate::support::{Fixture, How, config, seconds};

#[test]
fn keys_and_values_out_of_bounds_are_refused() {
    let (fixture, receiver) = Fixture::one(config(Overlap::PerKey), How::Each);
    let cases: [(String, Value, OutboxError); 3] = [
        (String::new(), json!(1), OutboxError::InvalidKey(0)),
        ("k".repeat(4_097), json!(1), OutboxError::InvalidKey(4_097)),
        (
            "k".into(),
            "v".repeat(1 << 20).into(),
            OutboxError::ValueTooLarge((1 << 20) + 2),
        ),
    ];
    for (key, value, expected) in cases {
        let staged = fixture
            .transaction(move |transaction, channel| channel.stage(transaction, &key, &value));
        assert_eq!(staged, Err(expected));
    }
    assert!(fixture.pending().is_empty() && receiver.got().is_empty());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |change: fn(&mut ChannelConfig)| {
        let fixture = Fixture::new();
        let mut wrong = config(Overlap::PerKey);
        change(&mut wrong);
        fixture.channel("c", wrong, How::Each);
        match fixture.build_error() {
            OpenError::Config(error) => error.field().to_owned(),
            other => panic!("{other}"),
        }
    };
    assert_eq!(refused(|config| config.max_in_flight = 0), "max_in_flight");
    assert_eq!(
        refused(|config| config.attempt_timeout = Duration::ZERO),
        "attempt_timeout"
    );
    assert_eq!(
        refused(|config| config.attempt_timeout = seconds(1 << 22)),
        "attempt_timeout"
    );
    assert_eq!(
        refused(|config| {
            config.backoff = Backoff::Exponential {
                base: seconds(2),
                max: seconds(1),
            };
        }),
        "backoff.max"
    );
}

#[test]
fn channels_have_names_of_their_own_and_come_before_the_object_opens() {
    for name in ["", &"n".repeat(257)] {
        let fixture = Fixture::new();
        fixture.channel(name, config(Overlap::PerKey), How::Each);
        assert!(matches!(fixture.build_error(), OpenError::Config(_)));
    }
    let (fixture, _) = Fixture::one(config(Overlap::PerKey), How::Each);
    fixture.channel("c", config(Overlap::PerKey), How::Each);
    assert!(matches!(fixture.build_error(), OpenError::Config(_)));

    let (fixture, _) = Fixture::one(config(Overlap::PerKey), How::Each);
    let late = fixture.call(|sender| async move {
        let publish = Publish::each(|_| async { Ok(durably::outbox::Outcome::Done) });
        sender
            .outbox
            .channel("late", config(Overlap::PerKey), publish)
            .err()
    });
    assert!(matches!(late, Some(OpenError::AttachedLate(_))));
}
