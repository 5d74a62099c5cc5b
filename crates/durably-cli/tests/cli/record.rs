//! What a server records can be replayed, through kills and everything else that happens to it.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use durably::semaphore::client::SemaphoreClient;
use durably_native::http::{HttpHolders, TokioTimer};
use durably_sim::replay::{Outcome, replay, replay_file};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::support::endpoint::Endpoint;
use crate::support::load::{Place, Random, submit, until_all_ran};
use crate::support::{Server, Setup, until};

const ACCOUNTS: usize = 3;
const JOBS: usize = 240;

fn recordings(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn steps(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.map(|step| step.expect("a whole line")).collect()
}

#[track_caller]
fn check(path: &Path) {
    match replay_file(path) {
        Outcome::Ok => {}
        Outcome::Different(difference) => panic!("{}\n{difference}", path.display()),
        other => panic!("{}: {other:?}", path.display()),
    }
}

/// Everything that changes a holder beside jobs.
async fn meddle(server: &Server, random: &mut Random) {
    let account = format!("accounts/account-{}", random.below(ACCOUNTS as u64));
    let limit = json!({"limit": 2 + random.below(5)});
    match random.below(6) {
        0 => drop(server.put(&format!("{account}/limit"), &limit).await),
        1 => {
            let path = format!("{account}/groups/group-0/limit");
            server.put(&path, &limit).await;
        }
        2 => drop(server.delete(&format!("{account}/limit")).await),
        3 => {
            let permits = 1 + random.below(4);
            let leases = json!({"leases": {"permitsPerLease": permits, "ttlMs": 2000}});
            server.put(&format!("{account}/leases"), &leases).await;
        }
        4 => {
            let off = json!({ "leases": null });
            server.put(&format!("{account}/leases"), &off).await;
        }
        _ => drop(server.delete(&format!("{account}/leases")).await),
    }
}

/// What jobs and chance may leave out: every setting changes once, and a lease is given and returned.
async fn change_and_lease(server: &Server) {
    let limit = json!({"limit": 4});
    let leases = json!({"leases": {"permitsPerLease": 2, "ttlMs": 2000}});
    server.put("accounts/account-0/limit", &limit).await;
    server.put("accounts/account-0/leases", &leases).await;
    let capped = "accounts/account-0/groups/capped/limit";
    server.put(capped, &json!({"limit": 1})).await;
    let path = "holders/account-0/messages";
    let request = json!({"type": "request", "v": 1, "clientId": "first", "grants": [], "leases": [],
                         "demand": [{"group": "group-0", "count": 1, "oldestAt": 1},
                                    {"group": "capped", "count": 9, "oldestAt": 2}]});
    let (_, given) = server.post(path, &request).await;
    let lease = &given["leases"][0]["leaseId"];
    assert!(lease.is_string(), "{given}");
    let back = json!({"type": "sync", "v": 1, "clientId": "first", "grants": [],
                      "leases": [{"leaseId": lease, "drawn": 0, "released": 0, "retired": true}]});
    let (status, answer) = server.post(path, &back).await;
    assert!(status.is_success(), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_recorded_is_what_a_replay_answers() {
    let endpoint = Endpoint::start().await;
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("records");
    let setup = Setup::new(endpoint.url()).args([
        &*format!("--record={}", records.display()),
        "--default-limit=5",
        "--lease-permits=3",
        "--lease-ttl=2s",
    ]);
    let server = setup.start().await;
    change_and_lease(&server).await;
    let place: Place = RwLock::new(Some(server));
    let seed = RandomState::new().hash_one(0) | 1;
    let mut lengths = Random(seed);
    let jobs: Vec<Value> = (0..JOBS)
        .map(|index| {
            json!({
                "account": format!("account-{}", index % ACCOUNTS),
                "group": format!("group-{}", index / ACCOUNTS % 3),
                "id": format!("job-{index}"),
                "body": {"ms": 10 + lengths.below(120)},
            })
        })
        .collect();
    let mut random = Random(!seed | 1);
    let blows = async {
        for number in 0..40 {
            tokio::time::sleep(Duration::from_millis(random.below(120))).await;
            if number % 20 == 10 {
                let running = place.write().await.take();
                running.expect("a server").kill().await;
                *place.write().await = Some(setup.start().await);
            }
            let server = place.read().await;
            meddle(server.as_ref().unwrap(), &mut random).await;
        }
    };
    futures::join!(submit(&place, jobs, lengths), blows);
    let ids = (0..JOBS).map(|index| format!("job-{index}")).collect();
    until_all_ran(&endpoint, ids).await;
    let server = place.write().await.take().unwrap();
    for index in 0..JOBS {
        let account = format!("account-{}", index % ACCOUNTS);
        server
            .until_state(&account, &format!("job-{index}"), "completed")
            .await;
    }
    server.signal("TERM");
    assert!(server.ended().await.success());

    let files = recordings(&records);
    // Each account's holder had three lives; of a short one nothing may have been written yet.
    assert!(files.len() > ACCOUNTS, "{files:?}");
    let mut seen = BTreeSet::new();
    for file in &files {
        check(file);
        for step in steps(file) {
            seen.insert(step["op"].as_str().unwrap().to_owned());
            for rows in ["grants", "leases"] {
                if step[rows].is_array() {
                    seen.insert(format!("stored {rows}"));
                }
            }
            for output in step["out"].as_array().into_iter().flatten() {
                for given in ["grants", "leases", "blocked"] {
                    if output["value"][given][0].is_object() {
                        seen.insert(format!("answered {given}"));
                    }
                }
            }
        }
    }
    for expected in [
        "open",
        "load",
        "send",
        "advance",
        "round",
        "limit",
        "groupLimit",
        "leases",
        "limitsChanged",
        "stored grants",
        "answered grants",
        "answered leases",
        "answered blocked",
    ] {
        assert!(seen.contains(expected), "no {expected}: {seen:?}");
    }
    falsify(&files);
}

/// A recording that says something else than what was answered is found out.
fn falsify(files: &[PathBuf]) {
    let mut found_out = 0;
    for file in files {
        let mut steps = steps(file);
        let granted = steps.iter_mut().find_map(|step| {
            step.get_mut("out")?
                .as_array_mut()?
                .iter_mut()
                .find_map(|output| output.pointer_mut("/value/grants/0/permits"))
        });
        let Some(granted) = granted else { continue };
        *granted = json!(granted.as_u64().unwrap() + 1);
        let text: String = steps.iter().map(|step| format!("{step}\n")).collect();
        match replay(&text) {
            Outcome::Different(difference) => assert!(difference.what.starts_with("out")),
            other => panic!("{other:?}"),
        }
        found_out += 1;
    }
    assert!(found_out > 0);
}

/// Requests as the queue of a shard never sends them.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_all_kinds_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("records");
    let setup = Setup::new("http://127.0.0.1:9/run").args([
        &*format!("--record={}", records.display()),
        "--default-limit=3",
    ]);
    let server = setup.start().await;
    let message = |message: &Value| {
        let path = "holders/acme/messages";
        let request = server.request(Method::POST, path).json(message);
        async move { crate::support::answer(request).await.1 }
    };
    let request = |client: &str, count: u64, more: Value| {
        let mut request = json!({
            "type": "request", "v": 1, "clientId": client, "grants": [],
            "demand": [{"group": "g", "count": count, "oldestAt": 0}],
        });
        for (member, value) in more.as_object().unwrap() {
            request[member] = value.clone();
        }
        request
    };
    // Lives 200 ms without a word.
    let short = request("short", 2, json!({"clientTtlMs": 200, "requestId": "r1"}));
    let first = message(&short).await;
    assert_eq!(first["grants"][0]["permits"], 2, "{first}");
    let grant_id = first["grants"][0]["grantId"].clone();
    let claim = json!({"type": "sync", "v": 1, "clientId": "short",
        "grants": [{"grantId": grant_id, "claimed": 2, "released": 0}]});
    assert_eq!(message(&claim).await["grantResults"][0]["status"], "ok");
    assert_eq!(message(&short).await["grants"][0]["grantId"], grant_id);
    let base = format!("http://{}", server.address);
    let client = SemaphoreClient::new(HttpHolders::new(&base, None).unwrap(), TokioTimer);
    let one = client.request("acme", crate::holders::demand(1)).await;
    assert_eq!(one.unwrap().grants[0].permits, 1);
    // Waits for capacity and is given some when the silent client's comes back.
    let waits = request("patient", 1, json!({"waitMs": 5000, "sentAt": 5}));
    let given = message(&waits).await;
    assert_eq!(given["grants"][0]["permits"], 1, "{given}");
    // One leaves while it waits, one waits in vain.
    message(&request("large", 9, json!({}))).await;
    let leaves = request("leaves", 1, json!({"waitMs": 5000}));
    let left = tokio::time::timeout(Duration::from_millis(100), message(&leaves)).await;
    assert!(left.is_err());
    let vain = message(&request("vain", 1, json!({"waitMs": 50}))).await;
    assert_eq!(vain["blocked"][0]["reason"], "limit");
    let path = "accounts/acme/holders/patient?reason=gone&group=g";
    assert_eq!(server.delete(path).await.0, 200);
    server
        .put("accounts/acme/limit", &json!({"limit": 50}))
        .await;
    message(&request("vain", 1, json!({"waitMs": 50}))).await;
    until("all that was not claimed to return", || async {
        let (_, usage) = server.get("accounts/acme/usage").await;
        (usage["granted"] == 0).then_some(())
    })
    .await;
    server.signal("TERM");
    assert!(server.ended().await.success());
    let files = recordings(&records);
    assert_eq!(files.len(), 1);
    check(&files[0]);
    let ops: BTreeSet<String> = steps(&files[0])
        .iter()
        .map(|step| step["op"].as_str().unwrap().to_owned())
        .collect();
    for expected in ["alarm", "callerLeft", "forceRelease", "waitEnded", "round"] {
        assert!(ops.contains(expected), "no {expected}: {ops:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_be_recorded_into_is_refused() {
    let setup = Setup::new("http://127.0.0.1:9/run").args(["--record=/dev/null/records"]);
    let (code, text) = setup.refused().await;
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("record"), "{text}");
}
