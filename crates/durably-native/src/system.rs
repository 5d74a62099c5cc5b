//! A system: a data folder, its threads, and handles to its objects.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use durably::ConfigError;
use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use crate::class::{Call, Class, Registered, UnderWay};
use crate::config::SystemConfig;
use crate::error::{CallError, SystemError};
use crate::folder;
use crate::handle::{ObjectHandle, SystemRef};
use crate::journal::{self, Journal, Setup, StartError};
use crate::key::{Key, MAX_NAME_BYTES, is_class_name};
use crate::residency::Residency;
use crate::sqlite::{Counters, CountersSnapshot, Settings, TableRows, check_library};
use crate::timers::Timers;
use crate::worker::{Message, work};

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) config: SystemConfig,
    pub(crate) data: PathBuf,
    pub(crate) database: Settings,
    pub(crate) classes: HashMap<&'static str, Arc<dyn Class>>,
    pub(crate) residency: Arc<Residency>,
    pub(crate) timers: Timers,
    threads: Vec<mpsc::UnboundedSender<Message>>,
    counters: Arc<Counters>,
    journal_counters: Arc<Counters>,
    calls: Arc<AtomicUsize>,
    stopping: AtomicBool,
}

impl Shared {
    fn tell(&self, key: &Key, message: Message) {
        // A thread that has ended drops the message, which answers whoever waits for it.
        let _ = self.threads[key.thread(self.threads.len())].send(message);
    }

    pub(crate) fn check(&self, key: &Key) -> Result<(), CallError> {
        if key.name.is_empty() || key.name.len() > MAX_NAME_BYTES {
            return Err(CallError::BadName(key.name.len()));
        }
        if !self.classes.contains_key(key.class) {
            return Err(CallError::UnknownClass(key.class));
        }
        if self.stopping.load(SeqCst) {
            return Err(CallError::Stopping);
        }
        Ok(())
    }

    /// Sends a call off, counted among those under way.
    pub(crate) fn call(
        &self,
        key: &Arc<Key>,
        make: impl FnOnce(UnderWay) -> Call,
    ) -> Result<(), CallError> {
        self.check(key)?;
        let Some(under_way) = UnderWay::enter(&self.calls, self.config.max_calls) else {
            return Err(CallError::Overloaded(
                "as many calls as allowed are under way",
            ));
        };
        self.tell(key, Message::Call(key.clone(), make(under_way)));
        Ok(())
    }

    pub(crate) fn ask_to_make_room(&self, idle: &Arc<Key>) {
        self.tell(idle, Message::MakeRoom(idle.clone()));
    }
}

/// A data folder that is open, and the objects that live in it. Clones are handles to the same one.
///
/// When the last clone is dropped the system stops as with [`shutdown`](Self::shutdown), but nobody
/// waits for it.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use durably::error::BoxError;
/// use durably::host::{LocalFuture, Object};
/// use durably_native::System;
///
/// /// Counts in memory only; a real object would keep its host and store what counts.
/// struct Counter(Cell<u64>);
///
/// impl Object for Counter {
///     const CLASS: &'static str = "Counter";
///
///     fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
///         Box::pin(async { Ok(()) })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let system = System::builder(folder.path())
///     .class::<Counter>(|_host| Box::pin(async { Ok(Rc::new(Counter(Cell::new(0)))) }))
///     .open()?;
/// let count = system
///     .object::<Counter>("one")
///     .call(|counter| async move {
///         counter.0.set(counter.0.get() + 1);
///         counter.0.get()
///     })
///     .await?;
/// assert_eq!(count, 1);
/// system.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct System(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    reference: SystemRef,
    /// Resolves when everything has ended; taken by whoever waits for it.
    running: Mutex<Vec<Running>>,
}

/// A thread, and what is dropped at its very end.
struct Running {
    thread: JoinHandle<()>,
    ended: oneshot::Receiver<Never>,
}

/// What is never sent.
enum Never {}

/// Opens a system. See [`System::builder`].
pub struct SystemBuilder {
    data: PathBuf,
    config: SystemConfig,
    classes: Vec<(&'static str, Arc<dyn Class>)>,
    reference: SystemRef,
}

impl SystemBuilder {
    /// Sets how the system works; [`SystemConfig::default`] otherwise.
    #[must_use]
    pub fn config(mut self, config: SystemConfig) -> Self {
        self.config = config;
        self
    }

    /// Adds a class of objects: `factory` builds one, on its thread, whenever it is opened.
    ///
    /// What the factory returns must not keep itself alive in a cycle of `Rc`s: an object that is
    /// closed is freed by dropping it.
    #[must_use]
    pub fn class<C: Object>(
        mut self,
        factory: impl Fn(Rc<dyn Host>) -> LocalFuture<Result<Rc<C>, BoxError>> + Send + Sync + 'static,
    ) -> Self {
        let class = Registered::<C, _>::new(factory);
        self.classes.push((C::CLASS, Arc::new(class)));
        self
    }

    /// Reaches the system to be, for factories whose objects call other objects.
    pub fn system(&self) -> SystemRef {
        self.reference.clone()
    }

    /// Opens the system: locks the folder, starts the threads, and begins to open what a crash left
    /// active and to wake what is due.
    ///
    /// # Errors
    ///
    /// [`SystemError::FolderLocked`] if somebody has the folder open, [`SystemError::Config`] for
    /// settings and classes that are refused, and what the system or its disk answers.
    pub fn open(self) -> Result<System, SystemError> {
        check_library().map_err(SystemError::Library)?;
        self.config.check()?;
        let classes = check_classes(self.classes)?;
        let lock = Arc::new(folder::lock(&self.data)?);
        let max_open = folder::objects_within_file_limit(self.config.max_open_objects);
        let timers = Timers::start().map_err(SystemError::Thread)?;
        let counters = Arc::new(Counters::new(self.config.count_rows));
        let mut database = self.config.database();
        database.counters = Some(counters.clone());
        let journal_counters = Arc::new(Counters::new(false));
        let journal_database = Settings {
            synchronous: self.config.synchronous,
            counters: Some(journal_counters.clone()),
            ..Settings::default()
        };
        let (threads, inboxes): (Vec<_>, Vec<_>) = (0..self.config.threads)
            .map(|_| mpsc::unbounded_channel())
            .unzip();
        let system = System(Arc::new(Inner {
            shared: Arc::new(Shared {
                residency: Residency::new(max_open, self.config.open_wait),
                config: self.config,
                data: self.data,
                database,
                classes,
                timers,
                threads,
                counters,
                journal_counters,
                calls: Arc::default(),
                stopping: AtomicBool::new(false),
            }),
            reference: self.reference,
            running: Mutex::default(),
        }));
        // Before anything runs, so that objects which are woken at once can reach others.
        let shared = &system.0.shared;
        let _ = system.0.reference.0.set(Arc::downgrade(shared));
        let journal = system.start_journal(journal_database, &lock)?;
        for (number, inbox) in inboxes.into_iter().enumerate() {
            system.start_thread(number, &journal, inbox, &lock)?;
        }
        Ok(system)
    }
}

fn check_classes(
    given: Vec<(&'static str, Arc<dyn Class>)>,
) -> Result<HashMap<&'static str, Arc<dyn Class>>, ConfigError> {
    let mut classes = HashMap::new();
    for (name, class) in given {
        let field = || format!("class {name:?}");
        if !is_class_name(name) {
            let problem = "must have 1 to 64 letters, digits, '-' or '_'";
            return Err(ConfigError::new(field(), problem));
        }
        if classes.insert(name, class).is_some() {
            return Err(ConfigError::new(field(), "is given twice"));
        }
    }
    Ok(classes)
}

impl System {
    /// A builder for the system in the folder `data`, which is created if need be.
    pub fn builder(data: impl Into<PathBuf>) -> SystemBuilder {
        SystemBuilder {
            data: data.into(),
            config: SystemConfig::default(),
            classes: Vec::new(),
            reference: SystemRef::default(),
        }
    }

    /// A handle to the object `name` of class `C`. Nothing happens until it is called.
    pub fn object<C: Object>(&self, name: &str) -> ObjectHandle<C> {
        self.0.reference.object(name)
    }

    /// Reaches the system without keeping it open.
    pub fn reference(&self) -> SystemRef {
        self.0.reference.clone()
    }

    /// Ends the instance of an object abruptly, whatever it does, and resolves when it is closed:
    /// what was not committed is gone, calls under way get [`CallError::Ended`]. For tests.
    ///
    /// # Errors
    ///
    /// Those of [`ObjectHandle::call`] about names and classes.
    pub async fn evict<C: Object>(&self, name: &str) -> Result<(), CallError> {
        let key = Arc::new(Key::new(C::CLASS, name));
        self.0.shared.check(&key)?;
        let (done, ended) = oneshot::channel();
        self.0.shared.tell(&key, Message::Evict(key.clone(), done));
        // Dropped instead of told: the thread has ended, and the instance before it.
        let _ = ended.await;
        Ok(())
    }

    /// How many objects are open.
    pub fn open_objects(&self) -> usize {
        self.0.shared.residency.open_objects()
    }

    /// What the databases of all objects did since the system was opened.
    pub fn counters(&self) -> CountersSnapshot {
        self.0.shared.counters.snapshot()
    }

    /// Rows written by table since the system was opened, if
    /// [`count_rows`](crate::SystemConfig::count_rows) is on.
    pub fn rows_by_table(&self) -> BTreeMap<String, TableRows> {
        self.0.shared.counters.rows_by_table()
    }

    /// What the system's own journal did since the system was opened: flushes beside those of the
    /// objects, one at most whenever an object is opened and writes, and when it closes.
    pub fn journal_counters(&self) -> CountersSnapshot {
        self.0.shared.journal_counters.snapshot()
    }

    /// Stops the system: no new calls, those under way and alarms may finish within
    /// `shutdown_timeout`, background tasks are dropped, all files are closed. Resolves when the
    /// folder is free again. Only the first of several callers waits.
    pub async fn shutdown(&self) {
        self.0.stop();
        let running = std::mem::take(&mut *self.0.lock());
        for Running { thread, ended } in running {
            // Nothing is ever sent; the thread drops its end of it when it is all but gone.
            let _ = ended.await;
            if thread.join().is_err() {
                tracing::error!(
                    problem = "a thread of the system panicked",
                    "durability.background_execution.failed"
                );
            }
        }
    }

    fn start_journal(&self, settings: Settings, lock: &Arc<File>) -> Result<Journal, SystemError> {
        let shared = Arc::downgrade(&self.0.shared);
        let setup = Setup {
            path: self.0.shared.data.join("journal.sqlite"),
            settings,
            classes: self.0.shared.classes.keys().copied().collect(),
            wake: Box::new(move |key| {
                if let Some(shared) = shared.upgrade() {
                    shared.tell(&key.clone(), Message::Wake(key));
                }
            }),
        };
        let (alive, ended) = oneshot::channel::<Never>();
        let (journal, thread) =
            journal::start(setup, (lock.clone(), alive)).map_err(|error| match error {
                StartError::Storage(error) => SystemError::Journal(error),
                StartError::Thread(error) => SystemError::Thread(error),
            })?;
        self.0.lock().push(Running { thread, ended });
        Ok(journal)
    }

    fn start_thread(
        &self,
        number: usize,
        journal: &Journal,
        inbox: mpsc::UnboundedReceiver<Message>,
        lock: &Arc<File>,
    ) -> Result<(), SystemError> {
        let shared = self.0.shared.clone();
        let journal = journal.clone();
        let lock = lock.clone();
        let (alive, ended) = oneshot::channel::<Never>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(SystemError::Thread)?;
        let thread = std::thread::Builder::new()
            .name(format!("durably-{number}"))
            .spawn(move || {
                LocalSet::new().block_on(&runtime, work(shared, journal, inbox));
                drop((runtime, lock, alive));
            })
            .map_err(SystemError::Thread)?;
        self.0.lock().push(Running { thread, ended });
        Ok(())
    }
}

impl Inner {
    /// Tells all threads to stop. The journal follows when the last of them has gone.
    fn stop(&self) {
        if !self.shared.stopping.swap(true, SeqCst) {
            for thread in &self.shared.threads {
                let _ = thread.send(Message::Stop);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}
