//! The ready-made worker: durably's objects for use on Cloudflare as they are.
//!
//! Here are the halves in Rust, one class each, and what is stateless; `worker/worker.js` declares the
//! classes to the platform. Both hand over texts: a method, a path and a body in, a status and a body
//! out.
#![cfg(target_arch = "wasm32")]

mod account;
mod answer;
mod counters;
mod entry;
mod outgoing;
mod request;
mod runner;
mod settings;
mod shard;
pub mod topology;
mod way;

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use durably::host::Object;
use durably::jobs::{AccountLimit, JobShard};
use durably::layers::{HostTimer, TimeoutLayer};
use durably::semaphore::client::SemaphoreClient;
use durably::topology::MemoryPublisher;
use durably_cloudflare::{CallError, DurableInstance, holder_stubs};
use durably_http::ApiError;
use futures::FutureExt;
use tower_layer::Layer;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use worker::State;
use worker::js_sys::Promise;
use worker::worker_sys::DurableObjectState;

use account::Defaults;
use answer::Answer;
use request::Request;
use runner::FetchRunner;
use settings::Environment;

/// Runs once in each isolate.
#[wasm_bindgen(start)]
pub fn start() {
    durably_cloudflare::log_to_console();
}

/// The budget of one account.
#[wasm_bindgen]
pub struct AccountLimitHalf {
    object: DurableInstance<AccountLimit>,
    environment: AssertUnwindSafe<Environment>,
}

#[wasm_bindgen]
impl AccountLimitHalf {
    /// The object of this state, with the worker's settings.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, environment: JsValue) -> AccountLimitHalf {
        let environment = Environment(environment);
        let settings = environment.clone();
        AccountLimitHalf {
            object: DurableInstance::new(State::from(state), move |host| {
                let config = settings.account();
                Box::pin(async move {
                    // Nobody reads what is published here: the account itself is asked for its shards.
                    let publisher = MemoryPublisher::default();
                    Ok(Rc::new(AccountLimit::open(host, config?, publisher).await?))
                })
            }),
            environment: AssertUnwindSafe(environment),
        }
    }

    /// Answers a request: resolves with `[status, body, headers]`.
    pub fn request(
        &self,
        method: String,
        path: Vec<String>,
        query: String,
        content_type: Option<String>,
        body: String,
    ) -> Promise {
        let request = Request {
            method,
            path,
            query,
            content_type,
            body,
        };
        let defaults = Defaults::read(&self.environment);
        answered(&self.object, async move |account| {
            account::answer(&account, defaults?, request).await
        })
    }

    /// What the object costs, as JSON, counted since it was built. Opens nothing.
    pub fn counters(&self) -> String {
        counters::text(self.object.counters())
    }

    /// Runs the alarm; rejects if the platform is to try again.
    pub fn alarm(&self, retry_count: u32) -> Promise {
        alarm(&self.object, retry_count)
    }
}

/// A queue of jobs, and what runs them.
#[wasm_bindgen]
pub struct JobShardHalf {
    object: DurableInstance<JobShard>,
}

#[wasm_bindgen]
impl JobShardHalf {
    /// The object of this state, with the worker's settings.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, environment: JsValue) -> JobShardHalf {
        let environment = Environment(environment);
        JobShardHalf {
            object: DurableInstance::new(State::from(state), move |host| {
                let environment = environment.clone();
                Box::pin(async move {
                    let timer = HostTimer::new(host.clone());
                    let timeout = TimeoutLayer::new(timer.clone(), environment.holder_timeout()?)?;
                    let holders = holder_stubs(way::accounts(&environment)?);
                    let holder = SemaphoreClient::new(timeout.layer(holders), timer);
                    let runner = Arc::new(FetchRunner::new(&environment));
                    let opening = JobShard::open(host, environment.shard()?, holder, runner);
                    Ok(Rc::new(opening.await?))
                })
            }),
        }
    }

    /// Answers a call of the worker: resolves with `[status, body, headers]`.
    pub fn request(
        &self,
        method: String,
        path: Vec<String>,
        query: String,
        content_type: Option<String>,
        body: String,
    ) -> Promise {
        let request = Request {
            method,
            path,
            query,
            content_type,
            body,
        };
        answered(&self.object, async move |shard| {
            shard::answer(&shard, request).await
        })
    }

    /// What the object costs, as JSON, counted since it was built. Opens nothing.
    pub fn counters(&self) -> String {
        counters::text(self.object.counters())
    }

    /// Runs the alarm; rejects if the platform is to try again.
    pub fn alarm(&self, retry_count: u32) -> Promise {
        alarm(&self.object, retry_count)
    }
}

/// Answers a request for a path outside of objects: resolves with `[status, body, headers]`, or `undefined` for
/// one that is nobody's here.
#[wasm_bindgen]
#[allow(
    clippy::too_many_arguments,
    reason = "it is what a request consists of"
)]
pub fn request(
    environment: JsValue,
    context: JsValue,
    authorization: Option<String>,
    method: String,
    path: Vec<String>,
    query: String,
    content_type: Option<String>,
    body: String,
) -> Promise {
    let request = Request {
        method,
        path,
        query,
        content_type,
        body,
    };
    promise(async move {
        let environment = Environment(environment);
        let answering = entry::answer(&environment, context, authorization, request);
        // A panic would leave the request without an answer.
        let answer = AssertUnwindSafe(answering).catch_unwind().await;
        let answer = answer.unwrap_or_else(|_| {
            let error = ApiError::new("worker_panicked", "the worker panicked: see its log");
            Some(error.into())
        });
        answer.map_or(JsValue::UNDEFINED, Answer::into_javascript)
    })
}

/// Has an object answer.
pub(crate) fn answered<C: Object, F>(object: &DurableInstance<C>, turn: F) -> Promise
where
    F: AsyncFnOnce(Rc<C>) -> Result<Answer, ApiError> + 'static,
{
    let call = object.call(move |object| async move { turn(object).await });
    promise(async move {
        let answer = match call.await {
            Ok(answer) => answer.unwrap_or_else(Answer::from),
            Err(error) => ended(&error),
        };
        answer.into_javascript()
    })
}

/// Runs an object's alarm.
pub(crate) fn alarm<C: Object>(object: &DurableInstance<C>, retry_count: u32) -> Promise {
    let handled = object.alarm(retry_count);
    future_to_promise(AssertUnwindSafe(async move {
        match handled.await {
            Ok(()) => Ok(JsValue::UNDEFINED),
            Err(error) => Err(JsError::new(&error.to_string()).into()),
        }
    }))
}

fn promise(answer: impl Future<Output = JsValue> + 'static) -> Promise {
    future_to_promise(AssertUnwindSafe(async move { Ok(answer.await) }))
}

/// Answers at once.
pub(crate) fn resolved(answer: Answer) -> Promise {
    Promise::resolve(&answer.into_javascript())
}

fn ended(error: &CallError) -> Answer {
    let answer = Answer::from(ApiError::new(error.code(), error.to_string()));
    match error {
        // Whoever asks again may meet the same panic, so it is no mere "later".
        CallError::Panicked(_) => Answer {
            status: 500,
            headers: Vec::new(),
            ..answer
        },
        _ => answer,
    }
}
