//! A folder of files as a store of topology snapshots, for coordinators and readers of one machine or
//! of one network file system.
//!
//! Decided here: that a text appears under its name only when it is whole and on disk, and that
//! nothing older replaces it. Below the folder are 256 others, each with the files of its groups, a file
//! `lock`, and `writing`, which is what a text is called until it is whole. Whoever writes holds the
//! lock of the group's folder, reads what is stored, decides, and renames: so processes that publish
//! into one folder decide one after the other. A lock is let go when its process dies; what it left in
//! `writing` the next one overwrites. Readers need no lock, since renaming replaces a file at once.
//!
//! Blocking calls run on tokio's threads for those; no thread waits for another process's lock, which may
//! be held for long by one that is frozen.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{Edition, Landing, Place, Publication, Publisher, Source, Verdict};
use futures::future::{BoxFuture, ErrInto, FutureExt, TryFutureExt};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

/// How long a call waits before it tries another process's lock again, at first and at most.
const LOCK_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Publishes into a folder, one file a group; version-aware, also between processes that publish into
/// the same folder. Clones share their turns.
///
/// What is published is on disk when the call ends. The tombstones of deleted groups stay, a small
/// file each.
///
/// It needs a tokio runtime with time, as objects of this host have.
///
/// ```
/// use durably_native::publishers::{FolderPublisher, FolderReader};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let folder = directory.path().join("topology");
/// let publisher = FolderPublisher::open(&folder)?;
/// # drop(publisher);
/// // In this process or another one:
/// let reader = FolderReader::new(&folder);
/// assert_eq!(reader.read("tenant-1").await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FolderPublisher {
    folder: Arc<Path>,
    /// Whose turn it is in each folder, among this publisher's calls.
    turns: Arc<[Arc<Mutex<()>>]>,
}

impl FolderPublisher {
    /// Opens the folder, creating it if need be. This blocks for a moment.
    ///
    /// # Errors
    ///
    /// [`FolderError::Folder`] if it cannot be created, written or locked.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, FolderError> {
        let folder = folder.into();
        prepare(&folder).map_err(|source| FolderError::Folder {
            folder: folder.clone(),
            source,
        })?;
        Ok(FolderPublisher {
            folder: folder.into(),
            turns: (0..Place::FOLDERS).map(|_| Arc::default()).collect(),
        })
    }

    /// A reader of the same folder.
    pub fn reader(&self) -> FolderReader {
        FolderReader {
            folder: self.folder.clone(),
        }
    }

    async fn carry_out(self, order: Order) -> Result<Landing, FolderError> {
        let order = Arc::new(order);
        let turn = self.turns[order.place.folder_number()].clone();
        // It goes along to the other thread, so that a call that nobody waits for keeps it to its end.
        let mut turn = turn.lock_owned().await;
        let mut pause = LOCK_PAUSE.0;
        loop {
            let (attempt, folder) = (order.clone(), self.folder.clone());
            let (ended, same_turn) = aside(move || (attempt.carry_out(&folder), turn)).await?;
            if let Some(landing) = ended? {
                return Ok(landing);
            }
            turn = same_turn;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOCK_PAUSE.1);
        }
    }
}

impl Publisher for FolderPublisher {
    fn is_version_aware(&self) -> bool {
        true
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let publisher = self.clone();
        Box::pin(async move {
            let order = Order::of(&publication);
            Ok(publisher.carry_out(order).await?)
        })
    }
}

/// Reads what a [`FolderPublisher`] has published into a folder, for instance for a
/// [`TopologyReader`](durably::topology::TopologyReader). It needs no right to write there.
#[derive(Clone, Debug)]
pub struct FolderReader {
    folder: Arc<Path>,
}

impl FolderReader {
    /// A reader of a folder. Nothing is read yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        FolderReader {
            folder: folder.into().into(),
        }
    }

    /// The published text of a group, tombstones included; none if nothing was published. It needs a
    /// tokio runtime.
    ///
    /// # Errors
    ///
    /// [`FolderError`] if the file cannot be read, and if nobody ever published into this folder: one
    /// that is gone, or not mounted, is not one without groups.
    pub fn read(&self, group: &str) -> BoxFuture<'static, Result<Option<Vec<u8>>, FolderError>> {
        let place = Place::of(group);
        let folder = self.folder.clone();
        async move {
            aside(move || {
                let folder = folder.join(Place::folder_name(place.folder_number()));
                let path = folder.join(place.file());
                let read = read_if_there(&path).and_then(|text| match text {
                    None => fs::metadata(&folder).map(|_| None),
                    some => Ok(some),
                });
                read.map_err(|source| FolderError::Read { path, source })
            })
            .await?
        }
        .boxed()
    }
}

impl Source for FolderReader {
    type Text = Vec<u8>;
    type Read = ErrInto<BoxFuture<'static, Result<Option<Vec<u8>>, FolderError>>, BoxError>;

    fn read(&self, group: &str) -> Self::Read {
        FolderReader::read(self, group).err_into()
    }
}

/// What goes wrong with a folder of published groups.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The folder cannot be used.
    #[error(
        "the folder {} cannot be published into: {source}; it must be writable and allow locks",
        folder.display()
    )]
    Folder {
        /// The folder as it was given.
        folder: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A group could not be published. It may be stored all the same, if only the last step failed,
    /// which is to have the new name on disk.
    #[error("{} cannot be published: {source}", path.display())]
    Write {
        /// The group's file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A group could not be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The group's file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// There is no tokio runtime here.
    #[error("a folder of published groups needs a tokio runtime, and this is none of its threads")]
    NoRuntime,
    /// The runtime ended first.
    #[error("the runtime ended before the folder was read or written")]
    Ended,
}

impl FolderError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            FolderError::Folder { .. } => "publisher_folder_unusable",
            FolderError::Write { .. } => "publisher_folder_write",
            FolderError::Read { .. } => "publisher_folder_read",
            FolderError::NoRuntime => "publisher_no_runtime",
            FolderError::Ended => "publisher_ended",
        }
    }
}

/// What is to be published, without what only an object's thread may have.
struct Order {
    place: Place,
    group: String,
    edition: Edition,
    text: String,
}

impl Order {
    fn of(publication: &Publication) -> Self {
        Order {
            place: Place::of(publication.group()),
            group: publication.group().to_owned(),
            edition: publication.edition().clone(),
            text: publication.text().to_owned(),
        }
    }

    /// Publishes; `None` while another process has the lock.
    fn carry_out(&self, folder: &Path) -> Result<Option<Landing>, FolderError> {
        let folder = folder.join(Place::folder_name(self.place.folder_number()));
        let path = folder.join(self.place.file());
        self.carry_out_at(&folder, &path)
            .map_err(|source| FolderError::Write { path, source })
    }

    fn carry_out_at(&self, folder: &Path, path: &Path) -> io::Result<Option<Landing>> {
        let Some(_lock) = try_lock(folder)? else {
            return Ok(None);
        };
        let stored = read_if_there(path)?;
        match Verdict::of(&self.group, &self.edition, &self.text, stored.as_deref()) {
            Verdict::Superseded(by) => return Ok(Some(Landing::Superseded(by))),
            // Whoever renamed it may have died before its name was on disk.
            Verdict::Stored => {}
            Verdict::Write => replace(folder, path, self.text.as_bytes())?,
        }
        sync(folder)?;
        Ok(Some(Landing::Stored))
    }
}

/// Gives a file its new content, which is on disk before it has the file's name. The caller holds the
/// lock of the folder.
fn replace(folder: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let unfinished = folder.join("writing");
    let written = File::create(&unfinished)
        .and_then(|mut file| {
            file.write_all(text)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // On a full disk it would only be in the way. If it stays, the next one overwrites it.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The lock of a folder, held for as long as the file lives; none while somebody else holds it.
fn try_lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Creates what is missing and tries what publishing will need.
fn prepare(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for number in 0..Place::FOLDERS {
        let folder = folder.join(Place::folder_name(number));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    sync(folder)?;
    // So that the folder itself is found again; what is above it was there before, or is not ours to read.
    if let Some(above) = fs::canonicalize(folder)?.parent() {
        let _ = sync(above);
    }
    try_lock(&folder.join(Place::folder_name(0)))?;
    Ok(())
}

/// Has the names in a folder on disk.
#[cfg(unix)]
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Elsewhere a folder cannot be opened like a file, and its names follow the files.
#[cfg(not(unix))]
fn sync(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Runs what blocks on a thread for that.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FolderError> {
    let runtime = Handle::try_current().map_err(|_| FolderError::NoRuntime)?;
    runtime
        .spawn_blocking(work)
        .await
        .map_err(|_| FolderError::Ended)
}
