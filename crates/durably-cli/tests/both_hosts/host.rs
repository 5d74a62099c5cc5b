//! A host of the application, in either place: started, asked, killed, its objects evicted.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;
use tokio::sync::RwLock;

use crate::support::{PATIENCE, Server, Setup, client, until};
use crate::workerd;

/// Where the application runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `durably serve`.
    Server,
    /// The ready-made worker, in workerd.
    Worker,
}

/// What cases set; the two hosts call it differently.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Where jobs are posted to; none for a host that takes no jobs.
    pub(crate) job_url: Option<String>,
    /// What requests must carry.
    pub(crate) token: Option<&'static str>,
    pub(crate) round_wait: Duration,
    pub(crate) grant_timeout: Duration,
    pub(crate) default_limit: u64,
    /// State channels, as `durably serve` takes them.
    pub(crate) state_channels: Option<&'static str>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            job_url: Some("http://127.0.0.1:9/run".to_owned()),
            token: None,
            round_wait: Duration::from_millis(5),
            grant_timeout: Duration::from_secs(30),
            default_limit: 10,
            state_channels: None,
        }
    }
}

const ROUND_PERIOD_MS: u128 = 10;

impl Settings {
    pub(crate) fn jobs_to(url: String) -> Settings {
        Settings {
            job_url: Some(url),
            ..Settings::default()
        }
    }

    /// For the worker.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let milliseconds = |duration: Duration| duration.as_millis().to_string();
        let mut variables = vec![
            ("DURABLY_ROUND_WAIT_MS", milliseconds(self.round_wait)),
            ("DURABLY_ROUND_PERIOD_MS", ROUND_PERIOD_MS.to_string()),
            ("DURABLY_GRANT_TIMEOUT_MS", milliseconds(self.grant_timeout)),
            ("DURABLY_ALARM_MIN_DELAY_MS", "1000".to_owned()),
            ("DURABLY_DEFAULT_LIMIT", self.default_limit.to_string()),
        ];
        if let Some(url) = &self.job_url {
            variables.push(("DURABLY_JOB_URL", url.clone()));
        }
        if let Some(token) = self.token {
            variables.push(("DURABLY_API_TOKEN", token.to_owned()));
        }
        if let Some(channels) = self.state_channels {
            variables.push(("DURABLY_STATE_CHANNELS", channels.to_owned()));
            variables.push(("DURABLY_DRAIN_CHECK_PERIOD_MS", "50".to_owned()));
        }
        variables
    }

    /// For the server.
    fn setup(&self) -> Setup {
        let setup = Setup::bare();
        let data_dir = setup.data_dir().to_string_lossy().into_owned();
        let setup = setup.args([
            "--data-dir",
            &data_dir,
            "--listen=127.0.0.1:0",
            "--alarm-min-delay=1s",
            // What runs when it is told to end runs again afterwards, as after any eviction.
            "--drain-timeout=100ms",
            "--log-level=error",
            &format!("--round-wait={}ms", self.round_wait.as_millis()),
            &format!("--round-period={ROUND_PERIOD_MS}ms"),
            &format!("--grant-timeout={}ms", self.grant_timeout.as_millis()),
            &format!("--default-limit={}", self.default_limit),
        ]);
        let setup = match &self.job_url {
            Some(url) => setup.args(["--job-endpoint", url]),
            None => setup,
        };
        let setup = match self.token {
            Some(token) => setup.variable("DURABLY_TOKEN", token),
            None => setup,
        };
        match self.state_channels {
            Some(channels) => setup.args([
                "--drain-check-period=50ms",
                &format!("--state-channels={channels}"),
            ]),
            None => setup,
        }
    }
}

/// The application with its data, which may be away.
pub(crate) struct Host {
    client: Client,
    kind: Kind,
    /// Where it answers at present.
    address: RwLock<String>,
}

enum Kind {
    Server(Setup, RwLock<Option<Server>>),
    Worker(Box<workerd::Setup>, RwLock<Option<workerd::Process>>),
}

/// What a host said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Null if it said nothing, a text if it is not JSON.
    pub(crate) body: Value,
}

impl Answer {
    /// Of a refusal: its status, code, and the field to blame.
    pub(crate) fn refusal(&self) -> (u16, &str, &str) {
        let error = &self.body["error"];
        let text = |name: &str| error[name].as_str().unwrap_or_default();
        (self.status, text("code"), text("field"))
    }

    /// Its body, once it is sure that all is well.
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }
}

impl Host {
    pub(crate) async fn start(place: Place, settings: &Settings) -> Host {
        let kind = match place {
            Place::Server => Kind::Server(settings.setup(), RwLock::default()),
            Place::Worker => {
                Kind::Worker(Box::new(workerd::Setup::new(settings)), RwLock::default())
            }
        };
        let host = Host {
            client: client(PATIENCE),
            kind,
            address: RwLock::default(),
        };
        host.start_again().await;
        host
    }

    /// Starts it on the data that it had.
    pub(crate) async fn start_again(&self) {
        let address = match &self.kind {
            Kind::Server(setup, server) => {
                let started = setup.start().await;
                let address = started.address.to_string();
                server.write().await.replace(started);
                address
            }
            Kind::Worker(setup, process) => {
                let started = setup.start().await;
                let address = started.address.clone();
                process.write().await.replace(started);
                address
            }
        };
        *self.address.write().await = address;
    }

    /// SIGKILL.
    pub(crate) async fn kill(&self) {
        match &self.kind {
            Kind::Server(_, server) => {
                let server = server.write().await.take();
                server.expect("it runs").kill().await;
            }
            Kind::Worker(_, process) => {
                let process = process.write().await.take();
                process.expect("it runs").kill().await;
            }
        }
    }

    /// Takes all objects out of memory. Those of the server leave when it ends in good order.
    pub(crate) async fn evict(&self) {
        match &self.kind {
            Kind::Server(_, server) => {
                let server = server.write().await.take().expect("it runs");
                server.signal("TERM");
                server.ended().await;
                self.start_again().await;
            }
            Kind::Worker(_, process) => {
                let process = process.read().await;
                let url = &process.as_ref().expect("it runs").evictor;
                let evicted = self.client.post(url).send().await.unwrap();
                assert!(evicted.status().is_success(), "{evicted:?}");
            }
        }
    }

    /// A request to a path below `/v1/`.
    pub(crate) async fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}/v1/{path}", self.address.read().await);
        self.client.request(method, url)
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let request = self.request(method, path).await;
        answer(match body {
            Some(body) => request.json(body),
            None => request,
        })
        .await
        .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, None).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::PUT, path, Some(&body)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, path, Some(&body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.ask(Method::DELETE, path, None).await
    }

    /// The answer to a text of a content type.
    pub(crate) async fn send(&self, method: Method, path: &str, kind: &str, text: &str) -> Answer {
        let request = self.request(method, path).await;
        let request = request.header(CONTENT_TYPE, kind).body(text.to_owned());
        answer(request).await.unwrap()
    }

    /// The answer, however often the host has to be asked because it is away.
    pub(crate) async fn persist(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        until("an answer", || async {
            let request = self.request(method.clone(), path).await;
            let answer = answer(match body {
                Some(body) => request.json(body),
                None => request,
            });
            answer.await.ok().filter(|answer| answer.status < 500)
        })
        .await
    }

    /// Waits until a job is in a state, and gives its status.
    pub(crate) async fn until_state(&self, account: &str, id: &str, state: &str) -> Value {
        let path = format!("accounts/{account}/jobs/{id}");
        until(&format!("{account}/{id} to be {state}"), || async {
            let answer = self.persist(Method::GET, &path, None).await;
            (answer.body["state"] == state).then_some(answer.body)
        })
        .await
    }
}

pub(crate) async fn answer(request: RequestBuilder) -> reqwest::Result<Answer> {
    let response = request.send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await?;
    let body = match text.is_empty() {
        true => Value::Null,
        false => serde_json::from_str(&text).unwrap_or(Value::String(text)),
    };
    Ok(Answer {
        status,
        headers,
        body,
    })
}
