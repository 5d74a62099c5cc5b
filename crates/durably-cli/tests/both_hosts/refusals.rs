//! What is wrong is refused alike: status, code and the field to blame. Nothing of it is stored.

use reqwest::Method;
use reqwest::header::AUTHORIZATION;
use serde_json::{Value, json};

use crate::host::{Host, Place, Settings, answer};

on_both_hosts!(
    wrong_budgets_and_messages,
    wrong_jobs,
    wrong_jobs_of_a_list_alone,
    unknown_paths_and_methods,
    bodies_that_are_no_json,
    a_token_is_asked_for_everywhere_but_at_health,
    jobs_without_anybody_to_run_them,
);

const JSON: &str = "application/json";

async fn refused(host: &Host, method: Method, path: &str, body: &Value, told: (u16, &str, &str)) {
    let answer = host.ask(method.clone(), path, Some(body)).await;
    assert_eq!(answer.refusal(), told, "{method} {path} {body}");
    let message = answer.body["error"]["message"].as_str();
    assert!(
        message.is_some_and(|text| !text.is_empty()),
        "{path} {body}"
    );
}

async fn wrong_budgets_and_messages(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    let limit = "accounts/acme/limit";
    let messages = "holders/acme/messages";
    let request = |change: Value| {
        let mut message = crate::budgets::request("c1", "g", 1);
        for (name, value) in change.as_object().unwrap() {
            message[name] = value.clone();
        }
        message
    };
    let malformed = |field| (400, "malformed", field);
    for (method, path, body, told) in [
        (
            Method::PUT,
            limit,
            json!({"limit": -1}),
            (400, "invalid", "limit"),
        ),
        (
            Method::PUT,
            limit,
            json!({"limit": 1.5}),
            (400, "invalid", "limit"),
        ),
        (
            Method::PUT,
            limit,
            json!({"limit": "3"}),
            (400, "invalid", "limit"),
        ),
        (
            Method::PUT,
            limit,
            json!({"limit": 1u64 << 53}),
            (400, "invalid", "limit"),
        ),
        (Method::PUT, limit, json!({}), (400, "invalid", "limit")),
        (Method::PUT, limit, json!([1]), (400, "invalid", "")),
        (
            Method::PUT,
            "accounts/acme/groups/g/limit",
            json!({"limit": {}}),
            (400, "invalid", "limit"),
        ),
        (
            Method::POST,
            messages,
            json!({"type": "request"}),
            malformed("v"),
        ),
        (
            Method::POST,
            messages,
            request(json!({"v": 2})),
            malformed("v"),
        ),
        (
            Method::POST,
            messages,
            request(json!({"type": "claim"})),
            malformed("type"),
        ),
        (
            Method::POST,
            messages,
            request(json!({"clientId": ""})),
            malformed("clientId"),
        ),
        (
            Method::POST,
            messages,
            request(json!({"clientId": 7})),
            malformed("clientId"),
        ),
        (
            Method::POST,
            messages,
            request(json!({"demand": [{"group": "g", "count": -1, "oldestAt": 1}]})),
            malformed("demand[0].count"),
        ),
        (
            Method::POST,
            messages,
            request(json!({"grants": [{"grantId": "x", "claimed": 1u64 << 53, "released": 0}]})),
            malformed("grants[0].claimed"),
        ),
    ] {
        refused(&host, method, path, &body, told).await;
    }
    let long = "a".repeat(300);
    let too_long = format!("accounts/{long}/limit");
    refused(
        &host,
        Method::PUT,
        &too_long,
        &json!({"limit": 1}),
        (400, "invalid", "account"),
    )
    .await;
    let too_long = format!("accounts/acme/groups/{long}/limit");
    refused(
        &host,
        Method::PUT,
        &too_long,
        &json!({"limit": 1}),
        (400, "invalid", "group"),
    )
    .await;
    assert_eq!(host.get(limit).await.ok(), json!({"limit": 10}));
    assert_eq!(host.get("accounts/acme/usage").await.ok()["granted"], 0);
}

async fn wrong_jobs(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    for (body, told) in [
        (json!({"id": "1"}), (400, "invalid", "account")),
        (json!({"account": "acme"}), (400, "invalid", "id")),
        (
            json!({"account": "", "id": "1"}),
            (400, "invalid", "account"),
        ),
        (json!({"account": "acme", "id": ""}), (400, "invalid", "id")),
        (json!({"account": "acme", "id": 7}), (400, "invalid", "id")),
        (
            json!({"account": "acme", "id": "1", "group": ""}),
            (400, "invalid", "group"),
        ),
        (
            json!({"account": "acme", "id": "1", "group": 7}),
            (400, "invalid", "group"),
        ),
        (
            json!({"account": "a".repeat(300), "id": "1"}),
            (400, "invalid", "account"),
        ),
        (json!("a job"), (400, "invalid", "")),
        (
            json!({"account": "acme", "id": "1", "body": "x".repeat(200_000)}),
            (413, "body_too_large", ""),
        ),
    ] {
        let answer = host.post("jobs", body.clone()).await;
        let (status, code, field) = answer.refusal();
        let text = body.to_string();
        assert_eq!(
            (status, code),
            (told.0, told.1),
            "{:.200} {}",
            text,
            answer.body
        );
        assert_eq!(
            field.trim_end_matches(']'),
            told.2,
            "{:.200} {}",
            text,
            answer.body
        );
    }
    let unknown = host.get("accounts/acme/jobs/1").await;
    assert_eq!(unknown.refusal(), (404, "unknown_job", ""));
    let unknown = host.delete("accounts/acme/jobs/1").await;
    assert_eq!(unknown.refusal(), (404, "unknown_job", ""));
}

async fn wrong_jobs_of_a_list_alone(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    host.put("accounts/acme/limit", json!({"limit": 0})).await;
    let jobs = json!([
        {"account": "acme", "id": "1"},
        {"account": "acme", "id": ""},
        {"account": "acme", "id": "2"},
        {"account": "acme", "id": "1"},
    ]);
    let answer = host.post("jobs", jobs).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let results = answer.body["results"].as_array().unwrap();
    let outcomes: Vec<&Value> = results.iter().map(|result| &result["outcome"]).collect();
    assert_eq!(outcomes, ["queued", "refused", "queued", "duplicate"]);
    assert_eq!(results[1]["error"]["code"], "invalid");
    assert_eq!(results[1]["error"]["field"], "id");
    for id in ["1", "2"] {
        host.until_state("acme", id, "queued").await;
    }
    let none = host.post("jobs", json!([])).await;
    assert_eq!((none.status, none.body), (202, json!({"results": []})));
}

async fn unknown_paths_and_methods(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    for (method, path, told) in [
        (Method::GET, "nothing", (404, "not_found", "")),
        (Method::GET, "accounts/acme/nothing", (404, "not_found", "")),
        (Method::GET, "accounts", (404, "not_found", "")),
        (Method::GET, "holders/acme", (404, "not_found", "")),
        (
            Method::DELETE,
            "accounts/acme/usage",
            (405, "method_not_allowed", ""),
        ),
        (
            Method::PATCH,
            "accounts/acme/limit",
            (405, "method_not_allowed", ""),
        ),
        (
            Method::GET,
            "holders/acme/messages",
            (405, "method_not_allowed", ""),
        ),
        (Method::GET, "jobs", (405, "method_not_allowed", "")),
        (
            Method::POST,
            "accounts/acme/jobs/1",
            (405, "method_not_allowed", ""),
        ),
        (
            Method::GET,
            "accounts/%FF/limit",
            (400, "malformed_request", ""),
        ),
    ] {
        let answer = host.ask(method.clone(), path, None).await;
        assert_eq!(answer.refusal(), told, "{method} {path}");
        if told.0 == 405 {
            assert!(answer.headers.contains_key("allow"), "{method} {path}");
        }
    }
    let health = host.get("health").await.ok();
    assert_eq!(
        health,
        json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")})
    );
}

async fn bodies_that_are_no_json(place: Place) {
    let host = Host::start(place, &Settings::default()).await;
    for (method, path) in [
        (Method::POST, "jobs"),
        (Method::PUT, "accounts/acme/limit"),
        (Method::PUT, "accounts/acme/leases"),
        (Method::POST, "holders/acme/messages"),
    ] {
        for text in ["", "{", "{\"limit\": 1} more", "limit=1"] {
            let answer = host.send(method.clone(), path, JSON, text).await;
            let (status, code, _) = answer.refusal();
            let known = ["malformed_json", "malformed"].contains(&code);
            assert!(status == 400 && known, "{path} {text:?}: {}", answer.body);
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded"] {
            let answer = host
                .send(method.clone(), path, kind, "{\"limit\": 1}")
                .await;
            let (status, code, _) = answer.refusal();
            assert_eq!(
                (status, code),
                (415, "unsupported_media_type"),
                "{path} {kind}"
            );
        }
    }
    assert_eq!(
        host.get("accounts/acme/limit").await.ok(),
        json!({"limit": 10})
    );
}

async fn a_token_is_asked_for_everywhere_but_at_health(place: Place) {
    let settings = Settings {
        token: Some("open-sesame"),
        ..Settings::default()
    };
    let host = Host::start(place, &settings).await;
    let paths = [
        (Method::POST, "jobs"),
        (Method::GET, "accounts/acme/usage"),
        (Method::GET, "accounts/acme/jobs/1"),
        (Method::POST, "holders/acme/messages"),
        (Method::PUT, "topologies/main/groups/t1"),
        (Method::GET, "topologies/main/published/t1"),
        (Method::GET, "nothing"),
        (Method::PATCH, "jobs"),
    ];
    for given in [
        None,
        Some("Bearer open-sesam"),
        Some("Bearer open-sesame2"),
        Some("Basic open-sesame"),
        Some("open-sesame"),
    ] {
        for (method, path) in paths.clone() {
            let request = host.request(method.clone(), path).await.json(&json!({}));
            let request = match given {
                Some(given) => request.header(AUTHORIZATION, given),
                None => request,
            };
            let refused = answer(request).await.unwrap();
            let (status, code, _) = refused.refusal();
            assert_eq!(
                (status, code),
                (401, "unauthorized"),
                "{method} {path} {given:?}"
            );
        }
    }
    assert_eq!(host.get("health").await.status, 200);
    let known = host.request(Method::GET, "accounts/acme/limit").await;
    let known = answer(known.bearer_auth("open-sesame")).await.unwrap();
    assert_eq!(known.ok(), json!({"limit": 10}));
}

async fn jobs_without_anybody_to_run_them(place: Place) {
    let settings = Settings {
        job_url: None,
        ..Settings::default()
    };
    let host = Host::start(place, &settings).await;
    let refused = host
        .post("jobs", json!({"account": "acme", "id": "1"}))
        .await;
    assert_eq!(refused.refusal(), (501, "no_job_endpoint", ""));
    // It still keeps budgets.
    let limit = host.put("accounts/acme/limit", json!({"limit": 3})).await;
    assert_eq!(limit.ok(), json!({"limit": 3}));
}
