//! Many shards run their jobs under one account's limit, while one object after the other is evicted. Judged
//! from the job endpoint: no job is lost, none runs under a second key, the limit is never passed.
//!
//! `EVICTIONS_SEED` says which objects; `EVICTIONS=large` has 100 shards with 1,000 jobs each instead of 20
//! with 100.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::endpoint::Endpoint;
use crate::post;
use crate::workerd::{self, Setup, Workerd};

const ACCOUNT: &str = "acme";
const GROUPS: u64 = 5;

/// Between two evictions.
const PERIOD: Duration = Duration::from_secs(1);

/// Between two lines that tell how far it is.
const TOLD: Duration = Duration::from_secs(10);

/// Without a job that ends: the platform waits up to a minute with the last retries of an alarm.
const PATIENCE: Duration = Duration::from_secs(90);

struct Size {
    shards: usize,
    jobs: usize,
    /// Jobs in one submission.
    batch: usize,
    limit: u64,
    /// Of a group, so that both are felt.
    group_limit: u64,
    /// From one submission to the next, so that evictions fall among jobs in all states.
    pace: Duration,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs workerd: run .ci/cloudflare test"]
async fn no_job_is_lost_and_no_limit_passed_while_objects_are_evicted() {
    let size = match std::env::var("EVICTIONS").as_deref() {
        Ok("large") => Size {
            shards: 100,
            jobs: 100_000,
            batch: 1_000,
            limit: 300,
            group_limit: 120,
            pace: Duration::ZERO,
        },
        _ => Size {
            shards: 20,
            jobs: 2_000,
            batch: 100,
            limit: 30,
            group_limit: 12,
            pace: Duration::from_millis(400),
        },
    };
    let given = std::env::var("EVICTIONS_SEED").ok();
    let seed = given.map_or_else(
        || RandomState::new().hash_one("evictions") >> 16,
        |seed| seed.parse().expect("EVICTIONS_SEED is a whole number"),
    );
    println!("EVICTIONS_SEED={seed}");
    let endpoint = Endpoint::start().await;
    {
        let mut seen = endpoint.seen();
        seen.allow(ACCOUNT, None, size.limit);
        for group in 0..GROUPS {
            seen.allow(ACCOUNT, Some(&group_name(group)), size.group_limit);
        }
    }
    let settings = [
        ("DURABLY_JOB_URL", endpoint.url()),
        ("DURABLY_SHARDS_PER_ACCOUNT", size.shards.to_string()),
        ("DURABLY_DEFAULT_LIMIT", size.limit.to_string()),
        ("DURABLY_DEFAULT_GROUP_LIMIT", size.group_limit.to_string()),
        ("DURABLY_ROUND_WAIT_MS", "20".to_owned()),
        ("DURABLY_ROUND_PERIOD_MS", "40".to_owned()),
        ("DURABLY_GRANT_TIMEOUT_MS", "2000".to_owned()),
        ("DURABLY_ALARM_MIN_DELAY_MS", "1000".to_owned()),
    ];
    let workerd = settings
        .into_iter()
        .fold(Setup::new("bench"), |setup, (name, value)| {
            setup.variable(name, value)
        })
        .start()
        .await;
    let objects = objects(&workerd, &size).await;
    let started = Instant::now();
    let mut evicted = 0;
    {
        let working = async {
            tokio::join!(submit(&workerd, &size), until_all_ran(&endpoint, size.jobs));
        };
        let mut working = std::pin::pin!(working);
        let evicting = evict_for_ever(&workerd, &objects, seed, &mut evicted);
        tokio::select! {
            () = &mut working => {}
            () = evicting => {}
        }
    }
    let took = started.elapsed();
    {
        let seen = endpoint.seen();
        let highest = seen.highest[&(ACCOUNT.to_owned(), None)];
        let requests = seen.requests.len();
        println!(
            "{evicted} evictions in {took:.1?}, {requests} attempts, at most {highest} at once"
        );
        assert_eq!(seen.passed, Vec::<String>::new(), "seed {seed}");
        let ran: BTreeSet<_> = seen.ended().into_iter().map(|(_, _, id)| id).collect();
        assert_eq!(ran.len(), size.jobs, "every id has run; seed {seed}");
        assert_eq!(seen.begun(), size.jobs, "under one key each; seed {seed}");
    }
    assert!(evicted >= 3, "only {evicted} objects were evicted");
    until_all_is_settled(&workerd, seed).await;
}

fn group_name(group: u64) -> String {
    format!("group-{group}")
}

/// The account and its shards, by binding and name.
async fn objects(workerd: &Workerd, size: &Size) -> Vec<(&'static str, String)> {
    let shards = get(workerd, &format!("v1/accounts/{ACCOUNT}/shards")).await;
    let shards = shards.expect("the account tells its shards");
    let shards = shards["current"]["shards"].as_array().cloned();
    let names = shards.unwrap_or_default().into_iter().map(|name| {
        let name = name.as_str().expect("a shard's name is a text").to_owned();
        ("JOB_SHARD", name)
    });
    let mut objects = vec![("ACCOUNT_LIMIT", ACCOUNT.to_owned())];
    objects.extend(names);
    assert_eq!(objects.len(), 1 + size.shards, "{objects:?}");
    objects
}

async fn get(workerd: &Workerd, path: &str) -> Option<Value> {
    let url = format!("{}{path}", workerd.url());
    let answer = workerd::client().get(url).send().await.ok()?;
    answer.error_for_status().ok()?.json().await.ok()
}

/// Evicts an object every second, any of them: a holder in the middle of a round, a shard with jobs that run.
async fn evict_for_ever(
    workerd: &Workerd,
    objects: &[(&'static str, String)],
    seed: u64,
    evicted: &mut usize,
) {
    let mut random = seed | 1;
    // One that took longer is made up for by the next.
    let mut period = tokio::time::interval(PERIOD);
    period.tick().await;
    loop {
        period.tick().await;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The holder is one of many, but all depend on it.
        let index = match random % 4 {
            0 => 0,
            _ => (random >> 8) as usize % objects.len(),
        };
        let (binding, name) = &objects[index];
        post(
            workerd,
            &format!("bench/{binding}/{}/evict", encoded(name)),
            Value::Null,
        )
        .await;
        *evicted += 1;
    }
}

/// A name as a segment of a path.
fn encoded(name: &str) -> String {
    let mut path = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

/// Submits all jobs, each until it is acknowledged.
async fn submit(workerd: &Workerd, size: &Size) {
    let client = workerd::client();
    for first in (0..size.jobs).step_by(size.batch) {
        let mut open: Vec<Value> = (first..first + size.batch)
            .map(|number| {
                json!({
                    "account": ACCOUNT, "id": format!("job-{number:06}"),
                    "group": group_name(number as u64 % GROUPS), "body": { "ms": 20 + number % 60 },
                })
            })
            .collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let request = client.post(format!("{}v1/jobs", workerd.url())).json(&open);
            if let Ok(answer) = request.send().await {
                let answer: Value = answer.json().await.unwrap_or_default();
                let mut results = answer["results"].as_array().into_iter().flatten();
                open.retain(|_| {
                    let outcome = results.next().map(|result| &result["outcome"]);
                    !outcome.is_some_and(|outcome| outcome == "queued" || outcome == "duplicate")
                });
            }
            if open.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "never acknowledged: {open:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(size.pace).await;
    }
}

async fn until_all_ran(endpoint: &Endpoint, jobs: usize) {
    let (mut ended, mut moved, mut told) = (0, Instant::now(), Instant::now());
    while ended < jobs {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (now, begun) = {
            let seen = endpoint.seen();
            (seen.ended_count(), seen.begun())
        };
        if now > ended {
            (ended, moved) = (now, Instant::now());
        }
        if told.elapsed() >= TOLD {
            println!("{ended} of {begun} begun jobs have ended, of {jobs}");
            told = Instant::now();
        }
        assert!(
            moved.elapsed() < PATIENCE,
            "{ended} of {begun} begun jobs have ended, of {jobs}"
        );
    }
}

/// The account's shards have ended their jobs, and all permits are back.
async fn until_all_is_settled(workerd: &Workerd, seed: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let jobs = get(workerd, &format!("v1/accounts/{ACCOUNT}/jobs")).await;
        let usage = get(workerd, &format!("v1/accounts/{ACCOUNT}/usage")).await;
        if let (Some(jobs), Some(usage)) = (&jobs, &usage)
            && jobs["waiting"] == 0
            && jobs["running"] == 0
            && usage["granted"] == 0
        {
            return;
        }
        assert!(Instant::now() < deadline, "{jobs:?} {usage:?}, seed {seed}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
