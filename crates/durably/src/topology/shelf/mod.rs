//! Published texts kept in an object, for coordinators and readers that have no other store: an object
//! that is asked instead of a bucket, never the coordinator.
//!
//! What stays is decided in the transaction that stores it, so a shelf is version-aware.

mod object;
mod store;

use std::rc::Rc;

use super::publisher::Verdict;
use super::snapshot::{SnapshotError, decode};
use crate::error::{BoxError, OpenError, StorageError};
use crate::host::{LocalFuture, Sql};
use crate::migrations::Migration;
use crate::scheduler::{Participant, Scheduler};
use crate::time::Timestamp;

pub use object::ShelfObject;
pub use store::SHELF_MIGRATIONS;

/// What an object keeps of published groups. Clones are handles to the same.
///
/// ```
/// use durably::topology::{Shelf, SnapshotError};
/// use durably::{OpenError, Scheduler, StorageError};
///
/// fn build(scheduler: &Scheduler) -> Result<Shelf, OpenError> {
///     Shelf::new(scheduler)
/// }
///
/// async fn put(shelf: &Shelf, text: String) -> Result<Result<String, SnapshotError>, StorageError> {
///     shelf.publish("tenant-1", text).await
/// }
/// ```
#[derive(Clone)]
pub struct Shelf(Rc<Inner>);

struct Inner {
    scheduler: Scheduler,
}

impl Shelf {
    /// Makes the object's shelf and attaches it to the scheduler.
    ///
    /// # Errors
    ///
    /// What [`Scheduler::attach`] answers; the object has one shelf.
    pub fn new(scheduler: &Scheduler) -> Result<Self, OpenError> {
        let inner = Rc::new(Inner {
            scheduler: scheduler.clone(),
        });
        scheduler.attach(&inner)?;
        Ok(Shelf(inner))
    }

    /// Publishes a text of `group`, a tombstone included, and answers the one that is there then: this
    /// one, or the one that superseded it.
    ///
    /// # Errors
    ///
    /// What storage answers, and [`SnapshotError`] if it is not a published text of this group; nothing
    /// is stored then.
    pub async fn publish(
        &self,
        group: &str,
        text: String,
    ) -> Result<Result<String, SnapshotError>, StorageError> {
        let edition = match decode(group, text.as_bytes()) {
            Ok(published) => published.edition,
            Err(error) => return Ok(Err(error)),
        };
        let group = group.to_owned();
        let published = self.0.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            let stored = store::text(sql, &group)?;
            let bytes = stored.as_deref().map(str::as_bytes);
            match Verdict::of(&group, &edition, &text, bytes) {
                Verdict::Write => {
                    store::put(sql, &group, &text)?;
                    Ok(text)
                }
                Verdict::Stored | Verdict::Superseded(_) => Ok(stored.unwrap_or_default()),
            }
        });
        published.await.map(Ok)
    }

    /// The published text of a group, tombstones included; none if nothing was published.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn read(&self, group: &str) -> Result<Option<String>, StorageError> {
        let group = group.to_owned();
        let host = self.0.scheduler.host();
        let read = host.transaction(move |transaction| store::text(transaction.sql(), &group));
        read.await
    }
}

impl Participant for Inner {
    fn name(&self) -> &'static str {
        "topology_shelf"
    }

    fn migrations(&self) -> &'static [Migration] {
        store::SHELF_MIGRATIONS
    }

    fn load(&self, _: &dyn Sql, _: Timestamp) -> Result<(), StorageError> {
        Ok(())
    }

    fn next_pending_at(&self, _: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        Ok(None)
    }

    fn next_wake_at(&self, _: &dyn Sql, _: Timestamp) -> Result<Option<Timestamp>, StorageError> {
        Ok(None)
    }

    fn run_due(self: Rc<Self>, _: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async { Ok(()) })
    }
}
