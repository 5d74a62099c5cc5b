//! Runs a job as a request to its endpoint: a service that is bound to `JOB_ENDPOINT`, or the URL in
//! `JOB_URL`. What is sent and what its answer means is the matter of [`endpoint`].

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::jobs::{JobRunner, RunError, RunJob};
use durably_cloudflare::exception_text;
use durably_http::endpoint::{self, MAX_ERROR_BYTES, MAX_RESULT_BYTES};
use futures::future::{Either, select};
use serde_json::Value;
use std::pin::pin;
use wasm_bindgen::prelude::*;
use worker::js_sys::Promise;

use crate::outgoing::{self, Incoming, Outgoing};
use crate::settings::Environment;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_name = AbortController)]
    type AbortController;

    #[wasm_bindgen(constructor, js_class = "AbortController", catch)]
    fn new() -> Result<AbortController, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn abort(this: &AbortController) -> Result<(), JsValue>;

    #[wasm_bindgen(method, getter)]
    fn signal(this: &AbortController) -> JsValue;
}

/// Where jobs are run.
pub(crate) struct FetchRunner {
    /// Has the method `fetch`; none for a worker that takes no jobs.
    fetcher: Option<JsValue>,
    url: String,
}

/// Whether jobs can be run by this worker.
pub(crate) fn takes_jobs(environment: &Environment) -> bool {
    FetchRunner::new(environment).fetcher.is_some()
}

impl FetchRunner {
    pub(crate) fn new(environment: &Environment) -> FetchRunner {
        let service = environment.get("JOB_ENDPOINT");
        let url = environment.text("JOB_URL");
        let fetcher = if service.is_object() {
            Some(service)
        } else {
            url.as_ref().map(|_| worker::js_sys::global().into())
        };
        FetchRunner {
            fetcher,
            // A service is asked whatever the URL; this is what it sees.
            url: url.unwrap_or_else(|| "https://jobs.internal/".to_owned()),
        }
    }

    /// Begins a request.
    fn send(&self, job: &RunJob, signal: JsValue) -> Result<Promise, RunError> {
        let fetcher = self.fetcher.as_ref().ok_or_else(|| {
            RunError::Retry("this worker has no job endpoint: set JOB_URL among its vars, or bind a service to JOB_ENDPOINT".into())
        })?;
        // It was JSON when it was submitted.
        let body = String::from_utf8(endpoint::body(job)?)
            .map_err(|error| RunError::Permanent(error.into()))?;
        let request = Outgoing {
            method: "POST",
            url: &self.url,
            headers: &[
                ("content-type", "application/json"),
                (endpoint::IDEMPOTENCY_KEY, &job.idempotency_key),
                (endpoint::ADMISSION, job.admission.as_str()),
            ],
            body: Some(&body),
            signal,
        };
        outgoing::begin(fetcher, &request).map_err(|exception| unreachable(&exception))
    }
}

impl JobRunner for FetchRunner {
    fn run(&self, job: RunJob) -> LocalFuture<Result<Value, RunError>> {
        let begun = AbortController::new()
            .map_err(|exception| unreachable(&exception))
            .and_then(|controller| {
                let sent = self.send(&job, controller.signal())?;
                Ok((Aborting(controller), sent))
            });
        Box::pin(async move {
            let (_aborting, sent) = begun?;
            let answer = pin!(async move {
                let answer = outgoing::end(sent).await;
                judge(answer.map_err(|exception| unreachable(&exception))?)
            });
            match select(answer, pin!(job.token.cancelled())).await {
                Either::Left((outcome, _)) => outcome,
                Either::Right(_) => Err(RunError::Retry("the run was told to stop".into())),
            }
        })
    }
}

/// Ends the request when nobody waits for it any more, so that the endpoint can see that too. After its
/// end this does nothing.
struct Aborting(AbortController);

impl Drop for Aborting {
    fn drop(&mut self) {
        // Where it cannot be aborted, it is gone with its object.
        let _ = self.0.abort();
    }
}

fn unreachable(exception: &JsValue) -> RunError {
    let problem = exception_text(exception);
    let error: BoxError = format!("the job endpoint cannot be reached: {problem}").into();
    RunError::Retry(error)
}

fn judge(answer: Incoming) -> Result<Value, RunError> {
    let Incoming {
        status,
        status_text,
        content_type,
        text,
    } = answer;
    if (200..300).contains(&status) {
        let kind = content_type.as_ref().map(|kind| kind.as_bytes());
        let body = Some(text.as_bytes()).filter(|body| body.len() <= MAX_RESULT_BYTES);
        return Ok(endpoint::result(kind, body));
    }
    let shown = format!("{status} {status_text}");
    let text = if text.len() > MAX_ERROR_BYTES {
        ""
    } else {
        &text
    };
    Err(endpoint::failure(status, shown.trim_end(), text))
}
