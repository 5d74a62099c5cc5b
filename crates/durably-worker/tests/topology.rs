//! The ready-made worker's topologies in a real workerd, over HTTP: what only this host has. What it has in
//! common with the server is asked of both by the suite of `durably-cli`.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../../durably-cloudflare/tests/workerd/mod.rs"]
mod workerd;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use workerd::{Setup, Workerd};

/// How long to wait for what must come: a delivery that a kill cut off comes with the next alarm.
const PATIENCE: Duration = Duration::from_secs(60);

fn setup() -> Setup {
    Setup::new("durably")
        .variable("DURABLY_STATE_CHANNELS", "limits,flags=read")
        .variable("DURABLY_ALARM_MIN_DELAY_MS", "1000")
        .variable("DURABLY_DRAIN_CHECK_PERIOD_MS", "100")
}

async fn send(workerd: &Workerd, method: &str, path: &str, body: &Value) -> reqwest::Result<Value> {
    let url = format!("{}v1/{path}", workerd.url());
    let request = workerd::client().request(method.parse().expect("a method"), url);
    let request = match body {
        Value::Null => request,
        body => request.json(body),
    };
    request.send().await?.json().await
}

async fn ask(workerd: &Workerd, method: &str, path: &str, body: Value) -> Value {
    let answer = send(workerd, method, path, &body).await;
    answer.expect("workerd answers")
}

async fn get(workerd: &Workerd, path: &str) -> Value {
    ask(workerd, "GET", path, Value::Null).await
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn group(jobs: u64) -> Value {
    let members = ["one", "two"].map(|id| json!({"id": id, "state": "active"}));
    json!({"members": members, "states": {"limits": {"jobs": jobs}}})
}

/// What a member has of the channel `limits`.
async fn jobs(workerd: &Workerd, member: &str) -> Option<u64> {
    let path = format!("members/{member}/states?topology=main&group=tenant%2F1");
    let shown = get(workerd, &path).await;
    shown["states"][0]["value"]["jobs"].as_u64()
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn members_that_are_objects_are_told_through_kills_at_any_moment() {
    let workerd = setup().start().await;
    let path = "topologies/main/groups/tenant%2F1";
    let mut acknowledged = 0;
    for round in 1..=10 {
        // Killed while it is stored, published or told to members; every other time right after it is answered.
        let change = group(round);
        let change = send(&workerd, "PUT", path, &change);
        let in_time = match round % 2 {
            0 => PATIENCE,
            _ => Duration::from_millis(2 * round * round),
        };
        if let Ok(Ok(answer)) = tokio::time::timeout(in_time, change).await {
            assert!(answer["snapshot"]["version"].is_u64(), "{answer}");
            acknowledged = round;
        }
        workerd.restart(Duration::ZERO).await;
        // The coordinator is not asked: its alarm alone brings it back.
        for member in ["one", "two"] {
            until("the value", async || {
                let told = jobs(&workerd, member).await.unwrap_or(0);
                assert!(told <= round, "{told}");
                (told >= acknowledged).then_some(())
            })
            .await;
        }
    }
    assert_eq!(acknowledged, 10);
    ask(&workerd, "PUT", path, group(100)).await;
    let wait = format!("{path}/convergence?waitMs=60000");
    let there = get(&workerd, &wait).await;
    assert_eq!(
        (&there["reached"], &there["converged"]),
        (&json!(true), &json!(true)),
        "{there}"
    );
    for member in ["one", "two"] {
        assert_eq!(jobs(&workerd, member).await, Some(100));
    }
    let published = get(&workerd, "topologies/main/published/tenant%2F1").await;
    let snapshot = get(&workerd, path).await;
    assert_eq!(published["content"]["version"], snapshot["version"]);
    // Nobody was told under another name.
    assert_eq!(
        get(&workerd, "topologies/other/groups").await,
        json!({"groups": []})
    );

    let drain = json!({"drain": [{"id": "one", "whenDrained": true}]});
    ask(&workerd, "PATCH", path, drain).await;
    until("the member to go", async || {
        let members = get(&workerd, path).await["members"].clone();
        (members.as_array()?.len() == 1).then_some(())
    })
    .await;
}

/// A group comes, changes, goes and comes back, as readers find it.
async fn is_published(store: &'static str) {
    let setup = Setup::new("durably").variable("DURABLY_STORE", store);
    let workerd = setup.in_miniflare().start().await;
    let (path, published) = ("topologies/main/groups/t1", "topologies/main/published/t1");
    let version = async || {
        let found = get(&workerd, published).await;
        found["content"]["version"].as_u64()
    };
    assert_eq!(version().await, None);
    let made = ask(&workerd, "PUT", path, group(1)).await;
    assert_eq!(made["published"], true, "{made}");
    assert_eq!(version().await, Some(1));
    let patch = json!({"remove": ["two"]});
    let changed = ask(&workerd, "PATCH", path, patch).await;
    assert_eq!(changed["published"], true, "{changed}");
    assert_eq!(version().await, Some(2));
    let gone = ask(&workerd, "DELETE", path, Value::Null).await;
    assert_eq!(gone, json!({"version": 3, "published": true}));
    assert_eq!(version().await, None);
    ask(&workerd, "PUT", path, group(2)).await;
    assert_eq!(version().await, Some(4));
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn groups_are_published_into_a_bucket_that_is_bound() {
    is_published("R2").await;
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn groups_are_published_into_a_namespace_that_is_bound() {
    is_published("KV").await;
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn a_watch_tells_what_becomes_of_a_published_group() {
    let workerd = setup().start().await;
    let url = format!("{}v1/topologies/main/published/t1/watch", workerd.url());
    let watch = |last: Option<String>| {
        let request = workerd::client().get(&url);
        match last {
            Some(id) => request.header("last-event-id", id),
            None => request,
        }
    };
    let mut response = watch(None).send().await.expect("workerd answers");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut told = String::new();
    let mut next = async |name: &str| {
        let heading = format!("event: {name}\n");
        while !(told.contains(&heading) && told.ends_with("\n\n")) {
            let piece = tokio::time::timeout(PATIENCE, response.chunk()).await;
            let piece = piece.expect("an event comes").expect("the watch goes on");
            told.push_str(&String::from_utf8_lossy(&piece.expect("it has no end")));
        }
        std::mem::take(&mut told)
    };
    next("missing").await;
    let path = "topologies/main/groups/t1";
    ask(&workerd, "PUT", path, group(1)).await;
    let snapshot = next("snapshot").await;
    assert!(snapshot.contains("\"group\":\"t1\""), "{snapshot}");
    ask(&workerd, "DELETE", path, Value::Null).await;
    let deleted = next("deleted").await;
    assert!(deleted.contains("data: {\"version\":2}\n"), "{deleted}");

    // Who connects again is told what is new.
    ask(&workerd, "PUT", path, group(1)).await;
    let id = deleted.lines().find_map(|line| line.strip_prefix("id: "));
    let mut again = watch(id.map(str::to_owned))
        .send()
        .await
        .expect("workerd answers");
    let first = again
        .chunk()
        .await
        .expect("the watch goes on")
        .expect("an event");
    assert!(String::from_utf8_lossy(&first).starts_with("event: snapshot\n"));
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn what_the_configuration_lacks_is_told_with_its_remedy() {
    let without = |line: &'static str| {
        setup().reconfigured(move |text| {
            assert!(text.contains(line), "{line}");
            text.replace(line, "")
        })
    };
    let made = async |setup: Setup| {
        let workerd = setup.start().await;
        ask(&workerd, "PUT", "topologies/main/groups/t1", group(1)).await
    };
    let coordinator = "(name = \"TOPOLOGY\", durableObjectNamespace = \"TopologyCoordinator\"),";
    let told = made(without(coordinator)).await;
    assert_eq!(told["error"]["code"], "missing_binding", "{told}");
    assert!(told.to_string().contains("new_sqlite_classes"), "{told}");

    let shelf = "(name = \"TOPOLOGY_SHELF\", durableObjectNamespace = \"TopologyShelf\"),";
    let told = made(without(shelf)).await.to_string();
    assert!(
        told.contains("TOPOLOGY_SHELF") && told.contains("new_sqlite_classes"),
        "{told}"
    );

    let no_sql = setup().reconfigured(|text| {
        text.replace(
            "uniqueKey = \"durably-topology-coordinator\", enableSql = true",
            "uniqueKey = \"durably-topology-coordinator\"",
        )
    });
    let told = made(no_sql).await.to_string();
    assert!(told.contains("new_sqlite_classes"), "{told}");

    let wrong = setup().variable("DURABLY_STATE_CHANNELS", "limits=all");
    let told = made(wrong).await.to_string();
    assert!(told.contains("STATE_CHANNELS"), "{told}");
}
