//! Jobs as a stream of lines: any length, answered in order, in bounded memory.

use std::time::Duration;

use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Body, Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::support::endpoint::Endpoint;
use crate::support::{Server, Setup};

fn line(id: &str) -> String {
    format!(
        "{}\n",
        json!({"account": "acme", "id": id, "body": {"hold": true}})
    )
}

/// Sends all at once; the answer's lines.
async fn send(server: &Server, text: String) -> Vec<Value> {
    let request = server
        .request(Method::POST, "jobs")
        .header(CONTENT_TYPE, "application/x-ndjson")
        .body(text);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/x-ndjson");
    let text = response.text().await.unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_is_answered_in_order_and_bad_ones_by_themselves() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url()).args(["--max-body-bytes=200"]);
    let server = setup.start().await;
    let too_long = format!("{}\n", "x".repeat(500));
    let text = [
        &*line("1"),
        "{\n",
        "\n",
        &too_long,
        "  \r\n",
        &line("1"),
        r#"{"id":"7"}"#,
    ]
    .concat()
        + "\n"
        + line("2").trim_end();
    let answers: Vec<_> = send(&server, text)
        .await
        .into_iter()
        .map(|answer| {
            (
                answer["line"].as_u64().unwrap(),
                answer["outcome"].as_str().unwrap().to_owned(),
                answer["error"]["code"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            )
        })
        .collect();
    let expected = [
        (1, "queued", ""),
        (2, "refused", "malformed_json"),
        (4, "refused", "line_too_large"),
        (6, "duplicate", ""),
        (7, "refused", "invalid"),
        (8, "queued", ""),
    ]
    .map(|(line, outcome, code)| (line, outcome.to_owned(), code.to_owned()));
    assert_eq!(answers, expected);
    for id in ["1", "2"] {
        server.until_state("acme", id, "running").await;
    }
    assert_eq!(send(&server, String::new()).await, [] as [Value; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_lines_go_in() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let text: String = (0..5_000).map(|index| line(&index.to_string())).collect();
    let answers = send(&server, text).await;
    assert_eq!(answers.len(), 5_000);
    for (answer, index) in answers.iter().zip(0..) {
        assert_eq!(answer["id"], index.to_string());
        assert_eq!(answer["outcome"], "queued");
    }
    assert_eq!(server.state("acme", "4999").await, "queued");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_is_answered_before_the_next_is_sent() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let (mut lines, body) = mpsc::channel::<Result<String, std::io::Error>>(0);
    let request = server
        .request(Method::POST, "jobs")
        .header(CONTENT_TYPE, "application/x-ndjson")
        .body(Body::wrap_stream(body));
    let mut answers = request.send().await.unwrap().bytes_stream();
    for id in ["1", "2", "3"] {
        lines.send(Ok(line(id))).await.unwrap();
        let answer: Value =
            serde_json::from_slice(&answers.next().await.unwrap().unwrap()).unwrap();
        assert_eq!(
            (&answer["id"], &answer["outcome"]),
            (&json!(id), &json!("queued"))
        );
    }
    drop(lines);
    assert!(answers.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_not_read_from() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let socket = TcpSocket::new_v4().unwrap();
    // Small, so that little is in flight; what the server's side holds is the system's choice.
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.set_send_buffer_size(16 << 10).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // Each line costs 3 bytes and is answered by some 100.
    let chunk = format!("{:x}\r\n{}\r\n", 3 * 10_000, "{}\n".repeat(10_000));
    let mut sent = 0;
    let stalled = loop {
        match tokio::time::timeout(Duration::from_secs(2), stream.write_all(chunk.as_bytes())).await
        {
            Ok(written) => written.unwrap(),
            Err(_) => break true,
        }
        sent += chunk.len();
        if sent > 64 << 20 {
            break false;
        }
    };
    assert!(stalled, "the server takes in whatever is sent");
    // It still answers others, and goes on here as soon as its answers are taken.
    assert_eq!(server.get("health").await.0, StatusCode::OK);
    let mut taken = vec![0; 1 << 20];
    stream.read_exact(&mut taken).await.unwrap();
    assert!(taken.starts_with(b"HTTP/1.1 202"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_before_a_break_stays() {
    let endpoint = Endpoint::start().await;
    let server = Setup::new(endpoint.url()).start().await;
    let (mut lines, body) = mpsc::channel::<Result<String, std::io::Error>>(0);
    let request = server
        .request(Method::POST, "jobs")
        .header(CONTENT_TYPE, "application/x-ndjson")
        .body(Body::wrap_stream(body));
    let mut answers = request.send().await.unwrap().bytes_stream();
    lines
        .send(Ok(line("1") + "{\"account\":\"acme\",\"id\":\"ha"))
        .await
        .unwrap();
    answers.next().await.unwrap().unwrap();
    lines
        .send(Err(std::io::Error::other("broken")))
        .await
        .unwrap();
    drop((lines, answers));
    server.until_state("acme", "1", "running").await;
    assert_eq!(server.state("acme", "ha").await, "unknown");
}
