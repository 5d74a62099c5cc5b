//! A store in memory whose answers go wrong as those of stores far away do.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use tokio::sync::oneshot;

/// What happens to one write.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Somebody else writes this to the same object just before.
    Rival(String),
    /// It is refused although its condition holds, as when two arrive at once.
    Refused,
    /// It fails and is not carried out.
    Fails,
    /// It is carried out and its answer is lost.
    LosesAnswer,
    /// It arrives when it is let go.
    Late(oneshot::Receiver<()>),
}

/// What a store makes of conditions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Conditions {
    Kept,
    /// Every write is carried out.
    Ignored,
    /// A write on the condition that nothing is there is carried out.
    CreatesOverOthers,
    /// Only creating has a condition.
    CreatesOnly,
}

#[derive(Debug)]
pub(crate) struct Troubled {
    pub(crate) inner: InMemory,
    pub(crate) conditions: Conditions,
    /// What happens to the next writes, in turn.
    pub(crate) writes: Mutex<VecDeque<Trouble>>,
    /// How many of the next reads fail.
    pub(crate) failing_reads: AtomicUsize,
    /// If set, calls take turns before and after they are carried out, and some conditional writes are
    /// refused for no reason: as this number has it.
    unrest: Option<AtomicU64>,
}

impl Troubled {
    pub(crate) fn new(conditions: Conditions) -> Self {
        Troubled {
            inner: InMemory::new(),
            conditions,
            writes: Mutex::default(),
            failing_reads: AtomicUsize::new(0),
            unrest: None,
        }
    }

    /// One that is restless in a way that looks random and is the same for the same seed.
    pub(crate) fn restless(seed: u64) -> Self {
        Troubled {
            unrest: Some(AtomicU64::new(seed)),
            ..Troubled::new(Conditions::Kept)
        }
    }

    pub(crate) fn expect(&self, troubles: impl IntoIterator<Item = Trouble>) {
        let mut writes = self.writes.lock().expect("no test panicked");
        assert!(writes.is_empty(), "{writes:?} did not happen");
        writes.extend(troubles);
    }

    fn below(&self, bound: u64) -> u64 {
        let Some(unrest) = &self.unrest else {
            return 0;
        };
        let number = unrest.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % bound
    }

    async fn turns(&self) {
        for _ in 0..self.below(4) {
            tokio::task::yield_now().await;
        }
    }
}

impl fmt::Display for Troubled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Troubled")
    }
}

fn generic(what: &str) -> Error {
    Error::Generic {
        store: "Troubled",
        source: what.to_owned().into(),
    }
}

#[async_trait]
impl ObjectStore for Troubled {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        let refused = || Error::Precondition {
            path: location.to_string(),
            source: "another request is under way".into(),
        };
        options.mode = match (self.conditions, options.mode) {
            (Conditions::Ignored, _) => PutMode::Overwrite,
            (Conditions::CreatesOverOthers, PutMode::Create) => PutMode::Overwrite,
            (Conditions::CreatesOnly, PutMode::Update(_)) => {
                return Err(Error::NotImplemented {
                    operation: "conditional updates".to_owned(),
                    implementer: self.to_string(),
                });
            }
            (_, mode) => mode,
        };
        let conditional = options.mode != PutMode::Overwrite;
        self.turns().await;
        let trouble = self.writes.lock().expect("no test panicked").pop_front();
        match trouble {
            Some(Trouble::Rival(text)) => {
                self.inner.put(location, text.into()).await?;
            }
            Some(Trouble::Refused) => return Err(refused()),
            Some(Trouble::Fails) => return Err(generic("the line is dead")),
            Some(Trouble::LosesAnswer) => {
                self.inner.put_opts(location, payload, options).await?;
                return Err(generic("the line went dead"));
            }
            Some(Trouble::Late(go)) => go.await.map_err(|_| generic("never let go"))?,
            None if conditional && self.below(5) == 1 => return Err(refused()),
            None => {}
        }
        let put = self.inner.put_opts(location, payload, options).await;
        self.turns().await;
        put
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.turns().await;
        let failing =
            self.failing_reads
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                });
        if failing.is_ok() {
            return Err(generic("the line is dead"));
        }
        let got = self.inner.get_opts(location, options).await;
        self.turns().await;
        got
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
