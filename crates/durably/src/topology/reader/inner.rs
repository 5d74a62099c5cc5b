//! What all handles of a reader share: its parts, its cache and the reads that are under way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cache::{Cache, Kept};
use super::counters::Counters;
use super::entry::{Entry, Standing};
use super::error::{TopologyUnavailable, UnavailableReason};
use super::fallback::{FallbackEvent, Fallbacks};
use super::flight::{Flights, Joined};
use super::options::ReaderOptions;
use super::reading::{Origin, Reading};
use super::source::Source;
use crate::layers::{Randomness, Timer};
use crate::time::Timestamp;
use crate::topology::snapshot::decode;

pub(super) struct Inner<S: Source, T: Timer, R: Randomness, F> {
    pub(super) options: ReaderOptions,
    pub(super) source: S,
    pub(super) timer: T,
    pub(super) random: R,
    pub(super) fallbacks: F,
    pub(super) cache: Arc<Cache>,
    pub(super) counters: Arc<Counters>,
    pub(super) flights: Flights<S, T, R, F>,
}

impl<S: Source, T: Timer, R: Randomness, F> Inner<S, T, R, F> {
    /// What is remembered of `group` and needs no look at the store.
    #[inline]
    pub(super) fn standing(&self, group: &str, now: Timestamp) -> Option<Kept> {
        self.cache.get(group, |entry| entry.stands.holds(now))
    }

    /// The answer that needs no look at the store.
    #[inline]
    pub(super) fn cached(&self, entry: Kept, now: Timestamp) -> Reading {
        self.counters.count_cached();
        let age_ms = entry.age_ms(now);
        Reading::of(entry, Origin::Cached, age_ms)
    }

    /// What is known of `group` after a look at the store, and whether that was needed.
    pub(super) async fn look(self: &Arc<Self>, group: &str) -> (Kept, Origin) {
        let joined = self
            .flights
            .join(self, group, || self.standing(group, self.timer.now()));
        match joined {
            Joined::Flight(flight) => (flight.await, Origin::Fresh),
            Joined::Landed(entry) => (entry, Origin::Cached),
        }
    }

    /// Remembers what a read of `group` has brought.
    pub(super) fn land(
        &self,
        group: &str,
        answer: Result<Option<S::Text>, UnavailableReason>,
    ) -> Kept {
        let brought = answer.and_then(|text| {
            text.map(|text| decode(group, text.as_ref()))
                .transpose()
                .map_err(UnavailableReason::Invalid)
        });
        let terms = self.options.terms(self.random.next());
        let now = self.timer.now();
        let entry = self.cache.put(group, |previous| {
            Entry::after(previous, group, brought, now, terms)
        });
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        if !entry.is_usable() {
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        entry
    }
}

impl<S: Source, T: Timer, R: Randomness, F: Fallbacks> Inner<S, T, R, F> {
    /// The answer to who asks for a group of which nothing usable stands.
    pub(super) async fn get(self: &Arc<Self>, group: &str) -> Result<Reading, TopologyUnavailable> {
        let (entry, origin) = match self.standing(group, self.timer.now()) {
            Some(entry) => (entry, Origin::Cached),
            None => self.look(group).await,
        };
        let now = self.timer.now();
        let age_ms = entry.age_ms(now);
        let reason = match &entry.standing {
            Standing::Taken if origin == Origin::Fresh => {
                return Ok(Reading::of(entry, Origin::Fresh, age_ms));
            }
            Standing::Taken | Standing::Refused => return Ok(self.cached(entry, now)),
            Standing::Unavailable(reason) => reason.clone(),
        };
        if entry.may_be_stale(now, self.options.stale_if_error) {
            self.tell(group, &reason, Origin::Stale);
            return Ok(Reading::of(entry, Origin::Stale, age_ms));
        }
        drop(entry);
        if let Some(snapshot) = self.fallbacks.seed(group) {
            self.tell(group, &reason, Origin::Seed);
            return Ok(Reading::made(snapshot, Origin::Seed));
        }
        if let Some(snapshot) = self.fallbacks.fallback(group, &reason).await {
            self.tell(group, &reason, Origin::Fallback);
            return Ok(Reading::made(snapshot, Origin::Fallback));
        }
        Err(TopologyUnavailable {
            group: group.to_owned(),
            reason,
        })
    }

    fn tell(&self, group: &str, reason: &UnavailableReason, origin: Origin) {
        let event = FallbackEvent {
            group,
            reason,
            origin,
        };
        self.counters.fallbacks.fetch_add(1, Ordering::Relaxed);
        event.trace();
        self.fallbacks.on_fallback(&event);
    }
}
