//! Runs a job as an HTTP POST to the job endpoint, and decides what its answer means.
//!
//! A 2xx ends the job; a 4xx but 408, 425 and 429 ends it as failed; everything else, broken
//! connections included, is tried again. Redirects are not followed and so are tried again.

use std::error::Error;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::jobs::{JobRunner, RunError, RunJob};
use futures::FutureExt;
use futures::future::{Either, select};
use reqwest::header::{CONTENT_TYPE, HeaderName};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Kept of an answer: a longer one counts as no result.
const MAX_RESULT_BYTES: usize = 64 << 10;

/// Shown of the answer to a run that failed.
pub(crate) const MAX_ERROR_BYTES: usize = 1 << 10;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Says how the job came to its permit.
const ADMISSION: &str = "durably-admission";

/// Posts jobs to one endpoint.
pub(crate) struct HttpRunner {
    client: Client,
    endpoint: Url,
    /// Where the connections live, so that objects' threads only wait for answers.
    runtime: Handle,
}

/// The runner of a server that takes no jobs.
pub(crate) struct NoRunner;

impl JobRunner for NoRunner {
    fn run(&self, _: RunJob) -> LocalFuture<Result<Value, RunError>> {
        Box::pin(async { Err(RunError::Retry("this server has no job endpoint".into())) })
    }
}

/// What the endpoint gets.
#[derive(Serialize)]
struct Run<'a> {
    account: &'a str,
    id: &'a str,
    group: &'a str,
    attempt: u64,
    body: &'a Value,
}

impl HttpRunner {
    /// A runner whose connections live on the current runtime.
    pub(crate) fn new(endpoint: Url) -> reqwest::Result<HttpRunner> {
        Ok(HttpRunner {
            client: client(&endpoint)?,
            endpoint,
            runtime: Handle::current(),
        })
    }
}

/// A client for `url`.
pub(crate) fn client(url: &Url) -> reqwest::Result<Client> {
    client_for(url.scheme())
}

/// A client for URLs of this scheme. One that needs no TLS reads no certificates, which a bare machine
/// lacks.
pub(crate) fn client_for(scheme: &str) -> reqwest::Result<Client> {
    // Fails if a provider is installed already, which then serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true);
    match scheme {
        "https" => builder.build(),
        _ => builder.tls_certs_only([]).build(),
    }
}

impl JobRunner for HttpRunner {
    fn run(&self, job: RunJob) -> LocalFuture<Result<Value, RunError>> {
        let run = Run {
            account: &job.account,
            id: &job.id,
            group: &job.group,
            attempt: job.attempt,
            body: &job.body,
        };
        let body = serde_json::to_vec(&run);
        let request = self
            .client
            .post(self.endpoint.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(IDEMPOTENCY_KEY, job.idempotency_key)
            .header(ADMISSION, job.admission.as_str());
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let body = body.map_err(|error| RunError::Permanent(error.into()))?;
            let mut answer = Aborting(runtime.spawn(async move {
                let response = request.body(body).send().await.map_err(unreachable)?;
                judge(response).await
            }));
            let cancelled = job.token.cancelled();
            match select(&mut answer.0, cancelled.boxed_local()).await {
                Either::Left((Ok(outcome), _)) => outcome,
                Either::Left((Err(error), _)) => Err(RunError::Retry(error.into())),
                Either::Right(_) => Err(RunError::Retry("the run was told to stop".into())),
            }
        })
    }
}

/// Ends the task when nobody waits for it any more: the connection closes, so the endpoint can
/// see that too.
pub(crate) struct Aborting<T>(pub(crate) JoinHandle<T>);

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn unreachable(error: reqwest::Error) -> RunError {
    RunError::Retry(with_causes("the job endpoint cannot be reached", error).into())
}

/// What happened and why: the cause is what helps, and reqwest's own text leaves it out.
pub(crate) fn with_causes(what: &str, error: reqwest::Error) -> String {
    let mut message = format!("{what}: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        message.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    message
}

async fn judge(response: Response) -> Result<Value, RunError> {
    let status = response.status();
    if status.is_success() {
        let is_json = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        // The answer is read to its end whatever it is: a job has not ended before.
        let body = read(response, MAX_RESULT_BYTES)
            .await
            .map_err(unreachable)?;
        return Ok(body
            .filter(|_| is_json)
            .and_then(|body| serde_json::from_slice(&body).ok())
            .unwrap_or(Value::Null));
    }
    let text = match read(response, MAX_ERROR_BYTES).await {
        Ok(Some(text)) => String::from_utf8_lossy(&text).into_owned(),
        _ => String::new(),
    };
    let error: BoxError = format!("the job endpoint answered {status}: {text}").into();
    Err(if is_final(status) {
        RunError::Permanent(error)
    } else {
        RunError::Retry(error)
    })
}

/// Whether another attempt would be answered alike.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error()
        && ![
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::TOO_EARLY,
            StatusCode::TOO_MANY_REQUESTS,
        ]
        .contains(&status)
}

/// Reads to the end; `None` if there was more than `limit` bytes, of which none are kept.
pub(crate) async fn read(mut response: Response, limit: usize) -> reqwest::Result<Option<Bytes>> {
    let mut kept = Some(BytesMut::new());
    while let Some(chunk) = response.chunk().await? {
        kept = kept.filter(|kept| kept.len() + chunk.len() <= limit);
        if let Some(kept) = &mut kept {
            kept.extend_from_slice(&chunk);
        }
    }
    Ok(kept.map(BytesMut::freeze))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_client_errors_that_stay_are_final() {
        for (status, expected) in [
            (400, true),
            (404, true),
            (410, true),
            (422, true),
            (408, false),
            (425, false),
            (429, false),
            (301, false),
            (500, false),
            (503, false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(is_final(status), expected, "{status}");
        }
    }
}
