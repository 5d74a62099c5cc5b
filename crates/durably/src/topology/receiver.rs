//! A member's side of state channels: applies what is newer than what it has, in its own transaction.

use std::rc::Rc;

use serde_json::Value;

use super::delivery::StateUpdate;
use super::snapshot::Incarnation;
use crate::bugs::{self, Bug};
use crate::error::{OpenError, StorageError};
use crate::host::{LocalFuture, Sql, Transaction};
use crate::migrations::Migration;
use crate::scheduler::{Participant, Scheduler};
use crate::time::Timestamp;

/// The capability's schema, oldest migration first.
pub const RECEIVER_MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_topology_receiver",
    up: "CREATE TABLE durability_topology_applied (
            group_id TEXT NOT NULL,
            channel TEXT NOT NULL,
            coordinator TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            nonce TEXT NOT NULL,
            version INTEGER NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (group_id, channel)
        ) STRICT, WITHOUT ROWID;",
    down: "DROP TABLE durability_topology_applied;",
}];

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
            store(sql, &update)?;
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
        let read = host.transaction(move |transaction| {
            transaction.sql().first(
                "SELECT value FROM durability_topology_applied WHERE group_id = ? AND channel = ?",
                &[(&group).into(), (&channel).into()],
                |row| {
                    serde_json::from_str(row.text(0)?).map_err(|_| StorageError::Value {
                        column: 0,
                        expected: "a value in JSON",
                    })
                },
            )
        });
        read.await
    }
}

fn is_newer(sql: &dyn Sql, update: &StateUpdate) -> Result<bool, StorageError> {
    let applied = sql.first(
        "SELECT coordinator, created_at, nonce, version
         FROM durability_topology_applied WHERE group_id = ? AND channel = ?",
        &[(&update.group).into(), (&update.channel).into()],
        |row| {
            let incarnation = Incarnation {
                created_at: row.time(1)?,
                nonce: row.string(2)?,
            };
            Ok((row.string(0)?, incarnation, row.count(3)?))
        },
    )?;
    Ok(applied.is_none_or(|(coordinator, incarnation, version)| {
        coordinator != update.coordinator
            || bugs::is_on(Bug::ReceiverIgnoresIncarnation) && update.version > version
            || !bugs::is_on(Bug::ReceiverIgnoresIncarnation)
                && (&update.incarnation, update.version) > (&incarnation, version)
    }))
}

fn store(sql: &dyn Sql, update: &StateUpdate) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_topology_applied
            (group_id, channel, coordinator, created_at, nonce, version, value)
         VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (group_id, channel) DO UPDATE SET
            coordinator = excluded.coordinator, created_at = excluded.created_at,
            nonce = excluded.nonce, version = excluded.version, value = excluded.value",
        &[
            (&update.group).into(),
            (&update.channel).into(),
            (&update.coordinator).into(),
            update.incarnation.created_at.into(),
            (&update.incarnation.nonce).into(),
            update.version.into(),
            (&update.value.to_string()).into(),
        ],
    )?;
    Ok(())
}

impl Participant for Receiver {
    fn name(&self) -> &'static str {
        "topology_receiver"
    }

    fn migrations(&self) -> &'static [Migration] {
        RECEIVER_MIGRATIONS
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

    fn run_due(self: Rc<Self>, _: Timestamp) -> LocalFuture<Result<(), crate::error::BoxError>> {
        Box::pin(async { Ok(()) })
    }
}
