//! The host is killed and its objects are evicted at any moment: nothing is lost, nothing is done twice, and
//! what is due happens without anybody asking.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures::join;
use reqwest::Method;
use serde_json::{Value, json};

use crate::budgets::{report, request, send};
use crate::host::{Host, Place, Settings, answer};
use crate::support::endpoint::Endpoint;
use crate::support::load::{Random, check_limits};
use crate::support::until;

on_both_hosts!(
    killed_again_and_again_it_loses_no_job_and_passes_no_limit,
    evicted_again_and_again_it_loses_no_job_and_passes_no_limit,
    a_kill_in_the_middle_of_a_round_strands_no_permit,
    an_eviction_in_the_middle_of_a_round_strands_no_permit,
    a_kill_after_a_lost_reply_grants_nothing_twice,
    permits_that_nobody_claims_return_though_the_host_was_away,
    an_attempt_that_was_due_while_the_host_was_away_is_made,
    ended_jobs_and_results_are_there_afterwards,
);

#[derive(Clone, Copy)]
enum Death {
    Kill,
    Eviction,
}

async fn strike(host: &Host, death: Death) {
    match death {
        Death::Kill => {
            host.kill().await;
            host.start_again().await;
        }
        Death::Eviction => host.evict().await,
    }
}

const ACCOUNTS: usize = 3;
const GROUPS: usize = 2;
const JOBS: usize = 240;
const DEATHS: usize = 8;
const ACCOUNT_LIMIT: u64 = 5;
const GROUP_LIMIT: u64 = 3;

async fn killed_again_and_again_it_loses_no_job_and_passes_no_limit(place: Place) {
    through(place, Death::Kill).await;
}

async fn evicted_again_and_again_it_loses_no_job_and_passes_no_limit(place: Place) {
    through(place, Death::Eviction).await;
}

/// Runs jobs while the host dies, and judges by what their endpoint saw.
async fn through(place: Place, death: Death) {
    let seed = RandomState::new().hash_one(0) | 1;
    let endpoint = Endpoint::start().await;
    let host = Host::start(
        place,
        &Settings {
            default_limit: ACCOUNT_LIMIT,
            grant_timeout: Duration::from_secs(1),
            ..Settings::jobs_to(endpoint.url())
        },
    )
    .await;
    for account in 0..ACCOUNTS {
        for group in 0..GROUPS {
            let path = format!("accounts/account-{account}/groups/group-{group}/limit");
            host.put(&path, json!({ "limit": GROUP_LIMIT })).await.ok();
        }
    }
    let mut lengths = Random(seed);
    let jobs: Vec<Value> = (0..JOBS)
        .map(|index| {
            json!({
                "account": format!("account-{}", index % ACCOUNTS),
                "group": format!("group-{}", index / ACCOUNTS % GROUPS),
                "id": format!("job-{index}"),
                "body": {"ms": 10 + lengths.below(100)},
            })
        })
        .collect();
    let submitting = async {
        for batch in jobs.chunks(12) {
            let answer = until("a batch to be taken", || async {
                let answer = host
                    .persist(Method::POST, "jobs", Some(&json!(batch)))
                    .await;
                let results = answer.body["results"].as_array()?.clone();
                let taken = results.iter().all(|result| {
                    result["outcome"] == "queued" || result["outcome"] == "duplicate"
                });
                taken.then_some(answer)
            })
            .await;
            assert!(
                [200, 202].contains(&answer.status),
                "seed {seed}: {answer:?}"
            );
        }
    };
    let mut moments = Random(!seed | 1);
    let dying = async {
        for _ in 0..DEATHS {
            // From the first moments of a host to well into its work.
            tokio::time::sleep(Duration::from_millis(moments.below(400))).await;
            strike(&host, death).await;
        }
    };
    join!(submitting, dying);
    let ids: BTreeSet<String> = (0..JOBS).map(|index| format!("job-{index}")).collect();
    crate::support::load::until_all_ran(&endpoint, ids).await;
    check_limits(&endpoint, ACCOUNT_LIMIT, Some(GROUP_LIMIT));
    for index in 0..JOBS {
        let account = format!("account-{}", index % ACCOUNTS);
        host.until_state(&account, &format!("job-{index}"), "completed")
            .await;
    }
    // Every permit returns.
    for account in 0..ACCOUNTS {
        until("all permits to return", || async {
            let path = format!("accounts/account-{account}/usage");
            let usage = host.get(&path).await.ok();
            (usage["granted"] == 0 && usage["leased"] == 0).then_some(())
        })
        .await;
    }
}

/// Rounds that take long enough to die in the middle of one.
fn slow_rounds() -> Settings {
    Settings {
        round_wait: Duration::from_millis(400),
        ..Settings::default()
    }
}

async fn a_kill_in_the_middle_of_a_round_strands_no_permit(place: Place) {
    mid_round(place, Death::Kill).await;
}

async fn an_eviction_in_the_middle_of_a_round_strands_no_permit(place: Place) {
    mid_round(place, Death::Eviction).await;
}

async fn mid_round(place: Place, death: Death) {
    let host = Host::start(place, &slow_rounds()).await;
    host.put("accounts/acme/limit", json!({"limit": 2}))
        .await
        .ok();
    let mut messages = Vec::new();
    for client in ["a", "b", "c"] {
        let mut message = request(client, "g", 1);
        message["requestId"] = format!("request-{client}").into();
        messages.push(message);
    }
    // Asks until it is answered, as a client does.
    let ask = |message: Value| {
        let host = &host;
        async move {
            let path = "holders/acme/messages";
            host.persist(Method::POST, path, Some(&message)).await.ok()
        }
    };
    let dying = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            strike(&host, death).await;
        }
    };
    let (a, b, c, ()) = join!(
        ask(messages[0].clone()),
        ask(messages[1].clone()),
        ask(messages[2].clone()),
        dying
    );
    let given: u64 = [&a, &b, &c]
        .iter()
        .filter_map(|reply| reply["grants"][0]["permits"].as_u64())
        .sum();
    assert_eq!(given, 2, "{a} {b} {c}");
    let usage = host.get("accounts/acme/usage").await.ok();
    assert_eq!(
        (&usage["granted"], &usage["available"]),
        (&json!(2), &json!(0))
    );
    // Asked again, the same permits.
    for (message, reply) in messages.iter().zip([&a, &b, &c]) {
        let again = ask(message.clone()).await;
        assert_eq!(again["grants"], reply["grants"], "{message}");
    }
}

async fn a_kill_after_a_lost_reply_grants_nothing_twice(place: Place) {
    let host = Host::start(place, &slow_rounds()).await;
    host.put("accounts/acme/limit", json!({"limit": 5}))
        .await
        .ok();
    let mut message = request("a", "g", 2);
    message["requestId"] = "once".into();
    let path = "holders/acme/messages";
    let lost = host.request(Method::POST, path).await.json(&message);
    let lost = tokio::spawn(answer(lost));
    until("the permits to be granted", || async {
        let usage = host.get("accounts/acme/usage").await.ok();
        (usage["granted"] == 2).then_some(())
    })
    .await;
    host.kill().await;
    drop(lost);
    host.start_again().await;
    let reply = send(&host, message).await;
    assert_eq!(reply["grants"][0]["permits"], 2, "{reply}");
    assert_eq!(host.get("accounts/acme/usage").await.ok()["granted"], 2);
    let grant = &reply["grants"][0]["grantId"];
    let claimed = send(&host, report("a", grant, 2, 0)).await;
    assert_eq!(claimed["grantResults"][0]["status"], "ok");
}

async fn permits_that_nobody_claims_return_though_the_host_was_away(place: Place) {
    let endpoint = Endpoint::start().await;
    let host = Host::start(
        place,
        &Settings {
            grant_timeout: Duration::from_secs(1),
            ..Settings::jobs_to(endpoint.url())
        },
    )
    .await;
    host.put("accounts/acme/limit", json!({"limit": 1}))
        .await
        .ok();
    let reply = send(&host, request("gone", "g", 1)).await;
    assert_eq!(reply["grants"][0]["permits"], 1, "{reply}");
    let job = json!({"account": "acme", "id": "1"});
    assert_eq!(host.post("jobs", job).await.status, 202);
    host.kill().await;
    // It is away when the permit's time ends.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(endpoint.seen().begun(), 0);
    host.start_again().await;
    // Nobody asks it anything.
    until("the job to run", || async {
        (endpoint.seen().begun() == 1).then_some(())
    })
    .await;
    host.until_state("acme", "1", "completed").await;
}

async fn an_attempt_that_was_due_while_the_host_was_away_is_made(place: Place) {
    let endpoint = Endpoint::start().await;
    let host = Host::start(place, &Settings::jobs_to(endpoint.url())).await;
    let job = json!({"account": "acme", "id": "1", "body": {"answers": [503, 200]}});
    assert_eq!(host.post("jobs", job).await.status, 202);
    let status = until("the first attempt to fail", || async {
        let status = host.get("accounts/acme/jobs/1").await.ok();
        status["lastError"].is_string().then_some(status)
    })
    .await;
    assert!(status["nextAttemptAt"].is_u64(), "{status}");
    host.kill().await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    host.start_again().await;
    until("the second attempt", || async {
        (endpoint.seen().requests.len() == 2).then_some(())
    })
    .await;
    host.until_state("acme", "1", "completed").await;
}

async fn ended_jobs_and_results_are_there_afterwards(place: Place) {
    let endpoint = Endpoint::start().await;
    let host = Host::start(place, &Settings::jobs_to(endpoint.url())).await;
    host.put("accounts/acme/limit", json!({"limit": 1}))
        .await
        .ok();
    let jobs = json!([
        {"account": "acme", "id": "done", "body": {"result": 7}},
        {"account": "acme", "id": "refused", "body": {"answers": [400]}},
    ]);
    host.post("jobs", jobs.clone()).await;
    host.until_state("acme", "done", "completed").await;
    host.until_state("acme", "refused", "failed").await;
    let held = json!([
        {"account": "acme", "id": "runs", "body": {"hold": true}},
        {"account": "acme", "id": "waits"},
    ]);
    host.post("jobs", held).await;
    until("one to run", || async {
        (endpoint.seen().begun() == 2).then_some(())
    })
    .await;
    for death in [Death::Kill, Death::Eviction] {
        strike(&host, death).await;
        let done = host.until_state("acme", "done", "completed").await;
        assert_eq!(done["result"], 7);
        let refused = host.until_state("acme", "refused", "failed").await;
        assert!(refused["lastError"].is_string());
        let again = host.post("jobs", jobs.clone()).await;
        for result in again.body["results"].as_array().unwrap() {
            assert_eq!(result["outcome"], "duplicate", "{result}");
        }
    }
    endpoint.release();
    for id in ["runs", "waits"] {
        host.until_state("acme", id, "completed").await;
    }
    // Each ran under one key, however often it was sent.
    assert_eq!(endpoint.seen().begun(), 3);
}
