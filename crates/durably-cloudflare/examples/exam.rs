//! The worker that takes the exams: of the host, by a class whose objects do the steps of the exam's
//! cases, and of the publishers, see `publishers.rs` in the next folder; and the documented class of one's own,
//! `desk.rs`. `exam/worker.js` declares the classes to
//! the platform and passes on what the examiners in `tests` ask.
#![cfg(target_arch = "wasm32")]
#![allow(missing_docs, reason = "nobody uses it as a library")]

#[path = "../exam/desk.rs"]
pub mod desk;
#[path = "../exam/publishers.rs"]
pub mod publishers;

use durably::testing::ExamObject;
use durably_cloudflare::DurableInstance;
use std::panic::AssertUnwindSafe;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use worker::State;
use worker::js_sys::Promise;
use worker::worker_sys::DurableObjectState;

#[wasm_bindgen]
pub struct Exam {
    object: DurableInstance<ExamObject>,
}

#[wasm_bindgen]
impl Exam {
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState) -> Exam {
        Exam {
            object: DurableInstance::new(State::from(state), |host| {
                Box::pin(ExamObject::open(host))
            }),
        }
    }

    /// Does a step; resolves with `[passed, text]` and rejects if the instance ended.
    pub fn call(&self, request: String) -> Promise {
        let call = self
            .object
            .call(move |object| async move { object.call(&request).await });
        promise(async move {
            let answer = call
                .await
                .map_err(|error| JsError::new(&error.to_string()))?;
            let (passed, text) = match answer {
                Ok(text) => (true, text),
                Err(text) => (false, text),
            };
            Ok(worker::js_sys::Array::of2(&passed.into(), &text.into()).into())
        })
    }

    pub fn alarm(&self, retry_count: u32) -> Promise {
        let handled = self.object.alarm(retry_count);
        promise(async move {
            handled
                .await
                .map_err(|error| JsError::new(&error.to_string()))?;
            Ok(JsValue::UNDEFINED)
        })
    }
}

fn promise(answer: impl Future<Output = Result<JsValue, JsValue>> + 'static) -> Promise {
    future_to_promise(AssertUnwindSafe(answer))
}
