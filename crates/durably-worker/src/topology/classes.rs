//! The halves in Rust of the classes that `worker/topology.js` declares.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use durably::topology::ShelfObject;
use durably_cloudflare::DurableInstance;
use durably_cloudflare::publishers::on_shelf;
use wasm_bindgen::prelude::*;
use worker::State;
use worker::js_sys::Promise;
use worker::worker_sys::DurableObjectState;

use super::asked::{Asked, Conditions};
use super::coordinator::Coordinator;
use super::member::TopologyMember;
use crate::answer::Answer;
use crate::request::Request;
use crate::settings::Environment;
use crate::{alarm, answered, counters, resolved};

/// The coordinator of one topology.
#[wasm_bindgen]
pub struct TopologyCoordinatorHalf {
    object: DurableInstance<Coordinator>,
    environment: AssertUnwindSafe<Environment>,
    topology: String,
}

#[wasm_bindgen]
impl TopologyCoordinatorHalf {
    /// The object of this state, which is named like its topology, with the worker's settings.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, environment: JsValue) -> TopologyCoordinatorHalf {
        let environment = Environment(environment);
        let settings = environment.clone();
        let state = State::from(state);
        let topology = state.id().name().unwrap_or_default();
        TopologyCoordinatorHalf {
            object: DurableInstance::new(state, move |host| {
                let settings = settings.clone();
                Box::pin(async move { Ok(Rc::new(Coordinator::open(host, &settings).await?)) })
            }),
            environment: AssertUnwindSafe(environment),
            topology,
        }
    }

    /// Answers a request: resolves with `[status, body, headers]`.
    #[allow(clippy::too_many_arguments, reason = "a request, as texts")]
    pub fn request(
        &self,
        method: String,
        path: Vec<String>,
        query: String,
        content_type: Option<String>,
        body: String,
        if_match: Option<String>,
        if_none_match: Option<String>,
    ) -> Promise {
        let request = Request {
            method,
            path,
            query,
            content_type,
            body,
        };
        let conditions = Conditions {
            if_match,
            if_none_match,
        };
        match self.asked(&request, &conditions) {
            Ok(asked) => answered(&self.object, async move |coordinator| {
                coordinator.answer(asked).await
            }),
            Err(answer) => resolved(answer),
        }
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

impl TopologyCoordinatorHalf {
    /// What is asked, if the object is to be opened for it.
    fn asked(&self, request: &Request, conditions: &Conditions) -> Result<Asked, Answer> {
        let asked = Asked::read(request, conditions)?;
        let of_storage = |error: durably::StorageError| {
            durably_http::ApiError::new(error.code(), error.to_string())
        };
        if self.object.exists().map_err(of_storage)? {
            return Ok(asked);
        }
        let channels = self
            .environment
            .state_channels()
            .map_err(|error| durably_http::ApiError::new("object_unopened", error.to_string()))?;
        let channels: Vec<&str> = channels.iter().map(|channel| &*channel.name).collect();
        match asked.of_nobody(&self.topology, &channels) {
            Some(answer) => Err(answer),
            None => Ok(asked),
        }
    }
}

/// A member that applies what it is told.
#[wasm_bindgen]
pub struct TopologyMemberHalf {
    object: DurableInstance<TopologyMember>,
}

#[wasm_bindgen]
impl TopologyMemberHalf {
    /// The object of this state, with the worker's settings.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, environment: JsValue) -> TopologyMemberHalf {
        let environment = Environment(environment);
        TopologyMemberHalf {
            object: DurableInstance::new(State::from(state), move |host| {
                let environment = environment.clone();
                Box::pin(
                    async move { Ok(Rc::new(TopologyMember::open(host, &environment).await?)) },
                )
            }),
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
        answered(&self.object, async move |member| {
            member.answer(request).await
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

/// What is published of one group, where there is no other store.
#[wasm_bindgen]
pub struct TopologyShelfHalf {
    object: DurableInstance<ShelfObject>,
}

#[wasm_bindgen]
impl TopologyShelfHalf {
    /// The object of this state.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState) -> TopologyShelfHalf {
        TopologyShelfHalf {
            object: DurableInstance::new(State::from(state), |host| {
                Box::pin(async move { Ok(Rc::new(ShelfObject::open(host).await?)) })
            }),
        }
    }

    /// Publishes `text`, if there is one, and resolves with the text that is there then, or null.
    pub fn shelf(&self, group: String, text: Option<String>) -> Promise {
        on_shelf(&self.object, group, text)
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
