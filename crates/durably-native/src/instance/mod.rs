//! One instance of an object: opened, run turn by turn, and ended.
//!
//! All that an instance does runs in one task, its driver: calls, background tasks and the alarm are
//! futures that it polls. So an instance ends by dropping them where they stand. Closures that wait
//! for a commit are taken together after everything that is ready has had its turn; that is how
//! callers share commits, without a timer.

mod driver;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use durably::{StorageError, Timestamp};
use futures::{FutureExt, future};

use crate::class::{Call, Fate};
use crate::error::CallError;
use crate::key::Key;
use crate::sqlite::{Database, panic_text};
use crate::worker::Worker;
use driver::Driver;

/// What the rest of its thread knows of an instance.
pub(crate) struct Instance {
    pub(crate) key: Arc<Key>,
    calls: RefCell<VecDeque<Call>>,
    asked: Cell<Asked>,
    /// The journal woke it and waits to hear how that went.
    woken: Cell<bool>,
    /// The object is built.
    built: Cell<bool>,
    fate: Fate,
    waker: RefCell<Option<Waker>>,
    ended: RefCell<Vec<tokio::sync::oneshot::Sender<()>>>,
}

/// What an instance was asked to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Nothing,
    /// Close if idle, to make room.
    MakeRoom,
    /// Finish calls and the alarm, then end.
    Finish,
    /// End at once.
    End(Why),
}

/// Why an instance is ended from outside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    Evicted,
    Stopping,
}

/// How an instance ended.
enum End {
    /// It had nothing to do.
    Idle,
    Asked(Why),
    Panicked(String),
    /// A commit failed, so what is stored is uncertain.
    Broken(StorageError),
    Unopened(CallError),
}

impl Instance {
    pub(crate) fn new(key: Arc<Key>) -> Rc<Self> {
        Rc::new(Instance {
            key,
            calls: RefCell::default(),
            asked: Cell::new(Asked::Nothing),
            woken: Cell::new(false),
            built: Cell::new(false),
            fate: Fate::default(),
            waker: RefCell::new(None),
            ended: RefCell::default(),
        })
    }

    pub(crate) fn call(&self, call: Call) {
        self.calls.borrow_mut().push_back(call);
        self.notify();
    }

    /// The journal wants the object open; `true` if it is already.
    pub(crate) fn wake(&self) -> bool {
        self.woken.set(true);
        self.built.get()
    }

    pub(crate) fn make_room(&self) {
        self.ask(Asked::MakeRoom);
    }

    pub(crate) fn finish(&self) {
        self.ask(Asked::Finish);
    }

    /// Ends the instance at once; `done` is dropped or told when it has ended.
    pub(crate) fn end(&self, why: Why, done: Option<tokio::sync::oneshot::Sender<()>>) {
        self.ended.borrow_mut().extend(done);
        self.ask(Asked::End(why));
    }

    fn ask(&self, what: Asked) {
        self.asked.set(self.asked.get().max(what));
        self.notify();
    }

    fn notify(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn watch(&self, waker: &Waker) {
        let mut known = self.waker.borrow_mut();
        if known.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Resolves when the instance is asked to end before it is open.
    async fn asked_to_end(&self) -> Why {
        poll_fn(|context| {
            self.watch(context.waker());
            match self.asked.get() {
                Asked::End(why) => Poll::Ready(why),
                Asked::Finish => Poll::Ready(Why::Stopping),
                Asked::Nothing | Asked::MakeRoom => Poll::Pending,
            }
        })
        .await
    }
}

/// Lives the life of an instance, from waiting for room to its last word to the journal.
pub(crate) async fn live(worker: Rc<Worker>, instance: Rc<Instance>) {
    let residence = {
        let enter = std::pin::pin!(worker.enter(&instance.key));
        let asked = std::pin::pin!(instance.asked_to_end());
        match future::select(enter, asked).await {
            future::Either::Left((entered, _)) => entered.map_err(End::Unopened),
            future::Either::Right((why, _)) => Err(End::Asked(why)),
        }
    };
    let mut driver = match residence.and_then(|place| Driver::open(&worker, &instance, place)) {
        Ok(driver) => driver,
        Err(end) => {
            conclude(&worker, &instance, end, None);
            return;
        }
    };
    // Code of the application also runs when its futures are dropped, so it may panic here too.
    let end = match AssertUnwindSafe(driver.run()).catch_unwind().await {
        Ok(end) => end,
        Err(panic) => End::Panicked(panic_text(&*panic)),
    };
    *instance.fate.borrow_mut() = Some(end.as_call_error());
    let (host, residence, database) = driver.take_down();
    if Rc::strong_count(&host) > 1 {
        tracing::warn!(
            class = instance.key.class,
            object = instance.key.name,
            "durability.object.leaked"
        );
    }
    let alarm = database.as_ref().map(Database::alarm);
    if let Some(database) = database
        && let Err(error) = database.close()
    {
        tracing::warn!(
            class = instance.key.class,
            object = instance.key.name,
            error = %error,
            "durability.object.close_failed"
        );
    }
    // What was committed stays uncertain if a commit failed, the alarm with it.
    let alarm = alarm.filter(|_| !matches!(end, End::Broken(_)));
    conclude(&worker, &instance, end, alarm);
    drop(residence);
}

/// Takes leave of the worker, the journal and the calls that were not begun.
fn conclude(
    worker: &Rc<Worker>,
    instance: &Rc<Instance>,
    end: End,
    alarm: Option<Option<Timestamp>>,
) {
    let key = &instance.key;
    let built = instance.built.get();
    let failed = match &end {
        End::Idle | End::Asked(_) => None,
        // A call may come again at once; a wake-up that failed must wait.
        End::Panicked(text) => Some(text.clone()),
        End::Broken(error) => Some(error.to_string()),
        End::Unopened(error) => Some(error.to_string()),
    };
    if let Some(error) = &failed {
        tracing::error!(
            class = key.class,
            object = key.name,
            error,
            "durability.object.failed"
        );
        if !built || matches!(end, End::Broken(_)) {
            worker.failures.note(key, built);
        }
    }
    match alarm {
        Some(alarm) => worker.closed(key, alarm),
        // Without its file open nothing new is known of its alarm.
        None if instance.woken.get() || matches!(end, End::Broken(_)) => worker.try_again(key),
        None => {}
    }
    worker.remove(instance);
    let calls = instance.calls.take();
    let error = end.as_call_error();
    for call in calls {
        // The object was fine before, so those who have not begun meet it afresh.
        if built && !worker.is_stopping() {
            worker.call(key, call);
        } else {
            call.refuse(error.clone());
        }
    }
    instance.ended.take().into_iter().for_each(|done| {
        let _ = done.send(());
    });
}

impl End {
    fn as_call_error(&self) -> CallError {
        match self {
            End::Idle => CallError::Ended("it was idle".into()),
            End::Asked(Why::Evicted) => CallError::Ended("it was evicted".into()),
            End::Asked(Why::Stopping) => CallError::Stopping,
            End::Panicked(text) => CallError::Panicked(text.clone()),
            End::Broken(error) => CallError::Storage(error.clone()),
            End::Unopened(error) => error.clone(),
        }
    }
}
