//! Clients without storage.

use durably::semaphore::{LeaseOptions, SemaphoreEvent};
use serde_json::{Value, json};

use crate::setup::{Setup, claim, ms, request, sync};

fn ephemeral(mut message: Value, ttl: u64) -> Value {
    message["clientTtlMs"] = ttl.into();
    message
}

fn expired(setup: &Setup) -> Vec<SemaphoreEvent> {
    let events = setup.events().into_iter();
    events
        .filter(|event| matches!(event, SemaphoreEvent::ClientExpired { .. }))
        .collect()
}

#[test]
fn a_silent_client_without_storage_loses_what_it_holds_and_others_keep_theirs() {
    let setup = Setup::new(|builder| builder.limit(10).leases(LeaseOptions::default()));
    let mut leasing = ephemeral(request("worker", &[("a", 2)]), 30_000);
    leasing["leases"] = json!([]);
    let gone = setup.send(leasing);
    setup.world.advance(ms(300));
    let kept = setup.send(request("shard", &[("a", 1)]));
    setup.world.advance(ms(300));
    let (gone, kept) = (gone.granted(), kept.granted());
    setup.sync(claim("worker", &gone.grants[0].grant_id, 2, 0));
    assert!(kept.grants.is_empty(), "the lease has the rest");

    // Any message is a sign of life, also of an object that was lost meanwhile.
    setup.world.advance(ms(29_999));
    setup.sync(sync("worker"));
    setup.object.crash();
    setup.world.advance(ms(29_999));
    assert_eq!(expired(&setup), []);
    assert_eq!(setup.usage().unwrap().granted, 2);
    setup.world.advance(ms(1));
    let events = expired(&setup);
    assert_eq!(events.len(), 1);
    let told = serde_json::to_value(&events[0]).unwrap();
    assert_eq!(
        (&told["clientId"], &told["granted"], &told["leased"]),
        (&json!("worker"), &json!(2), &json!(8))
    );
    let usage = setup.usage().unwrap();
    assert_eq!((usage.granted, usage.leased, usage.available), (0, 0, 10));
    let (sums, scanned) = setup.compare_sums();
    assert_eq!(sums, scanned);

    // It may come back as if for the first time; what it reports of old is unknown.
    let late = setup.sync(ephemeral(
        claim("worker", &gone.grants[0].grant_id, 2, 1),
        1_000,
    ));
    assert_eq!(late.grant_results[0].claimed, 0);
    setup.world.advance(ms(2_000));
    assert_eq!(expired(&setup).len(), 1);
    assert_eq!(setup.world.next_timer(), None);
}

#[test]
fn however_many_fall_silent_at_once_all_lose_what_they_hold_then() {
    let setup = Setup::new(|builder| builder.limit(200));
    for number in 0..200 {
        let client = format!("worker-{number}");
        setup.send(ephemeral(request(&client, &[("a", 1)]), 30_000));
    }
    setup.world.advance(ms(100));
    assert_eq!(setup.usage().unwrap().granted, 200);
    setup.events();
    setup.world.advance(ms(30_000));
    assert_eq!(expired(&setup).len(), 200);
    assert_eq!(setup.world.next_timer(), None);
}

#[test]
fn a_client_with_storage_keeps_what_it_claimed_for_ever() {
    let setup = Setup::new(|builder| builder.limit(1));
    let sent = setup.send(request("shard", &[("a", 1)]));
    setup.world.advance(ms(100));
    setup.sync(claim("shard", &sent.granted().grants[0].grant_id, 1, 0));
    setup.world.advance(ms(1_000_000_000));
    assert_eq!(setup.usage().unwrap().granted, 1);
}

#[test]
fn whoever_waits_for_capacity_is_given_what_a_silent_client_lost() {
    let setup = Setup::new(|builder| builder.limit(1));
    let first = setup.send(ephemeral(request("worker", &[("a", 1)]), 5_000));
    setup.world.advance(ms(300));
    setup.sync(claim("worker", &first.granted().grants[0].grant_id, 1, 0));
    let mut waiting = request("shard", &[("a", 1)]);
    waiting["waitMs"] = 60_000.into();
    let waiting = setup.send(waiting);
    setup.world.advance(ms(4_999));
    assert!(waiting.is_waiting());
    setup.world.advance(ms(500));
    assert_eq!(waiting.granted().grants[0].permits, 1);
}

#[test]
fn a_client_without_storage_whose_request_waits_is_not_silent() {
    let setup = Setup::new(|builder| builder.limit(1));
    let first = setup.send(ephemeral(request("worker", &[("a", 1)]), 5_000));
    setup.world.advance(ms(300));
    let grant_id = first.granted().grants[0].grant_id.clone();
    setup.sync(claim("worker", &grant_id, 1, 0));
    let mut waiting = request("worker", &[("a", 1)]);
    waiting["waitMs"] = 60_000.into();
    let waiting = setup.send(waiting);
    setup.world.advance(ms(20_000));
    assert_eq!(expired(&setup), []);
    assert_eq!(setup.usage().unwrap().granted, 1);
    assert!(waiting.is_waiting(), "its own work has the permit");
    setup.sync(claim("worker", &grant_id, 1, 1));
    setup.world.advance(ms(300));
    assert_eq!(waiting.granted().grants[0].permits, 1);
    // Silent from then on.
    setup.world.advance(ms(6_000));
    assert_eq!(expired(&setup).len(), 1);
    assert_eq!(setup.world.next_timer(), None);
}
