//! What a reader answers.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;

use super::entry::Entry;
use crate::topology::snapshot::Snapshot;

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The store was read for it.
    Fresh,
    /// It was read earlier, and it is not yet time to look again; or the store's copy was older.
    Cached,
    /// It was read earlier; it is time to look again, but that failed.
    Stale,
    /// [`Fallbacks::seed`](super::Fallbacks::seed).
    Seed,
    /// [`Fallbacks::fallback`](super::Fallbacks::fallback).
    Fallback,
}

impl Origin {
    /// A stable name for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Fresh => "fresh",
            Origin::Cached => "cached",
            Origin::Stale => "stale",
            Origin::Seed => "seed",
            Origin::Fallback => "fallback",
        }
    }
}

/// A group as a reader knows it; dereferences to its [`Snapshot`].
///
/// It borrows the reader's copy without counting who does, so threads do not get into each other's
/// way. It can be held for as long as one likes and stays what it is; to keep many, keep their
/// [`snapshot`](Self::snapshot).
pub struct Reading {
    kept: Kept,
    origin: Origin,
    age: Duration,
}

enum Kept {
    Entry(Guard<Arc<Entry>>),
    Made(Arc<Snapshot>),
}

impl Reading {
    #[inline]
    pub(super) fn of(entry: Guard<Arc<Entry>>, origin: Origin, age: Duration) -> Reading {
        Reading {
            kept: Kept::Entry(entry),
            origin,
            age,
        }
    }

    pub(super) fn made(snapshot: Snapshot, origin: Origin) -> Reading {
        Reading {
            kept: Kept::Made(Arc::new(snapshot)),
            origin,
            age: Duration::ZERO,
        }
    }

    /// The snapshot; a clone of it outlives the reader's interest in it.
    #[inline]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        match &self.kept {
            Kept::Entry(entry) => &entry.snapshot,
            Kept::Made(snapshot) => snapshot,
        }
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// How long ago it was read from the store; zero for what came from elsewhere.
    pub fn age(&self) -> Duration {
        self.age
    }

    /// The group's version, as its coordinator counts.
    pub fn version(&self) -> u64 {
        self.snapshot().version
    }
}

impl Deref for Reading {
    type Target = Snapshot;

    #[inline]
    fn deref(&self) -> &Snapshot {
        self.snapshot()
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Reading")
            .field("snapshot", self.snapshot())
            .field("origin", &self.origin)
            .field("age", &self.age)
            .finish()
    }
}
