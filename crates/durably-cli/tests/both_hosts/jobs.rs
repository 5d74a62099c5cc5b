//! Jobs come in, run within their limits, and tell what became of them.

use serde_json::{Value, json};

use crate::host::{Host, Place, Settings};
use crate::support::endpoint::Endpoint;
use crate::support::until;

on_both_hosts!(
    a_job_runs_once_and_its_result_is_kept,
    answers_decide_whether_a_job_is_tried_again,
    never_more_run_than_the_limits_allow,
    a_waiting_job_says_why_it_waits,
    jobs_are_cancelled,
    leases_admit_jobs_at_once,
    jobs_come_line_by_line,
    a_foreign_client_shares_the_budget,
    jobs_of_former_shards_are_known_and_run,
);

fn job(id: &str, group: &str, body: Value) -> Value {
    json!({"account": "acme", "id": id, "group": group, "body": body})
}

async fn start(place: Place) -> (Endpoint, Host) {
    let endpoint = Endpoint::start().await;
    let host = Host::start(place, &Settings::jobs_to(endpoint.url())).await;
    (endpoint, host)
}

async fn until_begun(endpoint: &Endpoint, count: usize) {
    until(&format!("{count} jobs to begin"), || async {
        (endpoint.seen().begun() == count).then_some(())
    })
    .await;
}

async fn a_job_runs_once_and_its_result_is_kept(place: Place) {
    let (endpoint, host) = start(place).await;
    let body = json!({"result": {"answer": 42}, "deep": [1, 2.5, null, "ü"]});
    let submitted = host.post("jobs", job("1", "nightly", body.clone())).await;
    let result = json!({"account": "acme", "id": "1", "outcome": "queued"});
    let expected = (202, json!({ "results": [result] }));
    assert_eq!((submitted.status, submitted.body), expected);
    let status = host.until_state("acme", "1", "completed").await;
    assert_eq!(status["result"], json!({"answer": 42}));
    // Submitted again, with whatever body, it is known and does not run again.
    let again = host.post("jobs", job("1", "nightly", json!({}))).await;
    assert_eq!(again.status, 200, "{}", again.body);
    assert_eq!(again.body["results"][0]["outcome"], "duplicate");
    let strange = json!({"account": "café/1", "id": "ü 1"});
    assert_eq!(host.post("jobs", strange).await.status, 202);
    host.until_state("caf%C3%A9%2F1", "%C3%BC%201", "completed")
        .await;

    let seen = endpoint.seen();
    let [first, second] = seen.requests.as_slice() else {
        panic!("two requests, not {:?}", seen.requests)
    };
    assert_eq!(first.0, "acme/1");
    let run = json!({"account": "acme", "id": "1", "group": "nightly", "attempt": 1, "body": body});
    assert_eq!(first.1, run);
    assert_eq!(
        (&*second.0, &second.1["group"]),
        ("caf%C3%A9%2F1/%C3%BC%201", &json!("default"))
    );
    assert_eq!(second.1["account"], "café/1");
    assert_eq!(seen.admissions.get("grant"), Some(&2));
}

async fn answers_decide_whether_a_job_is_tried_again(place: Place) {
    let (endpoint, host) = start(place).await;
    for (id, answers) in [
        ("retried", json!([503, 200])),
        ("slow-down", json!([429, 200])),
        ("timeout", json!([408, 200])),
        ("early", json!([425, 200])),
        ("redirected", json!([302, 200])),
        ("refused", json!([422, 200])),
        ("gone", json!([404, 200])),
        ("hopeless", json!([500, 502, 503, 200])),
    ] {
        let submitted = host
            .post("jobs", job(id, "g", json!({ "answers": answers })))
            .await;
        assert_eq!(submitted.status, 202, "{}", submitted.body);
    }
    for (id, code) in [("refused", "422"), ("gone", "404"), ("hopeless", "503")] {
        let status = host.until_state("acme", id, "failed").await;
        let error = status["lastError"].as_str().unwrap();
        let told = error.contains(code) && error.contains("as the job says");
        assert!(told, "{id}: {error}");
    }
    for id in ["retried", "slow-down", "timeout", "early", "redirected"] {
        host.until_state("acme", id, "completed").await;
    }
    let seen = endpoint.seen();
    for (id, count) in [("refused", 1), ("gone", 1), ("retried", 2), ("hopeless", 3)] {
        let of_job = seen.requests.iter().filter(|(_, run)| run["id"] == id);
        let (keys, attempts): (Vec<_>, Vec<_>) = of_job
            .map(|(key, run)| (key.clone(), run["attempt"].as_u64().unwrap()))
            .unzip();
        assert_eq!(attempts, (1..=count).collect::<Vec<_>>(), "{id}");
        // The same key, so the endpoint can tell that it is the same job.
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    }
}

async fn never_more_run_than_the_limits_allow(place: Place) {
    let (endpoint, host) = start(place).await;
    host.put("accounts/acme/limit", json!({"limit": 3})).await;
    host.put("accounts/acme/groups/a/limit", json!({"limit": 2}))
        .await;
    endpoint.seen().allow("acme", None, 3);
    endpoint.seen().allow("acme", Some("a"), 2);
    let jobs: Vec<Value> = (0..40)
        .map(|index| {
            let group = if index % 2 == 0 { "a" } else { "b" };
            job(&index.to_string(), group, json!({"hold": true, "ms": 5}))
        })
        .collect();
    assert_eq!(host.post("jobs", json!(jobs)).await.status, 202);
    until_begun(&endpoint, 3).await;
    let usage = host.get("accounts/acme/usage").await.ok();
    assert_eq!((&usage["limit"], &usage["granted"]), (&json!(3), &json!(3)));
    let counted = host.get("accounts/acme/jobs").await.ok();
    assert_eq!(counted, json!({"waiting": 37, "running": 3, "undrawn": 0}));
    // More room, for everybody and for the group.
    endpoint.seen().allow("acme", None, 5);
    endpoint.seen().allow("acme", Some("a"), 4);
    host.put("accounts/acme/limit", json!({"limit": 5})).await;
    host.put("accounts/acme/groups/a/limit", json!({"limit": 4}))
        .await;
    until_begun(&endpoint, 5).await;
    endpoint.release();
    for index in 0..40 {
        host.until_state("acme", &index.to_string(), "completed")
            .await;
    }
    let seen = endpoint.seen();
    assert_eq!(seen.passed, Vec::<String>::new());
    assert_eq!(seen.highest[&("acme".to_owned(), None)], 5);
    assert_eq!((seen.begun(), seen.requests.len()), (40, 40));
}

async fn a_waiting_job_says_why_it_waits(place: Place) {
    let (endpoint, host) = start(place).await;
    host.put("accounts/acme/limit", json!({"limit": 3})).await;
    host.put("accounts/acme/groups/g/limit", json!({"limit": 1}))
        .await;
    for id in ["1", "2"] {
        host.post("jobs", job(id, "g", json!({"hold": true}))).await;
        until_begun(&endpoint, 1).await;
    }
    let status = until("the reason", || async {
        let status = host.get("accounts/acme/jobs/2").await.ok();
        (status["blockedReason"] == "group_limit").then_some(status)
    })
    .await;
    assert_eq!(
        (&status["state"], &status["place"]),
        (&json!("queued"), &json!(1))
    );
    assert!(status["since"].is_u64(), "{status}");
    assert_eq!(
        status["usage"],
        json!({"limit": 3, "granted": 1, "leased": 0, "available": 2,
               "group": {"limit": 1, "granted": 1, "leased": 0}})
    );
    let running = host.get("accounts/acme/jobs/1").await.ok();
    assert_eq!(
        (&running["state"], &running["attempt"]),
        (&json!("running"), &json!(1))
    );
    assert_eq!(running.get("usage"), None);
}

async fn jobs_are_cancelled(place: Place) {
    let (endpoint, host) = start(place).await;
    host.put("accounts/acme/limit", json!({"limit": 1})).await;
    host.post("jobs", job("1", "g", json!({"hold": true})))
        .await;
    host.until_state("acme", "1", "running").await;
    host.post("jobs", job("2", "g", json!({"hold": true})))
        .await;
    let waiting = host.delete("accounts/acme/jobs/2").await;
    assert_eq!(
        (waiting.status, &waiting.body["outcome"]),
        (200, &json!("cancelled"))
    );
    let gone = host.get("accounts/acme/jobs/2").await;
    assert_eq!(gone.refusal(), (404, "unknown_job", ""));
    let running = host.delete("accounts/acme/jobs/1").await;
    assert_eq!(running.refusal(), (409, "job_running", ""));
    let stopping = host.delete("accounts/acme/jobs/1?running=true").await;
    assert_eq!(
        (stopping.status, &stopping.body["outcome"]),
        (202, &json!("stopping"))
    );
    host.until_state("acme", "1", "cancelled").await;
    let ended = host.delete("accounts/acme/jobs/1?running=true").await;
    assert_eq!(ended.refusal(), (409, "job_ended", ""));
    // Its permit is back.
    host.post("jobs", job("3", "g", json!({}))).await;
    host.until_state("acme", "3", "completed").await;
    assert_eq!(endpoint.seen().begun(), 2);
}

async fn leases_admit_jobs_at_once(place: Place) {
    let (endpoint, host) = start(place).await;
    let options =
        json!({"provisioning": {"mode": "strict"}, "permitsPerLease": 4, "ttlMs": 600_000});
    host.put("accounts/acme/leases", json!({ "leases": options }))
        .await
        .ok();
    host.put("accounts/acme/limit", json!({"limit": 40})).await;
    endpoint.seen().allow("acme", None, 40);
    for id in 0..30 {
        let submitted = host
            .post("jobs", job(&id.to_string(), "g", json!({})))
            .await;
        assert_eq!(submitted.status, 202, "{}", submitted.body);
        host.until_state("acme", &id.to_string(), "completed").await;
    }
    let seen = endpoint.seen();
    assert!(
        seen.admissions["lease-at-once"] > 0,
        "{:?}",
        seen.admissions
    );
    assert_eq!((seen.begun(), &seen.passed), (30, &Vec::new()));
}

async fn jobs_come_line_by_line(place: Place) {
    let (_endpoint, host) = start(place).await;
    let mut lines = String::new();
    for id in ["1", "2", "1"] {
        lines += &format!("{}\n", job(id, "g", json!({})));
    }
    lines += "not a job\n";
    lines += &job("3", "g", json!({})).to_string();
    let answer = host
        .send(
            reqwest::Method::POST,
            "jobs",
            "application/x-ndjson",
            &lines,
        )
        .await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let text = answer.body.as_str().expect("lines");
    let mut outcomes: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    outcomes.sort_by_key(|outcome| outcome["line"].as_u64());
    let told: Vec<&Value> = outcomes.iter().map(|outcome| &outcome["outcome"]).collect();
    assert_eq!(told, ["queued", "queued", "duplicate", "refused", "queued"]);
    assert_eq!(outcomes[3]["error"]["code"], "malformed_json");
    for id in ["1", "2", "3"] {
        host.until_state("acme", id, "completed").await;
    }
}

async fn a_foreign_client_shares_the_budget(place: Place) {
    let (_endpoint, host) = start(place).await;
    host.put("accounts/acme/limit", json!({"limit": 2})).await;
    let reply = crate::budgets::send(&host, crate::budgets::request("foreign", "g", 5)).await;
    let grant = &reply["grants"][0];
    assert_eq!(grant["permits"], 2, "{reply}");
    let report = |released| crate::budgets::report("foreign", &grant["grantId"], 2, released);
    crate::budgets::send(&host, report(0)).await;
    // All permits are out, so a job waits.
    host.post("jobs", job("1", "g", json!({}))).await;
    until("the job to be blocked", || async {
        let status = host.get("accounts/acme/jobs/1").await.ok();
        (status["blockedReason"] == "limit").then_some(())
    })
    .await;
    crate::budgets::send(&host, report(2)).await;
    host.until_state("acme", "1", "completed").await;
}

async fn jobs_of_former_shards_are_known_and_run(place: Place) {
    let (endpoint, host) = start(place).await;
    host.put("accounts/acme/limit", json!({"limit": 1})).await;
    let shards = "accounts/acme/shards";
    let set = host
        .put(shards, json!({"shards": ["two", "one"]}))
        .await
        .ok();
    assert_eq!(set["current"]["shards"], json!(["one", "two"]));
    let jobs: Vec<Value> = (0..6)
        .map(|id| job(&id.to_string(), "g", json!({"hold": true})))
        .collect();
    assert_eq!(host.post("jobs", json!(jobs)).await.status, 202);
    until_begun(&endpoint, 1).await;
    let changed = host.put(shards, json!({"shards": ["three"]})).await.ok();
    assert_eq!(changed["current"]["shards"], json!(["three"]));
    assert_eq!(changed["former"], json!([set["current"]]));
    let again = host.post("jobs", json!(jobs)).await;
    for result in again.body["results"].as_array().unwrap() {
        assert_eq!(result["outcome"], "duplicate", "{result}");
    }
    assert_eq!(
        host.post("jobs", job("new", "g", json!({}))).await.status,
        202
    );
    host.kill().await;
    host.start_again().await;
    assert_eq!(host.get(shards).await.ok()["current"], changed["current"]);
    endpoint.release();
    for id in ["0", "1", "2", "3", "4", "5", "new"] {
        host.until_state("acme", id, "completed").await;
    }
    assert_eq!(endpoint.seen().begun(), 7);
}
