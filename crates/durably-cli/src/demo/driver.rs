//! Submits the day's flights to the server, each in its minute, until each is acknowledged.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use reqwest::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::day::{Flight, Pace};
use super::endpoint::Shared;

/// Where the server is; `None` while it is down.
pub(super) type Whereabouts = watch::Receiver<Option<SocketAddr>>;

/// Between two tries of a submission that was not acknowledged.
const RETRY_AFTER: Duration = Duration::from_millis(25);

/// No answer of the server takes longer, unless it is gone.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Leases of the airlines that give any.
const LEASE_PERMITS: u64 = 16;
const LEASE_TTL: Duration = Duration::from_secs(10 * 60);

/// Most flights in one request.
const BATCH: usize = 200;

/// Submits all flights; ends when the last is acknowledged.
pub(super) async fn submit_all(
    flights: &[Flight],
    pace: Pace,
    start: Instant,
    board: &Shared,
    server: &Server,
) {
    let mut next = 0;
    while let Some(flight) = flights.get(next) {
        tokio::time::sleep_until((start + pace.real(flight.at_minute)).into()).await;
        // What became due while the server was down goes along.
        let elapsed = start.elapsed();
        let due = flights
            .iter()
            .skip(next)
            .take(BATCH)
            .take_while(|flight| pace.real(flight.at_minute) <= elapsed)
            .count()
            .max(1);
        let mut open: Vec<usize> = (next..next + due).collect();
        next += due;
        while !open.is_empty() {
            let jobs: Vec<Value> = open
                .iter()
                .filter_map(|index| flights.get(*index))
                .map(Flight::job)
                .collect();
            if let Some(outcomes) = server.submit(&jobs).await {
                let now = Instant::now();
                let mut board = board.lock();
                let mut outcomes = outcomes.into_iter();
                open.retain(|index| {
                    let taken = outcomes.next().is_some_and(|outcome| outcome.taken());
                    if taken {
                        board.acknowledged(*index, now);
                    }
                    !taken
                });
            }
            if !open.is_empty() {
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

/// The server, seen through its HTTP API.
#[derive(Clone, Debug)]
pub(super) struct Server {
    client: Client,
    whereabouts: Whereabouts,
}

#[derive(Deserialize)]
struct Results {
    results: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    outcome: String,
}

impl Outcome {
    /// Whether the job is the server's now; a repeated submission shows as a duplicate.
    fn taken(&self) -> bool {
        self.outcome == "queued" || self.outcome == "duplicate"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    blocked_reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    granted: u64,
    leased: u64,
}

#[derive(Deserialize)]
struct Jobs {
    undrawn: u64,
}

impl Server {
    pub(super) fn new(client: Client, whereabouts: Whereabouts) -> Server {
        Server {
            client,
            whereabouts,
        }
    }

    /// What became of each job; `None` if that is not known.
    async fn submit(&self, jobs: &[Value]) -> Option<Vec<Outcome>> {
        let address = self.address().await?;
        let request = self.client.post(format!("http://{address}/v1/jobs"));
        let response = request.timeout(ANSWERS_WITHIN).json(jobs).send().await;
        let results: Results = response.ok()?.error_for_status().ok()?.json().await.ok()?;
        Some(results.results)
    }

    /// Why a job waits, if the server knows.
    pub(super) async fn blocked_reason(&self, account: &str, id: &str) -> Option<String> {
        let status: Status = self.get(&format!("accounts/{account}/jobs/{id}")).await?;
        status.blocked_reason
    }

    /// Permits of an account that stand for work; `None` if the server does not answer. Those that
    /// its shards have leased and not drawn do not.
    pub(super) async fn out(&self, account: &str) -> Option<u64> {
        let jobs: Jobs = self.get(&format!("accounts/{account}/jobs")).await?;
        let usage: Usage = self.get(&format!("accounts/{account}/usage")).await?;
        Some((usage.granted + usage.leased).abs_diff(jobs.undrawn))
    }

    /// Has an account give leases, until the server says that it does.
    pub(super) async fn give_leases(&self, account: &str) {
        let leases = json!({"leases": {
            "provisioning": {"mode": "strict"},
            "permitsPerLease": LEASE_PERMITS,
            "ttlMs": LEASE_TTL.as_millis() as u64,
            // Airports have a limit of their own.
            "limitedGroups": "withinGroupLimit",
        }});
        while self
            .put(&format!("accounts/{account}/leases"), &leases)
            .await
            .is_none()
        {
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    async fn put(&self, path: &str, body: &Value) -> Option<()> {
        let address = self.address().await?;
        let request = self.client.put(format!("http://{address}/v1/{path}"));
        let response = request
            .timeout(ANSWERS_WITHIN)
            .json(body)
            .send()
            .await
            .ok()?;
        response.error_for_status().ok().map(drop)
    }

    /// Where the server is, once it is up; `None` if it is gone for good, which others notice.
    async fn address(&self) -> Option<SocketAddr> {
        let mut whereabouts = self.whereabouts.clone();
        *whereabouts.wait_for(Option::is_some).await.ok()?
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Option<T> {
        let address = (*self.whereabouts.borrow())?;
        let request = self.client.get(format!("http://{address}/v1/{path}"));
        let response = request.timeout(ANSWERS_WITHIN).send().await.ok()?;
        response.error_for_status().ok()?.json().await.ok()
    }
}
