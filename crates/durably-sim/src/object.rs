//! Objects in a world: built on the first call or alarm, crashed on demand, woken by their alarm.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::{StorageError, Timestamp};
use futures::channel::oneshot;
use futures::future::{self, Either, FutureExt, LocalBoxFuture, Shared, select};

use crate::executor::{Group, Kind, World};
use crate::host::{VirtualHost, VirtualStorage};
use crate::node::Node;

/// The delay before an alarm handler that failed is called again; it doubles with every failure.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(64);

/// Why a call did not end.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CallError {
    /// The factory failed, so there is no instance.
    #[error("the object could not be opened: {0}")]
    Open(String),
    /// The instance ended first, by a crash, a panic or a failed commit.
    #[error("the object's instance has ended: {0}")]
    Ended(String),
}

impl From<CallError> for StorageError {
    fn from(error: CallError) -> Self {
        StorageError::Ended(error.to_string())
    }
}

/// When a committed alarm calls its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarms {
    /// By itself, when the clock reaches its time, again after a delay until the handler succeeds.
    Automatic,
    /// Only through [`VirtualObject::fire_alarm`].
    Manual,
}

type Factory<C> = Rc<dyn Fn(Rc<dyn Host>) -> LocalFuture<Result<Rc<C>, BoxError>>>;

/// An object of class `C` in a world. Clones are handles to the same one; its storage lives as long
/// as a handle or the storage's own does.
pub struct VirtualObject<C: Object>(Rc<Inner<C>>);

impl<C: Object> Clone for VirtualObject<C> {
    fn clone(&self) -> Self {
        VirtualObject(self.0.clone())
    }
}

struct Inner<C: Object> {
    world: World,
    node: Option<Node>,
    name: String,
    id: String,
    storage: VirtualStorage,
    factory: Factory<C>,
    instance: RefCell<Option<Instance<C>>>,
    instances: Cell<u64>,
    /// The task that waits for the alarm.
    driver: Group,
}

type Opened<C> = Shared<LocalBoxFuture<'static, Result<Running<C>, CallError>>>;

struct Instance<C> {
    number: u64,
    group: Group,
    opened: Opened<C>,
}

struct Running<C> {
    group: Group,
    object: Rc<C>,
}

impl<C> Clone for Running<C> {
    fn clone(&self) -> Self {
        Running {
            group: self.group.clone(),
            object: self.object.clone(),
        }
    }
}

impl World {
    /// An object on new storage. `factory` builds an instance, as it would be registered at a host;
    /// it runs at the first call or alarm, and again after every end of an instance.
    ///
    /// # Panics
    ///
    /// If SQLite cannot open a database in memory.
    pub fn object<C, F>(
        &self,
        name: &str,
        alarms: Alarms,
        factory: impl Fn(Rc<dyn Host>) -> F + 'static,
    ) -> VirtualObject<C>
    where
        C: Object,
        F: Future<Output = Result<Rc<C>, BoxError>> + 'static,
    {
        self.object_on(new_storage::<C>(name), name, alarms, factory)
    }

    /// An object on new storage, in a process of its own or shared with others.
    ///
    /// # Panics
    ///
    /// If SQLite cannot open a database in memory.
    pub fn object_in<C, F>(
        &self,
        node: &Node,
        name: &str,
        factory: impl Fn(Rc<dyn Host>) -> F + 'static,
    ) -> VirtualObject<C>
    where
        C: Object,
        F: Future<Output = Result<Rc<C>, BoxError>> + 'static,
    {
        let storage = new_storage::<C>(name);
        let node = Some(node.clone());
        self.place(node, storage, name, Alarms::Automatic, factory)
    }

    /// An object on storage that another one left behind.
    pub fn object_on<C, F>(
        &self,
        storage: VirtualStorage,
        name: &str,
        alarms: Alarms,
        factory: impl Fn(Rc<dyn Host>) -> F + 'static,
    ) -> VirtualObject<C>
    where
        C: Object,
        F: Future<Output = Result<Rc<C>, BoxError>> + 'static,
    {
        self.place(None, storage, name, alarms, factory)
    }

    fn place<C, F>(
        &self,
        node: Option<Node>,
        storage: VirtualStorage,
        name: &str,
        alarms: Alarms,
        factory: impl Fn(Rc<dyn Host>) -> F + 'static,
    ) -> VirtualObject<C>
    where
        C: Object,
        F: Future<Output = Result<Rc<C>, BoxError>> + 'static,
    {
        let driver = self.group(Kind::Host, node.clone());
        let object = VirtualObject(Rc::new(Inner {
            world: self.clone(),
            node: node.clone(),
            name: name.to_owned(),
            id: format!("{}/{name}", C::CLASS),
            storage: storage.clone(),
            factory: Rc::new(move |host| Box::pin(factory(host))),
            instance: RefCell::default(),
            instances: Cell::new(0),
            driver: driver.clone(),
        }));
        if alarms == Alarms::Automatic {
            let weak = Rc::downgrade(&object.0);
            driver.spawn(Box::pin(drive_alarm(weak, storage, driver.clone(), node)));
        }
        object
    }
}

impl<C: Object> VirtualObject<C> {
    /// Builds an instance if there is none.
    ///
    /// # Errors
    ///
    /// [`CallError::Open`] if the factory fails, [`CallError::Ended`] if the instance ends first.
    pub fn open(&self) -> impl Future<Output = Result<(), CallError>> + use<C> {
        let opened = self.opened();
        async move { opened.await.map(|_| ()) }
    }

    /// Runs `call` with the object as a task of its instance, building one if there is none. The
    /// call goes on if the returned future is dropped. It starts with the first poll.
    ///
    /// # Errors
    ///
    /// Like [`open`](Self::open).
    pub fn call<T, F, Call>(
        &self,
        call: Call,
    ) -> impl Future<Output = Result<T, CallError>> + use<C, T, F, Call>
    where
        Call: FnOnce(Rc<C>) -> F + 'static,
        T: 'static,
        F: Future<Output = T> + 'static,
    {
        let object = self.clone();
        async move {
            let Running { group, object } = object.opened().await?;
            let (answer, answered) = oneshot::channel();
            group.spawn(Box::pin(async move {
                let _ = answer.send(call(object).await);
            }));
            answered.await.map_err(|_| ended(&group))
        }
    }

    /// Drops the instance, if there is one, with its tasks. Storage is what was committed.
    pub fn crash(&self) {
        let group = self.0.instance.borrow().as_ref().map(|i| i.group.clone());
        if let Some(group) = group {
            group.end("it crashed");
        }
    }

    /// Calls the alarm handler now, due or not, building an instance if there is none. The committed
    /// alarm is removed when the handler succeeds, unless it was set again meanwhile.
    ///
    /// # Errors
    ///
    /// What the handler answered, or a [`CallError`] in the box.
    pub async fn fire_alarm(&self) -> Result<(), BoxError> {
        let storage = self.0.storage.clone();
        let fired = self
            .call(move |object| async move {
                let fired = storage.fire_alarm();
                object.alarm().await.map(|()| fired)
            })
            .await??;
        self.0.storage.settle_alarm(fired);
        Ok(())
    }

    /// Where the object's rows and its alarm are.
    pub fn storage(&self) -> &VirtualStorage {
        &self.0.storage
    }

    /// The committed alarm.
    pub fn alarm(&self) -> Option<Timestamp> {
        self.0.storage.alarm()
    }

    /// Whether there is an instance, or one is being built.
    pub fn is_open(&self) -> bool {
        self.0.instance.borrow().is_some()
    }

    /// How many instances were begun so far.
    pub fn instances(&self) -> u64 {
        self.0.instances.get()
    }

    fn opened(&self) -> Opened<C> {
        if let Some(instance) = &*self.0.instance.borrow() {
            return instance.opened.clone();
        }
        let inner = &self.0;
        if inner.node.as_ref().is_some_and(|node| !node.is_up()) {
            let down = CallError::Ended("its process does not run".to_owned());
            return future::ready(Err(down)).boxed_local().shared();
        }
        let number = inner.instances.get() + 1;
        inner.instances.set(number);
        let group = inner.world.group(Kind::Instance, inner.node.clone());
        if let Some(node) = &inner.node {
            node.joins(&group);
        }
        let owner = Rc::downgrade(inner);
        group.on_end(move || forget(&owner, number));
        let host: Rc<dyn Host> = Rc::new(VirtualHost::new(
            &inner.name,
            &inner.id,
            inner.storage.clone(),
            group.clone(),
        ));
        let (built, wait) = oneshot::channel();
        let factory = inner.factory.clone();
        let own = group.clone();
        group.spawn(Box::pin(async move {
            let opened = factory(host).await;
            let failed = opened.as_ref().err().map(ToString::to_string);
            let _ = built.send(opened.map_err(|error| CallError::Open(error.to_string())));
            if let Some(reason) = failed {
                own.end(&format!("it could not be opened: {reason}"));
            }
        }));
        let own = group.clone();
        let opened = async move {
            match wait.await {
                Ok(opened) => opened.map(|object| Running { group: own, object }),
                Err(oneshot::Canceled) => Err(ended(&own)),
            }
        };
        let opened = opened.boxed_local().shared();
        *inner.instance.borrow_mut() = Some(Instance {
            number,
            group,
            opened: opened.clone(),
        });
        opened
    }
}

fn ended(group: &Group) -> CallError {
    CallError::Ended(group.reason().unwrap_or_default())
}

/// Drops the instance `number` and the object in it.
fn forget<C: Object>(owner: &Weak<Inner<C>>, number: u64) {
    let Some(inner) = owner.upgrade() else { return };
    let is_current = |instance: &mut Instance<C>| instance.number == number;
    let instance = inner.instance.borrow_mut().take_if(is_current);
    drop(instance);
}

impl<C: Object> Drop for Inner<C> {
    fn drop(&mut self) {
        self.driver.end("its object is gone");
        if let Some(instance) = self.instance.take() {
            instance.group.end("its object is gone");
        }
    }
}

/// Fires the committed alarm whenever the clock of its process reaches it.
async fn drive_alarm<C: Object>(
    object: Weak<Inner<C>>,
    storage: VirtualStorage,
    clock: Group,
    node: Option<Node>,
) {
    let mut retry = None;
    loop {
        let committed = storage.next_commit();
        let changed = async {
            match &node {
                Some(node) => {
                    let _ = node.changed().await;
                }
                None => future::pending().await,
            }
        };
        let mut changed = pin!(changed.fuse());
        // It hears of changes from now on.
        let is_over = futures::poll!(&mut changed);
        debug_assert!(is_over.is_pending());
        if node.as_ref().is_some_and(|node| !node.is_up()) {
            changed.await;
            retry = None;
            continue;
        }
        let due = storage.alarm();
        let wait = match (due, retry) {
            (Some(due), None) => Some(due.since(clock.now())),
            (_, retry) => retry,
        };
        let Some(wait) = wait else {
            select(committed, changed).await;
            continue;
        };
        if !wait.is_zero() {
            // Some commit may have moved the alarm; one whose handler failed is waited for anyway.
            let moved = match retry {
                Some(_) => future::pending().left_future(),
                None => committed.right_future(),
            };
            match select(clock.sleep(wait), select(moved, changed)).await {
                Either::Left(_) => {}
                Either::Right((Either::Left(_), _)) => continue,
                Either::Right((Either::Right(_), _)) => {
                    retry = None;
                    continue;
                }
            }
        }
        let Some(inner) = object.upgrade() else {
            return;
        };
        let fired = VirtualObject(inner).fire_alarm().await;
        retry = match fired {
            Ok(()) => None,
            Err(error) => {
                tracing::debug!(%error, "the alarm handler failed and is called again");
                let next = retry.map_or(FIRST_RETRY, |last: Duration| (last * 2).min(LAST_RETRY));
                Some(next)
            }
        };
    }
}

fn new_storage<C: Object>(name: &str) -> VirtualStorage {
    match VirtualStorage::new(C::CLASS, name) {
        Ok(storage) => storage,
        Err(error) => panic!("no database in memory: {error}"),
    }
}
