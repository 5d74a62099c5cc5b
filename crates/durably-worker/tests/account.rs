//! The ready-made worker's account limit in a real workerd, over HTTP.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../../durably-cloudflare/tests/workerd/mod.rs"]
mod workerd;

use std::time::Duration;

use serde_json::{Value, json};
use workerd::Workerd;

async fn ask(workerd: &Workerd, method: &str, path: &str, body: Value) -> (u16, Value) {
    let url = format!("{}v1/{path}", workerd.url());
    let method = method.parse().expect("a method");
    let request = workerd::client().request(method, url);
    let request = if body.is_null() {
        request
    } else {
        request.json(&body)
    };
    let answer = request.send().await.expect("workerd answers");
    let status = answer.status().as_u16();
    (status, answer.json().await.expect("the answer is JSON"))
}

fn demand(count: u64) -> Value {
    json!({
        "type": "request", "v": 1, "clientId": "c1", "grants": [],
        "demand": [{ "group": "alpha", "count": count, "oldestAt": 1 }],
    })
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn an_account_keeps_its_limit_and_what_it_granted_through_a_kill() {
    let workerd = Workerd::start("durably").await;
    let limit = "accounts/caf%C3%A9%2Fone/limit";
    assert_eq!(
        ask(&workerd, "PUT", limit, json!({ "limit": 3 })).await,
        (200, json!({ "limit": 3 }))
    );
    let messages = "holders/caf%C3%A9%2Fone/messages";
    let (status, reply) = ask(&workerd, "POST", messages, demand(5)).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["grants"][0]["permits"], 3, "{reply}");

    workerd.restart(Duration::ZERO).await;
    assert_eq!(
        ask(&workerd, "GET", limit, Value::Null).await,
        (200, json!({ "limit": 3 }))
    );
    let usage = "accounts/caf%C3%A9%2Fone/usage";
    let (status, usage) = ask(&workerd, "GET", usage, Value::Null).await;
    assert_eq!((status, &usage["granted"]), (200, &json!(3)), "{usage}");
    let other = ask(&workerd, "GET", "accounts/other/limit", Value::Null).await;
    assert_eq!(other, (200, json!({ "limit": 10 })));
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn what_is_wrong_is_refused_as_elsewhere() {
    let workerd = Workerd::start("durably").await;
    let refused = |method, path, body| {
        let workerd = &workerd;
        async move {
            let (status, answer) = ask(workerd, method, path, body).await;
            let error = &answer["error"];
            let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            (status, text("code"), text("field"))
        }
    };
    let told = |status, code: &str, field: &str| (status, code.to_owned(), field.to_owned());
    let messages = "holders/a/messages";
    for (method, path, body, answer) in [
        (
            "POST",
            messages,
            json!({ "type": "request" }),
            told(400, "malformed", "v"),
        ),
        (
            "PUT",
            "accounts/a/limit",
            json!({ "limit": -1 }),
            told(400, "invalid", "limit"),
        ),
        (
            "PUT",
            "accounts/a/limit",
            json!({}),
            told(400, "invalid", "limit"),
        ),
        (
            "PUT",
            "accounts/a/limit",
            json!([1]),
            told(400, "invalid", ""),
        ),
        (
            "PUT",
            "accounts/a/limit",
            json!({ "limit": (1u64 << 53) }),
            told(400, "invalid", "limit"),
        ),
        (
            "DELETE",
            "accounts/a/usage",
            Value::Null,
            told(405, "method_not_allowed", ""),
        ),
        (
            "GET",
            "accounts/a/nothing",
            Value::Null,
            told(404, "not_found", ""),
        ),
        ("GET", "nothing", Value::Null, told(404, "not_found", "")),
    ] {
        let found = refused(method, path, body.clone()).await;
        assert_eq!(found, answer, "{method} {path} {body}");
    }
    let limit = ask(&workerd, "GET", "accounts/a/limit", Value::Null).await;
    assert_eq!(limit, (200, json!({ "limit": 10 })));
}
