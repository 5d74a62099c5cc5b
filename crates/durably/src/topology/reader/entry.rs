//! What is remembered of a group, and what a read makes of it: plain data and decisions, given the
//! time.
//!
//! Decided here: which copy is taken and which refused, how long each outcome stands, and until when a
//! copy may be used although it can no longer be had.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::error::UnavailableReason;
use crate::time::Timestamp;
use crate::topology::snapshot::{Edition, Published, Snapshot};

/// What a read brought.
pub(super) type Brought = Result<Option<Published>, UnavailableReason>;

/// From when, and for how many milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) since: Timestamp,
    pub(super) millis: u64,
}

impl Span {
    /// Whether it is not over at `now`. A clock that was set back prolongs it by its length at most.
    #[inline]
    pub(super) fn holds(self, now: Timestamp) -> bool {
        now.as_millis().abs_diff(self.since.as_millis()) < self.millis
    }

    /// How long it holds on.
    pub(super) fn left(self, now: Timestamp) -> Duration {
        let past = now.since(self.since);
        Duration::from_millis(self.millis).saturating_sub(past)
    }

    fn prolonged(self, by: Duration) -> Span {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Span {
            since: self.since,
            millis: self.millis.saturating_add(by),
        }
    }
}

/// How long outcomes stand, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) good: u64,
    pub(super) bad: u64,
}

/// What the last read of a group has led to.
#[derive(Clone, Debug)]
pub(super) enum Standing {
    /// Its copy was taken.
    Taken,
    /// Its copy was older than what was held, which is used on.
    Refused,
    /// It brought nothing to use.
    Unavailable(UnavailableReason),
}

/// What is remembered of a group.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The newest edition that was read, also of a group that is gone. Elsewhere, since cached reads do not
    /// look at it, and what they do look at is to be close together.
    pub(super) edition: Option<Arc<Edition>>,
    /// The newest snapshot; one without members if the group is not known to exist.
    pub(super) snapshot: Arc<Snapshot>,
    /// When the snapshot was read.
    read_at: Timestamp,
    /// How long the snapshot needs no look at the store; `None` if the group is not known to exist.
    fresh: Option<Span>,
    pub(super) standing: Standing,
    /// How long that stands before the store is read again.
    pub(super) stands: Span,
}

impl Entry {
    /// What is remembered after a read that ended at `now`.
    pub(super) fn after(
        previous: Option<&Entry>,
        group: &str,
        brought: Brought,
        now: Timestamp,
        terms: Terms,
    ) -> Entry {
        let bad = Span {
            since: now,
            millis: terms.bad,
        };
        match brought {
            Ok(Some(published)) => {
                let held =
                    previous.and_then(|previous| Some((previous, previous.edition.as_deref()?)));
                if let Some((previous, edition)) = held
                    && published.edition.compare(edition) == Some(Ordering::Less)
                {
                    return previous.refusing(bad);
                }
                let edition = Some(Arc::new(published.edition.clone()));
                match published.into_snapshot() {
                    Some(snapshot) => {
                        let fresh = Span {
                            since: now,
                            millis: terms.good,
                        };
                        Entry {
                            edition,
                            snapshot: Arc::new(snapshot),
                            read_at: now,
                            fresh: Some(fresh),
                            standing: Standing::Taken,
                            stands: fresh,
                        }
                    }
                    None => Entry::without(group, edition, UnavailableReason::Missing, bad),
                }
            }
            Ok(None) | Err(UnavailableReason::Missing) => {
                let edition = previous.and_then(|previous| previous.edition.clone());
                Entry::without(group, edition, UnavailableReason::Missing, bad)
            }
            Err(reason) => match previous {
                Some(previous) => Entry {
                    standing: Standing::Unavailable(reason),
                    stands: bad,
                    ..previous.clone()
                },
                None => Entry::without(group, None, reason, bad),
            },
        }
    }

    /// Of a group of which no snapshot is to be used.
    fn without(
        group: &str,
        edition: Option<Arc<Edition>>,
        reason: UnavailableReason,
        stands: Span,
    ) -> Entry {
        Entry {
            edition,
            snapshot: Arc::new(Snapshot::new(group, 0, "", Vec::new())),
            read_at: stands.since,
            fresh: None,
            standing: Standing::Unavailable(reason),
            stands,
        }
    }

    /// The same after the store answered with an older edition: what is newer stays, be it a snapshot or
    /// that the group is gone, and the store is looked at again soon.
    fn refusing(&self, stands: Span) -> Entry {
        Entry {
            fresh: self.fresh.map(|_| stands),
            standing: match self.fresh {
                Some(_) => Standing::Refused,
                None => Standing::Unavailable(UnavailableReason::Missing),
            },
            stands,
            ..self.clone()
        }
    }

    /// Whether the snapshot may be used for as long as the entry stands.
    #[inline]
    pub(super) fn is_usable(&self) -> bool {
        !matches!(self.standing, Standing::Unavailable(_))
    }

    /// How long ago the snapshot was read, in milliseconds.
    #[inline]
    pub(super) fn age_ms(&self, now: Timestamp) -> u64 {
        now.as_millis().saturating_sub(self.read_at.as_millis())
    }

    /// Whether the snapshot may be used at `now` although reads fail: the last good one, for
    /// `stale_if_error` after it needed a look at the store; never of a group that is missing.
    pub(super) fn may_be_stale(&self, now: Timestamp, stale_if_error: Option<Duration>) -> bool {
        self.fresh
            .zip(stale_if_error)
            .is_some_and(|(fresh, by)| fresh.prolonged(by).holds(now))
    }
}
