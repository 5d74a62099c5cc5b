//! What operators see and do.

use durably::Timestamp;
use durably::semaphore::{ForceReleased, Holding, LeaseOptions, Standing};
use serde_json::json;

use crate::setup::{START, Setup, claim, ms, request};

fn holdings(setup: &Setup, after: Option<&str>, limit: u64) -> Vec<Holding> {
    let after = after.map(str::to_owned);
    let call = setup
        .object
        .call(move |object| async move { object.semaphore.holdings(after, limit).await });
    setup.world.block_on(call).unwrap().unwrap()
}

fn force_release(
    setup: &Setup,
    client: &'static str,
    group: Option<&'static str>,
) -> ForceReleased {
    let call = setup.object.call(move |object| async move {
        object
            .semaphore
            .force_release(client, group, "its machine burned")
            .await
    });
    setup.world.block_on(call).unwrap().unwrap()
}

fn standing(setup: &Setup, group: &'static str) -> Standing {
    let call = setup
        .object
        .call(move |object| async move { object.semaphore.standing(group).await });
    setup.world.block_on(call).unwrap().unwrap()
}

#[test]
fn holders_are_listed_and_can_be_made_to_let_go() {
    let setup = Setup::new(|builder| builder.limit(20).leases(LeaseOptions::default()));
    let mut leasing = request("c1", &[("a", 2), ("b", 1)]);
    leasing["leases"] = json!([]);
    let first = setup.send(leasing);
    let second = setup.send(request("c2", &[("b", 5)]));
    setup.world.advance(ms(100));
    let reply = first.granted();
    let leased: u64 = reply
        .leases
        .iter()
        .flatten()
        .map(|lease| lease.permits)
        .sum();
    assert_eq!(leased, 12);
    let grant = &second.granted().grants[0].grant_id;
    setup.sync(claim("c2", grant, 5, 1));

    let all = holdings(&setup, None, 100);
    let since = Timestamp::from_millis(START + 100);
    assert_eq!(
        all[2],
        Holding {
            client_id: "c2".into(),
            group: "b".into(),
            granted: 4,
            leased: 0,
            since,
            last_report: Some(since),
        }
    );
    assert_eq!(
        (all[0].group.as_str(), all[0].granted, all[0].leased),
        ("a", 2, 6)
    );
    assert_eq!(
        (all[1].group.as_str(), all[1].granted, all[1].leased),
        ("b", 1, 6)
    );
    // Page by page, a client's groups together.
    assert_eq!(holdings(&setup, None, 1), all[..2]);
    assert_eq!(holdings(&setup, Some("c1"), 1), all[2..]);
    assert_eq!(holdings(&setup, Some("c2"), 1), []);
    // A new instance has yet to hear of anybody.
    setup.object.crash();
    assert_eq!(holdings(&setup, None, 1)[0].last_report, None);

    assert_eq!(
        force_release(&setup, "nobody", None),
        ForceReleased::default()
    );
    setup.events();
    let released = force_release(&setup, "c1", Some("b"));
    assert_eq!((released.granted, released.leased), (1, 6));
    assert_eq!(
        serde_json::to_value(setup.events()).unwrap(),
        json!([{"entityKind": "semaphore", "type": "force_released", "timestamp": START + 100,
                "clientId": "c1", "group": "b", "granted": 1, "leased": 6,
                "reason": "its machine burned"}])
    );
    force_release(&setup, "c2", None);
    assert_eq!(holdings(&setup, None, 100).len(), 1);
    let (sums, scanned) = setup.compare_sums();
    assert_eq!(sums, scanned);
    // It lets go whatever it says later.
    let late = setup.sync(claim("c2", grant, 5, 2));
    assert_eq!(late.grant_results[0].claimed, 0);
}

#[test]
fn what_a_group_is_measured_against_is_told() {
    let setup = Setup::new(|builder| {
        builder
            .limit(10)
            .leases(LeaseOptions::default())
            .group_limit(|group| std::future::ready(Ok((group == "capped").then_some(3))))
            .can_grant(|group| match group.as_str() {
                "broken" => std::future::ready(Err("away".into())),
                other => std::future::ready(Ok(other != "shut")),
            })
    });
    let mut leasing = request("c1", &[("capped", 2), ("free", 1)]);
    leasing["leases"] = json!([]);
    setup.send(leasing);
    setup.world.advance(ms(100));
    let told = |group| serde_json::to_value(standing(&setup, group)).unwrap();
    assert_eq!(
        told("capped"),
        json!({"limit": 10, "granted": 3, "leased": 7, "available": 0,
               "group": {"limit": 3, "granted": 2, "leased": 0}})
    );
    assert_eq!(told("free")["group"], json!({"granted": 1, "leased": 7}));
    let shut = json!({"granted": 0, "leased": 0, "closed": "not_permitted"});
    assert_eq!(told("shut")["group"], shut);
    let broken = json!({"granted": 0, "leased": 0, "closed": "limit_resolution_error"});
    assert_eq!(told("broken")["group"], broken);
    // Permits past their claim deadline count as given back before any cleanup.
    setup.world.advance(ms(999));
    assert_eq!(standing(&setup, "capped").group.granted, 2);
    setup.world.advance(ms(1));
    assert_eq!(standing(&setup, "capped").group.granted, 0);
}
