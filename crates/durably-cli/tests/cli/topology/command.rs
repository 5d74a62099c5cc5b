//! `durably topology`, against a running server.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::setup;
use crate::support::network::Network;
use crate::support::{PATIENCE, Server, durably};

/// Runs a command to its end: its exit code, and what it says on standard output.
async fn run(server: &Server, args: &[&str], input: Option<&Value>) -> (i32, String) {
    let mut command = durably();
    command.arg("topology").args(args);
    command.env("DURABLY_SERVER", format!("http://{}", server.address));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    if let Some(input) = input {
        stdin.write_all(input.to_string().as_bytes()).await.unwrap();
    }
    drop(stdin);
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.expect("it does not end").unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), text.trim_end().to_owned())
}

async fn json(server: &Server, args: &[&str], input: Option<&Value>) -> Value {
    let (code, text) = run(server, args, input).await;
    assert_eq!(code, 0, "{args:?}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn an_operator_does_it_all_from_a_shell() {
    let setup = setup().args(["--state-channels=limits"]);
    let server = setup.start().await;
    let draft =
        json!({"members": [{"id": "a", "state": "active"}, {"id": "b", "state": "active"}]});
    let made = json(&server, &["put", "t1", "--create"], Some(&draft)).await;
    assert_eq!(
        (&made["snapshot"]["version"], &made["published"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(
        run(&server, &["put", "t1", "--create"], Some(&draft))
            .await
            .0,
        10
    );
    assert_eq!(run(&server, &["groups"], None).await, (0, "t1".to_owned()));

    let mut watching = durably();
    watching.args([
        "topology",
        "watch",
        "t1",
        "--server",
        &format!("http://{}", server.address),
    ]);
    let mut watching = watching
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = async || -> Value {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        let line = line.expect("nothing is told").unwrap().expect("a line");
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!(next().await["data"]["content"]["version"], 1);

    let drained = json(
        &server,
        &["drain", "t1", "b", "--within", "1h", "--if-version", "1"],
        None,
    )
    .await;
    assert_eq!(drained["snapshot"]["members"][1]["state"], "draining");
    assert_eq!(next().await["data"]["content"]["version"], 2);
    let patch = json!({"put": [{"id": "c", "state": "active"}]});
    assert_eq!(
        run(&server, &["patch", "t1", "--if-version", "1"], Some(&patch))
            .await
            .0,
        10
    );
    json(&server, &["patch", "t1"], Some(&patch)).await;
    let reached = json(
        &server,
        &["wait", "t1", "--version", "3", "--audience", "published"],
        None,
    )
    .await;
    assert_eq!(reached["reached"], true);
    assert_eq!(
        run(
            &server,
            &["wait", "t1", "--version", "9", "--timeout", "20ms"],
            None
        )
        .await
        .0,
        12
    );
    assert_eq!(
        json(&server, &["convergence", "t1"], None).await["version"],
        3
    );
    assert_eq!(json(&server, &["get", "t1"], None).await["version"], 3);
    assert_eq!(
        json(&server, &["states", "t1"], None).await,
        json!({"states": {}})
    );
    assert_eq!(
        json(&server, &["published", "t1"], None).await["content"]["version"],
        3
    );
    assert!(json(&server, &["new-incarnation"], None).await["nonce"].is_string());

    assert_eq!(
        json(&server, &["delete", "t1", "--if-version", "3"], None).await["version"],
        4
    );
    for args in [
        ["get", "t1"],
        ["delete", "t1"],
        ["published", "t1"],
        ["convergence", "t1"],
    ] {
        assert_eq!(run(&server, &args, None).await.0, 11, "{args:?}");
    }
    let nobody = json!({"members": []});
    assert_eq!(run(&server, &["put", "t1"], Some(&nobody)).await.0, 9);
    assert_eq!(
        run(&server, &["put", "t1", "--file", "not-there.json"], None)
            .await
            .0,
        2
    );
    assert_eq!(run(&server, &["get", ".."], None).await.0, 2);
    assert_eq!(run(&server, &["get"], None).await.0, 2);
    assert_eq!(
        run(
            &server,
            &["get", "t1", "--server", "http://127.0.0.1:9"],
            None
        )
        .await
        .0,
        8
    );
    assert_eq!(
        run(&server, &["get", "t1", "--server", "here"], None)
            .await
            .0,
        2
    );
}

#[tokio::test]
async fn a_watch_goes_on_through_restarts_and_tells_nothing_twice() {
    let setup = setup();
    let server = setup.start().await;
    let network = Network::start().await;
    network.lead_to(server.address);
    let draft = |id: &str| json!({"members": [{"id": id, "state": "active"}]});
    json(&server, &["put", "t1"], Some(&draft("a"))).await;
    let mut watching = durably();
    watching.args(["topology", "watch", "t1", "--server", &network.url()]);
    let piped = watching.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut watching = piped.spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut version = async || {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        let line = line.expect("nothing is told").unwrap().expect("a line");
        let event: Value = serde_json::from_str(&line).unwrap();
        event["data"]["content"]["version"].as_u64()
    };
    assert_eq!(version().await, Some(1));
    server.kill().await;
    let server = setup.start().await;
    network.lead_to(server.address);
    network.cut();
    json(&server, &["put", "t1"], Some(&draft("b"))).await;
    assert_eq!(version().await, Some(2));
    watching.kill().await.unwrap();

    // One that never was there is not waited for.
    let nowhere = ["watch", "t1", "--server", "http://127.0.0.1:9"];
    assert_eq!(run(&server, &nowhere, None).await.0, 8);
}
