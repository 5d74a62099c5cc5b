//! A class of one's own, whole: a holder of permits with its limit in its code, and a stateless worker that asks
//! it. `desk.js` is its half in JavaScript. docs/cloudflare.md goes through it.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::layers::TimeoutLayer;
use durably::semaphore::Semaphore;
use durably::semaphore::client::SemaphoreClient;
use durably::semaphore::protocol::{Message, PermitRequest};
use durably::{Scheduler, SchedulerConfig};
use durably_cloudflare::{DurableInstance, ObjectStubs, WorkerTimer, holder_refusal, holder_stubs};
use tower_layer::Layer;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use worker::State;
use worker::js_sys::Promise;
use worker::worker_sys::DurableObjectState;

/// What an object of the class is made of: capabilities over one scheduler.
pub struct Desk {
    scheduler: Scheduler,
    semaphore: Semaphore,
}

impl Object for Desk {
    const CLASS: &'static str = "desk";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

impl Desk {
    async fn open(host: Rc<dyn Host>) -> Result<Rc<Desk>, BoxError> {
        let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
        let semaphore = Semaphore::builder(&scheduler)
            .limit(3)
            .round_wait(Duration::from_millis(20))
            .build()?;
        // Migrates and loads what the capabilities have stored, once all are there.
        scheduler.open().await?;
        Ok(Rc::new(Desk {
            scheduler,
            semaphore,
        }))
    }
}

/// The half of the class that JavaScript holds.
#[wasm_bindgen]
pub struct DeskHalf {
    object: DurableInstance<Desk>,
}

#[wasm_bindgen]
impl DeskHalf {
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState) -> DeskHalf {
        DeskHalf {
            object: DurableInstance::new(State::from(state), |host| Box::pin(Desk::open(host))),
        }
    }

    /// Answers a message: rejects with its code if it is refused, and otherwise if the instance ended.
    pub fn permits(&self, message: String) -> Promise {
        let call = self.object.call(move |desk| async move {
            let message = Message::from_json(message.as_bytes())?;
            desk.semaphore.handle(message).await
        });
        promise(async move {
            let reply = call.await.map_err(thrown)?;
            let reply = reply.map_err(|error| holder_refusal(&error))?;
            serde_json::to_string(&reply).map_err(thrown)
        })
    }

    pub fn alarm(&self, retry_count: u32) -> Promise {
        let handled = self.object.alarm(retry_count);
        promise(async move { handled.await.map(|()| String::new()).map_err(thrown) })
    }
}

/// Asks the desk of `key` for permits, from a worker without state. Desks whose names say so come to be in Europe.
#[wasm_bindgen]
pub fn ask_desk(environment: JsValue, key: String, request: String) -> Promise {
    let asking = async move {
        let desks = ObjectStubs::new(&environment, "DESK", "Desk")?
            .with_location_hints(|key| key.starts_with("eu-").then(|| "weur".to_owned()));
        let timeout = TimeoutLayer::new(WorkerTimer, Duration::from_secs(10))?;
        let client = SemaphoreClient::new(timeout.layer(holder_stubs(desks)), WorkerTimer);
        let request: PermitRequest = serde_json::from_str(&request)?;
        let reply = client.request(&key, request).await?;
        Ok::<_, BoxError>(serde_json::to_string(&reply)?)
    };
    promise(async move { asking.await.map_err(thrown) })
}

fn promise(answer: impl Future<Output = Result<String, JsValue>> + 'static) -> Promise {
    future_to_promise(AssertUnwindSafe(
        async move { answer.await.map(JsValue::from) },
    ))
}

fn thrown(error: impl ToString) -> JsValue {
    JsError::new(&error.to_string()).into()
}
