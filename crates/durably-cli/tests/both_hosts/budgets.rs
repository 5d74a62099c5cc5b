//! Limits, usage, leases, and who holds permits.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::host::{Host, Place, Settings};

on_both_hosts!(
    limits_are_set_kept_and_taken_back,
    permits_are_granted_claimed_and_returned,
    leases_are_given_as_it_was_set,
    a_waiting_request_gets_the_permit_that_is_freed,
    an_operator_makes_a_lost_client_let_go,
    accounts_of_any_name_are_apart,
);

pub(crate) fn request(client: &str, group: &str, count: u64) -> Value {
    json!({"type": "request", "v": 1, "clientId": client, "grants": [],
           "demand": [{"group": group, "count": count, "oldestAt": 1}]})
}

pub(crate) fn report(client: &str, grant: &Value, claimed: u64, released: u64) -> Value {
    json!({"type": "sync", "v": 1, "clientId": client,
           "grants": [{"grantId": grant, "claimed": claimed, "released": released}]})
}

pub(crate) async fn send(host: &Host, message: Value) -> Value {
    host.post("holders/acme/messages", message).await.ok()
}

async fn limits_are_set_kept_and_taken_back(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    let of_account = "accounts/acme/limit";
    let of_group = "accounts/acme/groups/nightly%2Fone/limit";
    assert_eq!(host.get(of_account).await.ok(), json!({"limit": 10}));
    assert_eq!(host.get(of_group).await.ok(), json!({"limit": null}));
    for (path, limit) in [(of_account, 7), (of_group, 0), (of_account, 3)] {
        let set = host.put(path, json!({ "limit": limit })).await;
        assert_eq!(set.ok(), json!({ "limit": limit }));
    }

    for _ in 0..2 {
        assert_eq!(host.get(of_account).await.ok(), json!({"limit": 3}));
        assert_eq!(host.get(of_group).await.ok(), json!({"limit": 0}));
        let usage = host.get("accounts/acme/usage").await.ok();
        assert_eq!(
            usage,
            json!({"limit": 3, "granted": 0, "leased": 0, "available": 3, "groups": {}})
        );
        let usage = host.get("accounts/acme/groups/nightly%2Fone/usage").await;
        assert_eq!(
            usage.ok(),
            json!({"limit": 3, "granted": 0, "leased": 0, "available": 3,
                   "group": {"limit": 0, "granted": 0, "leased": 0}})
        );
        host.kill().await;
        host.start_again().await;
    }

    assert_eq!(host.delete(of_account).await.ok(), json!({"limit": 10}));
    assert_eq!(host.delete(of_group).await.ok(), json!({"limit": null}));
    assert_eq!(host.get(of_account).await.ok(), json!({"limit": 10}));
}

async fn permits_are_granted_claimed_and_returned(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    host.put("accounts/acme/limit", json!({"limit": 3})).await;
    host.put("accounts/acme/groups/b/limit", json!({"limit": 1}))
        .await;
    let reply = send(&host, request("c1", "b", 5)).await;
    assert_eq!(reply["type"], "grant");
    assert_eq!(reply["grants"][0]["permits"], 1, "{reply}");
    assert_eq!(reply["blocked"][0]["reason"], "group_limit", "{reply}");
    let b = reply["grants"][0]["grantId"].clone();
    let reply = send(&host, request("c2", "a", 5)).await;
    assert_eq!(reply["grants"][0]["permits"], 2, "{reply}");
    assert_eq!(reply["blocked"][0]["reason"], "limit", "{reply}");
    let a = reply["grants"][0]["grantId"].clone();

    let usage = host.get("accounts/acme/usage").await.ok();
    let groups = json!({"a": {"granted": 2}, "b": {"granted": 1, "limit": 1}});
    assert_eq!(
        usage,
        json!({"limit": 3, "granted": 3, "leased": 0, "available": 0, "groups": groups})
    );
    for (client, grant, claimed) in [("c1", &b, 1), ("c2", &a, 2)] {
        let synced = send(&host, report(client, grant, claimed, 0)).await;
        let result = json!({"grantId": grant, "claimed": claimed, "status": "ok"});
        assert_eq!(
            synced,
            json!({"type": "synced", "v": 1, "grantResults": [result]})
        );
    }
    send(&host, report("c2", &a, 2, 1)).await;
    assert_eq!(host.get("accounts/acme/usage").await.ok()["granted"], 2);
    send(&host, report("c2", &a, 2, 2)).await;
    let repeated = send(&host, report("c2", &a, 2, 2)).await;
    assert_eq!(repeated["grantResults"][0]["status"], "not_found");
    // Another's grant is none.
    let stranger = send(&host, report("c2", &b, 1, 1)).await;
    assert_eq!(stranger["grantResults"][0]["status"], "not_found");
    assert_eq!(host.get("accounts/acme/usage").await.ok()["granted"], 1);
}

async fn leases_are_given_as_it_was_set(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    let leases = "accounts/acme/leases";
    assert_eq!(host.get(leases).await.ok(), json!({"leases": null}));
    let options =
        json!({"provisioning": {"mode": "strict"}, "permitsPerLease": 3, "ttlMs": 600_000});
    let set = host.put(leases, json!({ "leases": options })).await.ok();
    assert_eq!(
        (&set["leases"]["permitsPerLease"], &set["leases"]["ttlMs"]),
        (&json!(3), &json!(600_000)),
        "{set}"
    );
    for wrong in [
        json!({"provisioning": {"mode": "strict"}, "permitsPerLease": 0}),
        json!({"provisioning": {"mode": "strict"}, "ttlMs": "10m"}),
        json!({"provisioning": {"mode": "under", "reserve": {"ratio": -1}}}),
        json!({"permits": 3}),
        json!("strict"),
    ] {
        let refused = host.put(leases, json!({ "leases": wrong })).await;
        let (status, code, field) = refused.refusal();
        assert_eq!((status, code), (400, "invalid"), "{wrong}");
        assert!(field.starts_with("leases"), "{wrong}: {}", refused.body);
    }
    let missing = host.put(leases, json!({})).await;
    assert_eq!(missing.refusal(), (400, "invalid", "leases"));

    host.kill().await;
    host.start_again().await;
    assert_eq!(host.get(leases).await.ok(), set);
    let mut leasing = request("worker", "g", 1);
    leasing["leases"] = json!([]);
    let reply = send(&host, leasing.clone()).await;
    assert_eq!(reply["leases"][0]["permits"], 3, "{reply}");
    let usage = host.get("accounts/acme/usage").await.ok();
    assert_eq!(
        (&usage["granted"], &usage["leased"]),
        (&json!(1), &json!(3))
    );
    let none = host.put(leases, json!({"leases": null})).await;
    assert_eq!(none.ok(), json!({"leases": null}));
    assert_eq!(host.delete(leases).await.ok(), json!({"leases": null}));
    // None are given any more, and those that are out are told to stop.
    leasing["leases"] =
        json!([{"leaseId": reply["leases"][0]["leaseId"], "drawn": 0, "released": 0}]);
    leasing["sentAt"] = 1.into();
    let reply = send(&host, leasing).await;
    let stopped = &reply["leases"][0];
    assert!(
        stopped["expiresAt"].as_u64() <= reply["now"].as_u64(),
        "{reply}"
    );
}

async fn a_waiting_request_gets_the_permit_that_is_freed(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    host.put("accounts/acme/limit", json!({"limit": 1})).await;
    let reply = send(&host, request("first", "g", 1)).await;
    let grant = &reply["grants"][0]["grantId"];
    send(&host, report("first", grant, 1, 0)).await;
    let mut waiting = request("second", "g", 1);
    waiting["waitMs"] = 50_000.into();
    let path = "holders/acme/messages";
    let request = host.request(Method::POST, path).await.json(&waiting);
    let mut waiting = tokio::spawn(crate::host::answer(request));
    // It gets nothing as long as there is nothing, whatever else is asked.
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(host.get("accounts/acme/usage").await.ok()["available"], 0);
    send(&host, report("first", grant, 1, 1)).await;
    let reply = waiting.await.unwrap().unwrap().ok();
    assert_eq!(reply["grants"][0]["permits"], 1, "{reply}");
}

async fn an_operator_makes_a_lost_client_let_go(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    host.put("accounts/acme/limit", json!({"limit": 2})).await;
    let reply = send(&host, request("lost worker/7", "g", 2)).await;
    let grant = &reply["grants"][0]["grantId"];
    send(&host, report("lost worker/7", grant, 2, 0)).await;
    let listed = host.get("accounts/acme/holders").await.ok();
    let holder = &listed["holders"][0];
    let (client, group) = (&holder["clientId"], &holder["group"]);
    assert_eq!((client, group), (&json!("lost worker/7"), &json!("g")));
    let (granted, leased) = (&holder["granted"], &holder["leased"]);
    assert_eq!((granted, leased), (&json!(2), &json!(0)));
    assert!(holder["since"].is_u64() && holder["lastReport"].is_u64());
    let after = "accounts/acme/holders?after=lost%20worker%2F7&limit=5";
    assert_eq!(host.get(after).await.ok(), json!({"holders": []}));
    let nobody = host.get("accounts/nobody/holders").await.ok();
    assert_eq!(nobody, json!({"holders": []}));

    let path = "accounts/acme/holders/lost%20worker%2F7?reason=its+machine+burned";
    let released = host.delete(path).await.ok();
    assert_eq!(released, json!({"granted": 2, "leased": 0}));
    assert_eq!(host.get("accounts/acme/usage").await.ok()["granted"], 0);
    let again = host.delete(path).await.ok();
    assert_eq!(again, json!({"granted": 0, "leased": 0}));
}

async fn accounts_of_any_name_are_apart(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    let names = ["acme", "caf%C3%A9%2Fone", "a%20b", "%25", "..a", "A"];
    for (name, limit) in names.iter().zip(1..) {
        let path = format!("accounts/{name}/limit");
        host.put(&path, json!({ "limit": limit })).await.ok();
    }
    for (name, limit) in names.iter().zip(1..) {
        let path = format!("holders/{name}/messages");
        let reply = host.post(&path, request("c", "g", 100)).await.ok();
        assert_eq!(reply["grants"][0]["permits"], limit, "{name}");
    }
    let other = host.get("accounts/caf%C3%A9/usage").await.ok();
    assert_eq!(
        (&other["limit"], &other["granted"]),
        (&json!(10), &json!(0))
    );
}
