//! The client half: work that wants permits waits here, in an object of its own, and is admitted when
//! a holder has given it one.
//!
//! An item is stored, asked for in a request, assigned to a grant, claimed, and handed to the
//! application once the holder has confirmed the claim; when its work has ended it is released and
//! its permit goes back. If its group has a *lease* with permits left, it draws one in the transaction
//! that stores it, and is handed over without asking anybody. Every step is a transaction first and a message or a callback after it, and
//! every message and callback is repeated until it is answered, also by the instance that follows one
//! that died. So nothing is lost, nothing is admitted without a confirmed claim, and every permit
//! comes back.
//!
//! - `item` and `event`: what is said to and by the application.
//! - `turn` decides who is asked for when not all can run, `claim` what a holder's answer means for a
//!   grant, `lease` for a lease; they are pure.
//! - `book` is what is kept in memory, `store` what is kept in rows.
//! - `enqueue` takes items in, `giving` gives them permits, `lanes` talks to holders, `admission` to
//!   the application, `inner` holds them together.
//!
//! Not decided here: who gets permits; that is the [holder's](super::Semaphore) matter.

mod admission;
mod book;
mod builder;
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub))]
mod claim;
#[cfg(feature = "testing")]
pub(crate) mod deciders;
mod enqueue;
mod event;
mod giving;
mod inner;
mod item;
mod lanes;
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub))]
mod lease;
mod store;
mod transport;
mod turn;

use std::rc::{Rc, Weak};

use tracing::Instrument;

#[cfg(feature = "testing")]
pub use book::QueueSums;
pub use builder::SemaphoreQueueBuilder;
pub use event::{LeaseStop, QueueEvent, RequeueReason, Via};
pub use item::{
    AdmittedItem, CancelOutcome, ItemStatus, KeyUsage, MAX_ITEM_ID_BYTES, NewItem, Outcome,
    QueueError, Refusal, WaitReason, Waiting,
};
pub use transport::HolderTransport;

use book::Book;
use claim::Claim;
use event::TARGET;
use inner::{Change, Inner};
use store::State;

use crate::error::StorageError;
use crate::host::Sql;
use crate::migrations::Migration;
use crate::scheduler::Scheduler;
use crate::time::Timestamp;

/// The queue's schema, for [`migrate`](crate::migrations::migrate).
pub const MIGRATIONS: &[Migration] = store::MIGRATIONS;

/// Queues work for permits of any number of holders, within the object that owns it. Clones are
/// handles to the same queue.
///
/// ```no_run
/// # use std::rc::Rc;
/// # use durably::layers::HostTimer;
/// # use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
/// # use durably::semaphore::protocol::Reply;
/// # use durably::semaphore::queue::{NewItem, SemaphoreQueue};
/// # use durably::{OpenError, Scheduler};
/// # async fn ask_holder(call: HolderCall) -> Result<Reply, ClientError> {
/// #     Err(ClientError::unreachable(format!("no way to {}", call.key)))
/// # }
/// # async fn build(scheduler: Scheduler) -> Result<(), Box<dyn std::error::Error>> {
/// let timer = HostTimer::new(scheduler.host().clone());
/// let queue = SemaphoreQueue::builder(&scheduler)
///     .holder(SemaphoreClient::new(holder_fn(ask_holder), timer))
///     .admit(|items| async move {
///         for item in items {
///             let url: String = item.read()?;
///             // Start the work, as `item.id`; starting it twice must be starting it once.
///         }
///         Ok(())
///     })
///     .build()?;
/// scheduler.open().await?;
///
/// let item = NewItem::new("job-1", "account-7", "nightly", &"https://example.org/report")?;
/// queue.enqueue(vec![item]).await?;
/// // Once the work of job-1 has ended:
/// queue.release("job-1").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SemaphoreQueue(Rc<Inner>);

/// A handle that does not keep the queue, for callbacks and hooks that the queue's own object keeps.
#[derive(Clone)]
pub struct WeakSemaphoreQueue(Weak<Inner>);

impl WeakSemaphoreQueue {
    /// The queue, if its instance is alive.
    pub fn upgrade(&self) -> Option<SemaphoreQueue> {
        self.0.upgrade().map(SemaphoreQueue)
    }
}

impl SemaphoreQueue {
    /// Starts to configure the queue of the object that `scheduler` belongs to.
    pub fn builder(scheduler: &Scheduler) -> SemaphoreQueueBuilder {
        SemaphoreQueueBuilder::new(scheduler.clone())
    }

    fn new(inner: Rc<Inner>) -> SemaphoreQueue {
        SemaphoreQueue(inner)
    }

    /// A handle that does not keep the queue.
    pub fn downgrade(&self) -> WeakSemaphoreQueue {
        WeakSemaphoreQueue(Rc::downgrade(&self.0))
    }

    /// Stores items in one transaction, in order, and says for each what became of it. An item that
    /// is refused, or known already, does not keep the others out.
    ///
    /// # Errors
    ///
    /// [`QueueError::BatchTooLong`], [`QueueError::Storage`]; nothing is stored then.
    pub async fn enqueue(&self, items: Vec<NewItem>) -> Result<Vec<Outcome>, QueueError> {
        let span = tracing::debug_span!(
            target: TARGET,
            "SemaphoreQueue.enqueue",
            items = items.len()
        );
        let max_items = self.0.settings.max_batch_items;
        if items.len() as u64 > max_items {
            return Err(QueueError::BatchTooLong {
                items: items.len() as u64,
                max_items,
            });
        }
        let now = self.0.now();
        let settings = self.0.settings.clone();
        let is_heard = self.0.is_heard();
        let scheduler = self.0.scheduler.clone();
        let stored = self.0.store(move |book, sql| {
            let next_id = || scheduler.next_id();
            enqueue::enqueue(book, sql, items, &settings, is_heard, now, next_id)
        });
        Ok(stored.instrument(span).await?)
    }

    /// The work of an item has ended: its permit goes back. Repeated releases, and releases of items
    /// that are unknown or not admitted, change nothing.
    ///
    /// # Errors
    ///
    /// [`QueueError::Storage`].
    pub async fn release(&self, id: &str) -> Result<(), QueueError> {
        self.release_all(vec![id.to_owned()]).await
    }

    /// The same for many items, in one transaction.
    ///
    /// # Errors
    ///
    /// [`QueueError::Storage`].
    pub async fn release_all(&self, ids: Vec<String>) -> Result<(), QueueError> {
        let span = tracing::debug_span!(
            target: TARGET,
            "SemaphoreQueue.release",
            items = ids.len()
        );
        self.0.release_items(ids).instrument(span).await?;
        Ok(())
    }

    /// What the queue has of a key at this moment.
    pub fn usage(&self, key: &str) -> KeyUsage {
        self.0.book.borrow().usage(key)
    }

    /// Where an item stands.
    ///
    /// # Errors
    ///
    /// [`QueueError::Storage`].
    pub async fn status(&self, id: &str) -> Result<ItemStatus, QueueError> {
        let statuses = self.statuses(vec![id.to_owned()]).await?;
        Ok(statuses.into_iter().next().unwrap_or(ItemStatus::Unknown))
    }

    /// Where many items stand, in the order of `ids`.
    ///
    /// # Errors
    ///
    /// [`QueueError::Storage`].
    pub async fn statuses(&self, ids: Vec<String>) -> Result<Vec<ItemStatus>, QueueError> {
        let span = tracing::debug_span!(
            target: TARGET,
            "SemaphoreQueue.status",
            items = ids.len()
        );
        let inner = self.0.clone();
        let forgotten = self.forgotten_before();
        // Nothing is stored, so nothing is to be armed.
        let read = self.0.scheduler.host().transaction(move |transaction| {
            let sql = transaction.sql();
            let book = inner.book.borrow();
            ids.iter()
                .map(|id| status(&book, sql, id, forgotten))
                .collect::<Result<_, StorageError>>()
        });
        Ok(read.instrument(span).await?)
    }

    /// Takes an item out of the queue before it is admitted.
    ///
    /// # Errors
    ///
    /// [`QueueError::Storage`].
    pub async fn cancel(&self, id: &str) -> Result<CancelOutcome, QueueError> {
        let span = tracing::debug_span!(target: TARGET, "SemaphoreQueue.cancel", id);
        let forgotten = self.forgotten_before();
        let id = id.to_owned();
        let stored = self
            .0
            .store(move |book, sql| cancel(book, sql, id, forgotten));
        Ok(stored.instrument(span).await?)
    }

    /// The ids of known items, waiting or not, after `after` and before `end`, in order and at most
    /// `limit`.
    ///
    /// # Errors
    ///
    /// [`QueueError::Storage`].
    pub async fn ids_between(
        &self,
        after: String,
        end: String,
        limit: u64,
    ) -> Result<Vec<String>, QueueError> {
        let host = self.0.scheduler.host();
        let read = host.transaction(move |transaction| {
            store::ids_between(transaction.sql(), &after, &end, limit)
        });
        Ok(read.await?)
    }

    /// Whether any item is known, waiting or not.
    ///
    /// # Errors
    ///
    /// [`QueueError::Storage`].
    pub async fn knows_any(&self) -> Result<bool, QueueError> {
        let host = self.0.scheduler.host();
        let read = host.transaction(|transaction| store::knows_any(transaction.sql()));
        Ok(read.await?)
    }

    /// How many items wait.
    pub fn len(&self) -> u64 {
        self.0.book.borrow().queued()
    }

    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sums in memory, and the same from a full scan of the rows. They are always equal.
    ///
    /// # Errors
    ///
    /// [`QueueError::Storage`].
    #[cfg(feature = "testing")]
    pub async fn compare_sums(&self) -> Result<(QueueSums, QueueSums), QueueError> {
        let inner = self.0.clone();
        let read = self.0.scheduler.host().transaction(move |transaction| {
            let scanned = inner.read_book(transaction.sql())?;
            Ok::<_, StorageError>((inner.book.borrow().sums(), scanned.sums()))
        });
        Ok(read.await?)
    }

    /// The sums as they are in memory.
    #[cfg(feature = "testing")]
    pub fn sums(&self) -> QueueSums {
        self.0.book.borrow().sums()
    }

    /// The same from a full scan of the rows.
    ///
    /// # Errors
    ///
    /// What storage answers.
    #[cfg(feature = "testing")]
    pub fn scan(&self, sql: &dyn Sql) -> Result<QueueSums, StorageError> {
        Ok(self.0.read_book(sql)?.sums())
    }

    /// Items that finished by this time are no longer known.
    fn forgotten_before(&self) -> Option<Timestamp> {
        let retention = self.0.settings.retention;
        forgotten_before(self.0.now(), retention)
    }
}

fn forgotten_before(now: Timestamp, retention: std::time::Duration) -> Option<Timestamp> {
    let retention = u64::try_from(retention.as_millis()).ok()?;
    now.as_millis()
        .checked_sub(retention)
        .map(Timestamp::from_millis)
}

fn status(
    book: &Book,
    sql: &dyn Sql,
    id: &str,
    forgotten: Option<Timestamp>,
) -> Result<ItemStatus, StorageError> {
    let Some(row) = store::item(sql, id)? else {
        return Ok(ItemStatus::Unknown);
    };
    Ok(match row.state {
        State::Queued => {
            let before = store::waiting_before(sql, &row.key, &row.group, row.place.seq)?;
            ItemStatus::Queued {
                group: row.group.clone(),
                place: (before + 1).min(store::MAX_PLACE),
                queued_at: row.place.queued_at,
                waiting: book.waiting(&row.key, &row.group),
            }
        }
        State::Cancelled => ItemStatus::Claiming { group: row.group },
        State::Assigned => {
            let is_admitted = book.held(id).is_some_and(|held| {
                let grant = book.grant_of(held);
                grant.is_some_and(|grant| held.position < grant.admitted)
            });
            match is_admitted {
                true => ItemStatus::Admitted { group: row.group },
                false => ItemStatus::Claiming { group: row.group },
            }
        }
        State::Finished => match row.finished_at {
            Some(at) if Some(at) > forgotten => ItemStatus::Finished {
                group: row.group,
                at,
            },
            _ => ItemStatus::Unknown,
        },
    })
}

fn cancel(
    book: &Book,
    sql: &dyn Sql,
    id: String,
    forgotten: Option<Timestamp>,
) -> Result<Change<CancelOutcome>, StorageError> {
    let unchanged = |outcome| {
        Ok(Change {
            value: outcome,
            events: Vec::new(),
            pending: None,
            apply: Box::new(|_| ()),
        })
    };
    let Some(row) = store::item(sql, &id)? else {
        return unchanged(CancelOutcome::Unknown);
    };
    let cancelled = QueueEvent::Cancelled {
        id: id.clone(),
        key: row.key.clone(),
    };
    match row.state {
        State::Finished if row.finished_at > forgotten => unchanged(CancelOutcome::Finished),
        State::Finished => unchanged(CancelOutcome::Unknown),
        State::Cancelled => unchanged(CancelOutcome::Releasing),
        State::Queued => {
            store::remove(sql, &id)?;
            let was_first = book.is_first(&row.key, &row.group, row.place.seq);
            let next = match was_first {
                true => store::oldest(sql, &row.key, &row.group, 1)?.pop(),
                false => None,
            };
            let next = next.map(|item| item.place);
            Ok(Change {
                value: CancelOutcome::Cancelled,
                events: vec![cancelled],
                pending: None,
                apply: Box::new(move |book| book.unqueued(&row.key, &row.group, was_first, next)),
            })
        }
        State::Assigned => {
            let claim = book.held(&id).and_then(|held| book.grant_of(held));
            if claim.is_none_or(|grant| grant.claim != Claim::Open) {
                return unchanged(CancelOutcome::Admitted);
            }
            store::mark_cancelled(sql, &id)?;
            Ok(Change {
                value: CancelOutcome::Releasing,
                events: vec![cancelled],
                pending: Some(Timestamp::ZERO),
                apply: Box::new(move |book| book.cancelled(&id)),
            })
        }
    }
}
