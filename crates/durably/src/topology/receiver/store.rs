//! The table of what a member has applied.

use serde::Serialize;
use serde_json::Value;

use crate::error::StorageError;
use crate::host::{Row, Sql};
use crate::migrations::Migration;
use crate::topology::delivery::StateUpdate;
use crate::topology::snapshot::{Edition, Incarnation};

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

/// What a member applied last of a group's channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Applied {
    /// The group.
    pub group: String,
    /// The channel.
    pub channel: String,
    /// Its version, which compares within one incarnation of one coordinator.
    pub version: u64,
    /// Who sent it.
    pub coordinator: String,
    /// The coordinator's incarnation.
    pub incarnation: Incarnation,
    /// The value.
    pub value: Value,
}

/// What was applied last of a group's channels.
pub(super) fn applied_of_group(
    sql: &dyn Sql,
    group: &str,
    limit: u64,
) -> Result<Vec<Applied>, StorageError> {
    sql.all(
        "SELECT channel, coordinator, created_at, nonce, version, value
         FROM durability_topology_applied WHERE group_id = ? ORDER BY channel LIMIT ?",
        &[group.into(), limit.into()],
        |row| {
            Ok(Applied {
                group: group.to_owned(),
                channel: row.string(0)?,
                coordinator: row.string(1)?,
                incarnation: Incarnation {
                    created_at: row.time(2)?,
                    nonce: row.string(3)?,
                },
                version: row.count(4)?,
                value: json(row, 5)?,
            })
        },
    )
}

fn json(row: &dyn Row, column: usize) -> Result<Value, StorageError> {
    serde_json::from_str(row.text(column)?).map_err(|_| StorageError::Value {
        column,
        expected: "a value in JSON",
    })
}

/// Who sent what was applied last of a group's channel, and with which version.
pub(super) fn applied(
    sql: &dyn Sql,
    group: &str,
    channel: &str,
) -> Result<Option<Edition>, StorageError> {
    sql.first(
        "SELECT coordinator, created_at, nonce, version
         FROM durability_topology_applied WHERE group_id = ? AND channel = ?",
        &[group.into(), channel.into()],
        |row| {
            Ok(Edition {
                coordinator: row.string(0)?,
                incarnation: Incarnation {
                    created_at: row.time(1)?,
                    nonce: row.string(2)?,
                },
                version: row.count(3)?,
            })
        },
    )
}

/// The value that was applied last.
pub(super) fn value(
    sql: &dyn Sql,
    group: &str,
    channel: &str,
) -> Result<Option<Value>, StorageError> {
    sql.first(
        "SELECT value FROM durability_topology_applied WHERE group_id = ? AND channel = ?",
        &[group.into(), channel.into()],
        |row| json(row, 0),
    )
}

/// Notes what is applied.
pub(super) fn put(sql: &dyn Sql, update: &StateUpdate) -> Result<(), StorageError> {
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
