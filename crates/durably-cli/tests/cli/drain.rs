//! SIGTERM: nothing new, open requests end, running jobs go on with the next server.

use std::time::Duration;

use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Body, Method, StatusCode};
use serde_json::{Value, json};

use crate::support::endpoint::Endpoint;
use crate::support::{Setup, answer, until};

#[tokio::test(flavor = "multi_thread")]
async fn open_requests_end_and_new_ones_are_not_taken() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url()).args(["--drain-timeout=30s"]);
    let server = setup.start().await;
    let (mut lines, body) = mpsc::channel::<Result<String, std::io::Error>>(0);
    let request = server
        .request(Method::POST, "jobs")
        .header(CONTENT_TYPE, "application/x-ndjson")
        .body(Body::wrap_stream(body));
    let mut answers = request.send().await.unwrap().bytes_stream();
    let line = json!({"account": "acme", "id": "1", "body": {"hold": true}}).to_string() + "\n";
    lines.send(Ok(line)).await.unwrap();
    answers.next().await.unwrap().unwrap();
    server.until_state("acme", "1", "running").await;
    server.signal("TERM");
    // The stream ends with a line that says why, and then as a whole answer does.
    let last: Value = serde_json::from_slice(&answers.next().await.unwrap().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "stopping");
    assert!(answers.next().await.is_none());
    drop(lines);
    let address = server.address;
    assert!(server.ended().await.success());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    // The job still runs at the endpoint; the next server joins it.
    let server = setup.start().await;
    endpoint.release();
    server.until_state("acme", "1", "completed").await;
    assert_eq!(endpoint.seen().begun(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_its_round_gets_its_answer() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::slow_rounds(endpoint.url(), "2s");
    let server = setup.start().await;
    let message = json!({"type": "request", "v": 1, "clientId": "c", "grants": [],
                         "demand": [{"group": "g", "count": 1, "oldestAt": 1}]});
    let request = server
        .request(Method::POST, "holders/acme/messages")
        .json(&message);
    let mut waiting = tokio::spawn(answer(request));
    // It has arrived when something is heard of it no sooner than its round.
    assert!(
        tokio::time::timeout(Duration::from_millis(500), &mut waiting)
            .await
            .is_err()
    );
    server.signal("TERM");
    let (status, reply) = waiting.await.unwrap();
    assert_eq!((status, &reply["type"]), (StatusCode::OK, &json!("grant")));
    assert!(server.ended().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_is_bounded() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::slow_rounds(endpoint.url(), "10m").args(["--drain-timeout=200ms"]);
    let server = setup.start().await;
    let message = json!({"type": "request", "v": 1, "clientId": "c", "grants": [],
                         "demand": [{"group": "g", "count": 1, "oldestAt": 1}]});
    let request = server
        .request(Method::POST, "holders/acme/messages")
        .json(&message);
    let waiting = tokio::spawn(request.send());
    let other = server.request(Method::GET, "accounts/acme/usage");
    assert_eq!(answer(other).await.0, StatusCode::OK);
    server.signal("INT");
    assert!(server.ended().await.success());
    until("the request to be cut off", || async {
        waiting.is_finished().then_some(())
    })
    .await;
}
