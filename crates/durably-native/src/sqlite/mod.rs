//! An object's database, and the one place where its commits reach the disk.
//!
//! Decided here: how a batch of closures becomes one commit, what is undone when one of them fails,
//! and what ends an instance. Not decided here: which closures share a commit, and when; that is the
//! host's matter. Nothing in here knows threads or tokio.

mod counters;
mod errors;
mod file;
mod image;
mod rows;
mod settings;
mod setup;
mod transaction;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use durably::host::Work;
use durably::{StorageError, Timestamp};
use rusqlite::hooks::{AuthContext, Authorization};
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, OpenFlags, params};

pub use counters::{Counters, CountersSnapshot};
pub use rows::TableRows;
pub use settings::{Settings, Synchronous};
pub use setup::check_library;

use errors::storage_error;
use rows::RowCounter;
use setup::configure;
use transaction::{Kind, Open};

/// The host's own table: whose file this is, and the object's alarm. Its one row is written with the
/// object's first commit, so a file without it belongs to an object that never came to be.
const SCHEMA: &str = "
CREATE TABLE durability_object (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    class TEXT NOT NULL,
    name TEXT NOT NULL,
    alarm_at INTEGER
) STRICT;
";

/// Starts every statement of the host, so that the same words from an application are not taken
/// from the statement cache but are refused when they are compiled.
const HOST: &str = "/*host*/";

const BEGIN: &str = "/*host*/BEGIN IMMEDIATE";
const COMMIT: &str = "/*host*/COMMIT";
const ROLLBACK: &str = "/*host*/ROLLBACK";
const SAVEPOINT: &str = "/*host*/SAVEPOINT work";
const RELEASE: &str = "/*host*/RELEASE work";
const ROLLBACK_TO: &str = "/*host*/ROLLBACK TO work";
const INSERT_OBJECT: &str =
    "/*host*/INSERT INTO durability_object (id, class, name, alarm_at) VALUES (0, ?1, ?2, ?3)";
const SCHEMA_VERSION: &str = "/*host*/PRAGMA schema_version";
const UPDATE_ALARM: &str = "/*host*/UPDATE durability_object SET alarm_at = ?1 WHERE id = 0";

/// The database of one instance of an object. There is exactly one per file.
pub struct Database {
    connection: Connection,
    path: Option<PathBuf>,
    class: String,
    name: String,
    checkpoint_pages: u32,
    /// Lets a statement of the host through the authorizer.
    host_speaks: Arc<AtomicBool>,
    /// Pages in the write-ahead log after the last commit that wrote to it.
    wal_pages: Arc<AtomicU32>,
    /// Whether the object's row exists.
    created: Cell<bool>,
    committed: Cell<Alarm>,
    staged: Rc<Cell<Alarm>>,
    /// Something is to be committed.
    changed: Cell<bool>,
    /// Something was written in this transaction, be it undone since.
    touched: Cell<bool>,
    /// SQLite has undone the whole transaction by itself, for this reason.
    undone: RefCell<Option<StorageError>>,
    ended: RefCell<Option<StorageError>>,
    before_first_write: RefCell<Option<BeforeWrite>>,
    counters: Option<Arc<Counters>>,
    done: Cell<CountersSnapshot>,
    rows: Option<RowCounter>,
    /// The triggers that count rows are as the schema wants them.
    watching: Cell<bool>,
}

type BeforeWrite = Box<dyn FnOnce() -> Result<(), StorageError>>;

/// The alarm, and which setting of it this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Alarm {
    at: Option<Timestamp>,
    setting: u64,
}

/// An alarm that went off: the one setting of it that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiredAlarm(Alarm);

/// What became of a batch.
#[derive(Debug)]
pub struct Committed {
    /// For each closure in order: `Ok` if it took part in a durable commit or was undone as it had
    /// asked.
    pub results: Vec<Result<(), StorageError>>,
    /// Set if the instance must end: its memory may be ahead of what is stored.
    pub fatal: Option<Fatal>,
}

/// Why an instance must end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fatal {
    /// The transaction could not be begun, kept or committed.
    #[error(transparent)]
    Storage(StorageError),
    /// A closure, or a hook that followed it, panicked.
    #[error("a transaction panicked: {0}")]
    Panicked(String),
}

impl Fatal {
    fn error(&self) -> StorageError {
        match self {
            Fatal::Storage(error) => error.clone(),
            Fatal::Panicked(_) => StorageError::Ended(self.to_string()),
        }
    }
}

impl Database {
    /// A database in memory for the object `name` of `class`, gone when it is dropped.
    ///
    /// # Errors
    ///
    /// What SQLite answers.
    pub fn in_memory(
        class: &str,
        name: &str,
        settings: &Settings,
    ) -> Result<Database, StorageError> {
        let connection = Connection::open_in_memory_with_flags(
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .and_then(|connection| {
            connection.execute_batch("PRAGMA page_size = 4096")?;
            connection.execute_batch(SCHEMA)?;
            Ok(connection)
        })
        .map_err(storage_error)?;
        Database::set_up(connection, None, class, name, settings)
    }

    /// The database in the file at `path`, which is created if there is none, for the object `name`
    /// of `class`.
    ///
    /// # Errors
    ///
    /// [`StorageError::Damaged`] if the file is not a database or another object's,
    /// [`StorageError::Locked`] if somebody else has it open, and what SQLite answers.
    pub fn open(
        path: &Path,
        class: &str,
        name: &str,
        settings: &Settings,
    ) -> Result<Database, StorageError> {
        file::create(path)?;
        Database::open_file(path, class, name, settings).map_err(|error| {
            let place = |text: String| format!("{}: {text}", path.display());
            match error {
                StorageError::Damaged(text) => StorageError::Damaged(place(text)),
                StorageError::Locked(text) => StorageError::Locked(place(text)),
                StorageError::Failed(text) => StorageError::Failed(place(text)),
                other => other,
            }
        })
    }

    fn open_file(
        path: &Path,
        class: &str,
        name: &str,
        settings: &Settings,
    ) -> Result<Database, StorageError> {
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .map_err(storage_error)?;
        let synchronous = match settings.synchronous {
            Synchronous::Full => "FULL",
            Synchronous::Normal => "NORMAL",
        };
        // The locking mode comes before the first access, so that the log's index needs no shared
        // memory; waiting for a lock would block every object of the thread.
        connection
            .busy_timeout(Duration::ZERO)
            .and_then(|()| {
                connection.execute_batch(&format!(
                    "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = {synchronous};"
                ))
            })
            .map_err(storage_error)?;
        Database::set_up(connection, Some(path.to_owned()), class, name, settings)
    }

    /// The same database for the next instance, after this one has ended: one in memory has no file
    /// that could be opened again.
    ///
    /// # Errors
    ///
    /// What SQLite answers.
    pub fn reopen(mut self, settings: &Settings) -> Result<Database, StorageError> {
        // It would refuse the settings that follow.
        self.connection
            .authorizer(None::<fn(AuthContext<'_>) -> Authorization>)
            .map_err(storage_error)?;
        Database::set_up(
            self.connection,
            self.path,
            &self.class,
            &self.name,
            settings,
        )
    }

    fn set_up(
        mut connection: Connection,
        path: Option<PathBuf>,
        class: &str,
        name: &str,
        settings: &Settings,
    ) -> Result<Database, StorageError> {
        let host_speaks = Arc::new(AtomicBool::new(false));
        let wal_pages = Arc::new(AtomicU32::new(0));
        let stored = configure(&mut connection, settings, &host_speaks, &wal_pages)
            .map_err(storage_error)?
            .map_err(StorageError::Damaged)?;
        let counts_rows = settings
            .counters
            .as_ref()
            .is_some_and(|counters| counters.counts_rows());
        let rows = counts_rows
            .then(|| RowCounter::new(&connection))
            .transpose()
            .map_err(storage_error)?;
        let mut alarm = Alarm::default();
        if let Some((stored_class, stored_name, alarm_at)) = &stored {
            if stored_class != class || stored_name != name {
                return Err(StorageError::Damaged(format!(
                    "it is the file of {stored_class} {stored_name:?}"
                )));
            }
            alarm.at = alarm_at.map(Timestamp::from_sql);
        }
        Ok(Database {
            connection,
            path,
            class: class.to_owned(),
            name: name.to_owned(),
            checkpoint_pages: settings.checkpoint_pages,
            host_speaks,
            wal_pages,
            created: Cell::new(stored.is_some()),
            committed: Cell::new(alarm),
            staged: Rc::new(Cell::new(alarm)),
            changed: Cell::new(false),
            touched: Cell::new(false),
            undone: RefCell::new(None),
            ended: RefCell::new(None),
            before_first_write: RefCell::new(None),
            counters: settings.counters.clone(),
            done: Cell::default(),
            rows,
            watching: Cell::new(false),
        })
    }

    /// The alarm as it is committed.
    pub fn alarm(&self) -> Option<Timestamp> {
        self.committed.get().at
    }

    /// The committed alarm as one that went off now, for [`settle_alarm`](Self::settle_alarm).
    pub fn fire_alarm(&self) -> FiredAlarm {
        FiredAlarm(self.committed.get())
    }

    /// A closure that removes the alarm that went off, unless somebody has set it since, be it to
    /// the same time. To be committed when the handler has succeeded.
    pub fn settle_alarm(&self, fired: FiredAlarm) -> Work {
        let staged = self.staged.clone();
        Box::new(move |transaction| {
            if staged.get() != fired.0 {
                return Ok(());
            }
            // It touches no row, so it fails only where the whole commit does.
            transaction
                .set_alarm(None)
                .map_err(|_| durably::host::RolledBack)
        })
    }

    /// Whether anything of the object was ever committed.
    pub fn is_created(&self) -> bool {
        self.created.get()
    }

    /// Has `check` run once, before the first commit from now on that writes; if it fails, so does
    /// that commit.
    pub fn before_first_write(&self, check: impl FnOnce() -> Result<(), StorageError> + 'static) {
        *self.before_first_write.borrow_mut() = Some(Box::new(check));
    }

    /// Runs a batch of closures in order in one transaction and commits it.
    ///
    /// A closure that asks to be undone takes only its own changes and its own alarm with it. What a
    /// closure gave to `on_release` runs when its changes can no longer be undone alone, before the
    /// next closure. When this returns the commit is durable, or `fatal` is set and nothing of the
    /// batch is stored, as far as can be known. A batch that wrote nothing does not wait for the disk.
    pub fn commit(&self, batch: Vec<Work>) -> Committed {
        let closures = batch.len();
        if let Some(error) = &*self.ended.borrow() {
            let error = StorageError::Ended(error.to_string());
            return Committed {
                results: vec![Err(error.clone()); closures],
                fatal: Some(Fatal::Storage(error)),
            };
        }
        self.count(|done| done.transactions += closures as u64);
        let outcome = self.run(batch);
        if let Some(counters) = &self.counters {
            counters.add(self.done.take());
            if let Some(rows) = &self.rows {
                counters.add_rows(rows.take());
            }
        }
        match outcome {
            Ok(()) => Committed {
                results: vec![Ok(()); closures],
                fatal: None,
            },
            Err(fatal) => {
                if !self.connection.is_autocommit() {
                    self.watching.set(false);
                    // If even this fails, closing the connection undoes what is left.
                    let _ = self.control(ROLLBACK);
                }
                let error = fatal.error();
                *self.ended.borrow_mut() = Some(error.clone());
                Committed {
                    results: vec![Err(error); closures],
                    fatal: Some(fatal),
                }
            }
        }
    }

    /// Whether the write-ahead log has grown so far that [`checkpoint`](Self::checkpoint) is wanted.
    pub fn wants_checkpoint(&self) -> bool {
        self.wal_pages.load(Relaxed) >= self.checkpoint_pages
    }

    /// Moves the write-ahead log into the database, so that the log starts over with the next
    /// commit. It keeps its length: overwriting is twice as fast as appending.
    ///
    /// # Errors
    ///
    /// What SQLite answers; nothing is lost then and a later one does the same.
    pub fn checkpoint(&self) -> Result<(), StorageError> {
        self.wal_pages.store(0, Relaxed);
        self.connection
            .wal_checkpoint_v2(Some(rusqlite::MAIN_DB), CheckpointMode::PASSIVE)
            .map(|_| ())
            .map_err(storage_error)
    }

    /// Closes the database, after a checkpoint. The file of an object that never came to be is
    /// removed.
    ///
    /// # Errors
    ///
    /// What SQLite or the file system answers; everything committed is safe nevertheless.
    pub fn close(self) -> Result<(), StorageError> {
        self.connection
            .close()
            .map_err(|(_, error)| storage_error(error))?;
        match self.path {
            Some(path) if !self.created.get() => {
                std::fs::remove_file(&path).map_err(|error| errors::file_error(&error, &path))
            }
            _ => Ok(()),
        }
    }

    fn run(&self, batch: Vec<Work>) -> Result<(), Fatal> {
        // One closure alone is undone with its transaction and needs no savepoint.
        let alone = batch.len() == 1;
        let mut released = false;
        self.begin()?;
        for work in batch {
            let before = (self.staged.get(), self.changed.get());
            if !alone {
                self.control(SAVEPOINT)?;
            }
            let open = Open {
                database: self,
                hooks: RefCell::default(),
            };
            let answer = protect(|| work(&open))?;
            let undone = self.undone.borrow().clone();
            match (answer, undone) {
                (Ok(()), None) => {
                    if !alone {
                        self.control(RELEASE)?;
                    }
                    released = true;
                    let hooks = open.hooks.take();
                    protect(|| hooks.into_iter().for_each(|apply| apply()))?;
                }
                (Err(_), None) => {
                    // The triggers may have been made meanwhile.
                    self.watching.set(false);
                    if !alone {
                        self.control(ROLLBACK_TO)?;
                        self.control(RELEASE)?;
                    }
                    self.staged.set(before.0);
                    self.changed.set(before.1);
                }
                // SQLite undid all closures. If memory follows none of them yet, the failed one
                // alone is lost and the others start over.
                (Err(_), Some(_)) if !released => {
                    self.watching.set(false);
                    self.staged.set(before.0);
                    self.begin()?;
                }
                (_, Some(error)) => return Err(Fatal::Storage(error)),
            }
        }
        self.end()
    }

    fn begin(&self) -> Result<(), Fatal> {
        self.changed.set(false);
        self.touched.set(false);
        *self.undone.borrow_mut() = None;
        self.control(BEGIN)
    }

    fn end(&self) -> Result<(), Fatal> {
        let staged = self.staged.get();
        let changed = self.changed.get() || staged.at != self.committed.get().at;
        if !changed {
            // What was undone has left its pages behind, which a commit would write.
            let how = if self.touched.get() { ROLLBACK } else { COMMIT };
            self.control(how)?;
            if how == ROLLBACK {
                self.watching.set(false);
            }
            self.committed.set(staged);
            return Ok(());
        }
        let pages_before = self.wal_pages.swap(0, Relaxed);
        self.store_object(staged.at)
            .and_then(|()| match self.before_first_write.take() {
                Some(check) => check(),
                None => Ok(()),
            })
            .map_err(Fatal::Storage)?;
        self.control(COMMIT)?;
        let wrote = self.path.is_none() || self.wal_pages.load(Relaxed) > 0;
        if wrote {
            self.count(|done| done.flushes += 1);
        } else {
            self.wal_pages.store(pages_before, Relaxed);
        }
        self.created.set(true);
        self.committed.set(staged);
        Ok(())
    }

    /// Writes the object's row if it has none, or else its alarm if that has changed: once per
    /// commit, however often it was set.
    fn store_object(&self, alarm: Option<Timestamp>) -> Result<(), StorageError> {
        let alarm_at = alarm.map(Timestamp::as_sql);
        self.watch_rows()?;
        if !self.created.get() {
            self.speak(INSERT_OBJECT, params![self.class, self.name, alarm_at])?;
        } else if alarm != self.committed.get().at {
            self.speak(UPDATE_ALARM, params![alarm_at])?;
        } else {
            return Ok(());
        }
        self.count(|done| done.statements += 1);
        Ok(())
    }

    fn control(&self, statement: &'static str) -> Result<(), Fatal> {
        self.speak(statement, []).map_err(Fatal::Storage)
    }

    fn speak(
        &self,
        statement: &'static str,
        parameters: impl rusqlite::Params,
    ) -> Result<(), StorageError> {
        self.speaking(|| {
            let mut statement = self.connection.prepare_cached(statement)?;
            statement.execute(parameters).map(|_| ())
        })
    }

    /// Runs statements of the host.
    fn speaking<T>(&self, run: impl FnOnce() -> rusqlite::Result<T>) -> Result<T, StorageError> {
        self.host_speaks.store(true, Relaxed);
        let outcome = run();
        self.host_speaks.store(false, Relaxed);
        outcome.map_err(storage_error)
    }

    /// The version of the schema, for statements that may change it; 0 for others.
    fn schema_version(&self, kind: Kind) -> Result<i64, StorageError> {
        if kind != Kind::Schema {
            return Ok(0);
        }
        self.speaking(|| {
            let mut statement = self.connection.prepare_cached(SCHEMA_VERSION)?;
            statement.query_row([], |row| row.get(0))
        })
    }

    fn stage_alarm(&self, at: Option<Timestamp>) {
        let setting = self.staged.get().setting + 1;
        self.staged.set(Alarm { at, setting });
    }

    /// Has the rows counted that statements write from here on, if they are to be counted at all.
    fn watch_rows(&self) -> Result<(), StorageError> {
        match &self.rows {
            Some(rows) if !self.watching.get() => {
                self.speaking(|| rows.watch(&self.connection))?;
                self.watching.set(true);
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes way for a statement that may change the schema.
    fn unwatch_rows(&self) -> Result<(), StorageError> {
        if self.watching.replace(false) {
            self.speaking(|| rows::unwatch(&self.connection))?;
        }
        Ok(())
    }

    /// Takes note of a statement that ran and changed so many rows.
    fn stepped(&self, changed: u64, other_change: bool) {
        if changed > 0 || other_change {
            self.changed.set(true);
            self.touched.set(true);
        }
        self.count(|done| done.statements += 1);
    }

    fn count(&self, add: impl FnOnce(&mut CountersSnapshot)) {
        if self.counters.is_some() {
            let mut done = self.done.get();
            add(&mut done);
            self.done.set(done);
        }
    }
}

/// Runs code of the application and turns a panic into what ends the instance.
fn protect<T>(run: impl FnOnce() -> T) -> Result<T, Fatal> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| Fatal::Panicked(panic_text(&*panic)))
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}
