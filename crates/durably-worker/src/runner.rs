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
use wasm_bindgen_futures::JsFuture;
use worker::js_sys::{Function, Object, Promise, Reflect};

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

    type Response;

    #[wasm_bindgen(method, getter)]
    fn status(this: &Response) -> u16;

    #[wasm_bindgen(method, getter, js_name = statusText)]
    fn status_text(this: &Response) -> String;

    #[wasm_bindgen(method, getter)]
    fn headers(this: &Response) -> Headers;

    #[wasm_bindgen(method, catch)]
    fn text(this: &Response) -> Result<Promise, JsValue>;

    type Headers;

    #[wasm_bindgen(method, catch)]
    fn get(this: &Headers, name: &str) -> Result<Option<String>, JsValue>;
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
    fn send(&self, job: &RunJob, signal: &JsValue) -> Result<Promise, RunError> {
        let fetcher = self.fetcher.as_ref().ok_or_else(|| {
            RunError::Retry("this worker has no job endpoint: set JOB_URL among its vars, or bind a service to JOB_ENDPOINT".into())
        })?;
        // It was JSON when it was submitted.
        let body = String::from_utf8(endpoint::body(job)?)
            .map_err(|error| RunError::Permanent(error.into()))?;
        let begin = || {
            let headers = Object::new();
            for (name, value) in [
                ("content-type", "application/json"),
                (endpoint::IDEMPOTENCY_KEY, &job.idempotency_key),
                (endpoint::ADMISSION, job.admission.as_str()),
            ] {
                Reflect::set(&headers, &name.into(), &value.into())?;
            }
            let options = Object::new();
            for (name, value) in [
                ("method", &"POST".into()),
                ("redirect", &"manual".into()),
                ("headers", headers.as_ref()),
                ("body", &body.as_str().into()),
                ("signal", signal),
            ] {
                Reflect::set(&options, &name.into(), value)?;
            }
            let fetch: Function = Reflect::get(fetcher, &"fetch".into())?.dyn_into()?;
            let promise = fetch.call2(fetcher, &self.url.as_str().into(), &options)?;
            promise.dyn_into::<Promise>()
        };
        begin().map_err(|exception| unreachable(&exception))
    }
}

impl JobRunner for FetchRunner {
    fn run(&self, job: RunJob) -> LocalFuture<Result<Value, RunError>> {
        let begun = AbortController::new()
            .map_err(|exception| unreachable(&exception))
            .and_then(|controller| {
                let sent = self.send(&job, &controller.signal())?;
                Ok((Aborting(controller), sent))
            });
        Box::pin(async move {
            let (_aborting, sent) = begun?;
            let answer = pin!(async move {
                let response = JsFuture::from(sent).await;
                let response = response.map_err(|exception| unreachable(&exception))?;
                judge(response.unchecked_into()).await
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

async fn judge(response: Response) -> Result<Value, RunError> {
    let status = response.status();
    // The answer is read to its end whatever it is: a job has not ended before.
    let text = async {
        let text = JsFuture::from(response.text()?).await?;
        Ok::<_, JsValue>(text.as_string().unwrap_or_default())
    };
    let text = text.await;
    if (200..300).contains(&status) {
        let text = text.map_err(|exception| unreachable(&exception))?;
        let kind = response.headers().get("content-type").ok().flatten();
        let kind = kind.as_ref().map(|kind| kind.as_bytes());
        let body = Some(text.as_bytes()).filter(|body| body.len() <= MAX_RESULT_BYTES);
        return Ok(endpoint::result(kind, body));
    }
    let text = text.ok().filter(|text| text.len() <= MAX_ERROR_BYTES);
    let shown = format!("{status} {}", response.status_text());
    Err(endpoint::failure(
        status,
        shown.trim_end(),
        &text.unwrap_or_default(),
    ))
}
