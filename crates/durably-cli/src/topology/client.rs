//! Requests to a server, and what its refusals mean for the program.

use durably_native::http::address;
use reqwest::header::{CONTENT_TYPE, HeaderName};
use reqwest::{Method, Response, StatusCode, Url};
use serde_json::Value;

use crate::exit::Failure;
use crate::runner::{self, with_causes};

/// One server's topology.
pub(super) struct Client {
    client: reqwest::Client,
    base: Url,
    token: Option<String>,
    topology: String,
}

pub(super) struct Request {
    method: Method,
    /// The steps of the path below the topology.
    path: Vec<String>,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) headers: Vec<(HeaderName, String)>,
    pub(super) body: Option<Vec<u8>>,
}

impl Request {
    pub(super) fn new(method: Method, path: Vec<String>) -> Self {
        Request {
            method,
            path,
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
        }
    }
}

impl Client {
    pub(super) fn new(
        server: &str,
        token: Option<&str>,
        topology: String,
    ) -> Result<Client, Failure> {
        let base = address(server).map_err(|error| Failure::Input {
            problem: format!("--server {}", error.problem()),
        })?;
        let client = runner::client(&base).map_err(|error| Failure::Input {
            problem: format!("--server: {error}"),
        })?;
        Ok(Client {
            client,
            base,
            token: token.map(str::to_owned),
            topology,
        })
    }

    fn url(&self, path: &[String], query: &[(&'static str, String)]) -> Result<Url, Failure> {
        let mut names = std::iter::once(&self.topology).chain(path);
        // A URL takes them for steps up and down its path, however they are written.
        if let Some(name) = names.find(|name| matches!(name.as_str(), "." | ".." | "")) {
            return Err(Failure::Input {
                problem: format!("{name:?} cannot be part of a URL"),
            });
        }
        let mut url = self.base.clone();
        if let Ok(mut steps) = url.path_segments_mut() {
            steps
                .pop_if_empty()
                .extend(["v1", "topologies", &self.topology]);
            steps.extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    /// Sends a request; the answer if it is a success.
    pub(super) async fn send(&self, request: Request) -> Result<Response, Failure> {
        let url = self.url(&request.path, &request.query)?;
        let mut sending = self.client.request(request.method, url);
        if let Some(token) = &self.token {
            sending = sending.bearer_auth(token);
        }
        for (name, value) in request.headers {
            sending = sending.header(name, value);
        }
        if let Some(body) = request.body {
            sending = sending.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response = sending.send().await.map_err(unreachable)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(unreachable)?;
        Err(refusal(status, &text))
    }

    pub(super) async fn answer(&self, request: Request) -> Result<String, Failure> {
        let response = self.send(request).await?;
        response.text().await.map_err(unreachable)
    }

    pub(super) async fn json(&self, request: Request) -> Result<Value, Failure> {
        let text = self.answer(request).await?;
        serde_json::from_str(&text).map_err(|error| Failure::Unreachable {
            problem: format!("the server's answer cannot be read: {error}"),
        })
    }
}

pub(super) fn unreachable(error: reqwest::Error) -> Failure {
    Failure::Unreachable {
        problem: with_causes("the server cannot be reached", error),
    }
}

/// What the server says, or its status where that is no error of its own.
fn refusal(status: StatusCode, text: &str) -> Failure {
    let error: Value = serde_json::from_str(text).unwrap_or_default();
    let part = |name: &str| error["error"][name].as_str().map(str::to_owned);
    let message = match (part("code"), part("message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ => format!("the server answered {status}"),
    };
    match status {
        StatusCode::NOT_FOUND => Failure::NotThere { message },
        StatusCode::PRECONDITION_FAILED => Failure::Conflict { message },
        _ => Failure::Refused { message },
    }
}
