//! What goes wrong with a store, and small things that all of them need.

use js_sys::{Array, Promise};
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::JsFuture;

use crate::javascript::exception_text;

/// What goes wrong with a store of published groups.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store threw an exception, or refused. A write may have been carried out all the same.
    #[error("{name}: {problem}")]
    Store {
        /// What is stored under.
        name: String,
        /// What the store says.
        problem: String,
    },
    /// Every conditional write was refused: somebody else had always written in between, or the store
    /// is not right.
    #[error("{name}: a conditional write was refused {attempts} times in a row")]
    Contended {
        /// What is stored under.
        name: String,
        /// How often it was tried.
        attempts: usize,
    },
}

impl StoreError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::Store { .. } => "publisher_store",
            StoreError::Contended { .. } => "publisher_contended",
        }
    }

    pub(super) fn thrown(name: &str, exception: &JsValue) -> StoreError {
        StoreError::Store {
            name: name.to_owned(),
            problem: exception_text(exception),
        }
    }
}

/// Awaits what the platform promises.
pub(super) async fn settled(promise: Result<Promise, JsValue>) -> Result<JsValue, JsValue> {
    JsFuture::from(promise?).await
}

/// A JavaScript object with these properties.
pub(super) fn object(properties: &[(&str, JsValue)]) -> Result<JsValue, JsValue> {
    let entries: Array = properties
        .iter()
        .map(|(name, value)| Array::of2(&JsValue::from(*name), value))
        .collect();
    Ok(js_sys::Object::from_entries(&entries)?.into())
}

/// Below `prefix`, if there is one.
pub(super) fn below(prefix: &str, name: &str) -> String {
    match prefix {
        "" => name.to_owned(),
        prefix => format!("{prefix}/{name}"),
    }
}
