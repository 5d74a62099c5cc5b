//! The documented class of one's own, in a real workerd: a stateless worker asks its objects by a
//! `SemaphoreClient`.
#![cfg(not(target_arch = "wasm32"))]

mod workerd;

use std::time::Duration;

use serde_json::{Value, json};
use workerd::Workerd;

async fn ask(workerd: &Workerd, client: &str, count: u64) -> Value {
    let call = json!({ "desk": "eu-acme", "request": {
        "clientId": client, "grants": [],
        "demand": [{ "group": "alpha", "count": count, "oldestAt": 1 }],
    }});
    let request = workerd::client().post(workerd.url()).json(&call);
    let answer = request.send().await.expect("workerd answers");
    answer.json().await.expect("the answer is JSON")
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn a_class_of_ones_own_keeps_its_limit_for_all_who_ask() {
    let workerd = Workerd::start("exam").await;
    let reply = ask(&workerd, "one", 2).await;
    assert_eq!(reply["grants"][0]["permits"], 2, "{reply}");
    workerd.restart(Duration::ZERO).await;
    let reply = ask(&workerd, "other", 5).await;
    assert_eq!(reply["grants"][0]["permits"], 1, "{reply}");
    assert_eq!(reply["blocked"][0]["reason"], "limit", "{reply}");

    let refused = ask(&workerd, "", 1).await;
    let problem = refused["thrown"].as_str().unwrap_or_default();
    assert!(problem.contains("must not be empty"), "{refused}");
}
