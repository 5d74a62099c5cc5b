//! The publishers' half of the exam's worker: takes single cases in a stateless request.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use durably::testing::publishers::{Case, Examinee, cases};
use durably::topology::{Publisher, ShelfObject, Source, stored_name};
use durably_cloudflare::BindingError;
use durably_cloudflare::DurableInstance;
use durably_cloudflare::publishers::{
    KvPublisher, KvReader, R2Publisher, R2Reader, ShelfPublisher, ShelfReader,
};
use futures::future::{FutureExt, LocalBoxFuture, ready};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use worker::js_sys::Promise;
use worker::worker_sys::DurableObjectState;
use worker::{Env, State};

const PREFIX: &str = "exam/topology";

/// What a KV namespace and a bucket have in common.
#[wasm_bindgen]
extern "C" {
    type Store;

    #[wasm_bindgen(method, catch)]
    fn put(this: &Store, key: &str, value: &str) -> Result<Promise, JsValue>;
}

/// One store, by the name of its binding.
struct Examined {
    env: Env,
    binding: String,
}

type Open<T> = Result<Rc<T>, BindingError>;

impl Examined {
    fn open(&self) -> Open<dyn Publisher> {
        let (env, binding) = (&self.env, &*self.binding);
        Ok(match binding {
            "KV" => Rc::new(KvPublisher::new(env, binding, PREFIX)?),
            "SHELF" => Rc::new(ShelfPublisher::new(env, binding, PREFIX)?),
            _ => Rc::new(R2Publisher::new(env, binding, PREFIX)?),
        })
    }

    async fn found(&self, group: &str) -> Result<Option<Vec<u8>>, String> {
        let (env, binding) = (&self.env, &*self.binding);
        let told = |error: BindingError| error.to_string();
        let read = match binding {
            "KV" => Source::read(&KvReader::new(env, binding, PREFIX).map_err(told)?, group),
            "SHELF" => {
                let reader = ShelfReader::new(env, binding, PREFIX).map_err(told)?;
                let read = Source::read(&reader, group).await;
                return read
                    .map(|text| text.map(String::into_bytes))
                    .map_err(|error| error.to_string());
            }
            _ => Source::read(&R2Reader::new(env, binding, PREFIX).map_err(told)?, group),
        };
        read.await.map_err(|error| error.to_string())
    }
}

impl Examinee for Examined {
    fn publisher(&self) -> Rc<dyn Publisher> {
        self.open().expect("it could be opened before")
    }

    fn read<'a>(&'a self, group: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, String>> {
        self.found(group).boxed_local()
    }

    fn damage<'a>(
        &'a self,
        group: &'a str,
        text: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<bool, String>> {
        let Ok(text) = std::str::from_utf8(text) else {
            return ready(Ok(false)).boxed_local();
        };
        if self.binding == "SHELF" {
            return ready(Ok(false)).boxed_local();
        }
        let store = worker::js_sys::Reflect::get(&self.env, &self.binding.as_str().into());
        let key = format!("{PREFIX}/{}", stored_name(group));
        async move {
            let put = async {
                let store: Store = store?.unchecked_into();
                JsFuture::from(store.put(&key, text)?).await
            };
            put.await
                .map(|_| true)
                .map_err(|exception| format!("{exception:?}"))
        }
        .boxed_local()
    }
}

fn examinable(env: Env, binding: String) -> Result<(Examined, Vec<Case>), JsError> {
    let examined = Examined { env, binding };
    let publisher = examined
        .open()
        .map_err(|error| JsError::new(&error.to_string()))?;
    let cases = cases(publisher.is_version_aware());
    Ok((examined, cases))
}

/// The names of the cases for the store behind a binding; fails if there is none.
#[wasm_bindgen]
pub fn publisher_cases(env: Env, binding: String) -> Result<Vec<String>, JsError> {
    let (_, cases) = examinable(env, binding)?;
    Ok(cases.iter().map(|case| case.name.to_owned()).collect())
}

/// Takes a case; resolves with the verdict, which is empty if it passed.
#[wasm_bindgen]
pub fn examine_publisher(env: Env, binding: String, case: String) -> Promise {
    future_to_promise(AssertUnwindSafe(async move {
        let (examined, cases) = examinable(env, binding)?;
        let case = cases.into_iter().find(|known| known.name == case);
        let case = case.ok_or_else(|| JsError::new("there is no such case"))?;
        let verdict = case.run(&examined).await.err().unwrap_or_default();
        Ok(JsValue::from(verdict))
    }))
}

/// An object with a shelf.
#[wasm_bindgen]
pub struct ShelfHalf {
    object: DurableInstance<ShelfObject>,
}

#[wasm_bindgen]
impl ShelfHalf {
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState) -> ShelfHalf {
        ShelfHalf {
            object: DurableInstance::new(State::from(state), |host| {
                Box::pin(async move { Ok(Rc::new(ShelfObject::open(host).await?)) })
            }),
        }
    }

    /// Publishes `text`, if there is one, and resolves with the text that is there then, or null.
    pub fn shelf(&self, group: String, text: Option<String>) -> Promise {
        durably_cloudflare::publishers::on_shelf(&self.object, group, text)
    }
}
