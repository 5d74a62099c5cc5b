//! Classes of objects without their types, and calls on their way to an object.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use futures::FutureExt;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::error::CallError;
use crate::sqlite::panic_text;

/// A class of objects: how one is built.
pub(crate) trait Class: Send + Sync {
    fn build(&self, host: Rc<dyn Host>) -> LocalFuture<Result<Rc<dyn AnyObject>, BoxError>>;
}

/// A class and the application's function that builds its objects.
pub(crate) struct Registered<C, F> {
    factory: F,
    class: PhantomData<fn() -> C>,
}

impl<C, F> Registered<C, F> {
    pub(crate) fn new(factory: F) -> Self {
        Registered {
            factory,
            class: PhantomData,
        }
    }
}

impl<C, F> Class for Registered<C, F>
where
    C: Object,
    F: Fn(Rc<dyn Host>) -> LocalFuture<Result<Rc<C>, BoxError>> + Send + Sync,
{
    fn build(&self, host: Rc<dyn Host>) -> LocalFuture<Result<Rc<dyn AnyObject>, BoxError>> {
        let building = (self.factory)(host);
        Box::pin(async move {
            let object: Rc<dyn AnyObject> = building.await?;
            Ok(object)
        })
    }
}

/// An object of some class.
pub(crate) trait AnyObject {
    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>>;
    fn into_any(self: Rc<Self>) -> Rc<dyn Any>;
}

impl<C: Object> AnyObject for C {
    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Object::alarm(self)
    }

    fn into_any(self: Rc<Self>) -> Rc<dyn Any> {
        self
    }
}

/// Why an instance ended, for the callers that it leaves behind.
pub(crate) type Fate = Rc<RefCell<Option<CallError>>>;

/// A call on its way: given an object it becomes the turn to run, given an error it is answered.
pub(crate) struct Call(Box<dyn FnOnce(Delivery) -> Option<Turn> + Send>);

/// A turn that runs; if it panics, what the panic said.
pub(crate) type Turn = LocalFuture<Result<(), String>>;

type Delivery = Result<(Rc<dyn AnyObject>, Fate), CallError>;

impl Call {
    /// A call that runs `turn` and sends what it returns.
    pub(crate) fn new<C, T, F, Answer>(
        turn: F,
        under_way: UnderWay,
        answer: oneshot::Sender<Result<T, CallError>>,
    ) -> Self
    where
        C: Object,
        T: Send + 'static,
        F: FnOnce(Rc<C>) -> Answer + Send + 'static,
        Answer: Future<Output = T> + 'static,
    {
        let span = tracing::Span::current();
        Call(Box::new(move |delivery| {
            let (object, fate) = match delivery {
                Ok(delivered) => delivered,
                Err(error) => {
                    let _ = answer.send(Err(error));
                    return None;
                }
            };
            let Ok(object) = object.into_any().downcast::<C>() else {
                let _ = answer.send(Err(CallError::UnknownClass(C::CLASS)));
                return None;
            };
            let reply = Reply {
                answer: Some(answer),
                fate,
            };
            let run = async move {
                let turn = AssertUnwindSafe(async move { turn(object).await });
                let outcome = turn
                    .catch_unwind()
                    .await
                    .map_err(|panic| panic_text(&*panic));
                drop(under_way);
                match outcome {
                    Ok(value) => {
                        reply.send(Ok(value));
                        Ok(())
                    }
                    Err(text) => {
                        reply.send(Err(CallError::Panicked(text.clone())));
                        Err(text)
                    }
                }
            };
            Some(Box::pin(run.instrument(span)))
        }))
    }

    /// The turn to run on `object`, whose instance keeps its end in `fate`.
    pub(crate) fn deliver(self, object: Rc<dyn AnyObject>, fate: Fate) -> Option<Turn> {
        (self.0)(Ok((object, fate)))
    }

    /// Answers the call with an error.
    pub(crate) fn refuse(self, error: CallError) {
        (self.0)(Err(error));
    }
}

/// The answer that a turn owes; if it is dropped before, the caller learns why.
struct Reply<T> {
    answer: Option<oneshot::Sender<Result<T, CallError>>>,
    fate: Fate,
}

impl<T> Reply<T> {
    fn send(mut self, outcome: Result<T, CallError>) {
        if let Some(answer) = self.answer.take() {
            // Whoever no longer waits needs no answer.
            let _ = answer.send(outcome);
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            let fate = self.fate.borrow().clone();
            let error = fate.unwrap_or_else(|| CallError::Ended("its turn was dropped".into()));
            let _ = answer.send(Err(error));
        }
    }
}

/// Counts a call for as long as it is under way, be its caller gone or not.
pub(crate) struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    /// Counts one more call, unless there are `limit` already.
    pub(crate) fn enter(calls: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        if calls.fetch_add(1, Relaxed) >= limit {
            calls.fetch_sub(1, Relaxed);
            return None;
        }
        Some(UnderWay(calls.clone()))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
