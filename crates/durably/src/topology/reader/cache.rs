//! Where entries are kept: found without a lock, an allocation or a write to memory that threads share.
//!
//! Each group has a place, whose entry is swapped as a whole. The places are found in shards, tables that
//! never change: whoever adds or removes a place puts a new table in the place of the old one, which
//! stays small, so that a group more costs the same however many there are. Writers wait for each other,
//! nobody waits for them.
//!
//! Which place goes when there are too many: one that was not read since the writers came by the last
//! time, if the shard whose turn it is has one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::entry::Entry;

/// How many places a shard is meant to have.
const SHARD: usize = 128;

pub(super) struct Cache {
    shards: Box<[ArcSwap<Shard>]>,
    /// Which groups share a shard is a secret of this reader.
    seed: u64,
    most: usize,
    writing: Mutex<Writing>,
}

type Shard = HashTable<Arc<Place>>;

struct Place {
    group: Box<str>,
    hash: u64,
    entry: ArcSwap<Entry>,
    /// Whether it was read since the writers came by.
    used: AtomicBool,
}

#[derive(Default)]
struct Writing {
    places: usize,
    /// Whose turn it is to lose a place.
    next: usize,
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

    /// What is remembered of `group`.
    #[inline]
    pub(super) fn get(&self, group: &str) -> Option<Guard<Arc<Entry>>> {
        let hash = self.hash(group);
        let shard = self.shard(hash).load();
        let place = find(&shard, hash, group)?;
        // Once it is set, readers only read.
        if !place.used.load(Ordering::Relaxed) {
            place.used.store(true, Ordering::Relaxed);
        }
        Some(place.entry.load())
    }

    /// Remembers what `change` makes of what was remembered.
    pub(super) fn put(
        &self,
        group: &str,
        change: impl FnOnce(Option<&Entry>) -> Entry,
    ) -> Arc<Entry> {
        let hash = self.hash(group);
        // Nothing that runs under the lock leaves it half done.
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let shard = self.shard(hash).load();
        if let Some(place) = find(&shard, hash, group) {
            let entry = Arc::new(change(Some(&**place.entry.load())));
            place.entry.store(entry.clone());
            return entry;
        }
        drop(shard);
        let entry = Arc::new(change(None));
        while writing.places >= self.most {
            self.remove_one(&mut writing);
        }
        let place = Arc::new(Place {
            group: group.into(),
            hash,
            entry: ArcSwap::new(entry.clone()),
            used: AtomicBool::new(false),
        });
        let shard = self.shard(hash);
        let mut table = Shard::clone(&shard.load());
        table.insert_unique(hash, place, |place| place.hash);
        shard.store(Arc::new(table));
        writing.places += 1;
        entry
    }

    /// Removes a place from the next shard that has one.
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
            if let Ok(entry) = table.find_entry(gone.hash, |place| Arc::ptr_eq(place, &gone)) {
                entry.remove();
                shard.store(Arc::new(table));
                writing.places -= 1;
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

#[inline]
fn find<'a>(shard: &'a Shard, hash: u64, group: &str) -> Option<&'a Arc<Place>> {
    shard.find(hash, |place| *place.group == *group)
}
