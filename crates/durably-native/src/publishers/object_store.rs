//! A bucket as a store of topology snapshots, over the crate `object_store`.
//!
//! Its conditional writes are used as `durably` decides, see [`ConditionalText`]. Decided here: that a
//! store is tried before it is used, since one may accept conditions and not keep to them.

use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{
    ConditionalText, Conditionally, Landing, Place, Publication, Publisher, Refused, Source,
};
use futures::future::{BoxFuture, ErrInto, FutureExt, TryFutureExt};
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion,
};

/// The object that a store is tried with.
const PROBE: &str = "probe";

/// Publishes into a bucket, one object a group; version-aware.
///
/// The store may be any that has conditional writes: S3 and what speaks like it, R2, Google Cloud
/// Storage, Azure, or the one in memory. How to reach it, and how long to wait and to repeat, is set
/// when it is built; the coordinator's attempt time-out ends what takes longer.
///
/// The tombstones of deleted groups stay, a small object each.
///
/// ```
/// use std::sync::Arc;
///
/// use durably_native::publishers::{ObjectStorePublisher, ObjectStoreReader};
/// use object_store::ObjectStore;
/// use object_store::memory::InMemory;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
/// let publisher = ObjectStorePublisher::open(store.clone(), "topology").await?;
/// # drop(publisher);
/// // In another process:
/// let reader = ObjectStoreReader::new(store, "topology");
/// assert_eq!(reader.read("tenant-1").await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ObjectStorePublisher {
    bucket: Bucket,
}

impl ObjectStorePublisher {
    /// Tries whether the store keeps to conditions, and will publish below `prefix`. The trial writes
    /// one small object there, called `probe`.
    ///
    /// # Errors
    ///
    /// [`ObjectStoreError::NoConditions`] of a store without conditional writes, such as that of local
    /// files, and what else goes wrong with the trial.
    pub async fn open(
        store: Arc<dyn ObjectStore>,
        prefix: impl Into<Path>,
    ) -> Result<Self, ObjectStoreError> {
        let prefix = prefix.into();
        let bucket = Bucket { store, prefix };
        bucket.probe().await?;
        Ok(ObjectStorePublisher { bucket })
    }

    /// A reader of the same store.
    pub fn reader(&self) -> ObjectStoreReader {
        ObjectStoreReader {
            bucket: self.bucket.clone(),
        }
    }
}

impl Publisher for ObjectStorePublisher {
    fn is_version_aware(&self) -> bool {
        true
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let bucket = self.bucket.clone();
        Box::pin(async move { Ok(bucket.publish(&publication).await?) })
    }
}

/// Reads what an [`ObjectStorePublisher`] has published, for instance for a
/// [`TopologyReader`](durably::topology::TopologyReader). It needs no right to write.
#[derive(Clone, Debug)]
pub struct ObjectStoreReader {
    bucket: Bucket,
}

impl ObjectStoreReader {
    /// A reader of what is published below `prefix`. Nothing is read yet.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: impl Into<Path>) -> Self {
        let prefix = prefix.into();
        ObjectStoreReader {
            bucket: Bucket { store, prefix },
        }
    }

    /// The published text of a group, tombstones included; none if nothing was published.
    ///
    /// # Errors
    ///
    /// [`ObjectStoreError::Store`]: what the store answers.
    pub fn read(
        &self,
        group: &str,
    ) -> BoxFuture<'static, Result<Option<Vec<u8>>, ObjectStoreError>> {
        let bucket = self.bucket.clone();
        let path = bucket.path(group);
        async move {
            let stored = bucket.get(&path).await?;
            Ok(stored.map(|(text, _)| text))
        }
        .boxed()
    }
}

impl Source for ObjectStoreReader {
    type Text = Vec<u8>;
    type Read = ErrInto<BoxFuture<'static, Result<Option<Vec<u8>>, ObjectStoreError>>, BoxError>;

    fn read(&self, group: &str) -> Self::Read {
        ObjectStoreReader::read(self, group).err_into()
    }
}

/// What goes wrong with a store of published groups.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectStoreError {
    /// The store has no conditional writes, or they are switched off.
    #[error(
        "{store} has no conditional writes, so an older snapshot could replace a newer one: use a \
         store that has them, or for local files a FolderPublisher ({source})"
    )]
    NoConditions {
        /// The store's name of itself.
        store: String,
        /// What it answered.
        source: StoreError,
    },
    /// The store accepts conditions and does not keep to them.
    #[error(
        "{store} accepts conditional writes and carries them out although the condition does not \
         hold, so an older snapshot could replace a newer one: use another store"
    )]
    ConditionsIgnored {
        /// The store's name of itself.
        store: String,
    },
    /// Every conditional write was refused: somebody else had always written in between, or the store
    /// is not right.
    #[error("{path}: a conditional write was refused {attempts} times in a row, at last: {source}")]
    Contended {
        /// The object.
        path: Path,
        /// How often it was tried.
        attempts: usize,
        /// What the store answered the last time.
        source: StoreError,
    },
    /// The store could not be asked, or refused. A write may have been carried out all the same.
    #[error("{path}: {source}")]
    Store {
        /// The object.
        path: Path,
        /// What the store answered.
        source: StoreError,
    },
}

impl ObjectStoreError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            ObjectStoreError::NoConditions { .. } => "publisher_no_conditions",
            ObjectStoreError::ConditionsIgnored { .. } => "publisher_conditions_ignored",
            ObjectStoreError::Contended { .. } => "publisher_contended",
            ObjectStoreError::Store { .. } => "publisher_store",
        }
    }
}

/// A store and where in it the groups are.
#[derive(Clone, Debug)]
struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

/// One object of a bucket.
struct InBucket<'a> {
    bucket: &'a Bucket,
    path: &'a Path,
}

impl ConditionalText for InBucket<'_> {
    type Version = UpdateVersion;
    type Refusal = StoreError;
    type Error = ObjectStoreError;

    async fn get(&self) -> Result<Option<(Vec<u8>, UpdateVersion)>, ObjectStoreError> {
        self.bucket.get(self.path).await
    }

    async fn put(
        &self,
        text: &[u8],
        read: Option<&UpdateVersion>,
    ) -> Result<Result<(), StoreError>, ObjectStoreError> {
        self.bucket.put(self.path, text, read).await
    }
}

impl Bucket {
    fn path(&self, group: &str) -> Path {
        let place = Place::of(group);
        let folder = self
            .prefix
            .clone()
            .join(Place::folder_name(place.folder_number()));
        folder.join(place.file())
    }

    async fn get(&self, path: &Path) -> Result<Option<(Vec<u8>, UpdateVersion)>, ObjectStoreError> {
        let failed = |source| ObjectStoreError::Store {
            path: path.clone(),
            source,
        };
        let found = match self.store.get(path).await {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let version = UpdateVersion {
            e_tag: found.meta.e_tag.clone(),
            version: found.meta.version.clone(),
        };
        let text = found.bytes().await.map_err(failed)?.into();
        Ok(Some((text, version)))
    }

    /// Writes if the object still is as it was read.
    async fn put(
        &self,
        path: &Path,
        text: &[u8],
        read: Option<&UpdateVersion>,
    ) -> Result<Result<(), StoreError>, ObjectStoreError> {
        let mode = read.map_or(PutMode::Create, |version| PutMode::Update(version.clone()));
        let payload = PutPayload::from(text.to_vec());
        match self.store.put_opts(path, payload, mode.into()).await {
            Ok(_) => Ok(Ok(())),
            // Stores differ in what they call it, and in what they say of an object that is gone.
            Err(
                refused @ (StoreError::AlreadyExists { .. }
                | StoreError::Precondition { .. }
                | StoreError::NotFound { .. }),
            ) => Ok(Err(refused)),
            Err(source @ StoreError::NotImplemented { .. }) => {
                let store = self.store.to_string();
                Err(ObjectStoreError::NoConditions { store, source })
            }
            Err(source) => Err(ObjectStoreError::Store {
                path: path.clone(),
                source,
            }),
        }
    }

    async fn publish(&self, publication: &Publication) -> Result<Landing, ObjectStoreError> {
        let path = &self.path(publication.group());
        let place = InBucket { bucket: self, path };
        match publication.into_conditional(&place).await? {
            Conditionally::Landed(landing) => Ok(landing),
            Conditionally::Contended(source) => Err(contended(path, source)),
        }
    }

    /// Tries whether the store keeps to conditions. Several may do so at once, and none needs a right
    /// to delete.
    async fn probe(&self) -> Result<(), ObjectStoreError> {
        let path = self.prefix.clone().join(PROBE);
        let mut refused = Refused::default();
        loop {
            let Some((_, version)) = self.get(&path).await? else {
                let source = match self.put(&path, &probe_text(), None).await? {
                    Err(source) => source,
                    Ok(()) => StoreError::NotFound {
                        path: path.to_string(),
                        source: "what was written there just now is not found".into(),
                    },
                };
                // Once is what a new store takes; again, it does not show what was written.
                again(&path, &mut refused, source)?;
                continue;
            };
            let ignored = || ObjectStoreError::ConditionsIgnored {
                store: self.store.to_string(),
            };
            if let Ok(()) = self.put(&path, &probe_text(), None).await? {
                return Err(ignored());
            }
            let version = Some(&version);
            if let Err(source) = self.put(&path, &probe_text(), version).await? {
                again(&path, &mut refused, source)?;
                continue;
            }
            return match self.put(&path, &probe_text(), version).await? {
                Ok(()) => Err(ignored()),
                Err(_) => Ok(()),
            };
        }
    }
}

/// Counts a refusal, and gives up after too many.
fn again(path: &Path, refused: &mut Refused, source: StoreError) -> Result<(), ObjectStoreError> {
    match refused.again() {
        true => Ok(()),
        false => Err(contended(path, source)),
    }
}

fn contended(path: &Path, source: StoreError) -> ObjectStoreError {
    ObjectStoreError::Contended {
        path: path.clone(),
        attempts: Refused::MOST,
        source,
    }
}

/// A text that was not written before: stores may tell versions by a hash of the text.
fn probe_text() -> Vec<u8> {
    let random = RandomState::new().hash_one(PROBE);
    format!("Conditional writes are tried with this: {random:016x}\n").into_bytes()
}
