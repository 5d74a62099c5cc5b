//! The way to objects of other classes, and to the holders among them.
//!
//! Decided here: how an object is found by its name, and what the failures of a call mean. Objects are
//! called by RPC; what a method takes and answers is the class's matter.

use std::fmt;
use std::future::Future;
use std::rc::Rc;

use durably::error::http_status;
use durably::host::LocalFuture;
use durably::semaphore::SemaphoreError;
use durably::semaphore::client::{ClientError, HolderCall, HolderFn, holder_fn};
use durably::semaphore::protocol::Reply;
use js_sys::{Array, Function, JSON, Object, Promise, Reflect};
use serde::{Deserialize, Serialize};
use wasm_bindgen::{JsCast, JsError, JsValue};
use wasm_bindgen_futures::JsFuture;

use crate::bindings::{BindingError, bound, class_remedy};
use crate::javascript::exception_text;

/// Where Cloudflare should put the objects of names that have none yet: `weur`, `enam` and so on. It is a
/// wish, and heard only when an object comes to be.
type LocationHint = dyn Fn(&str) -> Option<String>;

/// The objects of one class, by name.
#[derive(Clone)]
pub struct ObjectStubs {
    namespace: JsValue,
    binding: Rc<str>,
    hint: Option<Rc<LocationHint>>,
}

impl fmt::Debug for ObjectStubs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ObjectStubs");
        shown
            .field("binding", &self.binding)
            .finish_non_exhaustive()
    }
}

/// Why an object did not answer a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StubError {
    /// The object threw, or was not reached: what the exception says.
    #[error("{0}")]
    Thrown(String),
    /// Its class has no such method.
    #[error(
        "{binding} is bound to a class without the method {method}: bind it to the class that it is meant for ({told})"
    )]
    WrongClass {
        /// The name of the binding.
        binding: String,
        /// The method that was called.
        method: String,
        /// What the platform says.
        told: String,
    },
}

impl StubError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            StubError::Thrown(_) => "object_ended",
            StubError::WrongClass { .. } => "wrong_class",
        }
    }
}

impl ObjectStubs {
    /// The objects of `class`, which the worker's environment has under the name `binding`.
    ///
    /// # Errors
    ///
    /// [`BindingError`] if there is no namespace of that name.
    pub fn new(
        environment: &JsValue,
        binding: &str,
        class: &'static str,
    ) -> Result<ObjectStubs, BindingError> {
        let namespace = bound(environment, binding, &["getByName"], class, || {
            class_remedy(binding, class)
        })?;
        Ok(ObjectStubs {
            namespace,
            binding: binding.into(),
            hint: None,
        })
    }

    /// The same, with a wish where objects that are not there yet come to be.
    pub fn with_location_hints(
        mut self,
        hint: impl Fn(&str) -> Option<String> + 'static,
    ) -> ObjectStubs {
        self.hint = Some(Rc::new(hint));
        self
    }

    /// Calls a method of the object of this name by RPC. The call begins at once.
    ///
    /// # Errors
    ///
    /// [`StubError`].
    pub fn call(
        &self,
        name: &str,
        method: &str,
        arguments: &Array,
    ) -> impl Future<Output = Result<JsValue, StubError>> + use<> {
        let begun = self.begin(name, method, arguments);
        let (binding, method) = (self.binding.clone(), method.to_owned());
        async move {
            let answer = match begun {
                Ok(promise) => JsFuture::from(promise).await,
                Err(exception) => Err(exception),
            };
            answer.map_err(|exception| {
                let told = exception_text(&exception);
                match told.contains("does not implement") {
                    true => StubError::WrongClass {
                        binding: (*binding).to_owned(),
                        method,
                        told,
                    },
                    false => StubError::Thrown(told),
                }
            })
        }
    }

    fn begin(&self, name: &str, method: &str, arguments: &Array) -> Result<Promise, JsValue> {
        let options = Object::new();
        if let Some(hint) = self.hint.as_ref().and_then(|hint| hint(name)) {
            Reflect::set(&options, &"locationHint".into(), &hint.into())?;
        }
        let by_name: Function = Reflect::get(&self.namespace, &"getByName".into())?.dyn_into()?;
        let stub = by_name.call2(&self.namespace, &name.into(), &options)?;
        let method: Function = Reflect::get(&stub, &method.into())?.dyn_into()?;
        // Whatever thenable RPC answers with becomes a promise.
        Ok(Promise::resolve(&Reflect::apply(
            &method, &stub, arguments,
        )?))
    }
}

/// What a [`SemaphoreClient`](durably::semaphore::client::SemaphoreClient) sends its messages through to holders
/// that are Durable Objects, each named like its key: those of a class with the method `permits(message)`.
pub fn holder_stubs(
    stubs: ObjectStubs,
) -> HolderFn<impl Fn(HolderCall) -> LocalFuture<Result<Reply, ClientError>> + Clone> {
    holder_fn(move |call: HolderCall| {
        let stubs = stubs.clone();
        let answer: LocalFuture<_> = Box::pin(async move { ask(&stubs, call).await });
        answer
    })
}

async fn ask(stubs: &ObjectStubs, call: HolderCall) -> Result<Reply, ClientError> {
    let text = serde_json::to_string(&call.message).map_err(ClientError::unreachable)?;
    let message = JSON::parse(&text).map_err(|exception| thrown(&exception))?;
    let answer = stubs
        .call(&call.key, "permits", &Array::of1(&message))
        .await;
    let answer = answer.map_err(|error| refusal(&error))?;
    let text = JSON::stringify(&answer).map_err(|exception| thrown(&exception))?;
    Ok(Reply::from_json(String::from(text).as_bytes())?)
}

fn thrown(exception: &JsValue) -> ClientError {
    ClientError::unreachable(exception_text(exception))
}

/// What a holder's refusal says: the message of the error that `permits` throws, since an error loses all else on
/// its way.
#[derive(Serialize, Deserialize)]
struct Refusal {
    error: Told,
}

#[derive(Serialize, Deserialize)]
struct Told {
    code: String,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

/// What `permits` of a holder's class throws when its holder answers `error`, so that clients are told its code.
pub fn holder_refusal(error: &SemaphoreError) -> JsValue {
    let field = match error {
        SemaphoreError::Malformed(error) => Some(error.field.clone()),
        _ => None,
    };
    let refusal = Refusal {
        error: Told {
            code: error.code().to_owned(),
            message: error.to_string(),
            field,
        },
    };
    // Texts: nothing of it can fail to be written.
    JsError::new(&serde_json::to_string(&refusal).unwrap_or_default()).into()
}

fn refusal(error: &StubError) -> ClientError {
    let StubError::Thrown(text) = error else {
        return ClientError::Refused {
            code: error.code().to_owned(),
            message: error.to_string(),
            retryable: false,
        };
    };
    match serde_json::from_str(text) {
        Ok(Refusal {
            error: Told { code, message, .. },
        }) => {
            let status = http_status(&code);
            ClientError::Refused {
                retryable: status >= 500 || status == 429,
                code,
                message,
            }
        }
        Err(_) => ClientError::unreachable(text.clone()),
    }
}
