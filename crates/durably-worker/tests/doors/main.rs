//! The ready-made worker in a real workerd, with the bench worker's doors to its objects: one is evicted, or
//! asked for its costs.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::print_stdout, reason = "a seed must be told")]

mod costs;
#[allow(
    dead_code,
    reason = "the tests of the server hold jobs and look at single ones"
)]
#[path = "../../../durably-cli/tests/cli/support/endpoint.rs"]
mod endpoint;
mod evictions;
#[path = "../../../durably-cloudflare/tests/workerd/mod.rs"]
mod workerd;

use serde_json::Value;
use workerd::Workerd;

async fn post(workerd: &Workerd, path: &str, body: Value) -> Value {
    let url = format!("{}{path}", workerd.url());
    let answer = workerd::client().post(url).json(&body).send().await;
    let answer = answer.expect("workerd answers");
    answer.json().await.expect("the answer is JSON")
}
