//! The publishers to R2, to KV and to objects with shelves take the exam for publishers inside workerd,
//! over miniflare's simulators of R2 and KV.
//!
//! `.ci/cloudflare exam` builds what these tests need and runs them; nothing else does.
#![cfg(not(target_arch = "wasm32"))]

mod workerd;

use serde_json::{Value, json};
use workerd::{Setup, Workerd};

async fn ask(workerd: &Workerd, client: &reqwest::Client, question: Value) -> Value {
    let asked = client.post(workerd.url()).json(&question).send().await;
    let answer = asked.expect("the worker answers");
    answer.json().await.expect("the answer is JSON")
}

async fn examine(binding: &str, cases: usize) {
    let workerd = Setup::new("exam").in_miniflare().start().await;
    let client = workerd::client();
    let names = ask(&workerd, &client, json!({ "publisher": binding })).await;
    let names = names
        .as_array()
        .unwrap_or_else(|| panic!("{names}"))
        .clone();
    assert_eq!(names.len(), cases, "{names:?}");
    let mut failures = Vec::new();
    for name in names {
        let question = json!({ "publisher": binding, "case": name });
        let verdict = ask(&workerd, &client, question).await;
        if verdict != "" {
            failures.push(format!("{name}: {verdict}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare exam"]
async fn the_publisher_to_r2_passes_the_exam() {
    examine("R2", 25).await;
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare exam"]
async fn the_publisher_to_kv_passes_the_exam() {
    examine("KV", 15).await;
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare exam"]
async fn the_publisher_to_shelves_passes_the_exam() {
    examine("SHELF", 25).await;
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare exam"]
async fn a_store_that_is_not_bound_is_told_with_its_remedy() {
    let workerd = Workerd::start("exam").await;
    for (binding, remedy) in [
        ("KV", "wrangler kv namespace create KV"),
        ("R2", "wrangler r2 bucket create"),
        // Bound, to something else.
        (
            "EXAM",
            "\\\"r2_buckets\\\": [{\\\"binding\\\": \\\"EXAM\\\"",
        ),
        ("SHELF", "new_sqlite_classes"),
    ] {
        let question = json!({ "publisher": binding });
        let told = ask(&workerd, &workerd::client(), question)
            .await
            .to_string();
        assert!(told.contains(remedy), "{binding}: {told}");
    }
}
