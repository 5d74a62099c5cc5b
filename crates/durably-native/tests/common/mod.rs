//! What the tests of the native host share: an object that keeps notes, and a system full of them.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::{StorageError, Timestamp};
use durably_native::{ObjectHandle, System, SystemBuilder, SystemConfig};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// What notes tell of their life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An instance was built.
    Opened(String),
    /// An instance was dropped, memory and all.
    Dropped(String),
    /// The alarm was handled; the highest note that it saw.
    Alarm(String, i64),
}

/// How the alarm handlers of a system behave.
#[derive(Default)]
pub struct Plan {
    /// So many alarms fail first.
    pub failures: AtomicU32,
    /// So many alarms panic first.
    pub panics: AtomicU32,
}

/// An object that keeps notes; its alarm marks them as handled.
pub struct Notes {
    pub host: Rc<dyn Host>,
    events: mpsc::UnboundedSender<Event>,
    plan: Arc<Plan>,
    /// Set by a test to make the instance leak.
    pub own: RefCell<Option<Rc<Notes>>>,
}

impl Notes {
    async fn open(
        host: Rc<dyn Host>,
        events: mpsc::UnboundedSender<Event>,
        plan: Arc<Plan>,
    ) -> Result<Rc<Notes>, BoxError> {
        host.transaction(|transaction| {
            transaction.script(
                "CREATE TABLE IF NOT EXISTS notes (
                     number INTEGER PRIMARY KEY,
                     text TEXT NOT NULL,
                     handled INTEGER NOT NULL DEFAULT 0
                 ) STRICT;",
            )
        })
        .await?;
        let _ = events.send(Event::Opened(host.name().to_owned()));
        Ok(Rc::new(Notes {
            host,
            events,
            plan,
            own: RefCell::new(None),
        }))
    }

    /// Writes a note and, with it, sets the alarm.
    pub async fn write(&self, text: String, alarm: Option<Timestamp>) -> Result<i64, StorageError> {
        self.host
            .transaction(move |transaction| {
                transaction.execute("INSERT INTO notes (text) VALUES (?1)", &[(&text).into()])?;
                if alarm.is_some() {
                    transaction.set_alarm(alarm)?;
                }
                let number =
                    transaction
                        .sql()
                        .first("SELECT max(number) FROM notes", &[], |row| row.integer(0))?;
                Ok(number.unwrap_or_default())
            })
            .await
    }

    /// All notes, and which of them are handled.
    pub async fn read(&self) -> Result<Vec<(String, bool)>, StorageError> {
        self.host
            .transaction(|transaction| {
                transaction.sql().all(
                    "SELECT text, handled FROM notes ORDER BY number",
                    &[],
                    |row| Ok((row.string(0)?, row.integer(1)? != 0)),
                )
            })
            .await
    }

    /// The time so many milliseconds from now.
    pub fn in_millis(&self, millis: u64) -> Timestamp {
        self.host.now() + Duration::from_millis(millis)
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let _ = self
            .events
            .send(Event::Dropped(self.host.name().to_owned()));
    }
}

impl Object for Notes {
    const CLASS: &'static str = "Notes";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move {
            let one_less = |left: u32| left.checked_sub(1);
            if self
                .plan
                .failures
                .fetch_update(SeqCst, SeqCst, one_less)
                .is_ok()
            {
                return Err("on purpose".into());
            }
            if self
                .plan
                .panics
                .fetch_update(SeqCst, SeqCst, one_less)
                .is_ok()
            {
                panic!("on purpose");
            }
            let highest = self
                .host
                .transaction(|transaction| {
                    transaction.execute("UPDATE notes SET handled = 1 WHERE handled = 0", &[])?;
                    let highest =
                        transaction
                            .sql()
                            .first("SELECT max(number) FROM notes", &[], |row| row.integer(0))?;
                    Ok::<_, StorageError>(highest.unwrap_or_default())
                })
                .await?;
            let name = self.host.name().to_owned();
            let _ = self.events.send(Event::Alarm(name, highest));
            Ok(())
        })
    }
}

/// A data folder, and systems opened on it one after the other.
pub struct Fixture {
    folder: TempDir,
    pub config: SystemConfig,
    pub plan: Arc<Plan>,
    events: mpsc::UnboundedSender<Event>,
    heard: mpsc::UnboundedReceiver<Event>,
}

impl Fixture {
    pub fn new() -> Self {
        Fixture::on(TempDir::new().expect("a folder"))
    }

    /// On a file system in memory if there is one, for tests of numbers rather than of the disk.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = TempDir::new_in(memory).or_else(|_| TempDir::new());
        Fixture::on(folder.expect("a folder"))
    }

    fn on(folder: TempDir) -> Self {
        let (events, heard) = mpsc::unbounded_channel();
        let mut config = SystemConfig::default();
        config.threads = 4;
        // So long that nothing hibernates unless a test wants it to.
        config.idle_timeout = Duration::from_secs(3_600);
        Fixture {
            folder,
            config,
            plan: Arc::default(),
            events,
            heard,
        }
    }

    pub fn data(&self) -> &Path {
        self.folder.path()
    }

    pub fn builder(&self) -> SystemBuilder {
        builder(
            self.data(),
            self.config.clone(),
            self.events.clone(),
            self.plan.clone(),
        )
    }

    pub fn open(&self) -> System {
        self.builder().open().expect("the system opens")
    }

    /// The next event; the test fails if none comes for a minute.
    pub async fn event(&mut self) -> Event {
        next_event(&mut self.heard).await
    }

    /// Waits for one event and forgets those before it.
    pub async fn wait_for(&mut self, wanted: Event) {
        while self.event().await != wanted {}
    }

    /// What has happened and was not looked at yet.
    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.heard.try_recv().ok()).collect()
    }

    /// The files of all objects.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![self.data().join("objects")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push(path);
                }
            }
        }
        files.sort();
        files
    }

    /// The file of the object of that name, which must be plain.
    pub fn file(&self, name: &str) -> PathBuf {
        let start = format!("{name}-");
        self.files()
            .into_iter()
            .find(|path| {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                file.starts_with(&start) && file.ends_with(".sqlite")
            })
            .expect("the object has a file")
    }

    /// How many names the journal holds as active, and how many with alarms. The system is closed.
    pub fn journal(&self) -> (i64, i64) {
        let journal = rusqlite::Connection::open(self.data().join("journal.sqlite"))
            .expect("the journal opens");
        journal
            .query_row(
                "SELECT count(*) FILTER (WHERE active = 1), count(alarm_at) FROM durability_system",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .expect("the journal is readable")
    }
}

pub fn builder(
    data: &Path,
    config: SystemConfig,
    events: mpsc::UnboundedSender<Event>,
    plan: Arc<Plan>,
) -> SystemBuilder {
    System::builder(data)
        .config(config)
        .class::<Notes>(move |host| Box::pin(Notes::open(host, events.clone(), plan.clone())))
}

pub async fn next_event(heard: &mut mpsc::UnboundedReceiver<Event>) -> Event {
    tokio::time::timeout(Duration::from_secs(60), heard.recv())
        .await
        .expect("something happens within a minute")
        .expect("the fixture keeps a sender")
}

/// Waits until something holds that no event tells of.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited for a minute: {what}");
}

/// Shorthands for calls that must succeed.
pub trait Call {
    fn write(&self, text: &str) -> impl Future<Output = ()>;
    fn write_with_alarm(&self, text: &str, millis: u64) -> impl Future<Output = ()>;
    fn read(&self) -> impl Future<Output = Vec<(String, bool)>>;
    fn texts(&self) -> impl Future<Output = Vec<String>>;
}

impl Call for ObjectHandle<Notes> {
    async fn write(&self, text: &str) {
        let text = text.to_owned();
        self.call(|notes| async move { notes.write(text, None).await })
            .await
            .expect("the call is answered")
            .expect("the note is written");
    }

    async fn write_with_alarm(&self, text: &str, millis: u64) {
        let text = text.to_owned();
        self.call(move |notes| async move {
            let alarm = notes.in_millis(millis);
            notes.write(text, Some(alarm)).await
        })
        .await
        .expect("the call is answered")
        .expect("the note is written");
    }

    async fn read(&self) -> Vec<(String, bool)> {
        self.call(|notes| async move { notes.read().await })
            .await
            .expect("the call is answered")
            .expect("the notes are readable")
    }

    async fn texts(&self) -> Vec<String> {
        self.read()
            .await
            .into_iter()
            .map(|(text, _)| text)
            .collect()
    }
}
