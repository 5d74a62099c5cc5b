//! What the ready-made worker says in a real workerd when it is set up or called wrongly: what is wrong, and how to
//! mend it.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../../durably-cloudflare/tests/workerd/mod.rs"]
mod workerd;

use std::time::Duration;

use serde_json::{Value, json};
use workerd::Workerd;

struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    #[track_caller]
    fn refuses(&self, status: u16, code: &str, remedy: &str) {
        assert_eq!((self.status, self.code()), (status, code), "{}", self.body);
        let message = self.body["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(remedy), "{remedy} is not in: {message}");
    }
}

async fn ask(workerd: &Workerd, method: &str, path: &str, body: Value) -> Answer {
    let method = method.parse().expect("a method");
    let request = workerd::client().request(method, format!("{}{path}", workerd.url()));
    let request = match body.is_null() {
        true => request,
        false => request.json(&body),
    };
    let answer = request.send().await.expect("workerd answers");
    Answer {
        status: answer.status().as_u16(),
        body: answer.json().await.expect("the answer is JSON"),
    }
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn a_worker_that_is_set_up_wrongly_says_how_to_mend_it() {
    let workerd = Workerd::start("faulty").await;
    // An account each, whose shards no other submission has asked for.
    let submitted = async |fault: &str, account: &str| {
        let job = json!({ "account": account, "id": "job-1" });
        ask(&workerd, "POST", &format!("{fault}/v1/jobs"), job).await
    };
    for (fault, status, code, remedy) in [
        (
            "no-accounts",
            500,
            "missing_binding",
            "\"name\": \"ACCOUNT_LIMIT\", \"class_name\": \"AccountLimit\"",
        ),
        (
            "no-shards",
            500,
            "missing_binding",
            "\"name\": \"JOB_SHARD\", \"class_name\": \"JobShard\"",
        ),
        ("no-sqlite", 500, "object_unopened", "new_sqlite_classes"),
        ("wrong-class", 500, "wrong_class", "JOB_SHARD"),
        ("no-endpoint", 501, "no_job_endpoint", "JOB_URL"),
        ("wrong-setting", 500, "object_unopened", "DEFAULT_LIMIT"),
        ("with-token", 401, "unauthorized", "API_TOKEN"),
    ] {
        let answer = submitted(fault, fault).await;
        answer.refuses(status, code, remedy);
        // Nothing of what was refused is stored.
        let path = format!("as-it-is/v1/accounts/{fault}/jobs/job-1");
        let status = ask(&workerd, "GET", &path, Value::Null).await;
        assert_eq!((status.status, status.code()), (404, "unknown_job"));
    }
    let groups = "wrong-class/v1/topologies/main/groups";
    let answer = ask(&workerd, "GET", groups, Value::Null).await;
    answer.refuses(500, "wrong_class", "TOPOLOGY");
    let answer = submitted("as-it-is", "acme").await;
    assert_eq!(answer.status, 202, "{}", answer.body);
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn a_message_of_the_wrong_shape_is_refused_by_rpc_as_by_http() {
    let workerd = Workerd::start("faulty").await;
    for message in [
        json!(5),
        json!(null),
        json!("request"),
        json!([]),
        json!({}),
        json!({ "type": "request", "v": 1, "clientId": 7 }),
        json!({ "type": "request", "v": 2, "clientId": "c" }),
    ] {
        let call = json!({ "key": "acme", "message": message });
        let thrown = ask(&workerd, "POST", "rpc", call).await.body;
        let thrown = thrown["thrown"].as_str().unwrap_or_default();
        let path = "as-it-is/v1/holders/acme/messages";
        let text = message.to_string();
        let told = workerd::client()
            .post(format!("{}{path}", workerd.url()))
            .header("content-type", "application/json")
            .body(text)
            .send()
            .await
            .expect("workerd answers");
        assert_eq!(told.status().as_u16(), 400, "{message}");
        let told: Value = told.json().await.expect("the answer is JSON");
        let by_rpc: Value = serde_json::from_str(thrown).unwrap_or_default();
        assert_eq!(by_rpc, told, "{message}");
        assert_eq!(told["error"]["code"], "malformed", "{message}");
        assert!(told["error"]["field"].is_string(), "{message}: {told}");
    }
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn an_object_lives_on_after_a_panic() {
    let workerd = Workerd::start("faulty").await;
    let request = || {
        json!({
            "type": "request", "v": 1, "clientId": "c", "grants": [],
            "demand": [{ "group": "g", "count": 2, "oldestAt": 1 }],
        })
    };
    let path = |fault: &str| format!("{fault}/v1/holders/acme/messages");
    let limit = json!({ "limit": 2 });
    let set = ask(
        &workerd,
        "PUT",
        "as-it-is/v1/accounts/acme/limit",
        limit.clone(),
    );
    assert_eq!(set.await.status, 200);
    let answer = ask(&workerd, "POST", &path("no-randomness"), request()).await;
    answer.refuses(500, "object_panicked", "randomness");
    // The next request opens it from what is stored, and nothing was granted by the one that panicked.
    let answer = ask(&workerd, "POST", &path("as-it-is"), request()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["grants"][0]["permits"], 2, "{}", answer.body);
    workerd.restart(Duration::ZERO).await;
    let path = "as-it-is/v1/accounts/acme/usage";
    let usage = ask(&workerd, "GET", path, Value::Null).await.body;
    assert_eq!(usage["granted"], 2, "{usage}");
}

#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn objects_are_asked_for_with_the_hints_of_the_settings_and_of_members() {
    let workerd = Workerd::start("faulty").await;
    let job = json!({ "account": "acme", "id": "job-1" });
    let submitted = ask(&workerd, "POST", "as-it-is/v1/jobs", job).await;
    assert_eq!(submitted.status, 202, "{}", submitted.body);
    let path = "as-it-is/v1/topologies/main/groups/t1";
    let group = json!({
        "members": [{ "id": "far", "state": "active", "locationHint": "apac" }, { "id": "any", "state": "active" }],
        "states": { "limits": { "jobs": 1 } },
    });
    let made = ask(&workerd, "PUT", path, group).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let wait = format!("{path}/convergence?waitMs=60000");
    let told = ask(&workerd, "GET", &wait, Value::Null).await.body;
    assert_eq!(told["reached"], true, "{told}");
    let wished = ask(&workerd, "GET", "wished", Value::Null).await.body;
    let shards = wished.as_object().into_iter().flatten();
    let shards = shards.filter(|(object, _)| object.starts_with("JOB_SHARD "));
    let hints: Vec<&Value> = shards.map(|(_, hints)| hints).collect();
    assert!(
        !hints.is_empty() && hints.iter().all(|hints| **hints == json!(["weur"])),
        "{wished}"
    );
    for (object, hint) in [
        ("ACCOUNT_LIMIT acme", "weur"),
        ("TOPOLOGY main", "weur"),
        ("TOPOLOGY_MEMBER any", "weur"),
        ("TOPOLOGY_MEMBER far", "apac"),
    ] {
        assert_eq!(wished[object], json!([hint]), "{object}: {wished}");
    }
}
