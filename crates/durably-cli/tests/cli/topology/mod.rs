//! Topologies over HTTP: groups, their published copies, what members are told.

mod bad_input;
mod command;
mod groups;
mod kill;
mod members;
mod watch;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::support::{Server, Setup};

/// A server that runs no jobs.
fn setup() -> Setup {
    Setup::new("http://127.0.0.1:9/run")
}

/// An answer with its headers.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    fn tag(&self) -> String {
        self.headers["etag"].to_str().unwrap().to_owned()
    }
}

async fn send(
    server: &Server,
    method: Method,
    path: &str,
    header: Option<(HeaderName, &str)>,
    body: Option<&Value>,
) -> Answer {
    let mut request = server.request(method, &format!("topologies/{path}"));
    if let Some((name, value)) = header {
        request = request.header(name, HeaderValue::from_str(value).unwrap());
    }
    if let Some(body) = body {
        request = request.json(body);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.unwrap();
    let body = match text.is_empty() {
        true => Value::Null,
        false => serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}")),
    };
    Answer {
        status,
        headers,
        body,
    }
}
