//! What a budget is given out by and to whom, over HTTP.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::endpoint::Endpoint;
use crate::support::{Server, Setup, until};

fn request(client: &str, group: &str, count: u64) -> Value {
    json!({"type": "request", "v": 1, "clientId": client, "grants": [],
           "demand": [{"group": group, "count": count, "oldestAt": 1}]})
}

fn report(client: &str, grant: &Value, claimed: u64, released: u64) -> Value {
    json!({"type": "sync", "v": 1, "clientId": client,
           "grants": [{"grantId": grant, "claimed": claimed, "released": released}]})
}

async fn send(server: &Server, message: &Value) -> Value {
    let (status, answer) = server.post("holders/acme/messages", message).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn how_leases_are_given_is_set_by_account_and_kept() {
    let setup = Setup::new("http://127.0.0.1:9/run");
    let server = setup.start().await;
    let of_acme = "accounts/acme/leases";
    assert_eq!(server.get(of_acme).await.1, json!({"leases": null}));
    let options = json!({"provisioning": {"mode": "under", "reserve": {"ratio": 0.5}},
                         "permitsPerLease": 3});
    let (status, set) = server.put(of_acme, &json!({"leases": options})).await;
    assert_eq!(status, StatusCode::OK, "{set}");
    let leases = &set["leases"];
    assert_eq!(leases["permitsPerLease"], 3);
    assert_eq!(
        (&leases["ttlMs"], &leases["maxGroups"]),
        (&json!(1_800_000), &json!(100))
    );

    for (leases, field) in [
        (json!({"permitsPerLease": 0}), "leases.permitsPerLease"),
        (json!({"ttlMs": 0}), "leases.ttlMs"),
        (json!({"ttlMs": "10m"}), "leases.ttlMs"),
        (
            json!({"provisioning": {"mode": "under", "reserve": {"ratio": -1}}}),
            "leases.provisioning.reserve",
        ),
        (json!({"permits": 3}), "leases"),
        (json!("strict"), "leases"),
    ] {
        let (status, answer) = server.put(of_acme, &json!({"leases": leases})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{leases}");
        let blamed = answer["error"]["field"].as_str().unwrap_or_default();
        assert!(
            blamed.starts_with(field.split('.').next().unwrap()),
            "{leases}: {answer}"
        );
        let said = answer["error"].to_string();
        assert!(
            said.contains(field.rsplit('.').next().unwrap()),
            "{leases}: {answer}"
        );
    }
    let (status, answer) = server.put(of_acme, &json!({})).await;
    assert_eq!(
        (status, &answer["error"]["field"]),
        (StatusCode::BAD_REQUEST, &json!("leases"))
    );

    // Stored, and what clients are given follows it.
    server.kill().await;
    let server = setup.start().await;
    assert_eq!(&server.get(of_acme).await.1["leases"], leases);
    let mut leasing = request("worker", "g", 1);
    leasing["leases"] = json!([]);
    let reply = send(&server, &leasing).await;
    assert_eq!(reply["leases"][0]["permits"], 3);
    let (_, none) = server.put(of_acme, &json!({"leases": null})).await;
    assert_eq!(none, json!({"leases": null}));
    let reply = send(&server, &leasing).await;
    assert!(
        reply["leases"]
            .as_array()
            .is_some_and(|list| list.len() == 1)
    );
    assert_eq!(server.delete(of_acme).await.1, json!({"leases": null}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_says_what_it_is_measured_against() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    server
        .put("accounts/acme/limit", &json!({"limit": 3}))
        .await;
    server
        .put("accounts/acme/groups/g/limit", &json!({"limit": 1}))
        .await;
    for id in ["1", "2"] {
        let job = json!({"account": "acme", "id": id, "group": "g", "body": {"hold": true}});
        server.post("jobs", &job).await;
        until("a job to run", || async {
            (endpoint.seen().begun() == 1).then_some(())
        })
        .await;
    }
    let status = until("the reason", || async {
        let (_, status) = server.get("accounts/acme/jobs/2").await;
        (status["blockedReason"] == "group_limit").then_some(status)
    })
    .await;
    assert_eq!(status["state"], "queued");
    assert_eq!(status["place"], 1);
    assert!(status["since"].is_u64());
    assert_eq!(
        status["usage"],
        json!({"limit": 3, "granted": 1, "leased": 0, "available": 2,
               "group": {"limit": 1, "granted": 1, "leased": 0}})
    );
    let (_, usage) = server.get("accounts/acme/groups/g/usage").await;
    assert_eq!(usage, status["usage"]);
    // A job that runs has its permit, and asks nobody.
    assert_eq!(
        server.get("accounts/acme/jobs/1").await.1.get("usage"),
        None
    );
    let (_, unknown) = server.get("accounts/nobody/groups/g/usage").await;
    assert_eq!(unknown["granted"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_who_holds_permits_and_makes_a_lost_client_let_go() {
    let server = Setup::new("http://127.0.0.1:9/run").start().await;
    server
        .put("accounts/acme/limit", &json!({"limit": 2}))
        .await;
    let reply = send(&server, &request("lost worker/7", "g", 2)).await;
    let grant = &reply["grants"][0]["grantId"];
    send(&server, &report("lost worker/7", grant, 2, 0)).await;
    let (_, listed) = server.get("accounts/acme/holders").await;
    let holder = &listed["holders"][0];
    assert_eq!(
        (
            &holder["clientId"],
            &holder["group"],
            &holder["granted"],
            &holder["leased"]
        ),
        (&json!("lost worker/7"), &json!("g"), &json!(2), &json!(0))
    );
    assert!(holder["since"].is_u64() && holder["lastReport"].is_u64());
    let (_, rest) = server
        .get("accounts/acme/holders?after=lost%20worker%2F7&limit=5")
        .await;
    assert_eq!(rest, json!({"holders": []}));
    assert_eq!(
        server.get("accounts/nobody/holders").await.1,
        json!({"holders": []})
    );

    let path = "accounts/acme/holders/lost%20worker%2F7?reason=its+machine+burned";
    let (status, released) = server.delete(path).await;
    assert_eq!(
        (status, released),
        (StatusCode::OK, json!({"granted": 2, "leased": 0}))
    );
    assert_eq!(server.get("accounts/acme/usage").await.1["granted"], 0);
    let (status, again) = server.delete(path).await;
    assert_eq!(
        (status, again),
        (StatusCode::OK, json!({"granted": 0, "leased": 0}))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freed_permit_goes_to_who_waits_and_not_to_who_has_hung_up() {
    let server = Setup::new("http://127.0.0.1:9/run").start().await;
    server
        .put("accounts/acme/limit", &json!({"limit": 1}))
        .await;
    let reply = send(&server, &request("first", "g", 1)).await;
    let grant = &reply["grants"][0]["grantId"];
    send(&server, &report("first", grant, 1, 0)).await;
    let waiting = |client: &str| {
        let mut message = request(client, "g", 1);
        message["waitMs"] = 50_000.into();
        server
            .request(Method::POST, "holders/acme/messages")
            .json(&message)
            .send()
    };
    // Hangs up as soon as it surely waits.
    let hung_up = tokio::time::timeout(Duration::from_millis(300), waiting("second")).await;
    assert!(hung_up.is_err(), "it must not have been answered");
    let third = tokio::spawn(waiting("third"));
    send(&server, &report("first", grant, 1, 1)).await;
    let reply: Value = third.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(reply["grants"][0]["permits"], 1, "{reply}");
    let (_, listed) = server.get("accounts/acme/holders").await;
    assert_eq!(listed["holders"][0]["clientId"], "third");
}
