//! What a reader answers.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::cache::Kept;
use crate::topology::snapshot::{Edition, Snapshot, encode};

/// Where an answer comes from.
// As wide as a word, like all of a `Reading`: what was just written in pieces and is moved as words makes the
// processor wait, for a good part of what a cached read takes in all.
#[repr(u64)]
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
/// way. It stays what it is for as long as it is held. What the reader remembers of some other groups stays in
/// memory with it, so keep its [`snapshot`](Self::snapshot) rather than itself for long.
pub struct Reading {
    of: Of,
    origin: Origin,
    age_ms: u64,
}

enum Of {
    Entry(Kept),
    Made(Arc<Snapshot>),
}

impl Reading {
    #[inline]
    pub(super) fn of(entry: Kept, origin: Origin, age_ms: u64) -> Reading {
        Reading {
            of: Of::Entry(entry),
            origin,
            age_ms,
        }
    }

    pub(super) fn made(snapshot: Snapshot, origin: Origin) -> Reading {
        Reading {
            of: Of::Made(Arc::new(snapshot)),
            origin,
            age_ms: 0,
        }
    }

    /// The snapshot; a clone of it outlives the reader's interest in it.
    #[inline]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        match &self.of {
            Of::Entry(entry) => &entry.snapshot,
            Of::Made(snapshot) => snapshot,
        }
    }

    /// Where it comes from.
    #[inline]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// How long ago it was read from the store; zero for what came from elsewhere.
    #[inline]
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.age_ms)
    }

    /// Which edition it is; `None` for what came from no store.
    pub fn edition(&self) -> Option<&Edition> {
        match &self.of {
            Of::Entry(entry) => entry.edition.as_deref(),
            Of::Made(_) => None,
        }
    }

    /// The published text of this edition, for whoever passes it on to other readers; `None` for what
    /// came from no store.
    pub fn to_text(&self) -> Option<String> {
        let snapshot = self.snapshot();
        let edition = self.edition()?;
        Some(encode(&snapshot.group, edition, Some(&snapshot.members)))
    }

    /// The group's version, as its coordinator counts.
    #[inline]
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
            .field("age", &self.age())
            .finish()
    }
}
