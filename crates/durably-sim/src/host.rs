//! The virtual host: one instance of an object on the world's executor, with storage in memory.
//!
//! Decided here: when queued closures share a commit, and what is lost with an instance. How a
//! commit treats its closures is the matter of the native host's database, which is used as it is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use durably::host::{Host, Instance, LocalFuture, RolledBack, Sql, Transaction, Work};
use durably::{StorageError, Timestamp};
use durably_native::sqlite::{Committed, Database, FiredAlarm, Settings};
use futures::channel::oneshot;

use crate::executor::Group;

/// An object's storage. It outlives instances, as a disk does; clones are handles to the same one.
///
/// It holds what was committed, nothing else.
#[derive(Clone)]
pub struct VirtualStorage(Rc<Storage>);

struct Storage {
    /// Taken only while the next instance's takes the place of one that a failed commit has ended.
    database: RefCell<Option<Database>>,
    settings: Settings,
    commits: Cell<u64>,
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

impl VirtualStorage {
    /// Empty storage for the object `name` of `class`.
    ///
    /// # Errors
    ///
    /// What SQLite answers.
    pub fn new(class: &str, name: &str) -> Result<VirtualStorage, StorageError> {
        let settings = Settings::default();
        let database = Database::in_memory(class, name, &settings)?;
        Ok(VirtualStorage(Rc::new(Storage {
            database: RefCell::new(Some(database)),
            settings,
            commits: Cell::new(0),
            waiting: RefCell::default(),
        })))
    }

    /// The committed alarm.
    pub fn alarm(&self) -> Option<Timestamp> {
        self.0.database.borrow().as_ref().and_then(Database::alarm)
    }

    /// How many commits were attempted.
    pub fn commits(&self) -> u64 {
        self.0.commits.get()
    }

    /// Reads or writes from outside, in a transaction of its own, for tests that look at rows or
    /// prepare them. Nothing that a living instance keeps in memory follows.
    ///
    /// # Errors
    ///
    /// What `work` returned; nothing is stored then.
    pub fn transaction<T: 'static, E: From<StorageError> + 'static>(
        &self,
        work: impl FnOnce(&dyn Transaction) -> Result<T, E> + 'static,
    ) -> Result<T, E> {
        let slot: Rc<RefCell<Option<Result<T, E>>>> = Rc::default();
        let result = slot.clone();
        let committed = self.commit(vec![Box::new(move |transaction| {
            let outcome = work(transaction);
            let answer = outcome.as_ref().map(|_| ()).map_err(|_| RolledBack);
            *slot.borrow_mut() = Some(outcome);
            answer
        })]);
        let outcome = result.borrow_mut().take();
        match (committed.fatal, outcome) {
            (_, Some(Err(error))) => Err(error),
            (None, Some(Ok(value))) => Ok(value),
            (fatal, _) => {
                let reason = fatal.map_or_else(String::new, |fatal| fatal.to_string());
                Err(StorageError::Ended(reason).into())
            }
        }
    }

    /// Reads what is committed, for checks; nobody notices. For changes there is
    /// [`transaction`](Self::transaction).
    ///
    /// # Errors
    ///
    /// What `read` returned.
    pub fn read<T: 'static>(
        &self,
        read: impl FnOnce(&dyn Sql) -> Result<T, StorageError> + 'static,
    ) -> Result<T, StorageError> {
        let slot: Rc<RefCell<Option<Result<T, StorageError>>>> = Rc::default();
        let result = slot.clone();
        let done = self.with(|database| {
            database.commit(vec![Box::new(move |transaction| {
                *slot.borrow_mut() = Some(read(transaction.sql()));
                // Undoing nothing would have statements prepared again.
                Ok(())
            })])
        });
        let result = result.borrow_mut().take();
        result.unwrap_or_else(|| {
            let problem = done
                .fatal
                .map_or_else(String::new, |fatal| fatal.to_string());
            Err(StorageError::Ended(problem))
        })
    }

    /// Runs closures in order and commits them together.
    pub(crate) fn commit(&self, work: Vec<Work>) -> Committed {
        let committed = self.with(|database| database.commit(work));
        self.0.commits.set(self.0.commits.get() + 1);
        if committed.fatal.is_some() {
            self.reopen();
        }
        for waiting in self.0.waiting.take() {
            let _ = waiting.send(());
        }
        committed
    }

    /// The committed alarm as one that went off now.
    pub(crate) fn fire_alarm(&self) -> FiredAlarm {
        self.with(Database::fire_alarm)
    }

    /// Removes the alarm that went off, unless it was set again since.
    pub(crate) fn settle_alarm(&self, fired: FiredAlarm) {
        let settle = self.with(|database| database.settle_alarm(fired));
        self.commit(vec![settle]);
    }

    /// Resolves after the next commit.
    pub(crate) fn next_commit(&self) -> oneshot::Receiver<()> {
        let (committed, next) = oneshot::channel();
        let mut waiting = self.0.waiting.borrow_mut();
        waiting.retain(|waiting| !waiting.is_canceled());
        waiting.push(committed);
        next
    }

    /// What is committed now, to be [restored](Self::restore) some day.
    ///
    /// # Errors
    ///
    /// What SQLite answers.
    pub fn copy(&self) -> Result<Vec<u8>, StorageError> {
        match &mut *self.0.database.borrow_mut() {
            Some(database) => database.image(),
            None => unreachable!("the database is put back before anybody else runs"),
        }
    }

    /// Puts a copy that was made before in the place of what is stored. No instance may live: one would
    /// go on with what it keeps in memory.
    ///
    /// # Errors
    ///
    /// What SQLite answers; then nothing is stored any more.
    pub fn restore(&self, copy: &[u8]) -> Result<(), StorageError> {
        let Some(database) = self.0.database.take() else {
            return Ok(());
        };
        let restored = database.restored(copy, &self.0.settings)?;
        *self.0.database.borrow_mut() = Some(restored);
        self.0.commits.set(self.0.commits.get() + 1);
        for waiting in self.0.waiting.take() {
            let _ = waiting.send(());
        }
        Ok(())
    }

    /// A database refuses to go on after a failed commit, since a disk might hold something else
    /// than it thinks. Here nothing is in doubt, so the next instance gets it as it was committed.
    fn reopen(&self) {
        let Some(database) = self.0.database.take() else {
            return;
        };
        match database.reopen(&self.0.settings) {
            Ok(database) => *self.0.database.borrow_mut() = Some(database),
            Err(error) => panic!("the database in memory cannot be opened again: {error}"),
        }
    }

    fn with<T>(&self, use_it: impl FnOnce(&Database) -> T) -> T {
        match &*self.0.database.borrow() {
            Some(database) => use_it(database),
            None => unreachable!("the database is put back before anybody else runs"),
        }
    }
}

type Done = oneshot::Sender<Result<(), StorageError>>;

/// The [`Host`] of one instance. Its tasks, timers and queued closures end with it.
pub struct VirtualHost {
    name: String,
    id: String,
    storage: VirtualStorage,
    group: Group,
    instance: Instance,
    queue: Rc<RefCell<Vec<(Work, Done)>>>,
}

impl VirtualHost {
    pub(crate) fn new(name: &str, id: &str, storage: VirtualStorage, group: Group) -> VirtualHost {
        let queue = Rc::<RefCell<Vec<(Work, Done)>>>::default();
        // Queued closures hold what queued them, which holds the host; they must go first.
        let abandoned = Rc::downgrade(&queue);
        group.on_end(move || {
            let queued = abandoned.upgrade().map(|queue| queue.take());
            drop(queued);
        });
        VirtualHost {
            name: name.to_owned(),
            id: id.to_owned(),
            storage,
            group,
            instance: Instance::default(),
            queue,
        }
    }
}

impl Host for VirtualHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn transact(&self, work: Work) -> LocalFuture<Result<(), StorageError>> {
        let (done, committed) = oneshot::channel();
        if self.group.has_ended() {
            drop(done);
        } else {
            self.queue.borrow_mut().push((work, done));
            if self.queue.borrow().len() == 1 {
                let flush = flush(self.queue.clone(), self.storage.clone(), self.group.clone());
                self.group.spawn_later(Box::pin(flush));
            }
        }
        let group = self.group.clone();
        Box::pin(async move {
            committed.await.unwrap_or_else(|oneshot::Canceled| {
                Err(StorageError::Ended(group.reason().unwrap_or_default()))
            })
        })
    }

    fn now(&self) -> Timestamp {
        self.group.now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        Box::pin(self.group.sleep(duration))
    }

    fn spawn(&self, task: LocalFuture<()>) {
        self.group.spawn(task);
    }

    fn random(&self, bytes: &mut [u8]) {
        self.group.fill_random(bytes);
    }

    fn instance(&self) -> &Instance {
        &self.instance
    }
}

/// Commits what is queued. It is first polled when nothing else is ready, so closures that were
/// handed in at one instant share a commit, as on the native host. Those that come while the disk
/// takes its time join it too.
async fn flush(queue: Rc<RefCell<Vec<(Work, Done)>>>, storage: VirtualStorage, group: Group) {
    let chaos = group.chaos();
    if let Some(takes) = chaos.as_ref().map(|chaos| chaos.commit_takes())
        && !takes.is_zero()
    {
        group.sleep(takes).await;
    }
    let queued = queue.take();
    let (work, waiting): (Vec<Work>, Vec<Done>) = queued.into_iter().unzip();
    if chaos.is_some_and(|chaos| chaos.commit_fails()) {
        let error = StorageError::Failed("the disk refused the commit".to_owned());
        for done in waiting {
            let _ = done.send(Err(error.clone()));
        }
        group.end(&error.to_string());
        return;
    }
    let committed = storage.commit(work);
    for (done, result) in waiting.into_iter().zip(committed.results) {
        let _ = done.send(result);
    }
    if let Some(fatal) = committed.fatal {
        group.end(&fatal.to_string());
    }
}
