//! What becomes of a published group, look by look.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use durably::topology::{Source, decode};
use durably_http::ApiError;
use durably_http::topology::Told;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use worker::js_sys::Promise;

use super::store::TopologySource;
use crate::settings::Environment;

/// Follows one group for one client.
#[wasm_bindgen]
pub struct TopologyWatch {
    inner: AssertUnwindSafe<Rc<Inner>>,
}

struct Inner {
    source: TopologySource,
    group: String,
    told: RefCell<Told>,
}

#[wasm_bindgen]
impl TopologyWatch {
    /// A watch of a client that was told this before.
    #[wasm_bindgen(constructor)]
    pub fn new(
        environment: JsValue,
        topology: &str,
        group: String,
        last_event_id: Option<String>,
    ) -> Result<TopologyWatch, JsError> {
        let source = TopologySource::new(&Environment(environment), topology)
            .map_err(|error| JsError::new(&error.to_string()))?;
        Ok(TopologyWatch {
            inner: AssertUnwindSafe(Rc::new(Inner {
                source,
                group,
                told: RefCell::new(Told::before(last_event_id.as_deref())),
            })),
        })
    }

    /// Looks at the store: resolves with what is to be told, if anything is. What the client has stays good
    /// while the store cannot be read.
    pub fn look(&self) -> Promise {
        let inner = self.inner.clone();
        future_to_promise(AssertUnwindSafe(async move {
            let news = inner.look().await.unwrap_or_else(|error| {
                tracing::warn!(code = %error.code, "a watched group cannot be read: {}", error.message);
                None
            });
            Ok(news.map_or(JsValue::UNDEFINED, JsValue::from))
        }))
    }
}

impl Inner {
    async fn look(&self) -> Result<Option<String>, ApiError> {
        let text = read(&self.source, &self.group).await?;
        let published = text
            .as_ref()
            .map(|text| decode(&self.group, text))
            .transpose()
            .map_err(|error| ApiError::new(error.code(), error.to_string()))?;
        let found = published.as_ref().zip(text.as_deref());
        let found = found.map(|(published, text)| {
            (&published.edition, published.members.as_ref().map(|_| text))
        });
        let event = self.told.borrow_mut().news(found);
        Ok(event.map(|event| event.to_text()))
    }
}

async fn read(source: &TopologySource, group: &str) -> Result<Option<Vec<u8>>, ApiError> {
    let read = source.read(group).await;
    read.map_err(|error| ApiError::new("publisher_store", error.to_string()))
}
