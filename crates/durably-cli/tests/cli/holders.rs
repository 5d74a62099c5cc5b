//! A budget shared with a process of one's own: `SemaphoreClient` over HTTP.

use std::time::Duration;

use durably::Timestamp;
use durably::layers::{TimeoutLayer, Timer};
use durably::semaphore::client::{ClientError, SemaphoreClient};
use durably::semaphore::protocol::{
    BlockedReason, Demand, GrantReport, GrantStatus, PermitRequest, PermitSync,
};
use durably_native::http::{HttpHolders, TokioTimer};
use serde_json::json;
use tower_layer::Layer;

use crate::support::{PATIENCE, Setup};

pub(crate) fn demand(count: u64) -> PermitRequest {
    PermitRequest {
        client_id: "worker-7".to_owned(),
        demand: vec![Demand {
            group: "nightly".to_owned(),
            count,
            oldest_at: TokioTimer.now(),
        }],
        grants: Vec::new(),
        leases: None,
        sent_at: None,
        request_id: None,
        request_number: None,
        wait_ms: None,
        client_ttl_ms: None,
    }
}

fn report(grant_id: &str, claimed: u64, released: u64) -> PermitSync {
    PermitSync {
        client_id: "worker-7".to_owned(),
        grants: vec![GrantReport {
            grant_id: grant_id.to_owned(),
            claimed,
            released,
        }],
        leases: None,
        sent_at: None,
        client_ttl_ms: None,
    }
}

#[tokio::test]
async fn a_client_asks_claims_and_releases_over_http() {
    let setup = Setup::new("http://127.0.0.1:9/run").args(["--token", "secret"]);
    let mut server = setup.start().await;
    server.token = Some("secret".to_owned());
    server
        .put("accounts/acme%2Fnorth/limit", &json!({"limit": 2}))
        .await;
    let holders = HttpHolders::new(&format!("http://{}", server.address), Some("secret")).unwrap();
    let timeout = TimeoutLayer::new(TokioTimer, PATIENCE).unwrap();
    let client = SemaphoreClient::new(timeout.layer(holders), TokioTimer);

    let reply = client.request("acme/north", demand(3)).await.unwrap();
    assert_eq!(reply.grants[0].permits, 2);
    assert_eq!(reply.blocked[0].reason, BlockedReason::Limit);
    assert!(reply.now.is_some_and(|now| now > Timestamp::ZERO));
    let grant_id = &reply.grants[0].grant_id;
    let claimed = client
        .sync("acme/north", report(grant_id, 2, 0))
        .await
        .unwrap();
    assert_eq!(claimed.grant_results[0].claimed, 2);
    let released = client
        .sync("acme/north", report(grant_id, 2, 2))
        .await
        .unwrap();
    assert_eq!(released.grant_results[0].status, GrantStatus::Ok);
    let (_, usage) = server.get("accounts/acme%2Fnorth/usage").await;
    assert_eq!(usage["granted"], 0, "{usage}");
}

#[tokio::test]
async fn what_goes_wrong_is_told_apart() {
    let setup = Setup::new("http://127.0.0.1:9/run").args(["--token", "secret"]);
    let server = setup.start().await;
    let base = format!("http://{}", server.address);
    let client = |token| {
        let holders = HttpHolders::new(&base, token).unwrap();
        SemaphoreClient::new(holders, TokioTimer)
    };
    let refused = client(None)
        .sync("acme", report("g", 0, 0))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "unauthorized");
    let mut bad = report("g", 0, 0);
    bad.client_id = String::new();
    let refused = client(Some("secret")).sync("acme", bad).await.unwrap_err();
    assert_eq!(refused.code(), "malformed", "{refused}");
    let step = client(Some("secret")).sync("..", report("g", 0, 0)).await;
    assert_eq!(step.unwrap_err().code(), "invalid");
    server.kill().await;
    let away = client(Some("secret")).sync("acme", report("g", 0, 0)).await;
    assert!(matches!(away, Err(ClientError::Unreachable(_))), "{away:?}");

    for address in ["", "acme", "ftp://acme", "mailto:acme"] {
        let error = HttpHolders::new(address, None).unwrap_err();
        assert_eq!(error.field(), "holders", "{address}");
    }
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let holders = HttpHolders::new(&format!("http://{}", silent.local_addr().unwrap()), None);
    let timeout = TimeoutLayer::new(TokioTimer, Duration::from_millis(20)).unwrap();
    let client = SemaphoreClient::new(timeout.layer(holders.unwrap()), TokioTimer);
    let late = client.sync("acme", report("g", 0, 0)).await.unwrap_err();
    assert_eq!(late.code(), "timeout");
}
