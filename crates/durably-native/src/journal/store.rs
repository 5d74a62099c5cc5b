//! The journal's tables: which objects are active, when the others want to be woken, and the data
//! folder's id and time.

use durably::host::{Sql, Transaction};
use durably::{StorageError, Timestamp};

/// A name is active if its own file may hold an alarm that the journal does not know.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS durability_system (
    class TEXT NOT NULL,
    name TEXT NOT NULL,
    active INTEGER NOT NULL,
    alarm_at INTEGER,
    PRIMARY KEY (class, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS durability_system_alarm
    ON durability_system (alarm_at) WHERE active = 0 AND alarm_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS durability_system_active
    ON durability_system (active) WHERE active = 1;
CREATE TABLE IF NOT EXISTS durability_folder (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 0),
    id TEXT NOT NULL,
    latest INTEGER NOT NULL
) STRICT;
";

/// Creates what is missing.
pub(super) fn create(sql: &dyn Sql) -> Result<(), StorageError> {
    sql.script(SCHEMA)
}

/// The data folder's id, which is `fresh` if it has none yet.
pub(super) fn folder_id(sql: &dyn Sql, fresh: &str) -> Result<String, StorageError> {
    sql.execute(
        "INSERT INTO durability_folder (singleton, id, latest) VALUES (0, ?, 0)
         ON CONFLICT DO NOTHING",
        &[fresh.into()],
    )?;
    let stored = sql.first("SELECT id FROM durability_folder", &[], |row| row.string(0))?;
    Ok(stored.unwrap_or_else(|| fresh.to_owned()))
}

/// The latest time that was noted.
pub(super) fn latest(sql: &dyn Sql) -> Result<Timestamp, StorageError> {
    let latest = sql.first("SELECT latest FROM durability_folder", &[], |row| {
        row.time(0)
    })?;
    Ok(latest.unwrap_or(Timestamp::ZERO))
}

/// Notes that it is as late as `time`.
pub(super) fn note_time(sql: &dyn Sql, time: Timestamp) -> Result<(), StorageError> {
    sql.execute("UPDATE durability_folder SET latest = ?", &[time.into()])
        .map(|_| ())
}

/// Records that an object is active.
pub(super) fn set_active(
    transaction: &dyn Transaction,
    class: &str,
    name: &str,
) -> Result<(), StorageError> {
    transaction
        .execute(
            "INSERT INTO durability_system (class, name, active, alarm_at) VALUES (?1, ?2, 1, NULL)
             ON CONFLICT DO UPDATE SET active = 1 WHERE active = 0",
            &[class.into(), name.into()],
        )
        .map(|_| ())
}

/// Records that an object is closed, and its alarm. Without an alarm nothing needs to be known.
pub(super) fn set_idle(
    transaction: &dyn Transaction,
    class: &str,
    name: &str,
    alarm: Option<Timestamp>,
) -> Result<(), StorageError> {
    match alarm {
        Some(at) => transaction.execute(
            "INSERT INTO durability_system (class, name, active, alarm_at) VALUES (?1, ?2, 0, ?3)
             ON CONFLICT DO UPDATE SET active = 0, alarm_at = excluded.alarm_at
             WHERE active = 1 OR alarm_at IS NOT excluded.alarm_at",
            &[class.into(), name.into(), at.into()],
        ),
        None => transaction.execute(
            "DELETE FROM durability_system WHERE class = ?1 AND name = ?2",
            &[class.into(), name.into()],
        ),
    }
    .map(|_| ())
}

/// Class and name of all that were left active.
pub(super) fn active(sql: &dyn Sql) -> Result<Vec<(String, String)>, StorageError> {
    sql.all(
        "SELECT class, name FROM durability_system WHERE active = 1 ORDER BY class, name",
        &[],
        |row| Ok((row.string(0)?, row.string(1)?)),
    )
}

/// A closed object and its alarm.
pub(super) struct Sleeper {
    pub(super) class: String,
    pub(super) name: String,
    pub(super) alarm: Timestamp,
}

/// The closed objects with the earliest alarms, from `offset` on, at most `limit`.
pub(super) fn sleepers(
    sql: &dyn Sql,
    offset: u64,
    limit: u64,
) -> Result<Vec<Sleeper>, StorageError> {
    sql.all(
        "SELECT class, name, alarm_at FROM durability_system
         WHERE active = 0 AND alarm_at IS NOT NULL ORDER BY alarm_at LIMIT ?1 OFFSET ?2",
        &[limit.into(), offset.into()],
        |row| {
            Ok(Sleeper {
                class: row.string(0)?,
                name: row.string(1)?,
                alarm: row.time(2)?,
            })
        },
    )
}
