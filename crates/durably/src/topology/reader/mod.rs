//! Reads groups where they were published, and remembers them. It never asks the coordinator.
//!
//! What is decided where: [`entry`] which copy is taken, how long it stands and when it must not be used
//! any more; [`cache`] what is kept, and that finding it costs next to nothing; [`flight`] that a group is
//! read once for all who want it; [`inner`] what a caller is answered, fallbacks included; [`changes`]
//! what is news. Not decided here: where the texts are, which is the [`Source`]'s matter, and what
//! time it is.
//!
//! # It never goes back
//!
//! Of one coordinator's editions the newer one stays, whatever the store answers: a copy may be old, a
//! late write may land. Then the reader answers what it had and looks again after
//! [`negative_ttl`](ReaderOptions::negative_ttl). That a group was deleted is an edition, too. Another
//! coordinator's copy is taken, since the two do not compare. What the reader has forgotten to make room for
//! other groups it cannot compare with.

mod cache;
mod changes;
mod counters;
mod entry;
mod error;
mod fallback;
mod flight;
mod inner;
mod options;
mod reading;
mod source;

use std::fmt;
use std::sync::Arc;

use futures::stream::{self, Stream};

pub use changes::Change;
pub use counters::ReaderCounters;
pub use error::{TopologyUnavailable, UnavailableReason};
pub use fallback::{FallbackEvent, Fallbacks, NoFallbacks};
pub use options::ReaderOptions;
pub use reading::{Origin, Reading};
pub use source::Source;

use self::cache::Cache;
use self::changes::Follower;
use self::flight::Flights;
use self::inner::Inner;
use crate::error::ConfigError;
use crate::layers::{Randomness, Timer};

/// Reads groups from where they are published, through a cache. Clones share it.
///
/// It holds no `Rc`: it is `Send` and `Sync`, and its futures are `Send`, exactly when its source,
/// its timer, its randomness and its fallbacks are.
///
/// ```
/// use durably::layers::{Randomness, Timer};
/// use durably::topology::{ReaderOptions, Source, TopologyReader, TopologyUnavailable};
///
/// /// The URL of the shard that takes an order of a tenant.
/// async fn shard<S: Source, T: Timer, R: Randomness>(
///     topology: &TopologyReader<S, T, R>,
///     tenant: &str,
///     order: &str,
/// ) -> Result<Option<String>, TopologyUnavailable> {
///     let group = topology.get(tenant).await?;
///     let shard = group.shard_for(order);
///     Ok(shard.map(|member| format!("https://{}.example", member.id)))
/// }
///
/// # #[derive(Clone)]
/// # struct Clock;
/// # impl Timer for Clock {
/// #     type Sleep = std::future::Pending<()>;
/// #     fn now(&self) -> durably::Timestamp { durably::Timestamp::ZERO }
/// #     fn sleep(&self, _: std::time::Duration) -> Self::Sleep { std::future::pending() }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, clock) = (durably::topology::MemoryPublisher::default(), Clock);
/// let mut options = ReaderOptions::default();
/// options.stale_if_error = Some(std::time::Duration::from_secs(3_600));
/// let topology = TopologyReader::new(options, store, clock, || 4)?;
/// let answer = futures::executor::block_on(shard(&topology, "tenant-1", "order-17"));
/// assert_eq!(answer.map_err(|error| error.code()), Err("topology_missing"));
/// # Ok(())
/// # }
/// ```
pub struct TopologyReader<S: Source, T: Timer, R: Randomness, F = NoFallbacks> {
    inner: Arc<Inner<S, T, R, F>>,
}

impl<S: Source, T: Timer, R: Randomness> TopologyReader<S, T, R> {
    /// A reader of what `source` has, which goes by the clock of `timer` and spreads its reads by
    /// `random`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the option that cannot be.
    pub fn new(
        options: ReaderOptions,
        source: S,
        timer: T,
        random: R,
    ) -> Result<Self, ConfigError> {
        TopologyReader::with_fallbacks(options, source, timer, random, NoFallbacks)
    }
}

impl<S: Source, T: Timer, R: Randomness, F: Fallbacks> TopologyReader<S, T, R, F> {
    /// The same with something to fall back on.
    ///
    /// # Errors
    ///
    /// Like [`new`](TopologyReader::new).
    pub fn with_fallbacks(
        options: ReaderOptions,
        source: S,
        timer: T,
        random: R,
        fallbacks: F,
    ) -> Result<Self, ConfigError> {
        options.check()?;
        let cache = Arc::new(Cache::new(options.max_groups, random.next()));
        let inner = Inner {
            options,
            source,
            timer,
            random,
            fallbacks,
            cache,
            counters: Arc::default(),
            flights: Flights::new(),
        };
        Ok(TopologyReader {
            inner: Arc::new(inner),
        })
    }

    /// The group, from the cache if its copy is young enough, else from the store. Callers who ask at
    /// once share one read; one that stops waiting takes it from nobody.
    ///
    /// # Errors
    ///
    /// [`TopologyUnavailable`] if the copy is missing, invalid, slow to come or cannot be read, and no
    /// fallback that was opted into has the group.
    #[inline]
    pub async fn get(&self, group: &str) -> Result<Reading, TopologyUnavailable> {
        match self.cached(group) {
            Some(reading) => Ok(reading),
            // In a box, since a future is moved about whole, and this is the larger part of it.
            None => Box::pin(self.inner.get(group)).await,
        }
    }

    /// The group, if its copy is in the cache and young enough: without waiting, a lock or an allocation.
    #[inline]
    pub fn cached(&self, group: &str) -> Option<Reading> {
        let now = self.inner.timer.now();
        let entry = self.inner.standing(group, now)?;
        entry.is_usable().then(|| self.inner.cached(entry, now))
    }

    /// What becomes of the group, beginning with what it is now; endless. It tells each newer edition and
    /// that the group is gone, waits for a group that is missing, and through outages.
    ///
    /// It looks whenever the copy in the cache must be looked at again, in the same reads as everybody
    /// else, and only while it is polled. Editions that come and go between two looks are not told.
    pub fn changes(&self, group: &str) -> impl Stream<Item = Change> + use<S, T, R, F> {
        let follower = Follower::new(self.inner.clone(), group);
        stream::unfold(follower, |mut follower| async {
            let change = follower.next().await;
            Some((change, follower))
        })
    }
}

impl<S: Source, T: Timer, R: Randomness, F> TopologyReader<S, T, R, F> {
    /// A handle to the same copies that shares no reads with others: for places where one request must
    /// not wait for what another one has begun, as in a stateless worker.
    #[must_use]
    pub fn with_own_reads(&self) -> Self
    where
        S: Clone,
        T: Clone,
        R: Clone,
        F: Clone,
    {
        let inner = &self.inner;
        TopologyReader {
            inner: Arc::new(Inner {
                options: inner.options.clone(),
                source: inner.source.clone(),
                timer: inner.timer.clone(),
                random: inner.random.clone(),
                fallbacks: inner.fallbacks.clone(),
                cache: inner.cache.clone(),
                counters: inner.counters.clone(),
                flights: Flights::new(),
            }),
        }
    }

    /// What it has done, all clones together.
    pub fn counters(&self) -> ReaderCounters {
        self.inner.counters.read()
    }
}

impl<S: Source, T: Timer, R: Randomness, F> Clone for TopologyReader<S, T, R, F> {
    fn clone(&self) -> Self {
        TopologyReader {
            inner: self.inner.clone(),
        }
    }
}

impl<S: Source, T: Timer, R: Randomness, F> fmt::Debug for TopologyReader<S, T, R, F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TopologyReader")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}
