//! Durable Objects as a store of topology snapshots, for workers that have neither KV nor R2: each
//! group is on the [`Shelf`](durably::topology::Shelf) of an object of its own, which decides what stays.
//!
//! The objects' class has one method for it, `shelf(group, text)`, which does what [`on_shelf`] does.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{
    Landing, Publication, Publisher, ShelfObject, Source, Verdict, stored_name,
};
use js_sys::Promise;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use worker::Env;

use super::store::{StoreError, below, settled};
use crate::DurableInstance;
use crate::bindings::{BindingError, bound, class_remedy};

#[wasm_bindgen]
extern "C" {
    #[derive(Clone)]
    type Namespace;

    #[wasm_bindgen(method, catch, js_name = getByName)]
    fn get_by_name(this: &Namespace, name: &str) -> Result<Stub, JsValue>;

    type Stub;

    #[wasm_bindgen(method, catch)]
    fn shelf(this: &Stub, group: &str, text: Option<&str>) -> Result<Promise, JsValue>;
}

#[derive(Clone)]
struct Shelves {
    namespace: Namespace,
    prefix: Rc<str>,
}

impl Shelves {
    fn new(env: &Env, binding: &str, prefix: &str) -> Result<Self, BindingError> {
        let what = "a class with shelves";
        let namespace = bound(env, binding, &["getByName"], what, || {
            class_remedy(binding, "TopologyShelf")
        })?;
        Ok(Shelves {
            namespace,
            prefix: prefix.into(),
        })
    }

    async fn ask(&self, group: &str, text: Option<&str>) -> Result<Option<String>, StoreError> {
        let name = below(&self.prefix, &stored_name(group));
        let asked = async {
            let stub = self.namespace.get_by_name(&name)?;
            settled(stub.shelf(group, text)).await
        };
        match asked.await {
            Ok(kept) => Ok(kept.as_string()),
            Err(exception) => Err(StoreError::thrown(&name, &exception)),
        }
    }
}

/// Publishes into objects with shelves, one a group; version-aware.
#[derive(Clone)]
pub struct ShelfPublisher(Shelves);

impl ShelfPublisher {
    /// Will publish into objects of the class that is bound to the name `binding`, whose names begin
    /// with `prefix`.
    ///
    /// # Errors
    ///
    /// [`BindingError`] if no class is bound to it.
    pub fn new(env: &Env, binding: &str, prefix: &str) -> Result<Self, BindingError> {
        Shelves::new(env, binding, prefix).map(ShelfPublisher)
    }
}

impl Publisher for ShelfPublisher {
    fn is_version_aware(&self) -> bool {
        true
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let shelves = self.0.clone();
        Box::pin(async move {
            let group = publication.group();
            let kept = shelves.ask(group, Some(publication.text())).await?;
            let kept = kept.unwrap_or_default();
            match publication.against(Some(kept.as_bytes())) {
                Verdict::Stored => Ok(Landing::Stored),
                Verdict::Superseded(by) => Ok(Landing::Superseded(by)),
                Verdict::Write => Err(StoreError::Store {
                    name: stored_name(group),
                    problem: "the object does not have what was published there just now"
                        .to_owned(),
                }
                .into()),
            }
        })
    }
}

/// Reads what a [`ShelfPublisher`] has published, for instance for a
/// [`TopologyReader`](durably::topology::TopologyReader) in a stateless worker.
#[derive(Clone)]
pub struct ShelfReader(Shelves);

impl ShelfReader {
    /// A reader of what is published into objects of the class that is bound to the name `binding`,
    /// whose names begin with `prefix`. Nothing is read yet.
    ///
    /// # Errors
    ///
    /// [`BindingError`] if no class is bound to it.
    pub fn new(env: &Env, binding: &str, prefix: &str) -> Result<Self, BindingError> {
        Shelves::new(env, binding, prefix).map(ShelfReader)
    }

    /// The published text of a group, tombstones included; none if nothing was published.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: what the object says.
    pub fn read(&self, group: &str) -> LocalFuture<Result<Option<String>, StoreError>> {
        let (shelves, group) = (self.0.clone(), group.to_owned());
        Box::pin(async move { shelves.ask(&group, None).await })
    }
}

impl Source for ShelfReader {
    type Text = String;
    type Read = LocalFuture<Result<Option<String>, BoxError>>;

    fn read(&self, group: &str) -> Self::Read {
        let reading = ShelfReader::read(self, group);
        Box::pin(async move { Ok(reading.await?) })
    }
}

/// What the class of these objects does for `shelf(group, text)`: reads what is kept, or with a text
/// publishes that, and promises the text that is there then, or null.
pub fn on_shelf(
    object: &DurableInstance<ShelfObject>,
    group: String,
    text: Option<String>,
) -> Promise {
    let call = object.call(move |object| async move {
        let shelf = object.shelf();
        let kept = match text {
            None => shelf.read(&group).await,
            Some(text) => match shelf.publish(&group, text).await {
                Ok(published) => return published.map(Some).map_err(|error| error.to_string()),
                Err(error) => Err(error),
            },
        };
        kept.map_err(|error| error.to_string())
    });
    future_to_promise(AssertUnwindSafe(async move {
        let kept = call.await.map_err(|error| error.to_string());
        match kept.and_then(|kept| kept) {
            Ok(kept) => Ok(kept.map_or(JsValue::NULL, JsValue::from)),
            Err(problem) => Err(JsError::new(&problem).into()),
        }
    }))
}
