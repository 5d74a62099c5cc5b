//! Bad input: a typed error, and nothing stored changes.

use durably::OpenError;
use durably::topology::{
    Draft, MAX_META_BYTES, NewMember, RemovalGuard, StateChannelConfig, TopologyError,
};
use serde_json::{Value, json};

use crate::support::{Fixture, seconds};

fn named(ids: &[&str]) -> Draft {
    Draft::members(ids.iter().map(|id| NewMember::active(*id)))
}

#[test]
fn refused_drafts_change_nothing() {
    let (fixture, store) = Fixture::with_store(true);
    fixture.configure(|builder| builder.max_snapshot_bytes(2_000));
    fixture
        .draft(named(&["a"]).state("limits", 1))
        .expect("a good draft");
    fixture.delivered();
    let before = (fixture.snapshot(), store.calls.get());
    let cases: Vec<(Draft, &str)> = vec![
        (named(&[]).state("limits", 2), "no_members"),
        (named(&["a", "a"]).state("limits", 2), "duplicate_member"),
        (named(&["a", ""]), "invalid_member"),
        (named(&["a"]).state("colour", 1), "unknown_channel"),
        (
            named(&["b"]).state("limits", 2).state("x", 1),
            "unknown_channel",
        ),
        (
            Draft::members([NewMember::active("a").meta("x".repeat(MAX_META_BYTES))]),
            "invalid_member",
        ),
        (
            Draft::members([NewMember::active("a").meta("x".repeat(2_000))]),
            "snapshot_too_large",
        ),
        (
            named(&["a"]).state("limits", "x".repeat(1 << 20)),
            "state_too_large",
        ),
        (
            named(&["b"]).guard(RemovalGuard::share(0.0).expect("a share")),
            "too_many_removed",
        ),
    ];
    for (draft, code) in cases {
        let refused = fixture.draft(draft).expect_err(code);
        assert_eq!(refused.code(), code, "{refused}");
    }
    let panicked = fixture.update(|_| panic!("an updater that fails"));
    assert_eq!(panicked.expect_err("refused").code(), "updater_failed");
    fixture.world.advance(seconds(60));
    assert_eq!((fixture.snapshot(), store.calls.get()), before);
    assert!(fixture.delivered().is_empty());
}

#[test]
fn drafts_that_come_as_data_are_read_strictly_enough() {
    let read = |draft: Value| Draft::from_json(draft).map_err(|error| error.code());
    let good = json!({
        "members": [
            {"id": "a", "state": "active", "meta": {"url": "x"}, "locationHint": "weur"},
            {"id": "b", "state": "draining", "drain": {"withinMs": 5_000, "whenDrained": true}},
        ],
        "states": {"limits": null},
        "guard": 0.5,
    });
    let draft = read(good.clone()).expect("a good draft");
    assert_eq!(serde_json::to_value(&draft).expect("JSON"), good);
    assert_eq!(read(json!({})), Ok(Draft::default()));
    assert_eq!(read(json!({"states": null})), Ok(Draft::default()));
    for bad in [
        json!(null),
        json!([]),
        json!("throw"),
        json!({"members": null}),
        json!({"members": "all"}),
        json!({"members": [{"id": "a"}]}),
        json!({"members": [{"id": "a", "state": "gone"}]}),
        json!({"members": [{"id": 7, "state": "active"}]}),
        json!({"states": [1]}),
        json!({"guard": 2}),
        json!({"members": [{"id": "a", "state": "draining", "drain": {"withinMs": -1}}]}),
    ] {
        assert_eq!(read(bad.clone()), Err("invalid_draft"), "{bad}");
    }
}

#[test]
fn groups_have_names_and_exist() {
    let (fixture, _) = Fixture::with_store(true);
    for name in [String::new(), "n".repeat(257)] {
        let refused = fixture.call(|topology| async move {
            topology
                .update(&name, |_| Ok(named(&["a"])))
                .await
                .map(|_| ())
        });
        assert_eq!(refused.expect_err("refused").code(), "invalid_group");
    }
    let unknown = fixture.draft(Draft::default().state("limits", 1));
    assert_eq!(unknown.expect_err("refused").code(), "unknown_group");
}

#[test]
fn an_update_for_another_version_is_refused() {
    let (fixture, _) = Fixture::with_store(true);
    let apply = |expected: Option<Option<u64>>, ids: &'static [&'static str]| {
        fixture
            .call(move |topology| async move { topology.apply("g", expected, named(ids)).await })
            .map(|updated| updated.snapshot.version)
    };
    let conflict = |expected, found| Err(TopologyError::VersionConflict { expected, found });
    assert_eq!(apply(Some(Some(1)), &["a"]), conflict(Some(1), None));
    assert_eq!(apply(Some(None), &["a"]), Ok(1));
    assert_eq!(apply(Some(None), &["b"]), conflict(None, Some(1)));
    assert_eq!(apply(Some(Some(1)), &["b"]), Ok(2));
    assert_eq!(apply(Some(Some(1)), &["c"]), conflict(Some(1), Some(2)));
    assert_eq!(apply(None, &["c"]), Ok(3));
    let deleted = fixture.call(|topology| async move { topology.delete("g", Some(2)).await });
    assert_eq!(deleted.expect_err("refused").code(), "version_conflict");
    assert_eq!(fixture.members(), ["c"]);
}

#[test]
fn the_guard_is_off_unless_it_is_named() {
    let (fixture, _) = Fixture::with_store(true);
    fixture
        .draft(named(&["a", "b", "c", "d"]))
        .expect("a good draft");
    fixture.draft(named(&["a"])).expect("no guard");
    fixture.object.crash();
    fixture.configure(|builder| builder.removal_guard(RemovalGuard::share(0.5).expect("a share")));
    fixture
        .draft(named(&["a", "b", "c", "d"]))
        .expect("a good draft");
    let refused = fixture.draft(named(&["a"])).expect_err("refused");
    let expected = TopologyError::TooManyRemoved {
        removed: 3,
        members: 4,
        allowed: 2,
    };
    assert_eq!(refused, expected);
    let meant = named(&["a"]).guard(RemovalGuard::share(1.0).expect("a share"));
    fixture.draft(meant).expect("the update names its own");
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |configure: fn(
        durably::topology::TopologyBuilder,
    ) -> durably::topology::TopologyBuilder| {
        let (fixture, _) = Fixture::with_store(true);
        fixture.configure(configure);
        match fixture.build_error() {
            OpenError::Config(error) => error.field().to_owned(),
            other => panic!("{other}"),
        }
    };
    assert_eq!(refused(|builder| builder.coordinator("")), "coordinator");
    assert_eq!(
        refused(|builder| builder.max_snapshot_bytes(0)),
        "max_snapshot_bytes"
    );
    assert_eq!(
        refused(|builder| builder.drain_check_period(seconds(0))),
        "drain_check_period"
    );
    fn channel(
        builder: durably::topology::TopologyBuilder,
        name: &str,
        timeout: u64,
    ) -> durably::topology::TopologyBuilder {
        let mut config = StateChannelConfig::default();
        config.calls.attempt_timeout = seconds(timeout);
        builder.channel(name, config, |_, _| async { Ok(()) })
    }
    assert_eq!(
        refused(|builder| channel(builder, "x", 0)),
        "attempt_timeout"
    );
    assert_eq!(refused(|builder| channel(builder, "", 1)), "channel");
    assert_eq!(refused(|builder| channel(builder, "limits", 1)), "channel");
}
