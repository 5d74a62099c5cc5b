//! Which objects the journal has woken, is waking, or must not wake yet.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use durably::Timestamp;

use super::Entry;
use crate::key::Key;

/// The most wake-ups whose outcome is awaited at once.
const MAX_WAKING: usize = 256;

/// What is known in memory about objects that the journal's table alone would have woken.
#[derive(Default)]
pub(super) struct Wakes {
    known: HashMap<Arc<Key>, Wake>,
    postponed: BTreeSet<(Timestamp, Arc<Key>)>,
    waking: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// Its thread was told and has not answered yet.
    Waking,
    /// It is open and watches its own alarm.
    Awake,
    /// It is to be woken then, whatever the table says.
    Postponed(Timestamp),
}

impl Wakes {
    /// Takes note of what a thread says.
    pub(super) fn note(&mut self, entry: &Entry) {
        match entry {
            Entry::Awake(key) => self.set(key, Some(Wake::Awake)),
            Entry::Idle {
                key, not_before, ..
            } => self.set(key, not_before.map(Wake::Postponed)),
            Entry::Retry { key, at } => self.set(key, Some(Wake::Postponed(*at))),
            Entry::Active { .. } => {}
        }
    }

    /// Has `key` woken at `at`.
    pub(super) fn postpone(&mut self, key: Arc<Key>, at: Timestamp) {
        self.set(&key, Some(Wake::Postponed(at)));
    }

    /// Whether the table has no say about `key` for now.
    pub(super) fn knows(&self, key: &Key) -> bool {
        self.known.contains_key(key)
    }

    /// Marks `key` as being woken; `false` if too many are.
    pub(super) fn wake(&mut self, key: &Arc<Key>) -> bool {
        if self.waking >= MAX_WAKING {
            return false;
        }
        self.set(key, Some(Wake::Waking));
        true
    }

    /// Those whose postponed wake-up is due, as many as may be woken at once.
    pub(super) fn take_postponed(&mut self, now: Timestamp) -> Vec<Arc<Key>> {
        let mut due = Vec::new();
        while let Some((at, key)) = self.postponed.first() {
            let key = key.clone();
            if *at > now || !self.wake(&key) {
                break;
            }
            due.push(key);
        }
        due
    }

    /// When the next postponed wake-up is due; nothing while no more can be woken.
    pub(super) fn next_postponed(&self) -> Option<Timestamp> {
        if self.waking >= MAX_WAKING {
            return None;
        }
        self.postponed.first().map(|(at, _)| *at)
    }

    fn set(&mut self, key: &Arc<Key>, wake: Option<Wake>) {
        match self.known.remove(key) {
            Some(Wake::Waking) => self.waking -= 1,
            Some(Wake::Postponed(at)) => {
                self.postponed.remove(&(at, key.clone()));
            }
            Some(Wake::Awake) | None => {}
        }
        let Some(wake) = wake else { return };
        match wake {
            Wake::Waking => self.waking += 1,
            Wake::Postponed(at) => {
                self.postponed.insert((at, key.clone()));
            }
            Wake::Awake => {}
        }
        self.known.insert(key.clone(), wake);
    }
}
