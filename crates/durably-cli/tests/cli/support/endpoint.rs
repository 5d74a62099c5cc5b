//! A job endpoint that does what job bodies say, and counts what really runs.
//!
//! `{"ms": n}` runs n ms, `{"hold": true}` until released, `{"answers": [503, 200]}` answers the
//! attempts in turn, `{"result": …}` is the result. Runs are known by `Idempotency-Key`: a broken
//! connection ends none, a repeat joins it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Account, group and id.
pub(crate) type Address = (String, String, String);

#[derive(Default)]
pub(crate) struct Seen {
    /// By key: what runs under it, and whether it has ended.
    runs: BTreeMap<String, (Address, watch::Receiver<bool>)>,
    running: BTreeMap<(String, Option<String>), u64>,
    ended: usize,
    /// The most that ever ran at once, of an account and of each of its groups.
    pub(crate) highest: BTreeMap<(String, Option<String>), u64>,
    /// Every request: its key and body.
    pub(crate) requests: Vec<(String, Value)>,
    /// How many may run at once, of an account or one of its groups; who is not in it may run any.
    ceilings: BTreeMap<(String, Option<String>), u64>,
    /// What began although its account or group had as many running as may be.
    pub(crate) passed: Vec<String>,
    /// How often each kind of admission was named in a request.
    pub(crate) admissions: BTreeMap<String, u64>,
}

impl Seen {
    /// Addresses whose runs have ended, one for each key.
    pub(crate) fn ended(&self) -> Vec<Address> {
        let ended = self.runs.values().filter(|(_, ended)| *ended.borrow());
        ended.map(|(address, _)| address.clone()).collect()
    }

    pub(crate) fn begun(&self) -> usize {
        self.runs.len()
    }

    /// How many of those have ended.
    pub(crate) fn ended_count(&self) -> usize {
        self.ended
    }

    /// Whether the run of a key has begun, and has ended.
    pub(crate) fn run(&self, key: &str) -> Option<bool> {
        self.runs.get(key).map(|(_, ended)| *ended.borrow())
    }

    /// From now on an account, or one of its groups, may have so many running when another begins.
    pub(crate) fn allow(&mut self, account: &str, group: Option<&str>, running: u64) {
        let key = (account.to_owned(), group.map(str::to_owned));
        self.ceilings.insert(key, running);
    }

    fn count(&mut self, (account, group, id): &Address, begins: bool) {
        for key in [
            (account.clone(), None),
            (account.clone(), Some(group.clone())),
        ] {
            let running = self.running.entry(key.clone()).or_default();
            if begins {
                *running += 1;
                if let Some(allowed) = self.ceilings.get(&key)
                    && *running > *allowed
                {
                    let (account, group) = &key;
                    let text = format!("{account} {group:?} {id}: {running} of {allowed}");
                    self.passed.push(text);
                }
                let highest = self.highest.entry(key).or_default();
                *highest = (*highest).max(*running);
            } else {
                *running -= 1;
            }
        }
    }
}

#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    released: watch::Sender<bool>,
}

impl Endpoint {
    pub(crate) async fn start() -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            released: watch::channel(false).0,
        };
        let router = Router::new()
            .route("/run", post(run))
            .with_state(endpoint.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        endpoint
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/run", self.address)
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Lets jobs end that are held, now and later.
    pub(crate) fn release(&self) {
        self.released.send_replace(true);
    }
}

async fn run(
    State(endpoint): State<Endpoint>,
    headers: HeaderMap,
    Json(run): Json<Value>,
) -> Response {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let result = run["body"]["result"].clone();
    if let Some(admission) = headers.get("durably-admission") {
        let admission = admission.to_str().unwrap().to_owned();
        *endpoint.seen().admissions.entry(admission).or_default() += 1;
    }
    match endpoint.join(key, run) {
        Ok(mut ended) => {
            ended.wait_for(|ended| *ended).await.unwrap();
            Json(result).into_response()
        }
        Err(status) => (status, "as the job says").into_response(),
    }
}

impl Endpoint {
    /// The end of the run of this key, or the answer that the job says this attempt has.
    fn join(&self, key: String, run: Value) -> Result<watch::Receiver<bool>, StatusCode> {
        let mut seen = self.seen();
        let answer = run["body"]["answers"].as_array().and_then(|answers| {
            let before = seen.requests.iter().filter(|(known, _)| *known == key);
            answers.get(before.count())?.as_u64()
        });
        seen.requests.push((key.clone(), run.clone()));
        if let Some(answer) = answer.filter(|answer| *answer != 200) {
            return Err(StatusCode::from_u16(u16::try_from(answer).unwrap()).unwrap());
        }
        if let Some((_, ended)) = seen.runs.get(&key) {
            return Ok(ended.clone());
        }
        let part = |name: &str| run[name].as_str().unwrap().to_owned();
        let address = (part("account"), part("group"), part("id"));
        let (end, ended) = watch::channel(false);
        seen.runs.insert(key, (address.clone(), ended.clone()));
        seen.count(&address, true);
        let endpoint = self.clone();
        tokio::spawn(async move {
            if run["body"]["hold"] == true {
                let mut released = endpoint.released.subscribe();
                released.wait_for(|released| *released).await.unwrap();
            }
            let ms = run["body"]["ms"].as_u64().unwrap_or(0);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            let mut seen = endpoint.seen();
            // Counted down before anybody can hear of the end.
            seen.count(&address, false);
            seen.ended += 1;
            end.send_replace(true);
        });
        Ok(ended)
    }
}
