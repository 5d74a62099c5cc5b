//! What becomes of a group, as a stream.
//!
//! Decided here: what is news to who follows a group. It is read like everywhere else in the reader,
//! whenever it is time to look again.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Standing};
use super::error::UnavailableReason;
use super::inner::Inner;
use super::source::Source;
use crate::layers::{Randomness, Timer};
use crate::topology::snapshot::{Edition, Snapshot};

/// Between two looks at the store, should a clock say that there is no time to wait.
const SHORTEST: Duration = Duration::from_millis(1);

/// What became of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// This is the group now.
    Snapshot(Arc<Snapshot>),
    /// The group is gone.
    Deleted,
}

/// Follows a group: knows what was told of it.
pub(super) struct Follower<S: Source, T: Timer, R: Randomness, F> {
    inner: Arc<Inner<S, T, R, F>>,
    group: String,
    told: Told,
}

/// What was told of a group.
#[derive(Default)]
struct Told {
    edition: Option<Arc<Edition>>,
    exists: bool,
}

impl Told {
    /// What `entry` has of news.
    fn news(&mut self, entry: &Entry) -> Option<Change> {
        let exists = match &entry.standing {
            Standing::Taken | Standing::Refused => true,
            Standing::Unavailable(UnavailableReason::Missing) => false,
            Standing::Unavailable(_) => return None,
        };
        let told = self.edition.as_ref().zip(entry.edition.as_ref());
        let order = told.map(|(told, known)| known.compare(told));
        // The reader may have forgotten the group in between, and the store have an older one.
        let older = order == Some(Some(Ordering::Less));
        let same = order == Some(Some(Ordering::Equal));
        if older || exists == self.exists && (same || !exists) {
            return None;
        }
        self.exists = exists;
        if entry.edition.is_some() {
            self.edition.clone_from(&entry.edition);
        }
        Some(if exists {
            Change::Snapshot(entry.snapshot.clone())
        } else {
            Change::Deleted
        })
    }
}

impl<S: Source, T: Timer, R: Randomness, F> Follower<S, T, R, F> {
    pub(super) fn new(inner: Arc<Inner<S, T, R, F>>, group: &str) -> Self {
        Follower {
            inner,
            group: group.to_owned(),
            told: Told::default(),
        }
    }

    /// Waits for the next change.
    pub(super) async fn next(&mut self) -> Change {
        loop {
            let now = self.inner.timer.now();
            let (stands, news) = {
                let entry = match self.inner.standing(&self.group, now) {
                    Some(entry) => entry,
                    None => self.inner.look(&self.group).await.0,
                };
                (entry.stands, self.told.news(&entry))
            };
            if let Some(change) = news {
                return change;
            }
            let left = stands.left(self.inner.timer.now());
            self.inner.timer.sleep(left.max(SHORTEST)).await;
        }
    }
}
