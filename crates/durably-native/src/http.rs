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

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::task::{Context, Poll};
use std::time::Duration;

use durably::layers::Timer;
use durably::semaphore::client::{ClientError, HolderCall};
use durably::semaphore::protocol::Reply;
use durably::semaphore::{ForceReleased, Holding, LeaseOptions, Standing, Usage};
use durably::{ConfigError, Timestamp};
use futures::future::BoxFuture;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tower_service::Service;

use crate::jobs::RemoteHolders;

/// The largest answer that is read, in bytes; a holder's are far smaller.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Said by servers that have budgets elsewhere: who gets this answers as the holder or not at all,
/// so that servers that name each other pass nothing around in a circle.
pub const NO_FORWARDING: HeaderName = HeaderName::from_static("durably-no-forwarding");

/// The holders of one server, as a transport for a
/// [`SemaphoreClient`](durably::semaphore::client::SemaphoreClient) and as the budgets of
/// [`Jobs`](crate::jobs::Jobs). It waits for an answer as long as it is let: put a
/// [`TimeoutLayer`](durably::layers::TimeoutLayer) in front.
#[derive(Clone)]
pub struct HttpHolders {
    client: Client,
    base: Url,
    headers: HeaderMap,
}

impl fmt::Debug for HttpHolders {
    /// Without what it says to the server, the token among it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HttpHolders")
            .field("base", &self.base.as_str())
            .finish_non_exhaustive()
    }
}

impl HttpHolders {
    /// The holders of the server at `base`, which asks for `token` if it asks for one.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for an address that is no HTTP URL or has more than a scheme, a host and a
    /// port, a token that cannot be sent, and a client that cannot be built (https needs a TLS
    /// provider in the program).
    pub fn new(base: &str, token: Option<&str>) -> Result<HttpHolders, ConfigError> {
        let base = address(base)?;
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| ConfigError::new("holders", error.to_string()))?;
        HttpHolders::with_client(client, base.as_str(), token)
    }

    /// The same over a client of one's own, which should follow no redirects.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_client(
        client: Client,
        base: &str,
        token: Option<&str>,
    ) -> Result<HttpHolders, ConfigError> {
        let base = address(base)?;
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| ConfigError::new("token", "must consist of visible ASCII"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(HttpHolders {
            client,
            base,
            headers,
        })
    }

    /// Has a server that keeps no budgets itself refuse instead of asking the one that does.
    #[must_use]
    pub fn without_forwarding(mut self) -> HttpHolders {
        let yes = HeaderValue::from_static("true");
        self.headers.insert(NO_FORWARDING, yes);
        self
    }

    /// The server's address.
    pub fn base(&self) -> &Url {
        &self.base
    }

    fn url(&self, parts: &[&str], query: &[(&str, &str)]) -> Result<Url, ClientError> {
        // A URL takes them for steps up and down its path, however they are written.
        if let Some(part) = parts.iter().find(|part| matches!(**part, "." | "..")) {
            return Err(ClientError::Refused {
                code: "invalid".to_owned(),
                message: format!("{part:?} cannot be part of a URL"),
                retryable: false,
            });
        }
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| ClientError::unreachable("the address cannot have a path"))?
            .pop_if_empty()
            .push("v1")
            .extend(parts);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    /// Sends a request to the path of `parts` and reads the answer, if it is a success.
    fn send(
        &self,
        method: Method,
        parts: &[&str],
        body: Option<Result<Vec<u8>, serde_json::Error>>,
    ) -> impl Future<Output = Result<Vec<u8>, ClientError>> + Send + use<> {
        self.send_to(method, self.url(parts, &[]), body)
    }

    fn send_to(
        &self,
        method: Method,
        url: Result<Url, ClientError>,
        body: Option<Result<Vec<u8>, serde_json::Error>>,
    ) -> impl Future<Output = Result<Vec<u8>, ClientError>> + Send + use<> {
        let request = url.and_then(|url| {
            let request = self.client.request(method, url);
            let request = request.headers(self.headers.clone());
            Ok(match body {
                Some(body) => request
                    .header(CONTENT_TYPE, "application/json")
                    .body(body.map_err(ClientError::unreachable)?),
                None => request,
            })
        });
        async move {
            let sent = request?.send().await;
            let response = sent.map_err(unreachable)?;
            let status = response.status();
            let answer = read(response).await?;
            match status.is_success() {
                true => Ok(answer),
                false => Err(refusal(status, &answer)),
            }
        }
    }
}

/// Reads the address of a server and nothing else.
///
/// # Errors
///
/// [`ConfigError`] naming `holders`.
pub fn address(text: &str) -> Result<Url, ConfigError> {
    let refused = |problem: &str| {
        let example = "write for instance \"http://10.0.0.5:7070\"";
        ConfigError::new("holders", format!("{problem}: {example}"))
    };
    let url = Url::parse(text).map_err(|error| refused(&format!("is not a URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(refused("must be an http or https URL"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused(
            "must not hold a user or password; a token is apart",
        ));
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err(refused("must be a server's address without a path"));
    }
    Ok(url)
}

impl Service<HolderCall> for HttpHolders {
    type Response = Reply;
    type Error = ClientError;
    type Future = BoxFuture<'static, Result<Reply, ClientError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: HolderCall) -> Self::Future {
        let parts = ["holders", &call.key, "messages"];
        let body = serde_json::to_vec(&call.message);
        let answer = self.send(Method::POST, &parts, Some(body));
        Box::pin(async move { Ok(Reply::from_json(&answer.await?)?) })
    }
}

/// A limit as the server shows it and takes it.
#[derive(Serialize, Deserialize)]
struct LimitText {
    limit: Option<u64>,
}

/// How leases are given, as the server shows it and takes it.
#[derive(Serialize, Deserialize)]
struct LeasesText {
    leases: Option<LeaseOptions>,
}

#[derive(Deserialize)]
struct HoldersText {
    holders: Vec<Holding>,
}

fn limit_path<'a>(account: &'a str, group: Option<&'a str>) -> Vec<&'a str> {
    match group {
        None => vec!["accounts", account, "limit"],
        Some(group) => vec!["accounts", account, "groups", group, "limit"],
    }
}

fn parse<T: DeserializeOwned>(answer: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(answer).map_err(|error| ClientError::Refused {
        code: "malformed".to_owned(),
        message: format!("its answer cannot be read: {error}"),
        retryable: false,
    })
}

impl RemoteHolders for HttpHolders {
    fn address(&self) -> &str {
        self.base.as_str()
    }

    fn message(&self, call: HolderCall) -> BoxFuture<'static, Result<Reply, ClientError>> {
        self.clone().call(call)
    }

    fn limit(
        &self,
        account: &str,
        group: Option<&str>,
    ) -> BoxFuture<'static, Result<Option<u64>, ClientError>> {
        let answer = self.send(Method::GET, &limit_path(account, group), None);
        Box::pin(async move { Ok(parse::<LimitText>(&answer.await?)?.limit) })
    }

    fn set_limit(
        &self,
        account: &str,
        group: Option<&str>,
        limit: Option<u64>,
    ) -> BoxFuture<'static, Result<(), ClientError>> {
        let path = limit_path(account, group);
        let answer = match limit {
            None => self.send(Method::DELETE, &path, None),
            limit => {
                let body = serde_json::to_vec(&LimitText { limit });
                self.send(Method::PUT, &path, Some(body))
            }
        };
        Box::pin(async move { answer.await.map(drop) })
    }

    fn usage(&self, account: &str) -> BoxFuture<'static, Result<Usage, ClientError>> {
        let answer = self.send(Method::GET, &["accounts", account, "usage"], None);
        Box::pin(async move { parse(&answer.await?) })
    }

    fn standing(
        &self,
        account: &str,
        group: &str,
    ) -> BoxFuture<'static, Result<Standing, ClientError>> {
        let parts = ["accounts", account, "groups", group, "usage"];
        let answer = self.send(Method::GET, &parts, None);
        Box::pin(async move { parse(&answer.await?) })
    }

    fn leases(
        &self,
        account: &str,
    ) -> BoxFuture<'static, Result<Option<LeaseOptions>, ClientError>> {
        let answer = self.send(Method::GET, &["accounts", account, "leases"], None);
        Box::pin(async move { Ok(parse::<LeasesText>(&answer.await?)?.leases) })
    }

    fn set_leases(
        &self,
        account: &str,
        leases: Option<Option<LeaseOptions>>,
    ) -> BoxFuture<'static, Result<(), ClientError>> {
        let path = ["accounts", account, "leases"];
        let answer = match leases {
            None => self.send(Method::DELETE, &path, None),
            Some(leases) => {
                let body = serde_json::to_vec(&LeasesText { leases });
                self.send(Method::PUT, &path, Some(body))
            }
        };
        Box::pin(async move { answer.await.map(drop) })
    }

    fn holdings(
        &self,
        account: &str,
        after: Option<&str>,
        limit: u64,
    ) -> BoxFuture<'static, Result<Vec<Holding>, ClientError>> {
        let limit = limit.to_string();
        let mut query = vec![("limit", limit.as_str())];
        query.extend(after.map(|after| ("after", after)));
        let url = self.url(&["accounts", account, "holders"], &query);
        let answer = self.send_to(Method::GET, url, None);
        Box::pin(async move { Ok(parse::<HoldersText>(&answer.await?)?.holders) })
    }

    fn force_release(
        &self,
        account: &str,
        client_id: &str,
        group: Option<&str>,
        reason: &str,
    ) -> BoxFuture<'static, Result<ForceReleased, ClientError>> {
        let mut query = vec![("reason", reason)];
        query.extend(group.map(|group| ("group", group)));
        let url = self.url(&["accounts", account, "holders", client_id], &query);
        let answer = self.send_to(Method::DELETE, url, None);
        Box::pin(async move { parse(&answer.await?) })
    }
}

async fn read(mut response: reqwest::Response) -> Result<Vec<u8>, ClientError> {
    let mut answer = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if answer.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(ClientError::unreachable("the answer is too large"));
        }
        answer.extend_from_slice(&chunk);
    }
    Ok(answer)
}

/// With the causes, which help and which reqwest's own text leaves out.
fn unreachable(error: reqwest::Error) -> ClientError {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    ClientError::unreachable(text)
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
        crate::clock::wall()
    }

    fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        tokio::time::sleep(duration)
    }
}
