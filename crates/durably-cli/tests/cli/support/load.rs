//! Many jobs while servers die, and the judgement from the job endpoint.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::RwLock;

use super::endpoint::Endpoint;
use super::{PATIENCE, Server, until};

/// A server that may be away.
pub(crate) type Place = RwLock<Option<Server>>;

/// A small generator for moments and sizes. What a run does hangs on the machine as well, so a seed
/// would not bring it back.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Submits all jobs in batches, each until it is acknowledged.
pub(crate) async fn submit(place: &Place, mut jobs: Vec<Value>, mut random: Random) {
    while !jobs.is_empty() {
        let size = 1 + random.below(40) as usize;
        let batch: Vec<Value> = jobs.drain(..size.min(jobs.len())).collect();
        until("a batch to be acknowledged", || {
            let request = {
                let server = place.try_read().ok();
                let server = server.as_ref().and_then(|server| server.as_ref());
                server.map(|server| server.client.post(server.url("jobs")).json(&batch))
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
        tokio::time::sleep(Duration::from_millis(random.below(20))).await;
    }
}

/// Waits until as many jobs as `ids` have run, then checks that it was those, each once.
pub(crate) async fn until_all_ran(endpoint: &Endpoint, ids: BTreeSet<String>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = endpoint.seen().ended_count();
        if ended >= ids.len() {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "only {ended} of {} jobs have run",
            ids.len()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen = endpoint.seen();
    // One key for each job, and each of the jobs.
    let ended = seen.ended();
    assert_eq!(ended.len(), ids.len());
    assert_eq!(seen.begun(), ids.len());
    let ran: BTreeSet<_> = ended.into_iter().map(|(_, _, id)| id).collect();
    assert!(ran == ids);
}

/// Checks that no account or group ever had more running than it may, and that some came near.
pub(crate) fn check_limits(endpoint: &Endpoint, account_limit: u64, group_limit: Option<u64>) {
    let seen = endpoint.seen();
    for (of_group, limit) in [(false, Some(account_limit)), (true, group_limit)] {
        let Some(limit) = limit else { continue };
        let mut most = 0;
        for ((account, group), highest) in &seen.highest {
            if group.is_some() == of_group {
                assert!(
                    *highest <= limit,
                    "{account} {group:?} had {highest} of {limit} running"
                );
                most = most.max(*highest);
            }
        }
        // Where a limit is given out in parts, one of them may be idle.
        let worth_testing = most + 1 >= limit;
        assert!(worth_testing, "never near {limit}: {:?}", seen.highest);
    }
}

/// Waits until every permit of the accounts has returned.
pub(crate) async fn until_permits_return(server: &Server, accounts: usize) {
    for index in 0..accounts {
        until("all permits to return", || async {
            let (_, usage) = server.get(&format!("accounts/account-{index}/usage")).await;
            (usage["granted"] == 0 && usage["leased"] == 0).then_some(())
        })
        .await;
    }
}
