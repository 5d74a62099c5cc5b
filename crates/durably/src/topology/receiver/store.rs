//! The table of what a member has applied.

use serde_json::Value;

use crate::error::StorageError;
use crate::host::Sql;
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
        |row| {
            serde_json::from_str(row.text(0)?).map_err(|_| StorageError::Value {
                column: 0,
                expected: "a value in JSON",
            })
        },
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
