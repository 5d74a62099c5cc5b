//! A thread and the objects on it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::{StorageError, Timestamp};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::class::{Call, Class};
use crate::clock;
use crate::error::CallError;
use crate::instance::{Instance, Why, live};
use crate::journal::{Entry, Journal};
use crate::key::Key;
use crate::residency::Residence;
use crate::sqlite::Database;
use crate::system::Shared;
use crate::timers::Sleeper;

/// What a thread is told.
pub(crate) enum Message {
    /// Run a call on an object.
    Call(Arc<Key>, Call),
    /// Open an object, so that it minds its alarm.
    Wake(Arc<Key>),
    /// Close an object if it is idle.
    MakeRoom(Arc<Key>),
    /// End an object's instance, whatever it does.
    Evict(Arc<Key>, oneshot::Sender<()>),
    /// Finish what is under way, close all objects and end the thread.
    Stop,
}

/// What lives on one thread.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    journal: Journal,
    instances: RefCell<HashMap<Arc<Key>, Rc<Instance>>>,
    pub(crate) failures: Failures,
    stopping: Cell<bool>,
    emptied: Notify,
}

/// Runs a thread until it is told to stop.
pub(crate) async fn work(
    shared: Arc<Shared>,
    journal: Journal,
    mut messages: mpsc::UnboundedReceiver<Message>,
) {
    let shutdown_timeout = shared.config.shutdown_timeout;
    let worker = Rc::new(Worker {
        shared,
        journal,
        instances: RefCell::default(),
        failures: Failures::default(),
        stopping: Cell::new(false),
        emptied: Notify::new(),
    });
    loop {
        match messages.recv().await {
            None | Some(Message::Stop) => break,
            Some(message) => worker.handle(message),
        }
    }
    worker.stopping.set(true);
    worker.all().iter().for_each(|instance| instance.finish());
    let finished = tokio::time::timeout(shutdown_timeout, worker.empty(&mut messages)).await;
    if finished.is_err() {
        let late = worker.all();
        tracing::warn!(objects = late.len(), "durability.shutdown.cut_short");
        late.iter()
            .for_each(|instance| instance.end(Why::Stopping, None));
        worker.empty(&mut messages).await;
    }
}

impl Worker {
    fn handle(self: &Rc<Self>, message: Message) {
        match message {
            Message::Call(_, call) if self.stopping.get() => call.refuse(CallError::Stopping),
            Message::Call(key, call) => self.call(&key, call),
            Message::Wake(_) if self.stopping.get() => {}
            Message::Wake(key) => {
                if self.instance(&key).wake() {
                    self.awake(&key);
                }
            }
            Message::MakeRoom(key) => {
                // If it has just gone, it has made room by that.
                if let Some(instance) = self.known(&key) {
                    instance.make_room();
                }
            }
            Message::Evict(key, done) => match self.known(&key) {
                Some(instance) => instance.end(Why::Evicted, Some(done)),
                None => {
                    let _ = done.send(());
                }
            },
            Message::Stop => {}
        }
    }

    /// Resolves when no object is left; messages are answered meanwhile.
    async fn empty(self: &Rc<Self>, messages: &mut mpsc::UnboundedReceiver<Message>) {
        loop {
            let emptied = std::pin::pin!(self.emptied.notified());
            if self.instances.borrow().is_empty() {
                return;
            }
            let message = std::pin::pin!(messages.recv());
            match futures::future::select(emptied, message).await {
                futures::future::Either::Right((Some(message), _)) => self.handle(message),
                futures::future::Either::Right((None, emptied)) => emptied.await,
                futures::future::Either::Left(_) => {}
            }
        }
    }

    /// Hands a call to its object.
    pub(crate) fn call(self: &Rc<Self>, key: &Arc<Key>, call: Call) {
        self.instance(key).call(call);
    }

    fn known(&self, key: &Key) -> Option<Rc<Instance>> {
        self.instances.borrow().get(key).cloned()
    }

    fn all(&self) -> Vec<Rc<Instance>> {
        self.instances.borrow().values().cloned().collect()
    }

    /// The object's instance, a new one if it has none.
    fn instance(self: &Rc<Self>, key: &Arc<Key>) -> Rc<Instance> {
        if let Some(instance) = self.known(key) {
            return instance;
        }
        let instance = Instance::new(key.clone());
        self.instances
            .borrow_mut()
            .insert(key.clone(), instance.clone());
        tokio::task::spawn_local(live(self.clone(), instance.clone()));
        instance
    }

    /// Forgets an instance that has ended.
    pub(crate) fn remove(&self, instance: &Rc<Instance>) {
        self.instances.borrow_mut().remove(&instance.key);
        if self.instances.borrow().is_empty() {
            self.emptied.notify_one();
        }
    }

    pub(crate) async fn enter(&self, key: &Arc<Key>) -> Result<Residence, CallError> {
        self.shared
            .residency
            .enter(key, |idle| self.ask_to_make_room(idle))
            .await
    }

    /// Tells the thread of an idle object to close it.
    pub(crate) fn ask_to_make_room(&self, idle: &Arc<Key>) {
        self.shared.ask_to_make_room(idle);
    }

    pub(crate) fn class(&self, class: &str) -> Option<Arc<dyn Class>> {
        self.shared.classes.get(class).cloned()
    }

    pub(crate) fn open_database(&self, key: &Key) -> Result<Database, StorageError> {
        let path = key.path(&self.shared.data);
        Database::open(&path, key.class, &key.name, &self.shared.database)
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(crate) fn sleeper(&self) -> Sleeper {
        self.shared.timers.sleeper().clone()
    }

    pub(crate) fn max_batch(&self) -> usize {
        self.shared.config.max_batch
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        self.shared.config.idle_timeout
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Tells the journal that an object is open after it was woken.
    pub(crate) fn awake(&self, key: &Arc<Key>) {
        self.journal.note(Entry::Awake(key.clone()));
    }

    /// Tells the journal that an object is closed.
    pub(crate) fn closed(&self, key: &Arc<Key>, alarm: Option<Timestamp>) {
        if alarm.is_none() {
            self.failures.forget(key);
        }
        self.journal.note(Entry::Idle {
            key: key.clone(),
            alarm,
            not_before: self.failures.not_before(key),
        });
    }

    /// Tells the journal to have an object opened again later.
    pub(crate) fn try_again(&self, key: &Arc<Key>) {
        let at = self.failures.not_before(key).unwrap_or_else(clock::now);
        self.journal.note(Entry::Retry {
            key: key.clone(),
            at,
        });
    }
}

/// Wake-ups that failed, and when each may be tried again: after 2 s, 4 s and so on up to a minute.
#[derive(Default)]
pub(crate) struct Failures(RefCell<HashMap<Arc<Key>, Failure>>);

struct Failure {
    count: u32,
    not_before: Timestamp,
    /// The object could be opened; it is its alarm that failed.
    opened: bool,
}

const FIRST_DELAY: Duration = Duration::from_secs(2);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

impl Failures {
    /// Takes note of one more failure.
    pub(crate) fn note(&self, key: &Arc<Key>, opened: bool) {
        let mut failures = self.0.borrow_mut();
        let count = failures.get(key).map_or(0, |failure| failure.count) + 1;
        let delay = FIRST_DELAY
            .saturating_mul(1 << (count - 1).min(10))
            .min(LONGEST_DELAY);
        failures.insert(
            key.clone(),
            Failure {
                count,
                not_before: clock::now() + delay,
                opened,
            },
        );
    }

    /// The object could be opened.
    pub(crate) fn opened(&self, key: &Key) {
        let mut failures = self.0.borrow_mut();
        if failures.get(key).is_some_and(|failure| !failure.opened) {
            failures.remove(key);
        }
    }

    /// The object's alarm was handled, or it has none.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.borrow_mut().remove(key);
    }

    /// Before when the object is not to be woken.
    pub(crate) fn not_before(&self, key: &Key) -> Option<Timestamp> {
        self.0.borrow().get(key).map(|failure| failure.not_before)
    }
}
