//! Where snapshots are published, as the coordinator sees it: a store that takes texts by group.

mod conditional;
mod memory;
mod names;

use std::cmp::Ordering;
use std::rc::Rc;

pub use conditional::{ConditionalText, Conditionally, Found, Refused};
pub use memory::MemoryPublisher;
pub use names::{Place, stored_name};

use super::snapshot::{self, Edition, Snapshot};
use crate::error::BoxError;
use crate::host::LocalFuture;

/// A store of published groups.
///
/// A call may be repeated and must then have the same result. The coordinator makes one call for a
/// group at a time, except that it stops waiting for one that takes longer than its attempt time-out
/// and goes on with the next.
///
/// Whoever writes one runs the exam `durably::testing::publishers` on it.
pub trait Publisher: 'static {
    /// Whether the store itself refuses what is older than what it has of the same coordinator, also
    /// when calls for one group overlap. Then a late old write cannot land, and the coordinator does
    /// not wait for it. Such a store keeps the [`tombstone`](Publication::Deletion) of a deleted group.
    fn is_version_aware(&self) -> bool;

    /// Stores a publication. An error means that nothing was stored and nothing will be; of a
    /// version-aware store, which nothing late can harm, it may also mean that this is not known.
    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>>;
}

/// What is published of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Publication {
    /// Its members.
    Write {
        /// As a value, for stores that index by it.
        snapshot: Snapshot,
        /// Which edition it is.
        edition: Edition,
        /// The text that readers read; stored as it is.
        encoded: String,
    },
    /// That it was deleted.
    Deletion {
        /// The group.
        group: String,
        /// Which edition of the group its deletion is.
        edition: Edition,
        /// The text that a version-aware store keeps in the place of the snapshot, so that an older
        /// one does not come back. Readers take it as missing. Other stores remove what they have.
        tombstone: String,
    },
}

impl Publication {
    /// The group that it is about.
    pub fn group(&self) -> &str {
        match self {
            Publication::Write { snapshot, .. } => &snapshot.group,
            Publication::Deletion { group, .. } => group,
        }
    }

    /// Which edition it is.
    pub fn edition(&self) -> &Edition {
        match self {
            Publication::Write { edition, .. } | Publication::Deletion { edition, .. } => edition,
        }
    }

    /// The text that a version-aware store keeps: the snapshot's, or the tombstone.
    pub fn text(&self) -> &str {
        match self {
            Publication::Write { encoded, .. } => encoded,
            Publication::Deletion { tombstone, .. } => tombstone,
        }
    }

    /// What a version-aware store does with this when it holds `stored`: see [`Verdict::of`].
    pub fn against(&self, stored: Option<&[u8]>) -> Verdict {
        Verdict::of(self.group(), self.edition(), self.text(), stored)
    }
}

/// What a version-aware store does with a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It replaces what is stored.
    Write,
    /// It is stored already.
    Stored,
    /// A newer edition is stored and stays, or the same with another text: whoever published that knew
    /// of other changes.
    Superseded(Edition),
}

impl Verdict {
    /// The verdict on the text of an `edition` of `group` where `stored` is what the store holds of the
    /// group. Versions compare within one coordinator: another one's text is replaced, and so is one
    /// that cannot be read.
    pub fn of(group: &str, edition: &Edition, text: &str, stored: Option<&[u8]>) -> Verdict {
        let Some(stored) = stored else {
            return Verdict::Write;
        };
        let Ok(read) = snapshot::decode(group, stored) else {
            return Verdict::Write;
        };
        match edition.compare(&read.edition) {
            None | Some(Ordering::Greater) => Verdict::Write,
            Some(Ordering::Equal) if stored == text.as_bytes() => Verdict::Stored,
            Some(Ordering::Equal | Ordering::Less) => Verdict::Superseded(read.edition),
        }
    }
}

/// What became of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Landing {
    /// It is what the store holds, or was until somebody else wrote.
    Stored,
    /// The store holds a newer edition of the same coordinator, or the same with another text, and kept
    /// it. Only version-aware stores answer this.
    Superseded(Edition),
}
