//! The ready-made worker: durably's objects for use on Cloudflare as they are.
//!
//! Here are the halves in Rust, one class each; `worker/worker.js` declares them to the platform and
//! finds the object that a request is for. Both hand over texts: a method, a path and a body in, a
//! status and a body out.
#![cfg(target_arch = "wasm32")]

mod account;
mod answer;
mod counters;

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;

use durably::SchedulerConfig;
use durably::jobs::{AccountConfig, AccountLimit};
use durably::topology::MemoryPublisher;
use durably_cloudflare::{CallError, DurableInstance};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use worker::State;
use worker::js_sys::{Array, Promise};
use worker::worker_sys::DurableObjectState;

use answer::Answer;

/// The budget of one account.
#[wasm_bindgen]
pub struct AccountLimitHalf {
    object: DurableInstance<AccountLimit>,
    default_limit: f64,
}

#[wasm_bindgen]
impl AccountLimitHalf {
    /// The object of this state. An account that was given no limit has `default_limit`.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, default_limit: f64) -> AccountLimitHalf {
        AccountLimitHalf {
            object: DurableInstance::new(State::from(state), move |host| {
                Box::pin(async move {
                    let config = AccountConfig {
                        scheduler: SchedulerConfig::default(),
                        default_limit: account::default_limit(default_limit)?,
                        default_group_limit: None,
                        default_leases: None,
                        round_wait: Duration::from_secs(1),
                        round_period: Duration::from_secs(2),
                        grant_timeout: Duration::from_secs(10),
                        recorder: None,
                    };
                    // Nothing is published as long as this worker sets no lists of shards.
                    let publisher = MemoryPublisher::default();
                    Ok(Rc::new(AccountLimit::open(host, config, publisher).await?))
                })
            }),
            default_limit,
        }
    }

    /// Answers a request: resolves with `[status, body]`, both always there.
    pub fn request(&self, method: String, path: Vec<String>, body: String) -> Promise {
        let default_limit = self.default_limit as u64;
        let call = self.object.call(move |account| async move {
            account::answer(&account, default_limit, &method, &path, &body).await
        });
        future_to_promise(AssertUnwindSafe(async move {
            let Answer { status, body } = call.await.unwrap_or_else(|error| ended(&error));
            Ok(Array::of2(&status.into(), &body.into()).into())
        }))
    }

    /// What the object costs, as JSON, counted since it was built. Opens nothing.
    pub fn counters(&self) -> String {
        counters::text(self.object.counters())
    }

    /// Runs the alarm; rejects if the platform is to try again.
    pub fn alarm(&self, retry_count: u32) -> Promise {
        let handled = self.object.alarm(retry_count);
        future_to_promise(AssertUnwindSafe(async move {
            match handled.await {
                Ok(()) => Ok(JsValue::UNDEFINED),
                Err(error) => Err(JsError::new(&error.to_string()).into()),
            }
        }))
    }
}

fn ended(error: &CallError) -> Answer {
    let answer = Answer::refusal(error.code(), &error.to_string(), None);
    match error {
        // Whoever asks again may meet the same panic, so it is no mere "later".
        CallError::Panicked(_) => Answer {
            status: 500,
            ..answer
        },
        _ => answer,
    }
}
