//! Asking holders in other processes, over HTTP: the API of `durably serve`.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use durably::layers::TimeoutLayer;
//! use durably::semaphore::client::SemaphoreClient;
//! use durably_native::http::{HttpHolders, TokioTimer};
//! use tower_layer::Layer;
//!
//! # fn build() -> Result<(), Box<dyn std::error::Error>> {
//! let holders = HttpHolders::new("http://127.0.0.1:7070", Some("token"))?;
//! // Longer than a round may take.
//! let timeout = TimeoutLayer::new(TokioTimer, Duration::from_secs(8))?;
//! let client = SemaphoreClient::new(timeout.layer(holders), TokioTimer);
//! # let _ = client;
//! # Ok(())
//! # }
//! ```

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use durably::layers::Timer;
use durably::semaphore::client::{ClientError, HolderCall};
use durably::semaphore::protocol::Reply;
use durably::{ConfigError, Timestamp};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use tower_service::Service;

/// The largest answer that is read, in bytes; a holder's are far smaller.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The holders of one server, as a transport for a
/// [`SemaphoreClient`](durably::semaphore::client::SemaphoreClient). It waits for an answer as long
/// as it is let: put a [`TimeoutLayer`](durably::layers::TimeoutLayer) in front.
#[derive(Clone, Debug)]
pub struct HttpHolders {
    client: Client,
    base: Url,
}

impl HttpHolders {
    /// The holders of the server at `base`, which asks for `token` if it asks for one.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for an address that is no HTTP URL, a token that cannot be sent, and a
    /// client that cannot be built (https needs a TLS provider in the program).
    pub fn new(base: &str, token: Option<&str>) -> Result<HttpHolders, ConfigError> {
        let base =
            Url::parse(base).map_err(|error| ConfigError::new("holders", error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(ConfigError::new("holders", "must be an http or https URL"));
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(token) = token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| ConfigError::new("token", "must consist of visible ASCII"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = Client::builder()
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| ConfigError::new("holders", error.to_string()))?;
        Ok(HttpHolders { client, base })
    }

    fn url(&self, key: &str) -> Result<Url, ClientError> {
        // A URL takes them for steps up and down its path, however they are written.
        if matches!(key, "." | "..") {
            return Err(ClientError::Refused {
                code: "invalid".to_owned(),
                message: format!("the key {key:?} cannot be part of a URL"),
                retryable: false,
            });
        }
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| ClientError::unreachable("the address cannot have a path"))?
            .pop_if_empty()
            .extend(["v1", "holders", key, "messages"]);
        Ok(url)
    }
}

impl Service<HolderCall> for HttpHolders {
    type Response = Reply;
    type Error = ClientError;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, ClientError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: HolderCall) -> Self::Future {
        let client = self.client.clone();
        let url = self.url(&call.key);
        Box::pin(async move {
            let body = serde_json::to_vec(&call.message).map_err(ClientError::unreachable)?;
            let sent = client.post(url?).body(body).send().await;
            let response = sent.map_err(ClientError::unreachable)?;
            let status = response.status();
            let answer = read(response).await?;
            if status.is_success() {
                return Ok(Reply::from_json(&answer)?);
            }
            Err(refusal(status, &answer))
        })
    }
}

async fn read(mut response: reqwest::Response) -> Result<Vec<u8>, ClientError> {
    let mut answer = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ClientError::unreachable)? {
        if answer.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(ClientError::unreachable("the answer is too large"));
        }
        answer.extend_from_slice(&chunk);
    }
    Ok(answer)
}

#[derive(Deserialize)]
struct Refused {
    error: RefusedError,
}

#[derive(Deserialize)]
struct RefusedError {
    code: String,
    message: String,
}

/// What an answer other than success means: in the server's own words, if they can be read.
fn refusal(status: StatusCode, answer: &[u8]) -> ClientError {
    let said = serde_json::from_slice::<Refused>(answer);
    let (code, message) = match said {
        Ok(Refused { error }) => (error.code, error.message),
        Err(_) => (
            "http_status".to_owned(),
            format!("the server answered {status}"),
        ),
    };
    ClientError::Refused {
        code,
        message,
        retryable: status.is_server_error()
            || matches!(
                status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
            ),
    }
}

/// The clock of a process that runs tokio.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTimer;

impl Timer for TokioTimer {
    type Sleep = tokio::time::Sleep;

    fn now(&self) -> Timestamp {
        crate::host::wall_clock()
    }

    fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        tokio::time::sleep(duration)
    }
}
