//! The system's journal: why a committed alarm fires after any crash, without opening every file.
//!
//! It knows which objects are *active*, that is open and possibly ahead of what the journal knows of
//! them, and the alarms of all others. It runs on a thread of its own; whatever reaches it while
//! it waits for the disk shares the next commit. It wakes the objects that were left active by a
//! crash, and closed ones when their alarms are due; an open object watches its own.
//!
//! It also keeps the data folder's id, which tells objects of one name in two folders apart, and its
//! time, so that the [clock] goes on from there should the machine's have been set back.

mod store;
mod wakes;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use durably::host::RolledBack;
use durably::{StorageError, Timestamp};

use crate::clock;
use crate::key::Key;
use crate::sqlite::{Database, Settings};
use wakes::Wakes;

/// The most that one commit takes in.
const MAX_BATCH: usize = 1_024;

/// How long the journal waits before it tries again after its own storage failed.
const RETRY: Duration = Duration::from_secs(1);

/// The wall clock may be set forward meanwhile, so no wait is longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How far the clock may be ahead of what is noted of it: so much later may something be done after
/// a crash and a wall clock that was set back.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// What the threads tell the journal.
pub(crate) enum Entry {
    /// The object is about to commit for the first time since it was opened.
    Active {
        key: Arc<Key>,
        done: SyncSender<Result<(), StorageError>>,
    },
    /// The object is open after it was woken, so it watches its alarm itself.
    Awake(Arc<Key>),
    /// The object is closed.
    Idle {
        key: Arc<Key>,
        alarm: Option<Timestamp>,
        /// It is not to be woken before this, since its last wake-ups failed.
        not_before: Option<Timestamp>,
    },
    /// The object could not be opened, or what it committed is uncertain: wake it again then.
    Retry { key: Arc<Key>, at: Timestamp },
}

/// Where the threads tell the journal what happens. It ends when the last of these is dropped.
#[derive(Clone)]
pub(crate) struct Journal {
    entries: Sender<Entry>,
    folder_id: Arc<str>,
}

impl Journal {
    /// The data folder's id: random, stored when the folder was first opened.
    pub(crate) fn folder_id(&self) -> &str {
        &self.folder_id
    }

    /// Takes note of `entry`, in order with all others of the same thread.
    pub(crate) fn note(&self, entry: Entry) {
        // The journal outlives the threads, except in a process that is being torn down.
        let _ = self.entries.send(entry);
    }

    /// Records that the object is active; returns when that is durable.
    pub(crate) fn activate(&self, key: &Arc<Key>) -> Result<(), StorageError> {
        let (done, recorded) = sync_channel(1);
        self.note(Entry::Active {
            key: key.clone(),
            done,
        });
        match recorded.recv() {
            Ok(outcome) => outcome,
            Err(_) => Err(StorageError::Ended(
                "the system's journal has stopped".into(),
            )),
        }
    }
}

/// What the journal needs to start.
pub(crate) struct Setup {
    pub(crate) path: PathBuf,
    pub(crate) settings: Settings,
    /// Names of the classes that this system has.
    pub(crate) classes: Vec<&'static str>,
    /// Tells an object's thread to open it.
    pub(crate) wake: Box<dyn Fn(Arc<Key>) + Send>,
}

/// Opens the journal and starts its thread, which keeps `keep` until it ends.
pub(crate) fn start(
    setup: Setup,
    keep: impl Send + 'static,
) -> Result<(Journal, JoinHandle<()>), StartError> {
    let (sender, received) = channel();
    let (opened, outcome) = sync_channel(1);
    // The database stays on the thread that opens it.
    let thread = std::thread::Builder::new()
        .name("durably-journal".into())
        .spawn(move || {
            match Thread::open(setup) {
                Ok((mut thread, folder_id)) => {
                    let _ = opened.send(Ok(folder_id));
                    thread.run(&received);
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            }
            drop(keep);
        })
        .map_err(StartError::Thread)?;
    match outcome.recv() {
        Ok(Ok(folder_id)) => Ok((
            Journal {
                entries: sender,
                folder_id: folder_id.into(),
            },
            thread,
        )),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(StartError::Storage(error))
        }
        Err(_) => Err(StartError::Storage(StorageError::Failed(
            "the journal's thread ended at once".into(),
        ))),
    }
}

/// Why the journal did not start.
pub(crate) enum StartError {
    Storage(StorageError),
    Thread(std::io::Error),
}

struct Thread {
    setup: Setup,
    classes: HashMap<&'static str, &'static str>,
    /// Missing after a commit that failed, until it can be opened again.
    database: Option<Database>,
    wakes: Wakes,
    /// What is not stored yet because a commit failed.
    backlog: Vec<Entry>,
    /// The latest time that is stored.
    noted: Timestamp,
}

impl Thread {
    fn open(setup: Setup) -> Result<(Self, String), StorageError> {
        let database = open_database(&setup)?;
        let fresh = fresh_id()?;
        let (folder_id, noted) = write(&database, move |transaction| {
            let sql = transaction.sql();
            Ok((store::folder_id(sql, &fresh)?, store::latest(sql)?))
        })?;
        let behind = noted.since(clock::wall());
        if behind > NOTE_EVERY {
            let behind_s = behind.as_secs();
            tracing::warn!(behind_s, "durability.clock.behind");
        }
        // What is later than this is noted before any object can store it: objects wait for the journal.
        clock::not_before(noted);
        let left_active = read(&database, |sql| store::active(sql))?;
        let classes = setup.classes.iter().map(|class| (*class, *class)).collect();
        let mut thread = Thread {
            setup,
            classes,
            database: Some(database),
            wakes: Wakes::default(),
            backlog: Vec::new(),
            noted,
        };
        for (class, name) in left_active {
            match thread.classes.get(&*class) {
                Some(class) => thread
                    .wakes
                    .postpone(Arc::new(Key::new(class, &name)), Timestamp::ZERO),
                None => tracing::warn!(class, name, "durability.object.class_missing"),
            }
        }
        Ok((thread, folder_id))
    }

    fn run(&mut self, entries: &Receiver<Entry>) {
        loop {
            self.note_time();
            let wait = self.wake_due();
            let first = match entries.recv_timeout(wait) {
                Ok(entry) => Some(entry),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut batch = std::mem::take(&mut self.backlog);
            for entry in first.into_iter().chain(entries.try_iter()).take(MAX_BATCH) {
                self.wakes.note(&entry);
                batch.push(entry);
            }
            self.store(batch);
        }
        let backlog = std::mem::take(&mut self.backlog);
        self.store(backlog);
        if let Some(database) = self.database.take()
            && let Err(error) = database.close()
        {
            tracing::warn!(error = %error, "durability.journal.close_failed");
        }
    }

    /// Notes from time to time what time it is, and only then follows a wall clock that was set forward.
    fn note_time(&mut self) {
        let now = clock::now().max(clock::wall());
        let Some(database) = &self.database else {
            return;
        };
        if now.since(self.noted) < NOTE_EVERY {
            return;
        }
        match write(database, move |transaction| {
            store::note_time(transaction.sql(), now)
        }) {
            Ok(()) => {
                self.noted = now;
                clock::not_before(now);
            }
            Err(error) => {
                tracing::error!(error = %error, "durability.journal.failed");
                self.database = None;
            }
        }
    }

    /// Stores a batch; what must not be lost stays in the backlog if that fails.
    fn store(&mut self, mut batch: Vec<Entry>) {
        batch.retain(|entry| matches!(entry, Entry::Active { .. } | Entry::Idle { .. }));
        if batch.is_empty() {
            return;
        }
        let batch = Arc::new(batch);
        let outcome = self.write(batch.clone());
        if let Err(error) = &outcome {
            tracing::error!(error = %error, "durability.journal.failed");
        }
        // The closure that held the other reference has run or is gone.
        for entry in Arc::into_inner(batch).unwrap_or_default() {
            match (entry, &outcome) {
                (Entry::Active { done, .. }, outcome) => {
                    let _ = done.send(outcome.clone());
                }
                (entry @ Entry::Idle { .. }, Err(_)) => self.backlog.push(entry),
                _ => {}
            }
        }
    }

    fn write(&mut self, batch: Arc<Vec<Entry>>) -> Result<(), StorageError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => open_database(&self.setup)?,
        };
        write(&database, move |transaction| {
            for entry in &*batch {
                match entry {
                    Entry::Active { key, .. } => {
                        store::set_active(transaction, key.class, &key.name)?;
                    }
                    Entry::Idle { key, alarm, .. } => {
                        store::set_idle(transaction, key.class, &key.name, *alarm)?;
                    }
                    _ => {}
                }
            }
            Ok(())
        })?;
        // A database whose commit failed is not used again.
        self.database = Some(database);
        Ok(())
    }

    /// Wakes whatever is due and returns how long nothing else is.
    fn wake_due(&mut self) -> Duration {
        if !self.backlog.is_empty() {
            return RETRY;
        }
        let now = clock::now();
        let due = self.wakes.take_postponed(now);
        due.into_iter().for_each(|key| (self.setup.wake)(key));
        let mut next = self.wakes.next_postponed();
        match self.wake_sleepers(now) {
            Ok(sleeper) => next = next.into_iter().chain(sleeper).min(),
            Err(error) => {
                tracing::error!(error = %error, "durability.journal.failed");
                self.database = None;
                return RETRY;
            }
        }
        next.map_or(LONGEST_WAIT, |at| at.since(now).min(LONGEST_WAIT))
    }

    /// Wakes closed objects whose alarms are due; returns the first alarm that is not.
    fn wake_sleepers(&mut self, now: Timestamp) -> Result<Option<Timestamp>, StorageError> {
        if self.database.is_none() {
            self.database = Some(open_database(&self.setup)?);
        }
        let Some(database) = &self.database else {
            return Ok(None);
        };
        let mut offset = 0;
        loop {
            // Most that are in the way are awake already, so their number is bounded by that of
            // open objects.
            const PAGE: u64 = 128;
            let page = read(database, move |sql| store::sleepers(sql, offset, PAGE))?;
            let read = page.len() as u64;
            for sleeper in page {
                let Some(class) = self.classes.get(&*sleeper.class) else {
                    continue;
                };
                let key = Arc::new(Key::new(class, &sleeper.name));
                if self.wakes.knows(&key) {
                    continue;
                }
                if sleeper.alarm > now {
                    return Ok(Some(sleeper.alarm));
                }
                if !self.wakes.wake(&key) {
                    // The next entry that says how a wake-up went comes back here.
                    return Ok(None);
                }
                (self.setup.wake)(key);
            }
            if read < PAGE {
                return Ok(None);
            }
            offset += read;
        }
    }
}

/// An id that no other folder has.
fn fresh_id() -> Result<String, StorageError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        StorageError::Failed(format!("the operating system gives no randomness: {error}"))
    })?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn open_database(setup: &Setup) -> Result<Database, StorageError> {
    let database = Database::open(&setup.path, "durability_system", "journal", &setup.settings)?;
    write(&database, |transaction| store::create(transaction.sql()))?;
    Ok(database)
}

/// Runs one transaction of the journal's own.
fn write<T: 'static>(
    database: &Database,
    work: impl FnOnce(&dyn durably::host::Transaction) -> Result<T, StorageError> + 'static,
) -> Result<T, StorageError> {
    let (give, take) = channel();
    let committed = database.commit(vec![Box::new(move |transaction| {
        let outcome = work(transaction);
        let answer = outcome.as_ref().map(|_| ()).map_err(|_| RolledBack);
        let _ = give.send(outcome);
        answer
    })]);
    let outcome = take.try_recv();
    match (outcome, committed.results.into_iter().next()) {
        (Ok(Err(error)), _) | (_, Some(Err(error))) => Err(error),
        (Ok(Ok(value)), _) => {
            if database.wants_checkpoint() {
                database.checkpoint()?;
            }
            Ok(value)
        }
        (Err(_), _) => Err(StorageError::Failed(
            "the journal's transaction never ran".into(),
        )),
    }
}

fn read<T: 'static>(
    database: &Database,
    work: impl FnOnce(&dyn durably::host::Sql) -> Result<T, StorageError> + 'static,
) -> Result<T, StorageError> {
    write(database, move |transaction| work(transaction.sql()))
}
