//! What the API is for: jobs in, their status, limits and usage, and messages of foreign clients.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::endpoint::Endpoint;
use crate::support::{Setup, until};

fn job(id: &str, group: &str, body: Value) -> Value {
    json!({"account": "acme", "id": id, "group": group, "body": body})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_once_and_its_result_is_kept() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let body = json!({"result": {"answer": 42}, "deep": [1, 2.5, null, "ü"]});
    let (status, answer) = server.post("jobs", &job("1", "g", body.clone())).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let result = json!({"account": "acme", "id": "1", "outcome": "queued"});
    assert_eq!(answer, json!({"results": [result]}));
    server.until_state("acme", "1", "completed").await;
    let (_, job_status) = server.get("accounts/acme/jobs/1").await;
    assert_eq!(job_status["result"], json!({"answer": 42}));
    // Submitted again, with whatever body, it is known and does not run again.
    let (status, answer) = server.post("jobs", &job("1", "g", json!({}))).await;
    assert_eq!(
        (status, &answer["results"][0]["outcome"]),
        (StatusCode::OK, &json!("duplicate"))
    );
    let requests = endpoint.seen().requests.clone();
    let [(key, run)] = requests.as_slice() else {
        panic!("one request, not {requests:?}")
    };
    assert!(!key.is_empty());
    assert_eq!(
        run,
        &json!({"account": "acme", "id": "1", "group": "g", "attempt": 1, "body": body})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_decide_whether_a_job_is_tried_again() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    for (id, answers) in [
        ("retried", json!([503, 200])),
        ("slow-down", json!([429, 200])),
        ("timeout", json!([408, 200])),
        ("early", json!([425, 200])),
        ("redirected", json!([302, 200])),
        ("refused", json!([422, 200])),
        ("gone", json!([404, 200])),
    ] {
        server
            .post("jobs", &job(id, "g", json!({"answers": answers})))
            .await;
    }
    for id in ["refused", "gone"] {
        server.until_state("acme", id, "failed").await;
        let (_, status) = server.get(&format!("accounts/acme/jobs/{id}")).await;
        let error = status["lastError"].as_str().unwrap();
        assert!(
            error.contains("4") && error.contains("as the job says"),
            "{error}"
        );
    }
    for id in ["retried", "slow-down", "timeout", "early", "redirected"] {
        server.until_state("acme", id, "completed").await;
    }
    let seen = endpoint.seen();
    let attempts = |id: &str| {
        let of_job = seen.requests.iter().filter(|(_, run)| run["id"] == id);
        of_job
            .map(|(key, run)| (key.clone(), run["attempt"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(attempts("refused").len(), 1);
    let retried = attempts("retried");
    assert_eq!(retried.len(), 2);
    // The same key, so the endpoint can tell that it is the same job.
    assert_eq!(retried[0].0, retried[1].0);
    assert_eq!((&retried[0].1, &retried[1].1), (&json!(1), &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_account_and_group_are_kept_and_may_change() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let (_, default) = server.get("accounts/acme/limit").await;
    let (status, set) = server
        .put("accounts/acme/limit", &json!({"limit": 3}))
        .await;
    assert_eq!((status, &set["limit"]), (StatusCode::OK, &json!(3)));
    let (_, set) = server
        .put("accounts/acme/groups/a/limit", &json!({"limit": 2}))
        .await;
    assert_eq!(set["limit"], 2);
    assert_eq!(server.get("accounts/acme/limit").await.1["limit"], 3);
    let jobs: Vec<Value> = (0..12)
        .map(|index| {
            let group = if index < 6 { "a" } else { "b" };
            job(&index.to_string(), group, json!({"hold": true}))
        })
        .collect();
    server.post("jobs", &json!(jobs)).await;
    until("three to run", || async {
        (endpoint.seen().begun() == 3).then_some(())
    })
    .await;
    let (_, usage) = server.get("accounts/acme/usage").await;
    assert_eq!((&usage["limit"], &usage["granted"]), (&json!(3), &json!(3)));
    // Which group's requests come first is open.
    let of_group = usage["groups"]["a"]["granted"].as_u64().unwrap_or(0);
    assert!(of_group <= 2, "{usage}");
    // Those that wait say why.
    let reason = until("a reason", || async {
        for index in 0..12 {
            let (_, status) = server.get(&format!("accounts/acme/jobs/{index}")).await;
            if let Some(reason) = status["blockedReason"].as_str() {
                assert_eq!(status["state"], "queued");
                return Some(reason.to_owned());
            }
        }
        None
    })
    .await;
    assert!(
        ["limit", "group_limit"].contains(&reason.as_str()),
        "{reason}"
    );
    // More room, for everybody and for the group.
    server
        .put("accounts/acme/limit", &json!({"limit": 5}))
        .await;
    server
        .put("accounts/acme/groups/a/limit", &json!({"limit": 4}))
        .await;
    until("five to run", || async {
        (endpoint.seen().begun() == 5).then_some(())
    })
    .await;
    endpoint.release();
    for index in 0..12 {
        server
            .until_state("acme", &index.to_string(), "completed")
            .await;
    }
    let highest = endpoint.seen().highest.clone();
    assert!(highest[&("acme".to_owned(), None)] <= 5, "{highest:?}");
    assert!(
        highest[&("acme".to_owned(), Some("a".to_owned()))] <= 4,
        "{highest:?}"
    );
    let (_, removed) = server.delete("accounts/acme/limit").await;
    assert_eq!(removed, default);
    server.delete("accounts/acme/groups/a/limit").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_jobs_are_there_after_a_restart() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url());
    let server = setup.start().await;
    server
        .put("accounts/acme/limit", &json!({"limit": 1}))
        .await;
    server
        .put("accounts/acme/shards", &json!({"shards": ["one", "two"]}))
        .await;
    let (_, shards) = server.get("accounts/acme/shards").await;
    let jobs = json!([
        job("1", "g", json!({"hold": true})),
        job("2", "g", json!({}))
    ]);
    server.post("jobs", &jobs).await;
    until("one to run", || async {
        (endpoint.seen().begun() == 1).then_some(())
    })
    .await;
    server.kill().await;
    let server = setup.start().await;
    assert_eq!(server.get("accounts/acme/limit").await.1["limit"], 1);
    assert_eq!(server.get("accounts/acme/shards").await.1, shards);
    endpoint.release();
    for id in ["1", "2"] {
        server.until_state("acme", id, "completed").await;
    }
    assert_eq!(endpoint.seen().begun(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_jobs_are_cancelled_and_running_ones_if_asked_for() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    server
        .put("accounts/acme/limit", &json!({"limit": 1}))
        .await;
    server
        .post("jobs", &job("1", "g", json!({"hold": true})))
        .await;
    server.until_state("acme", "1", "running").await;
    server
        .post("jobs", &job("2", "g", json!({"hold": true})))
        .await;
    let (status, answer) = server.delete("accounts/acme/jobs/2").await;
    assert_eq!(
        (status, &answer["outcome"]),
        (StatusCode::OK, &json!("cancelled"))
    );
    assert_eq!(server.state("acme", "2").await, "unknown");
    let (status, answer) = server.delete("accounts/acme/jobs/1").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::CONFLICT, &json!("job_running"))
    );
    let (status, answer) = server.delete("accounts/acme/jobs/1?running=true").await;
    assert_eq!(
        (status, &answer["outcome"]),
        (StatusCode::ACCEPTED, &json!("stopping"))
    );
    server.until_state("acme", "1", "cancelled").await;
    let (status, answer) = server.delete("accounts/acme/jobs/1?running=true").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::CONFLICT, &json!("job_ended"))
    );
    // Its permit is back.
    server.post("jobs", &job("3", "g", json!({}))).await;
    server.until_state("acme", "3", "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_shares_the_budget() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    server
        .put("accounts/acme/limit", &json!({"limit": 2}))
        .await;
    let request = json!({"type": "request", "v": 1, "clientId": "foreign", "grants": [],
                         "demand": [{"group": "g", "count": 5, "oldestAt": 1}]});
    let (status, reply) = server.post("holders/acme/messages", &request).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!((&reply["type"], &reply["v"]), (&json!("grant"), &json!(1)));
    let grant = &reply["grants"][0];
    assert_eq!(grant["permits"], 2, "{reply}");
    let report = |claimed, released| {
        json!({"type": "sync", "v": 1, "clientId": "foreign",
               "grants": [{"grantId": grant["grantId"], "claimed": claimed, "released": released}]})
    };
    let (_, reply) = server.post("holders/acme/messages", &report(2, 0)).await;
    assert_eq!(reply["type"], "synced");
    // All permits are out, so a job waits.
    server.post("jobs", &job("1", "g", json!({}))).await;
    until("the job to be blocked", || async {
        let (_, status) = server.get("accounts/acme/jobs/1").await;
        (status["blockedReason"] == "limit").then_some(())
    })
    .await;
    server.post("holders/acme/messages", &report(2, 2)).await;
    server.until_state("acme", "1", "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_says_ok_and_the_version() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let (status, answer) = server.get("health").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        answer,
        json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")})
    );
}
