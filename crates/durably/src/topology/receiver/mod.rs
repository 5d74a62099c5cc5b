//! A member's side of state channels: applies what is newer than what it has, in its own transaction.

mod store;

use std::cmp::Ordering;
use std::rc::Rc;

use serde_json::Value;

use super::delivery::StateUpdate;
use super::snapshot::Edition;
use crate::bugs::{self, Bug};
use crate::error::{BoxError, OpenError, StorageError};
use crate::host::{LocalFuture, Sql, Transaction};
use crate::migrations::Migration;
use crate::scheduler::{Participant, Scheduler};
use crate::time::Timestamp;

pub use store::{Applied, RECEIVER_MIGRATIONS};

/// What a member has of the state channels of its groups. Clones are handles to the same.
///
/// ```
/// use durably::topology::{StateReceiver, StateUpdate};
/// use durably::{OpenError, Scheduler, StorageError};
///
/// fn build(scheduler: &Scheduler) -> Result<StateReceiver, OpenError> {
///     StateReceiver::new(scheduler)
/// }
///
/// /// What the coordinator's delivery calls.
/// async fn apply_limits(states: &StateReceiver, update: StateUpdate) -> Result<bool, StorageError> {
///     states
///         .apply(update, |transaction, update| {
///             // Rows of one's own follow the value in the same transaction.
///             let _ = (transaction.sql(), &update.value);
///             Ok(())
///         })
///         .await
/// }
/// ```
#[derive(Clone)]
pub struct StateReceiver(Rc<Receiver>);

struct Receiver {
    scheduler: Scheduler,
}

impl StateReceiver {
    /// Makes the object's receiver and attaches it to the scheduler.
    ///
    /// # Errors
    ///
    /// What [`Scheduler::attach`] answers; the object has one receiver.
    pub fn new(scheduler: &Scheduler) -> Result<Self, OpenError> {
        let receiver = Rc::new(Receiver {
            scheduler: scheduler.clone(),
        });
        scheduler.attach(&receiver)?;
        Ok(StateReceiver(receiver))
    }

    /// Applies an update if it is newer than what was applied of its group and channel, and says
    /// whether it was. `apply` runs in the same transaction. What is older or the same changes nothing
    /// and is no error: deliveries are repeated and may overtake each other.
    ///
    /// An update of another coordinator is always newer, one of a later incarnation of the same too.
    ///
    /// # Errors
    ///
    /// What `apply` and storage answer; nothing is stored then.
    pub async fn apply<E, F>(&self, update: StateUpdate, apply: F) -> Result<bool, E>
    where
        E: From<StorageError> + 'static,
        F: FnOnce(&dyn Transaction, &StateUpdate) -> Result<(), E> + 'static,
    {
        let applied = self.0.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            if !is_newer(sql, &update)? && !bugs::is_on(Bug::ReceiverAppliesAnything) {
                return Ok(false);
            }
            store::put(sql, &update)?;
            apply(transaction, &update)?;
            Ok(true)
        });
        applied.await
    }

    /// The value that was applied last of a group's channel.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn value(&self, group: &str, channel: &str) -> Result<Option<Value>, StorageError> {
        let (group, channel) = (group.to_owned(), channel.to_owned());
        let host = self.0.scheduler.host();
        let read =
            host.transaction(move |transaction| store::value(transaction.sql(), &group, &channel));
        read.await
    }

    /// What was applied last of a group's channels, by the bytes of their names, at most `limit` of them.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn applied(&self, group: &str, limit: u64) -> Result<Vec<Applied>, StorageError> {
        let group = group.to_owned();
        let host = self.0.scheduler.host();
        let read = host.transaction(move |transaction| {
            store::applied_of_group(transaction.sql(), &group, limit)
        });
        read.await
    }
}

fn is_newer(sql: &dyn Sql, update: &StateUpdate) -> Result<bool, StorageError> {
    let Some(applied) = store::applied(sql, &update.group, &update.channel)? else {
        return Ok(true);
    };
    let sent = Edition {
        coordinator: update.coordinator.clone(),
        incarnation: match bugs::is_on(Bug::ReceiverIgnoresIncarnation) {
            true => applied.incarnation.clone(),
            false => update.incarnation.clone(),
        },
        version: update.version,
    };
    Ok(sent.compare(&applied).is_none_or(Ordering::is_gt))
}

impl Participant for Receiver {
    fn name(&self) -> &'static str {
        "topology_receiver"
    }

    fn migrations(&self) -> &'static [Migration] {
        store::RECEIVER_MIGRATIONS
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
