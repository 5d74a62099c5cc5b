//! What a class of a worker holds: the way to an object's instance, which is opened when it is
//! needed and again after it has ended.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;

use durably::error::{BoxError, StorageError};
use durably::host::{Host, LocalFuture, Object};
use durably::time::Timestamp;
use futures::FutureExt;
use futures::channel::oneshot;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use worker::State;

use crate::counters::{self, Counters};
use crate::host::CloudflareHost;
use crate::instance::{CallError, Life, drop_caught, panic_text};
use crate::javascript::{self, exception_text};
use crate::storage::Storage;

/// The platform calls a failing alarm handler again up to six times, the first with a `retryCount` of 1.
/// From this one on the alarm is armed anew, one before the last, so that no wake-up is ever given up.
const LAST_RETRY: u32 = 5;

/// How long after the platform's last retry the alarm goes off again.
const AFTER_LAST_RETRY: Duration = Duration::from_secs(60);

type Factory<C> = dyn Fn(Rc<dyn Host>) -> LocalFuture<Result<Rc<C>, BoxError>>;

/// An object of class `C`, as the class that the worker exports holds it.
///
/// Its instance is opened by the first call or alarm, by the function given to
/// [`new`](Self::new). It ends when any code of the object panics or its storage fails; the next call
/// opens another one from what is stored.
pub struct DurableInstance<C: Object> {
    // JavaScript classes must be unwind safe. This one is: a panic ends the instance that it left in
    // the middle of something, and nothing else.
    shared: AssertUnwindSafe<Rc<Shared<C>>>,
}

struct Shared<C> {
    state: Rc<State>,
    storage: Rc<Storage>,
    counters: Rc<Cell<Counters>>,
    /// Known to have been stored to; it stays so.
    exists: Cell<bool>,
    factory: Box<Factory<C>>,
    current: RefCell<Option<Current<C>>>,
}

struct Current<C> {
    life: Rc<Life>,
    object: Rc<RefCell<Opening<C>>>,
}

impl<C> Clone for Current<C> {
    fn clone(&self) -> Self {
        Current {
            life: self.life.clone(),
            object: self.object.clone(),
        }
    }
}

enum Opening<C> {
    /// Who waits for it to be open.
    Waited(Vec<oneshot::Sender<Rc<C>>>),
    Open(Rc<C>),
}

impl<C: Object> DurableInstance<C> {
    /// The object of this `state`, whose instances are built by `factory`. Nothing is opened yet.
    pub fn new(
        state: State,
        factory: impl Fn(Rc<dyn Host>) -> LocalFuture<Result<Rc<C>, BoxError>> + 'static,
    ) -> Self {
        let storage = state.storage();
        let raw = storage.as_raw().unchecked_ref::<javascript::Storage>();
        let counters = Rc::<Cell<Counters>>::default();
        DurableInstance {
            shared: AssertUnwindSafe(Rc::new(Shared {
                state: Rc::new(state),
                storage: Rc::new(Storage::new(raw.clone(), counters.clone())),
                counters,
                exists: Cell::new(false),
                factory: Box::new(factory),
                current: RefCell::default(),
            })),
        }
    }

    /// Runs `turn` on the object, which is opened first if it has no instance.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the instance could not be opened or ended before the turn did. What the turn
    /// had committed until then stands.
    pub fn call<T, F, Answer>(
        &self,
        turn: F,
    ) -> impl Future<Output = Result<T, CallError>> + use<C, T, F, Answer>
    where
        T: 'static,
        F: FnOnce(Rc<C>) -> Answer + 'static,
        Answer: Future<Output = T> + 'static,
    {
        let shared = self.shared.clone();
        async move {
            counters::count(&shared.counters, |counters| counters.requests += 1);
            shared.call(turn).await
        }
    }

    /// Whether anything was ever stored by an instance: the platform makes an object of whoever asks for a
    /// name. Opens nothing.
    ///
    /// # Errors
    ///
    /// What storage answers, as of a class without SQLite.
    pub fn exists(&self) -> Result<bool, StorageError> {
        if !self.shared.exists.get() {
            self.shared.exists.set(self.shared.storage.has_schema()?);
        }
        Ok(self.shared.exists.get())
    }

    /// Runs the object's alarm handler. `retry_count` is the platform's, from the `AlarmInvocationInfo`
    /// that the class's `alarm` is given.
    ///
    /// # Errors
    ///
    /// What the handler answered. The class's `alarm` must fail with it, so that the platform calls it
    /// again; after its last retry this arms the alarm anew itself and succeeds.
    pub fn alarm(&self, retry_count: u32) -> impl Future<Output = Result<(), BoxError>> + use<C> {
        let shared = self.shared.clone();
        async move {
            counters::count(&shared.counters, |counters| counters.alarms += 1);
            let handled = match shared.call(Object::alarm).await {
                Ok(handled) => handled,
                Err(error) => Err(error.into()),
            };
            let Err(error) = handled else { return Ok(()) };
            tracing::error!(error = %error, retry_count, "durability.alarm.failed");
            if retry_count < LAST_RETRY {
                return Err(error);
            }
            shared.arm_again().await.map_err(|problem| {
                format!("{error}; and the alarm could not be armed again: {problem}").into()
            })
        }
    }

    /// What this object costs, counted since its JavaScript object was built.
    pub fn counters(&self) -> Counters {
        self.shared.counters.get()
    }
}

impl<C> Drop for DurableInstance<C>
where
    C: Object,
{
    /// JavaScript has let go of the object.
    fn drop(&mut self) {
        if let Some(current) = self.shared.current.take() {
            current.life.end(CallError::Ended("it was evicted".into()));
            drop_caught(current);
        }
    }
}

impl<C: Object> Shared<C> {
    async fn call<T, F, Answer>(&self, turn: F) -> Result<T, CallError>
    where
        T: 'static,
        F: FnOnce(Rc<C>) -> Answer + 'static,
        Answer: Future<Output = T> + 'static,
    {
        let Current { life, object } = self.current();
        let opened = match &mut *object.borrow_mut() {
            Opening::Open(object) => Ok(object.clone()),
            Opening::Waited(waiting) => {
                let (opened, wait) = oneshot::channel();
                waiting.push(opened);
                Err(wait)
            }
        };
        let object = match opened {
            Ok(object) => object,
            Err(wait) => wait.await.map_err(|oneshot::Canceled| life.fate())?,
        };
        let (answer, answered) = oneshot::channel();
        life.spawn(Box::pin(async move {
            // Whoever no longer waits needs no answer.
            let _ = answer.send(turn(object).await);
        }));
        let outcome = answered.await;
        if life.has_ended() {
            return Err(life.fate());
        }
        outcome.map_err(|oneshot::Canceled| life.fate())
    }

    /// The living instance; if there is none, one that has begun to open.
    fn current(&self) -> Current<C> {
        let mut current = self.current.borrow_mut();
        if let Some(current) = &*current
            && !current.life.has_ended()
        {
            return current.clone();
        }
        let opening = self.open();
        let ended = current.replace(opening.clone());
        drop(current);
        drop_caught(ended);
        opening
    }

    fn open(&self) -> Current<C> {
        let life = Life::new(self.state.clone());
        let id = self.state.id();
        let text = id.to_string();
        let host: Rc<dyn Host> = Rc::new(CloudflareHost::new(
            // An object that was made without a name is known by its id.
            id.name().unwrap_or_else(|| text.clone()),
            text,
            self.storage.clone(),
            &life,
        ));
        let object = Rc::new(RefCell::new(Opening::Waited(Vec::new())));
        let building = (self.factory)(host);
        let (opened, ending) = (object.clone(), Rc::downgrade(&life));
        life.spawn(Box::pin(async move {
            let problem = match AssertUnwindSafe(building).catch_unwind().await {
                Ok(Ok(built)) => {
                    let opening = opened.replace(Opening::Open(built.clone()));
                    if let Opening::Waited(waiting) = opening {
                        for waiting in waiting {
                            let _ = waiting.send(built.clone());
                        }
                    }
                    return;
                }
                Ok(Err(error)) => with_sources(&*error),
                Err(panic) => panic_text(&*panic),
            };
            if let Some(life) = ending.upgrade() {
                life.end(CallError::Unopened(problem));
            }
            // Those who wait are told.
            opened.replace(Opening::Waited(Vec::new()));
        }));
        Current { life, object }
    }

    /// Sets the alarm once more, unless the failed handler has set it.
    async fn arm_again(&self) -> Result<(), String> {
        let text = |exception| exception_text(&exception);
        let storage = self.state.storage();
        let raw = storage.as_raw().unchecked_ref::<javascript::Storage>();
        let alarm = JsFuture::from(raw.get_alarm().map_err(text)?);
        if alarm.await.map_err(text)?.is_null() {
            let now = Timestamp::from_millis(js_sys::Date::now() as u64);
            let at = now + AFTER_LAST_RETRY;
            counters::count(&self.counters, |counters| counters.alarms_set += 1);
            drop(raw.set_alarm(at.as_millis() as f64).map_err(text)?);
        }
        Ok(())
    }
}

fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
