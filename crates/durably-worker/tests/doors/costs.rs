//! What the objects of the ready-made worker say of their costs, in a real workerd.

use std::time::Duration;

use crate::post;
use crate::workerd::Workerd;
use serde_json::{Value, json};

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn an_account_counts_what_it_is_billed_for() {
    let workerd = Workerd::start("bench").await;
    let counters = || post(&workerd, "bench/ACCOUNT_LIMIT/a/counters", Value::Null);
    let none =
        json!({ "rowsRead": 0, "rowsWritten": 0, "requests": 0, "alarms": 0, "alarmsSet": 0 });
    assert_eq!(counters().await, none, "looking at them costs nothing");

    let request = json!({
        "type": "request", "v": 1, "clientId": "c1", "grants": [],
        "demand": [{ "group": "alpha", "count": 5, "oldestAt": 1 }],
    });
    let reply = post(&workerd, "v1/holders/a/messages", request).await;
    let opened = counters().await;
    assert_eq!(opened["requests"], 1, "{opened}");
    assert_eq!(opened["alarmsSet"], 1, "the claim deadline: {opened}");
    assert_ne!(opened["rowsRead"], 0, "{opened}");
    let written = opened["rowsWritten"].as_u64().unwrap_or_default();
    assert_ne!(written, 0, "{opened}");

    let claim = json!({
        "type": "sync", "v": 1, "clientId": "c1",
        "grants": [{ "grantId": reply["grants"][0]["grantId"], "claimed": 5, "released": 0 }],
    });
    post(&workerd, "v1/holders/a/messages", claim).await;
    let claimed = counters().await;
    assert_eq!(claimed["requests"], 2, "{claimed}");
    assert_eq!(claimed["rowsWritten"], written + 1, "{claimed}");
    assert_eq!(claimed["alarms"], 0, "{claimed}");

    post(&workerd, "bench/ACCOUNT_LIMIT/a/evict", Value::Null).await;
    assert_eq!(counters().await, none, "they are the instance's own");
    post(&workerd, "v1/holders/a/messages", json!({})).await;
    assert_ne!(counters().await, none, "a refused message is billed, too");
    workerd.restart(Duration::ZERO).await;
    assert_eq!(counters().await, none);
}
