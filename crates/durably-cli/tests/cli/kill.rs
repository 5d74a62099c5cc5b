//! The server is killed (SIGKILL) at random moments, again and again: every job runs, none twice,
//! and no account or group ever has more running than it may, as seen from the job endpoint.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::support::endpoint::Endpoint;
use crate::support::{PATIENCE, Server, Setup, until};

const KILLS: usize = 24;
const ACCOUNTS: usize = 6;
const GROUPS: usize = 3;
const JOBS: usize = 900;
const ACCOUNT_LIMIT: u64 = 5;
const GROUP_LIMIT: u64 = 3;

/// A small generator for moments and sizes. What a run does hangs on the machine as well, so a seed
/// would not bring it back.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn job(index: usize, ms: u64) -> Value {
    json!({
        "account": format!("account-{}", index % ACCOUNTS),
        "group": format!("group-{}", index / ACCOUNTS % GROUPS),
        "id": format!("job-{index}"),
        "body": {"ms": ms},
    })
}

/// Submits all jobs in batches, each until it is acknowledged.
async fn submit(server: &RwLock<Option<Server>>, mut random: Random) {
    let mut next = 0;
    while next < JOBS {
        let size = 1 + random.below(40) as usize;
        let last = (next + size).min(JOBS);
        let mut jobs: Vec<Value> = (next..last)
            .map(|index| job(index, 20 + random.below(200)))
            .collect();
        next = last;
        until("a batch to be acknowledged", || {
            let request = {
                let server = server.try_read().ok();
                let server = server.as_ref().and_then(|server| server.as_ref());
                server.map(|server| server.client.post(server.url("jobs")).json(&jobs))
            };
            async move {
                let response = request?.send().await.ok()?;
                let answer: Value = response.error_for_status().ok()?.json().await.ok()?;
                Some(answer["results"].as_array()?.clone())
            }
        })
        .await
        .iter()
        .for_each(|result| {
            let outcome = &result["outcome"];
            assert!(outcome == "queued" || outcome == "duplicate", "{result}");
        });
        jobs.clear();
        tokio::time::sleep(Duration::from_millis(random.below(20))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_no_limit_passed_however_often_the_server_is_killed() {
    let seed = RandomState::new().hash_one(0) | 1;
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url()).args([
        &*format!("--default-limit={ACCOUNT_LIMIT}"),
        &*format!("--default-group-limit={GROUP_LIMIT}"),
    ]);
    let server = RwLock::new(Some(setup.start().await));
    let mut moments = Random(!seed);
    let killing = async {
        for _ in 0..KILLS {
            // From the first moments of a server to well into its work.
            tokio::time::sleep(Duration::from_millis(moments.below(400))).await;
            let running = server.write().await.take();
            running.expect("a server").kill().await;
            let started = setup.start().await;
            *server.write().await = Some(started);
        }
    };
    futures::join!(submit(&server, Random(seed)), killing);
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let ended = endpoint.seen().ended().len();
        if ended >= JOBS {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "only {ended} of {JOBS} jobs have run"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    {
        let seen = endpoint.seen();
        // One key for each job, and each of the jobs.
        let ended = seen.ended();
        let ids: BTreeSet<_> = ended.iter().map(|(_, _, id)| id.clone()).collect();
        let expected: BTreeSet<_> = (0..JOBS).map(|index| format!("job-{index}")).collect();
        assert_eq!(ended.len(), JOBS);
        assert!(ids == expected);
        assert_eq!(seen.begun(), JOBS);
        for ((account, group), highest) in &seen.highest {
            let limit = if group.is_some() {
                GROUP_LIMIT
            } else {
                ACCOUNT_LIMIT
            };
            assert!(
                *highest <= limit,
                "{account} {group:?} had {highest} of {limit} running"
            );
        }
        // The limits were worth testing.
        for (of_group, limit) in [(false, ACCOUNT_LIMIT), (true, GROUP_LIMIT)] {
            let mut of_kind = seen
                .highest
                .iter()
                .filter(|((_, group), _)| group.is_some() == of_group);
            assert!(
                of_kind.any(|(_, highest)| *highest == limit),
                "{:?}",
                seen.highest
            );
        }
    }
    // Every permit returns, and the server knows the end of every job.
    let server = server.read().await;
    let server = server.as_ref().unwrap();
    for index in 0..ACCOUNTS {
        until("all permits to return", || async {
            let (_, usage) = server.get(&format!("accounts/account-{index}/usage")).await;
            (usage["granted"] == 0).then_some(())
        })
        .await;
    }
    for index in 0..JOBS {
        let account = format!("account-{}", index % ACCOUNTS);
        server
            .until_state(&account, &format!("job-{index}"), "completed")
            .await;
    }
}
