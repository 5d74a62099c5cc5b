//! A place in the fleet: a server that is killed, frozen and started again, and whoever asks it meanwhile.
//!
//! Every answer is judged: success, or an error with a code that the kind of storm may bring about.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex as Lock;
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use tokio::sync::{Mutex, watch};

use super::TOKEN;
use crate::support::{Server, Setup, client};

/// Longer than any server is frozen, so that nobody repeats what is still to be answered.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);

/// Errors that a server may answer while others die: it or they are away, or the job has moved on.
const USUAL: [&str; 6] = [
    "holders_unreachable",
    "job_ended",
    "job_running",
    "object_ended",
    "overloaded",
    "unknown_job",
];

pub(super) struct Seat {
    pub(super) name: &'static str,
    // Dropped before its folder.
    server: Mutex<Option<Server>>,
    pub(super) setup: Setup,
    address: watch::Sender<Option<SocketAddr>>,
    client: Client,
    allowed: &'static [&'static str],
    /// How often each error was answered.
    errors: Lock<BTreeMap<String, u64>>,
}

impl Seat {
    /// A place whose server is not started yet. `allowed` are errors that it may answer besides the usual ones.
    pub(super) fn new(name: &'static str, setup: Setup, allowed: &'static [&'static str]) -> Seat {
        Seat {
            name,
            setup,
            server: Mutex::new(None),
            address: watch::Sender::new(None),
            client: client(ANSWERS_WITHIN),
            allowed,
            errors: Lock::default(),
        }
    }

    pub(super) async fn start(&self) {
        let server = self.setup.start().await;
        self.address.send_replace(Some(server.address));
        *self.server.lock().await = Some(server);
    }

    /// Starts the server unless it has no room to: whether it runs.
    pub(super) async fn start_if_there_is_room(&self) -> bool {
        match self.setup.start_or_code().await {
            Ok(server) => {
                self.address.send_replace(Some(server.address));
                *self.server.lock().await = Some(server);
                true
            }
            Err(code) => {
                assert_eq!(code, 6, "{} does not start", self.name);
                false
            }
        }
    }

    /// Ends the process at once, in the middle of whatever it does.
    pub(super) async fn kill(&self) {
        self.address.send_replace(None);
        let server = self.server.lock().await.take();
        server.expect("a server").kill().await;
    }

    /// Sends the process a signal.
    pub(super) async fn signal(&self, name: &str) {
        let server = self.server.lock().await;
        server.as_ref().expect("a server").signal(name);
    }

    /// Where the server is; changes with every start.
    pub(super) fn whereabouts(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.address.subscribe()
    }

    /// The answer to a request, if the server is there to give one.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(StatusCode, Value)> {
        let address = (*self.address.borrow())?;
        let url = format!("http://{address}/v1/{path}");
        let mut request = self.client.request(method, url).bearer_auth(TOKEN);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.ok()?;
        let status = response.status();
        // Cut off in the middle is as good as no answer.
        let text = response.text().await.ok()?;
        let answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}, not JSON: {text}"));
        if !status.is_success() {
            // A list of which nothing was taken says so job by job.
            match answer["results"].as_array() {
                Some(results) => results.iter().for_each(|it| self.judge(it)),
                None => self.judge(&answer),
            }
        }
        Some((status, answer))
    }

    /// Counts an error in an answer, which must be one that may be.
    pub(super) fn judge(&self, answer: &Value) {
        let code = answer["error"]["code"].as_str().unwrap_or("none");
        assert!(
            USUAL.contains(&code) || self.allowed.contains(&code),
            "{} answered {answer}",
            self.name
        );
        *self
            .errors
            .lock()
            .unwrap()
            .entry(code.to_owned())
            .or_default() += 1;
    }

    pub(super) fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.lock().unwrap().clone()
    }
}
