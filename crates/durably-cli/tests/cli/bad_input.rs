//! What is wrong is refused with a typed error that names the field, and changes nothing.

use reqwest::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::endpoint::Endpoint;
use crate::support::{Server, Setup, answer};

/// What a request is answered with: the status, the error's code and the field to blame.
type Expected = (u16, &'static str, Option<&'static str>);

async fn expect(server: &Server, method: Method, path: &str, body: &str, expected: Expected) {
    let request = server
        .request(method.clone(), path)
        .header(CONTENT_TYPE, "application/json")
        .body(body.to_owned());
    let (status, answer) = answer(request).await;
    let shown = body.chars().take(100).collect::<String>();
    let error = &answer["error"];
    assert_eq!(
        (
            status.as_u16(),
            error["code"].as_str(),
            error["field"].as_str()
        ),
        (expected.0, Some(expected.1), expected.2),
        "{method} {path} {shown}: {answer}"
    );
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|message| !message.is_empty())
    );
}

fn job(id: &str) -> Value {
    json!({"account": "acme", "id": id, "body": {"hold": true}})
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_jobs_are_refused_by_field() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let long = "x".repeat(257);
    let with = |field: &str, value: Value| {
        let mut job = job("1");
        job[field] = value;
        job.to_string()
    };
    for (body, expected) in [
        ("".to_owned(), (400, "malformed_json", None)),
        ("{".to_owned(), (400, "malformed_json", None)),
        ("{} {}".to_owned(), (400, "malformed_json", None)),
        ("\u{feff}{}".to_owned(), (400, "malformed_json", None)),
        ("[[".to_owned(), (400, "malformed_json", None)),
        ("null".to_owned(), (400, "invalid", None)),
        ("12".to_owned(), (400, "invalid", None)),
        ("{}".to_owned(), (400, "invalid", Some("account"))),
        (
            r#"{"account":"acme"}"#.to_owned(),
            (400, "invalid", Some("id")),
        ),
        (
            with("account", json!("")),
            (400, "invalid", Some("account")),
        ),
        (
            with("account", json!(long)),
            (400, "invalid", Some("account")),
        ),
        (
            with("account", json!(null)),
            (400, "invalid", Some("account")),
        ),
        (with("id", json!("")), (400, "invalid", Some("id"))),
        (with("id", json!(long)), (400, "invalid", Some("id"))),
        (with("id", json!(7)), (400, "invalid", Some("id"))),
        (with("group", json!("")), (400, "invalid", Some("group"))),
        (with("group", json!(long)), (400, "invalid", Some("group"))),
        (with("group", json!({})), (400, "invalid", Some("group"))),
        (
            with("body", json!("x".repeat(128 << 10))),
            (413, "body_too_large", None),
        ),
        (
            format!(
                r#"{{"account":"acme","id":"1","body":{}}}"#,
                "[".repeat(1_000)
            ),
            (400, "malformed_json", None),
        ),
    ] {
        expect(&server, Method::POST, "jobs", &body, expected).await;
    }
    assert_eq!(server.state("acme", "1").await, "unknown");
    let (_, usage) = server.get("accounts/acme/usage").await;
    assert_eq!(usage["granted"], 0);
    assert!(endpoint.seen().requests.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_256_bytes_are_fine() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    // Two bytes each, escaped in paths.
    let long = "ä".repeat(128);
    let job = json!({"account": long, "id": long, "group": long});
    assert_eq!(server.post("jobs", &job).await.0, StatusCode::ACCEPTED);
    server.until_state(&long, &long, "completed").await;
    let odd = "a/b c%?#\u{1}";
    let job = json!({"account": odd, "id": odd, "group": odd});
    assert_eq!(server.post("jobs", &job).await.0, StatusCode::ACCEPTED);
    let escaped = "a%2Fb%20c%25%3F%23%01";
    server.until_state(escaped, escaped, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_job_of_a_list_is_refused_by_itself() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let list = json!([job("1"), {"account": "acme"}, 7, job(""), job("1"), job("2")]);
    let (status, answer) = server.post("jobs", &list).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let results = answer["results"].as_array().unwrap();
    let outcomes: Vec<_> = results
        .iter()
        .map(|result| {
            (
                result["outcome"].as_str().unwrap(),
                result["error"]["field"].as_str(),
            )
        })
        .collect();
    assert_eq!(
        outcomes,
        [
            ("queued", None),
            ("refused", Some("id")),
            ("refused", None),
            ("refused", Some("id")),
            ("duplicate", None),
            ("queued", None),
        ]
    );
    for id in ["1", "2"] {
        server.until_state("acme", id, "running").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_bodies_are_bounded() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url()).args([
        "--max-batch-jobs=3",
        "--max-batch-bytes=4000",
        "--max-body-bytes=1000",
    ]);
    let server = setup.start().await;
    let four = json!([job("1"), job("2"), job("3"), job("4")]).to_string();
    expect(
        &server,
        Method::POST,
        "jobs",
        &four,
        (413, "too_many_jobs", None),
    )
    .await;
    let large = json!([job(&"x".repeat(4_000))]).to_string();
    expect(
        &server,
        Method::POST,
        "jobs",
        &large,
        (413, "body_too_large", None),
    )
    .await;
    let spaces = " ".repeat(5_000);
    expect(
        &server,
        Method::POST,
        "jobs",
        &spaces,
        (413, "body_too_large", None),
    )
    .await;
    // A list may be larger than a body, but the bodies in it may not.
    let mut one = job("5");
    one["body"] = json!("x".repeat(1_001));
    let (status, answer) = server.post("jobs", &json!([one, job("6")])).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!(
        answer["results"][0]["error"]["code"], "body_too_large",
        "{answer}"
    );
    assert_eq!(answer["results"][1]["outcome"], "queued");
    // The length is not known before, and still bounded.
    let chunks = futures::stream::iter((0..5).map(|_| Ok::<_, std::io::Error>(" ".repeat(300))));
    let request = server
        .request(Method::PUT, "accounts/acme/limit")
        .header(CONTENT_TYPE, "application/json")
        .body(reqwest::Body::wrap_stream(chunks));
    assert_eq!(
        answer_code(request).await,
        (413, "body_too_large".to_owned())
    );
    for id in ["1", "2", "3", "4", "5"] {
        assert_eq!(server.state("acme", id).await, "unknown");
    }
}

async fn answer_code(request: reqwest::RequestBuilder) -> (u16, String) {
    let (status, body) = answer(request).await;
    (
        status.as_u16(),
        body["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_limits_and_shards_change_nothing() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    server
        .put("accounts/acme/limit", &json!({"limit": 3}))
        .await;
    let (_, before) = server.get("accounts/acme/limit").await;
    let (_, shards) = server.get("accounts/acme/shards").await;
    let long = "x".repeat(257);
    for (body, expected) in [
        ("{}", (400, "invalid", Some("limit"))),
        (r#"{"limit":null}"#, (400, "invalid", Some("limit"))),
        (r#"{"limit":-1}"#, (400, "invalid", Some("limit"))),
        (r#"{"limit":1.5}"#, (400, "invalid", Some("limit"))),
        (r#"{"limit":"3"}"#, (400, "invalid", Some("limit"))),
        (
            r#"{"limit":9007199254740992}"#,
            (400, "invalid", Some("limit")),
        ),
        (r#"{"limit":1e400}"#, (400, "malformed_json", None)),
        ("[3]", (400, "invalid", None)),
        ("nonsense", (400, "malformed_json", None)),
    ] {
        expect(&server, Method::PUT, "accounts/acme/limit", body, expected).await;
        expect(
            &server,
            Method::PUT,
            "accounts/acme/groups/g/limit",
            body,
            expected,
        )
        .await;
        let path = format!("accounts/{long}/limit");
        let status = expected.0;
        let request = server
            .request(Method::PUT, &path)
            .header(CONTENT_TYPE, "application/json");
        assert_eq!(answer_code(request.body(body)).await.0, status);
    }
    for (body, expected) in [
        ("{}", (400, "invalid", Some("shards"))),
        (r#"{"shards":[]}"#, (400, "invalid", Some("shards"))),
        (r#"{"shards":[""]}"#, (400, "invalid", Some("shards"))),
        (r#"{"shards":["a","a"]}"#, (400, "invalid", Some("shards"))),
        (r#"{"shards":["a",1]}"#, (400, "invalid", Some("shards[1]"))),
        (r#"{"shards":"a"}"#, (400, "invalid", Some("shards"))),
    ] {
        expect(&server, Method::PUT, "accounts/acme/shards", body, expected).await;
    }
    for (method, path, field) in [
        (Method::GET, format!("accounts/{long}/limit"), "account"),
        (Method::GET, format!("accounts/{long}/usage"), "account"),
        (Method::GET, format!("accounts/{long}/shards"), "account"),
        (Method::GET, format!("accounts/{long}/jobs/1"), "account"),
        (Method::GET, format!("accounts/acme/jobs/{long}"), "id"),
        (Method::DELETE, format!("accounts/acme/jobs/{long}"), "id"),
        (Method::DELETE, format!("accounts/{long}/limit"), "account"),
        (
            Method::GET,
            format!("accounts/acme/groups/{long}/limit"),
            "group",
        ),
        (
            Method::DELETE,
            format!("accounts/acme/groups/{long}/limit"),
            "group",
        ),
    ] {
        expect(&server, method, &path, "", (400, "invalid", Some(field))).await;
    }
    let wrong = json!({"limit": -1});
    let (_, answer) = server.put("accounts/acme/limit", &wrong).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("a whole number from 0 to"), "{message}");
    assert_eq!(server.get("accounts/acme/limit").await.1, before);
    assert_eq!(server.get("accounts/acme/shards").await.1, shards);
    assert_eq!(before["limit"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_messages_are_refused_by_field() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let long = "x".repeat(257);
    let demand = |count: Value| {
        json!({"type": "request", "v": 1, "clientId": "c", "grants": [],
               "demand": [{"group": "g", "count": count, "oldestAt": 1}]})
    };
    let report = json!({"grantId": "g", "claimed": 0, "released": 0});
    let sync = |client: &str, grants: Value| {
        json!({"type": "sync", "v": 1, "clientId": client, "grants": grants}).to_string()
    };
    let cases = [
        ("{", 400, None),
        (
            &*json!({"type": "sync", "v": 2, "clientId": "c", "grants": []}).to_string(),
            400,
            Some("v"),
        ),
        (
            &*json!({"type": "sync", "v": "1", "clientId": "c", "grants": []}).to_string(),
            400,
            Some("v"),
        ),
        (
            &*json!({"type": "other", "v": 1}).to_string(),
            400,
            Some("type"),
        ),
        (&*sync("", json!([])), 400, Some("clientId")),
        (&*sync(&long, json!([])), 400, Some("clientId")),
        (&*sync("c", json!(null)), 400, Some("grants")),
        (
            &*demand(json!(-1)).to_string(),
            400,
            Some("demand[0].count"),
        ),
        (&*demand(json!(0)).to_string(), 400, Some("demand[0].count")),
        (
            &*demand(json!(1u64 << 53)).to_string(),
            400,
            Some("demand[0].count"),
        ),
        (
            &*demand(json!("1")).to_string(),
            400,
            Some("demand[0].count"),
        ),
    ]
    .map(|(body, status, field)| (body.to_owned(), status, field));
    for (body, status, field) in cases {
        let request = server
            .request(Method::POST, "holders/acme/messages")
            .header(CONTENT_TYPE, "application/json");
        let (found, answer) = answer(request.body(body.clone())).await;
        assert_eq!(found.as_u16(), status, "{body}: {answer}");
        assert!(answer["error"]["code"].is_string());
        if field.is_some() {
            assert_eq!(answer["error"]["field"].as_str(), field, "{body}: {answer}");
        }
    }
    // More than 128 KiB would be another error.
    let server = Setup::new(endpoint.url())
        .args(["--max-body-bytes=1000000"])
        .start()
        .await;
    let many = sync("c", json!(vec![report; 4_097]));
    let request = server
        .request(Method::POST, "holders/acme/messages")
        .header(CONTENT_TYPE, "application/json");
    let (status, answer) = answer(request.body(many)).await;
    assert_eq!(
        (status, &answer["error"]["field"]),
        (StatusCode::BAD_REQUEST, &json!("grants"))
    );
    assert_eq!(server.get("accounts/acme/usage").await.1["granted"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_methods_and_types_are_checked() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    for path in ["", "nothing", "jobs/1", "accounts", "accounts/acme"] {
        expect(&server, Method::GET, path, "", (404, "not_found", None)).await;
    }
    expect(
        &server,
        Method::GET,
        "accounts/acme/jobs/none",
        "",
        (404, "unknown_job", None),
    )
    .await;
    expect(
        &server,
        Method::DELETE,
        "accounts/acme/jobs/none",
        "",
        (404, "unknown_job", None),
    )
    .await;
    expect(
        &server,
        Method::GET,
        "accounts//usage",
        "",
        (400, "invalid", Some("account")),
    )
    .await;
    expect(
        &server,
        Method::GET,
        "accounts/%FF/usage",
        "",
        (400, "malformed_request", None),
    )
    .await;
    let query = "accounts/acme/jobs/1?running=perhaps";
    expect(
        &server,
        Method::DELETE,
        query,
        "",
        (400, "malformed_request", None),
    )
    .await;
    for (method, path, allowed) in [
        (Method::GET, "jobs", "POST"),
        (Method::DELETE, "jobs", "POST"),
        (Method::POST, "accounts/acme/jobs/1", "GET,HEAD,DELETE"),
        (Method::POST, "accounts/acme/limit", "GET,HEAD,PUT,DELETE"),
        (Method::PATCH, "accounts/acme/usage", "GET,HEAD"),
        (Method::GET, "holders/acme/messages", "POST"),
        (Method::POST, "health", "GET,HEAD"),
    ] {
        expect(
            &server,
            method.clone(),
            path,
            "{}",
            (405, "method_not_allowed", None),
        )
        .await;
        let response = server.request(method, path).send().await.unwrap();
        assert_eq!(response.headers()[ALLOW], allowed);
    }
    for (method, path) in [
        (Method::POST, "jobs"),
        (Method::PUT, "accounts/acme/limit"),
        (Method::PUT, "accounts/acme/shards"),
        (Method::POST, "holders/acme/messages"),
    ] {
        for kind in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonp",
        ] {
            let request = server
                .request(method.clone(), path)
                .header(CONTENT_TYPE, kind);
            let expected = (415, "unsupported_media_type".to_owned());
            assert_eq!(
                answer_code(request.body("{}")).await,
                expected,
                "{path} {kind}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_everywhere_but_at_health() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url()).variable("DURABLY_TOKEN", "open-sesame");
    let mut server = setup.start().await;
    for header in [
        None,
        Some("Bearer open-sesam"),
        Some("Bearer open-sesame2"),
        Some("Basic open-sesame"),
        Some("Bearer "),
        Some("open-sesame"),
    ] {
        for (method, path) in [
            (Method::POST, "jobs"),
            (Method::GET, "accounts/acme/usage"),
            (Method::GET, "nothing"),
            (Method::PATCH, "jobs"),
        ] {
            let mut request = server
                .request(method, path)
                .header(CONTENT_TYPE, "application/json");
            if let Some(header) = header {
                request = request.header(AUTHORIZATION, header);
            }
            let request = request.body(job("1").to_string());
            assert_eq!(answer_code(request).await, (401, "unauthorized".to_owned()));
        }
    }
    assert_eq!(server.get("health").await.0, StatusCode::OK);
    server.token = Some("open-sesame".to_owned());
    assert_eq!(server.state("acme", "1").await, "unknown");
    assert_eq!(server.post("jobs", &job("1")).await.0, StatusCode::ACCEPTED);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_at_once_are_told_to_come_back() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::slow_rounds(endpoint.url(), "60s").args(["--max-requests=1"]);
    let server = setup.start().await;
    // Waits for its round for a minute.
    let message = json!({"type": "request", "v": 1, "clientId": "c", "grants": [],
                         "demand": [{"group": "g", "count": 1, "oldestAt": 1}]});
    // What asks whether the server is overloaded may itself be what keeps this one out.
    let request = server
        .request(Method::POST, "holders/acme/messages")
        .json(&message);
    let waiting = tokio::spawn(async move {
        loop {
            let request = request.try_clone().expect("a body in memory");
            match request.send().await {
                Ok(answer) if answer.status() == StatusCode::SERVICE_UNAVAILABLE => {}
                other => return other,
            }
        }
    });
    crate::support::until("the server to be overloaded", || async {
        let (status, answer) = server.get("accounts/acme/jobs/1").await;
        (status == StatusCode::SERVICE_UNAVAILABLE && answer["error"]["code"] == "overloaded")
            .then_some(())
    })
    .await;
    assert_eq!(server.get("health").await.0, StatusCode::OK);
    waiting.abort();
    // The place is free once the server has seen that the connection is gone.
    crate::support::until("the server to answer again", || async {
        let (status, _) = server.get("accounts/acme/jobs/1").await;
        (status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_a_list_as_it_does_a_job() {
    let setup = Setup::new("http://127.0.0.1:9/run").args(["--max-queue-length=1"]);
    let server = setup.start().await;
    for path in ["shards", "limit"] {
        let body = json!({"shards": ["one"], "limit": 0});
        server.put(&format!("accounts/acme/{path}"), &body).await;
    }
    let (status, answer) = server.post("jobs", &json!([job("1"), job("2")])).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!(answer["results"][1]["error"]["code"], "queue_full");
    for full in [json!([job("2"), job("3")]), job("2")] {
        let (status, answer) = server.post("jobs", &full).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
        assert_eq!(answer["error"]["code"], "queue_full");
    }
    let (status, answer) = server.post("jobs", &json!([job("1"), job("2")])).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    assert_eq!(answer["results"][0]["outcome"], "duplicate");
}

#[tokio::test(flavor = "multi_thread")]
async fn full_storage_refuses_jobs_and_keeps_those_it_has() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url()).args(["--max-object-bytes=400000"]);
    let server = setup.start().await;
    server
        .put("accounts/acme/shards", &json!({"shards": ["one"]}))
        .await;
    server
        .put("accounts/acme/limit", &json!({"limit": 0}))
        .await;
    let large =
        |id: usize| json!({"account": "acme", "id": id.to_string(), "body": "x".repeat(50_000)});
    let mut taken = 0;
    let refusal = loop {
        let (status, answer) = server.post("jobs", &large(taken)).await;
        if status != StatusCode::ACCEPTED {
            break (status, answer);
        }
        taken += 1;
        assert!(taken < 100, "it is never full");
    };
    let (status, answer) = refusal;
    assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE, "{answer}");
    assert_eq!(answer["error"]["code"], "storage_full");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("free some space")
    );
    let (status, answer) = server
        .post("jobs", &json!([large(taken), large(taken + 1)]))
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::INSUFFICIENT_STORAGE, &json!("storage_full"))
    );
    assert!(taken > 0);
    for id in 0..taken {
        assert_eq!(server.state("acme", &id.to_string()).await, "queued");
    }
    assert_eq!(server.state("acme", &taken.to_string()).await, "unknown");
}
