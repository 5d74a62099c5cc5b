//! What an object gets from the native host.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use durably::error::StorageError;
use durably::host::{Host, Instance, LocalFuture, Work};
use durably::time::Timestamp;
use futures::channel::oneshot;

use crate::clock;
use crate::key::Key;
use crate::sqlite::Database;
use crate::timers::{self, Sleeper};

/// The host of one instance. It outlives the instance only in the hands of an object that leaks.
pub(crate) struct NativeHost {
    key: Arc<Key>,
    id: String,
    sleeper: Sleeper,
    instance: Instance,
    /// Taken when the instance ends.
    database: RefCell<Option<Database>>,
    queue: RefCell<VecDeque<Queued>>,
    spawned: RefCell<Vec<LocalFuture<()>>>,
    waker: RefCell<Option<Waker>>,
    ended: Cell<bool>,
}

/// A closure that waits for its commit.
pub(crate) struct Queued {
    pub(crate) work: Work,
    pub(crate) done: oneshot::Sender<Result<(), StorageError>>,
}

impl NativeHost {
    pub(crate) fn new(
        key: Arc<Key>,
        folder_id: &str,
        database: Database,
        sleeper: Sleeper,
    ) -> Rc<Self> {
        Rc::new(NativeHost {
            sleeper,
            id: key.id(folder_id),
            key,
            instance: Instance::default(),
            database: RefCell::new(Some(database)),
            queue: RefCell::default(),
            spawned: RefCell::default(),
            waker: RefCell::new(None),
            ended: Cell::new(false),
        })
    }

    /// Has `waker` called whenever something is queued or spawned.
    pub(crate) fn watch(&self, waker: &Waker) {
        let mut known = self.waker.borrow_mut();
        if known.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Runs `use_it` on the database while the instance lives.
    pub(crate) fn with_database<T>(&self, use_it: impl FnOnce(&Database) -> T) -> Option<T> {
        self.database.borrow().as_ref().map(use_it)
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    pub(crate) fn has_spawned(&self) -> bool {
        !self.spawned.borrow().is_empty()
    }

    /// The closures of the next commit, at most `limit`.
    pub(crate) fn take_queued(&self, limit: usize) -> Vec<Queued> {
        let mut queue = self.queue.borrow_mut();
        let count = queue.len().min(limit);
        queue.drain(..count).collect()
    }

    pub(crate) fn take_spawned(&self) -> Vec<LocalFuture<()>> {
        self.spawned.take()
    }

    /// Ends the instance for whoever still holds the host, and hands back its database and what is
    /// to be dropped: code of the application that may call the host, which now refuses everything.
    pub(crate) fn end(&self) -> (Option<Database>, impl Sized + use<>) {
        self.ended.set(true);
        self.waker.take();
        (
            self.database.take(),
            (self.queue.take(), self.spawned.take()),
        )
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Host for NativeHost {
    fn name(&self) -> &str {
        &self.key.name
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn transact(&self, work: Work) -> LocalFuture<Result<(), StorageError>> {
        let (done, committed) = oneshot::channel();
        if !self.ended.get() {
            self.queue.borrow_mut().push_back(Queued { work, done });
            self.wake();
        }
        Box::pin(async move {
            match committed.await {
                Ok(outcome) => outcome,
                Err(oneshot::Canceled) => Err(StorageError::Ended(
                    "it was closed before the transaction was committed".into(),
                )),
            }
        })
    }

    fn now(&self) -> Timestamp {
        clock::now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        if duration <= timers::LONGEST {
            Box::pin(self.sleeper.sleep(duration))
        } else {
            Box::pin(tokio::time::sleep(duration))
        }
    }

    fn spawn(&self, task: LocalFuture<()>) {
        if !self.ended.get() {
            self.spawned.borrow_mut().push(task);
            self.wake();
        }
    }

    fn random(&self, bytes: &mut [u8]) {
        // Without randomness ids could repeat, so the instance must not go on. Operating systems
        // that run tokio have it.
        if let Err(error) = getrandom::fill(bytes) {
            panic!("the operating system gives no randomness: {error}");
        }
    }

    fn instance(&self) -> &Instance {
        &self.instance
    }
}
