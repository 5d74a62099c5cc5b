//! What a reader has done, in numbers: for reads that are too cheap to be traced one by one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What a [`TopologyReader`](super::TopologyReader) has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderCounters {
    /// Answers from the cache.
    pub cached: u64,
    /// Reads of the store that came to an end, time-outs included.
    pub reads: u64,
    /// Those of them that brought nothing to use: missing, invalid, slow or failed.
    pub failures: u64,
    /// Answers by a fallback: stale, seed or fallback.
    pub fallbacks: u64,
}

/// So many threads count apart from each other.
const STRIPES: usize = 16;

#[derive(Default)]
pub(super) struct Counters {
    cached: [Stripe; STRIPES],
    pub(super) reads: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) fallbacks: AtomicU64,
}

/// A counter alone in what processors keep together.
#[derive(Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

impl Counters {
    /// Counts an answer from the cache, where no other thread does if there are few.
    #[inline]
    pub(super) fn count_cached(&self) {
        self.cached[stripe()].0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> ReaderCounters {
        let cached = self.cached.iter();
        ReaderCounters {
            cached: cached.map(|stripe| stripe.0.load(Ordering::Relaxed)).sum(),
            reads: self.reads.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            fallbacks: self.fallbacks.load(Ordering::Relaxed),
        }
    }
}

/// Where this thread counts.
#[inline]
fn stripe() -> usize {
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    STRIPE.with(|stripe| {
        if stripe.get() == usize::MAX {
            stripe.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        stripe.get()
    })
}
