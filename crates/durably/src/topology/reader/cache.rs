//! Where entries are kept: found without a lock, an allocation or a write to memory that threads share.
//!
//! Entries are found in shards, tables that never change: whoever puts an entry in, replaces one or
//! removes one puts a new table in the place of the old one. Shards stay small, so that this costs the
//! same however many groups there are; it happens when a group was read, which costs far more. Writers
//! wait for each other, nobody waits for them.
//!
//! Which entry goes when there are too many: one that was not looked at since the writers came by the
//! last time, if the shard whose turn it is has one.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::entry::Entry;

/// How many entries a shard is meant to have.
const SHARD: usize = 256;

pub(super) struct Cache {
    shards: Box<[ArcSwap<Shard>]>,
    /// Which groups share a shard is a secret of this reader.
    seed: u64,
    most: usize,
    writing: Mutex<Writing>,
}

type Shard = HashTable<Arc<Place>>;

/// An entry in a table.
struct Place {
    group: Arc<str>,
    hash: u64,
    entry: Entry,
    /// Whether it was looked at since the writers came by.
    used: AtomicBool,
}

#[derive(Default)]
struct Writing {
    entries: usize,
    /// Whose turn it is to lose an entry.
    next: usize,
}

/// An entry, kept from going for as long as this lives.
pub(super) struct Kept(Keeping);

enum Keeping {
    /// In a table, by the number of its bucket. The table is borrowed, which no other thread notices; counting
    /// who has the entry would have them all write to the same place.
    Table(Guard<Arc<Shard>>, usize),
    /// By itself.
    Place(Arc<Place>),
}

impl Kept {
    #[inline]
    fn place(&self) -> &Arc<Place> {
        match &self.0 {
            Keeping::Place(place) => place,
            Keeping::Table(shard, bucket) => match shard.get_bucket(*bucket) {
                Some(place) => place,
                None => unreachable!("a table never changes"),
            },
        }
    }
}

impl Deref for Kept {
    type Target = Entry;

    #[inline]
    fn deref(&self) -> &Entry {
        &self.place().entry
    }
}

impl Clone for Kept {
    fn clone(&self) -> Self {
        Kept(Keeping::Place(self.place().clone()))
    }
}

impl Cache {
    /// Room for `most` groups.
    pub(super) fn new(most: u64, seed: u64) -> Cache {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let shards = (most / SHARD).clamp(1, 1 << 16).next_power_of_two();
        Cache {
            shards: (0..shards).map(|_| ArcSwap::default()).collect(),
            seed,
            most,
            writing: Mutex::default(),
        }
    }

    /// What is remembered of `group`, if it is `wanted`.
    #[inline]
    pub(super) fn get(&self, group: &str, wanted: impl FnOnce(&Entry) -> bool) -> Option<Kept> {
        let hash = self.hash(group);
        let shard = self.shard(hash).load();
        let bucket = shard.find_bucket_index(hash, |place| *place.group == *group)?;
        let place = shard.get_bucket(bucket)?;
        if !wanted(&place.entry) {
            return None;
        }
        // Once it is set, readers only read.
        if !place.used.load(Ordering::Relaxed) {
            place.used.store(true, Ordering::Relaxed);
        }
        Some(Kept(Keeping::Table(shard, bucket)))
    }

    /// Remembers what `change` makes of what was remembered.
    pub(super) fn put(&self, group: &str, change: impl FnOnce(Option<&Entry>) -> Entry) -> Kept {
        let hash = self.hash(group);
        // Nothing that runs under the lock leaves it half done.
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let shard = self.shard(hash);
        let is_it = |place: &Arc<Place>| *place.group == *group;
        let known = shard.load().find(hash, is_it).cloned();
        let known = known.as_deref();
        let place = Arc::new(Place {
            group: known.map_or_else(|| group.into(), |known| known.group.clone()),
            hash,
            entry: change(known.map(|known| &known.entry)),
            used: AtomicBool::new(known.is_some_and(|known| known.used.load(Ordering::Relaxed))),
        });
        if known.is_none() {
            while writing.entries >= self.most {
                self.remove_one(&mut writing);
            }
            writing.entries += 1;
        }
        // It may be this shard that has lost one.
        let mut table = Shard::clone(&shard.load());
        match table.find_mut(hash, is_it) {
            Some(known) => *known = place.clone(),
            None => {
                table.insert_unique(hash, place.clone(), |place| place.hash);
            }
        }
        shard.store(Arc::new(table));
        Kept(Keeping::Place(place))
    }

    /// Removes an entry from the next shard that has one.
    fn remove_one(&self, writing: &mut Writing) {
        loop {
            let shard = &self.shards[writing.next];
            writing.next = (writing.next + 1) % self.shards.len();
            let mut table = Shard::clone(&shard.load());
            let unused = table
                .iter()
                .find(|place| !place.used.swap(false, Ordering::Relaxed));
            let Some(gone) = unused.or_else(|| table.iter().next()).cloned() else {
                continue;
            };
            if let Ok(place) = table.find_entry(gone.hash, |place| Arc::ptr_eq(place, &gone)) {
                place.remove();
                shard.store(Arc::new(table));
                writing.entries -= 1;
                return;
            }
        }
    }

    #[inline]
    fn hash(&self, group: &str) -> u64 {
        xxh3_64_with_seed(group.as_bytes(), self.seed)
    }

    #[inline]
    fn shard(&self, hash: u64) -> &ArcSwap<Shard> {
        // The tables themselves look at the bits at both ends.
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }
}
