//! Workers KV as a store of topology snapshots.
//!
//! KV has no conditions: whatever comes last stays, and other places on earth see it after a while. So it is
//! not version-aware, and the coordinator's landing window covers writes that come late. Decided here:
//! that a write is only said to have failed when KV has refused it. What becomes of one that broke off
//! nobody knows, so it is not answered at all, and the coordinator takes it for one that may still land.
//!
//! A deleted group's tombstone stays: it is an edition, which readers remember, while a key that is gone
//! may be an old copy of another place.

use std::rc::Rc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{Landing, Publication, Publisher, Source, stored_name};
use js_sys::{ArrayBuffer, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use worker::Env;

use super::refusal::is_refusal;
use super::store::{StoreError, below, object, settled};
use crate::bindings::{BindingError, bound};
use crate::javascript::exception_text;

#[wasm_bindgen]
extern "C" {
    #[derive(Clone)]
    type Namespace;

    #[wasm_bindgen(method, catch)]
    fn get(this: &Namespace, key: &str, options: &JsValue) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn put(this: &Namespace, key: &str, value: &Uint8Array) -> Result<Promise, JsValue>;
}

/// The shortest time for which KV lets a place on earth keep its copy.
const SHORTEST_CACHE: Duration = Duration::from_secs(30);

fn namespace(env: &Env, binding: &str) -> Result<Namespace, BindingError> {
    bound(env, binding, &["get", "put"], "a KV namespace", || {
        format!(
            "make one by `wrangler kv namespace create {binding}` and add \"kv_namespaces\": \
             [{{\"binding\": \"{binding}\", \"id\": \"…\"}}] to wrangler.jsonc"
        )
    })
}

/// Publishes into a KV namespace, one key a group.
#[derive(Clone)]
pub struct KvPublisher {
    namespace: Namespace,
    prefix: Rc<str>,
}

impl KvPublisher {
    /// Will publish into the namespace that is bound to the name `binding`, below `prefix`.
    ///
    /// # Errors
    ///
    /// [`BindingError`] if no namespace is bound to it.
    pub fn new(env: &Env, binding: &str, prefix: &str) -> Result<Self, BindingError> {
        Ok(KvPublisher {
            namespace: namespace(env, binding)?,
            prefix: prefix.into(),
        })
    }
}

impl Publisher for KvPublisher {
    fn is_version_aware(&self) -> bool {
        false
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let namespace = self.namespace.clone();
        let key = below(&self.prefix, &stored_name(publication.group()));
        Box::pin(async move {
            let text = Uint8Array::from(publication.text().as_bytes());
            match settled(namespace.put(&key, &text)).await {
                Ok(_) => Ok(Landing::Stored),
                Err(exception) if is_refusal(&exception_text(&exception)) => {
                    Err(StoreError::thrown(&key, &exception).into())
                }
                Err(exception) => {
                    let error = StoreError::thrown(&key, &exception);
                    tracing::error!(%error, "durability.topology.publish_failed");
                    std::future::pending().await
                }
            }
        })
    }
}

/// Reads what a [`KvPublisher`] has published, for instance for a
/// [`TopologyReader`](durably::topology::TopologyReader) in a stateless worker.
#[derive(Clone)]
pub struct KvReader {
    namespace: Namespace,
    prefix: Rc<str>,
    cache: Duration,
}

impl KvReader {
    /// A reader of what is published below `prefix` into the namespace that is bound to the name
    /// `binding`. Nothing is read yet.
    ///
    /// # Errors
    ///
    /// [`BindingError`] if no namespace is bound to it.
    pub fn new(env: &Env, binding: &str, prefix: &str) -> Result<Self, BindingError> {
        Ok(KvReader {
            namespace: namespace(env, binding)?,
            prefix: prefix.into(),
            cache: SHORTEST_CACHE,
        })
    }

    /// For how long the place on earth where it is read keeps its copy: 30 s, which is the shortest that
    /// KV takes, if this is not called. In whole seconds, rounded up.
    #[must_use]
    pub fn cache(mut self, time: Duration) -> Self {
        self.cache = time.max(SHORTEST_CACHE);
        self
    }

    /// The published text of a group, tombstones included; none if nothing was published.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: what KV says.
    pub fn read(&self, group: &str) -> LocalFuture<Result<Option<Vec<u8>>, StoreError>> {
        let namespace = self.namespace.clone();
        let key = below(&self.prefix, &stored_name(group));
        let seconds = self.cache.as_millis().div_ceil(1_000) as f64;
        Box::pin(async move {
            let read = async {
                let kind = ("type", "arrayBuffer".into());
                let options = object(&[kind, ("cacheTtl", seconds.into())])?;
                settled(namespace.get(&key, &options)).await
            };
            let text = read
                .await
                .map_err(|exception| StoreError::thrown(&key, &exception))?;
            let text = text.dyn_ref::<ArrayBuffer>();
            Ok(text.map(|text| Uint8Array::new(text).to_vec()))
        })
    }
}

impl Source for KvReader {
    type Text = Vec<u8>;
    type Read = LocalFuture<Result<Option<Vec<u8>>, BoxError>>;

    fn read(&self, group: &str) -> Self::Read {
        let reading = KvReader::read(self, group);
        Box::pin(async move { Ok(reading.await?) })
    }
}
