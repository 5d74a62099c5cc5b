//! Runs a job as an HTTP POST to the job endpoint; what is sent and what its answer means is the matter of
//! [`endpoint`].

use std::error::Error;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use durably::host::LocalFuture;
use durably::jobs::{JobRunner, RunError, RunJob};
use durably_http::endpoint::{self, MAX_ERROR_BYTES, MAX_RESULT_BYTES};
use futures::FutureExt;
use futures::future::{Either, select};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Response, Url, redirect};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
        let body = endpoint::body(&job);
        let request = self
            .client
            .post(self.endpoint.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(endpoint::IDEMPOTENCY_KEY, job.idempotency_key)
            .header(endpoint::ADMISSION, job.admission.as_str());
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let body = body?;
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
        let kind = response.headers().get(CONTENT_TYPE).cloned();
        // The answer is read to its end whatever it is: a job has not ended before.
        let body = read(response, MAX_RESULT_BYTES)
            .await
            .map_err(unreachable)?;
        let kind = kind.as_ref().map(|kind| kind.as_bytes());
        return Ok(endpoint::result(kind, body.as_deref()));
    }
    let text = match read(response, MAX_ERROR_BYTES).await {
        Ok(Some(text)) => String::from_utf8_lossy(&text).into_owned(),
        _ => String::new(),
    };
    Err(endpoint::failure(
        status.as_u16(),
        &status.to_string(),
        &text,
    ))
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
