//! The table of entries: one row for each key of each channel, for ever, since versions go on
//! counting.
//!
//! A row is *pending* while it has a due time; the one index holds only pending rows. A row that has
//! ended gives its value back and keeps its mark.

use serde::Serialize;

use crate::error::StorageError;
use crate::host::{Row, Sql};
use crate::migrations::Migration;
use crate::time::Timestamp;

/// The capability's schema, oldest migration first.
pub const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_outbox",
    up: "CREATE TABLE durability_outbox (
            channel TEXT NOT NULL,
            key TEXT NOT NULL,
            version INTEGER NOT NULL,
            due_at INTEGER,
            staged INTEGER NOT NULL,
            attempts INTEGER NOT NULL,
            ended TEXT,
            last_error TEXT,
            mark TEXT,
            value TEXT,
            PRIMARY KEY (channel, key)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX durability_outbox_due
            ON durability_outbox (channel, due_at, staged) WHERE due_at IS NOT NULL;",
    down: "DROP TABLE durability_outbox;",
}];

/// How an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Ending {
    /// It has arrived.
    Delivered,
    /// It was taken back, or had become needless by the time of its call.
    Discarded,
}

impl Ending {
    fn as_str(self) -> &'static str {
        match self {
            Ending::Delivered => "delivered",
            Ending::Discarded => "discarded",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "delivered" => Some(Ending::Delivered),
            "discarded" => Some(Ending::Discarded),
            _ => None,
        }
    }
}

/// Where an entry stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct EntryStatus {
    /// Its key.
    pub key: String,
    /// The newest version.
    pub version: u64,
    /// How the newest version ended; `None` while it is pending.
    pub ended: Option<Ending>,
    /// How many attempts at the newest version have started.
    pub attempts: u64,
    /// When the next attempt is due, or was, if it is running; `None` when it has ended.
    pub next_attempt_at: Option<Timestamp>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

fn status(row: &dyn Row) -> Result<EntryStatus, StorageError> {
    let ended = row.optional_string(2)?;
    let ended = ended.map(|text| {
        Ending::parse(&text).ok_or(StorageError::Value {
            column: 2,
            expected: "the ending of an entry",
        })
    });
    Ok(EntryStatus {
        key: row.string(0)?,
        version: row.count(1)?,
        ended: ended.transpose()?,
        attempts: row.count(3)?,
        next_attempt_at: row.optional_time(4)?,
        last_error: row.optional_string(5)?,
    })
}

/// Where the entry of a key stands.
pub(super) fn entry(
    sql: &dyn Sql,
    channel: &str,
    key: &str,
) -> Result<Option<EntryStatus>, StorageError> {
    sql.first(
        "SELECT key, version, ended, attempts, due_at, last_error
         FROM durability_outbox WHERE channel = ? AND key = ?",
        &[channel.into(), key.into()],
        status,
    )
}

/// What is pending of a channel, longest due first, after the first `skip`.
pub(super) fn pending(
    sql: &dyn Sql,
    channel: &str,
    skip: u64,
    limit: u64,
) -> Result<Vec<EntryStatus>, StorageError> {
    sql.all(
        "SELECT key, version, ended, attempts, due_at, last_error
         FROM durability_outbox WHERE channel = ? AND due_at IS NOT NULL
         ORDER BY due_at, staged LIMIT ? OFFSET ?",
        &[channel.into(), limit.into(), skip.into()],
        status,
    )
}

/// Where the entries of a range of keys stand, by key: from `from`, before `before`.
pub(super) fn entries_between(
    sql: &dyn Sql,
    channel: &str,
    from: &str,
    before: &str,
) -> Result<Vec<EntryStatus>, StorageError> {
    sql.all(
        "SELECT key, version, ended, attempts, due_at, last_error
         FROM durability_outbox WHERE channel = ? AND key >= ? AND key < ? ORDER BY key",
        &[channel.into(), from.into(), before.into()],
        status,
    )
}

/// How the newest version of a key ended, if it has, and what it was marked with.
pub(crate) struct Marked {
    pub(crate) ended: Option<Ending>,
    pub(crate) mark: Option<String>,
}

/// What is known of the newest version of a key, also when its value has gone.
pub(super) fn mark(
    sql: &dyn Sql,
    channel: &str,
    key: &str,
) -> Result<Option<Marked>, StorageError> {
    sql.first(
        "SELECT ended, mark FROM durability_outbox WHERE channel = ? AND key = ?",
        &[channel.into(), key.into()],
        |row| {
            let ended = row.optional_string(0)?;
            Ok(Marked {
                ended: ended.as_deref().and_then(Ending::parse),
                mark: row.optional_string(1)?,
            })
        },
    )
}

/// A version as it is staged.
pub(super) struct NewEntry<'a> {
    pub(super) channel: &'a str,
    pub(super) key: &'a str,
    pub(super) version: u64,
    pub(super) due_at: Timestamp,
    pub(super) staged: u64,
    pub(super) mark: Option<&'a str>,
    pub(super) value: &'a str,
}

/// The newest version of a key, and whether it is pending with how many attempts.
pub(super) fn newest(
    sql: &dyn Sql,
    channel: &str,
    key: &str,
) -> Result<Option<(u64, Option<u64>)>, StorageError> {
    sql.first(
        "SELECT version, CASE WHEN due_at IS NULL THEN NULL ELSE attempts END
         FROM durability_outbox WHERE channel = ? AND key = ?",
        &[channel.into(), key.into()],
        |row| Ok((row.count(0)?, row.optional_count(1)?)),
    )
}

/// Stores a version in the place of the one before it.
pub(super) fn stage(sql: &dyn Sql, entry: &NewEntry<'_>) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_outbox (channel, key, version, due_at, staged, attempts, mark, value)
         VALUES (?, ?, ?, ?, ?, 0, ?, ?)
         ON CONFLICT (channel, key) DO UPDATE SET
            version = excluded.version, due_at = excluded.due_at, staged = excluded.staged,
            attempts = 0, ended = NULL, last_error = NULL, mark = excluded.mark,
            value = excluded.value",
        &[
            entry.channel.into(),
            entry.key.into(),
            entry.version.into(),
            entry.due_at.into(),
            entry.staged.into(),
            entry.mark.into(),
            entry.value.into(),
        ],
    )?;
    Ok(())
}

/// Ends a pending version; `false` if it is not pending any more.
pub(super) fn end(
    sql: &dyn Sql,
    channel: &str,
    key: &str,
    version: u64,
    ending: Ending,
) -> Result<bool, StorageError> {
    let changed = sql.execute(
        "UPDATE durability_outbox SET due_at = NULL, ended = ?, last_error = NULL, value = NULL
         WHERE channel = ? AND key = ? AND version = ? AND due_at IS NOT NULL",
        &[
            ending.as_str().into(),
            channel.into(),
            key.into(),
            version.into(),
        ],
    )?;
    Ok(changed > 0)
}

/// Has a pending version tried again; `false` if it is not pending any more.
pub(super) fn retry(
    sql: &dyn Sql,
    channel: &str,
    key: &str,
    version: u64,
    due_at: Timestamp,
    error: Option<&str>,
) -> Result<bool, StorageError> {
    let changed = sql.execute(
        "UPDATE durability_outbox SET due_at = ?, last_error = ?
         WHERE channel = ? AND key = ? AND version = ? AND due_at IS NOT NULL",
        &[
            due_at.into(),
            error.into(),
            channel.into(),
            key.into(),
            version.into(),
        ],
    )?;
    Ok(changed > 0)
}

/// A pending version that may be tried now.
pub(super) struct DueEntry {
    pub(super) key: String,
    pub(super) version: u64,
    pub(super) attempts: u64,
    pub(super) value: String,
}

fn due_entry(row: &dyn Row) -> Result<DueEntry, StorageError> {
    Ok(DueEntry {
        key: row.string(0)?,
        version: row.count(1)?,
        attempts: row.count(2)?,
        value: row.string(3)?,
    })
}

/// The pending version of a key, whenever it is due.
pub(super) fn pending_of_key(
    sql: &dyn Sql,
    channel: &str,
    key: &str,
) -> Result<Option<DueEntry>, StorageError> {
    sql.first(
        "SELECT key, version, attempts, value FROM durability_outbox
         WHERE channel = ? AND key = ? AND due_at IS NOT NULL",
        &[channel.into(), key.into()],
        due_entry,
    )
}

/// The keys that are due, longest due first.
pub(super) fn due_keys(
    sql: &dyn Sql,
    channel: &str,
    now: Timestamp,
    limit: u64,
) -> Result<Vec<String>, StorageError> {
    sql.all(
        "SELECT key FROM durability_outbox
         WHERE channel = ? AND due_at IS NOT NULL AND due_at <= ? ORDER BY due_at, staged LIMIT ?",
        &[channel.into(), now.into(), limit.into()],
        |row| row.string(0),
    )
}

/// Counts an attempt that starts.
pub(super) fn start(sql: &dyn Sql, channel: &str, key: &str) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_outbox SET attempts = attempts + 1 WHERE channel = ? AND key = ?",
        &[channel.into(), key.into()],
    )?;
    Ok(())
}

/// The earliest time at which something of a channel is due, past ones included.
pub(super) fn earliest(sql: &dyn Sql, channel: &str) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT due_at FROM durability_outbox
         WHERE channel = ? AND due_at IS NOT NULL ORDER BY due_at LIMIT 1",
        &[channel.into()],
        |row| row.time(0),
    )
}

/// The earliest time after `now` at which something of a channel is due.
pub(super) fn earliest_after(
    sql: &dyn Sql,
    channel: &str,
    now: Timestamp,
) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT due_at FROM durability_outbox
         WHERE channel = ? AND due_at IS NOT NULL AND due_at > ? ORDER BY due_at LIMIT 1",
        &[channel.into(), now.into()],
        |row| row.time(0),
    )
}
