//! An R2 bucket as a store of topology snapshots. Its conditional writes are used as `durably`
//! decides, see [`ConditionalText`]; so it is version-aware.

use std::rc::Rc;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{
    ConditionalText, Conditionally, Found, Landing, Publication, Publisher, Refused, Source,
    stored_name,
};
use js_sys::{ArrayBuffer, JsString, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use worker::Env;

use super::store::{StoreError, below, object, settled};
use crate::bindings::{BindingError, bound};

#[wasm_bindgen]
extern "C" {
    #[derive(Clone)]
    type Bucket;

    /// An object with its content, or null.
    #[wasm_bindgen(method, catch)]
    fn get(this: &Bucket, key: &str) -> Result<Promise, JsValue>;

    /// Null if the condition does not hold.
    #[wasm_bindgen(method, catch)]
    fn put(
        this: &Bucket,
        key: &str,
        value: &Uint8Array,
        options: &JsValue,
    ) -> Result<Promise, JsValue>;

    type StoredObject;

    #[wasm_bindgen(method, catch, getter)]
    fn etag(this: &StoredObject) -> Result<JsString, JsValue>;

    #[wasm_bindgen(method, catch, js_name = arrayBuffer)]
    fn array_buffer(this: &StoredObject) -> Result<Promise, JsValue>;
}

fn bucket(env: &Env, binding: &str) -> Result<Bucket, BindingError> {
    bound(env, binding, &["get", "put"], "an R2 bucket", || {
        format!(
            "make one by `wrangler r2 bucket create NAME` and add \"r2_buckets\": [{{\"binding\": \
             \"{binding}\", \"bucket_name\": \"NAME\"}}] to wrangler.jsonc"
        )
    })
}

/// One object of a bucket.
struct InBucket {
    bucket: Bucket,
    key: String,
}

impl InBucket {
    fn of(bucket: &Bucket, prefix: &str, group: &str) -> InBucket {
        InBucket {
            bucket: bucket.clone(),
            key: below(prefix, &stored_name(group)),
        }
    }

    async fn found(&self) -> Result<Found<JsString>, JsValue> {
        let found = settled(self.bucket.get(&self.key)).await?;
        if found.is_null() {
            return Ok(None);
        }
        let found: StoredObject = found.unchecked_into();
        let etag = found.etag()?;
        let content = settled(found.array_buffer()).await?;
        let content = content.unchecked_into::<ArrayBuffer>();
        Ok(Some((Uint8Array::new(&content).to_vec(), etag)))
    }

    async fn written(&self, text: &[u8], etag: Option<&JsString>) -> Result<bool, JsValue> {
        let condition = match etag {
            Some(etag) => ("etagMatches", etag.into()),
            None => ("etagDoesNotMatch", "*".into()),
        };
        let kind = object(&[("contentType", "application/json".into())])?;
        let options = [("onlyIf", object(&[condition])?), ("httpMetadata", kind)];
        let text = Uint8Array::from(text);
        let put = self.bucket.put(&self.key, &text, &object(&options)?);
        Ok(!settled(put).await?.is_null())
    }

    fn failed(&self, exception: &JsValue) -> StoreError {
        StoreError::thrown(&self.key, exception)
    }
}

impl ConditionalText for InBucket {
    type Version = JsString;
    type Refusal = ();
    type Error = StoreError;

    async fn get(&self) -> Result<Found<JsString>, StoreError> {
        let found = self.found().await;
        found.map_err(|exception| self.failed(&exception))
    }

    async fn put(
        &self,
        text: &[u8],
        read: Option<&JsString>,
    ) -> Result<Result<(), ()>, StoreError> {
        match self.written(text, read).await {
            Ok(true) => Ok(Ok(())),
            Ok(false) => Ok(Err(())),
            Err(exception) => Err(self.failed(&exception)),
        }
    }
}

/// Publishes into an R2 bucket, one object a group; version-aware.
///
/// The tombstones of deleted groups stay, a small object each.
#[derive(Clone)]
pub struct R2Publisher {
    bucket: Bucket,
    prefix: Rc<str>,
}

impl R2Publisher {
    /// Will publish into the bucket that is bound to the name `binding`, below `prefix`.
    ///
    /// # Errors
    ///
    /// [`BindingError`] if no bucket is bound to it.
    pub fn new(env: &Env, binding: &str, prefix: &str) -> Result<Self, BindingError> {
        Ok(R2Publisher {
            bucket: bucket(env, binding)?,
            prefix: prefix.into(),
        })
    }
}

impl Publisher for R2Publisher {
    fn is_version_aware(&self) -> bool {
        true
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let place = InBucket::of(&self.bucket, &self.prefix, publication.group());
        Box::pin(async move {
            match publication.into_conditional(&place).await? {
                Conditionally::Landed(landing) => Ok(landing),
                Conditionally::Contended(()) => Err(StoreError::Contended {
                    name: place.key,
                    attempts: Refused::MOST,
                }
                .into()),
            }
        })
    }
}

/// Reads what an [`R2Publisher`] has published, for instance for a
/// [`TopologyReader`](durably::topology::TopologyReader) in a stateless worker.
#[derive(Clone)]
pub struct R2Reader {
    bucket: Bucket,
    prefix: Rc<str>,
}

impl R2Reader {
    /// A reader of what is published below `prefix` into the bucket that is bound to the name
    /// `binding`. Nothing is read yet.
    ///
    /// # Errors
    ///
    /// [`BindingError`] if no bucket is bound to it.
    pub fn new(env: &Env, binding: &str, prefix: &str) -> Result<Self, BindingError> {
        Ok(R2Reader {
            bucket: bucket(env, binding)?,
            prefix: prefix.into(),
        })
    }

    /// The published text of a group, tombstones included; none if nothing was published.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: what R2 says.
    pub fn read(&self, group: &str) -> LocalFuture<Result<Option<Vec<u8>>, StoreError>> {
        let place = InBucket::of(&self.bucket, &self.prefix, group);
        Box::pin(async move { Ok(ConditionalText::get(&place).await?.map(|(text, _)| text)) })
    }
}

impl Source for R2Reader {
    type Text = Vec<u8>;
    type Read = LocalFuture<Result<Option<Vec<u8>>, BoxError>>;

    fn read(&self, group: &str) -> Self::Read {
        let reading = R2Reader::read(self, group);
        Box::pin(async move { Ok(reading.await?) })
    }
}
