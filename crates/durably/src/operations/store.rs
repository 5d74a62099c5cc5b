//! The table of durable calls.
//!
//! A row's key is its generation, so rows are appended, and the oldest are found without an index of
//! their own: `created_at` never falls as generations rise. The one index beside that of the ids
//! holds only calls that have not ended.

use super::decide::{Progress, State};
use super::event::TerminalReason;
use crate::error::StorageError;
use crate::host::{Row, Sql};
use crate::migrations::Migration;
use crate::time::Timestamp;

/// The capability's schema, oldest migration first.
pub const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_operations",
    up: "CREATE TABLE durability_operations (
            generation INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            state TEXT NOT NULL,
            attempts INTEGER NOT NULL,
            interruptions INTEGER NOT NULL,
            due_at INTEGER,
            created_at INTEGER NOT NULL,
            ended_at INTEGER,
            last_error TEXT,
            result TEXT,
            payload TEXT
        ) STRICT;
        CREATE INDEX durability_operations_due
            ON durability_operations (due_at) WHERE due_at IS NOT NULL;
        CREATE TABLE durability_operations_purged (
            singleton INTEGER PRIMARY KEY CHECK (singleton = 0),
            generation INTEGER NOT NULL
        ) STRICT;",
    down: "DROP TABLE durability_operations_purged;
        DROP TABLE durability_operations;",
}];

/// The last generation given out and the newest creation time, as far as rows still tell.
pub(super) fn newest(sql: &dyn Sql) -> Result<(u64, Timestamp), StorageError> {
    let row = sql.first(
        "SELECT generation, created_at FROM durability_operations ORDER BY generation DESC LIMIT 1",
        &[],
        |row| Ok((row.count(0)?, row.time(1)?)),
    )?;
    let purged = sql.first(
        "SELECT generation FROM durability_operations_purged WHERE singleton = 0",
        &[],
        |row| row.count(0),
    )?;
    let (generation, created_at) = row.unwrap_or((0, Timestamp::ZERO));
    Ok((generation.max(purged.unwrap_or(0)), created_at))
}

/// Remembers the newest generation when its row is purged, so that it is never given out again.
pub(super) fn remember_purged(sql: &dyn Sql, generation: u64) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_operations_purged (singleton, generation) VALUES (0, ?)
         ON CONFLICT (singleton) DO UPDATE SET generation = excluded.generation",
        &[generation.into()],
    )?;
    Ok(())
}

/// A call as it is registered.
pub(super) struct NewRow<'a> {
    pub(super) generation: u64,
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) started: bool,
    pub(super) due_at: Timestamp,
    pub(super) created_at: Timestamp,
    pub(super) payload: &'a str,
}

/// Stores a call; `false` if its id is taken.
pub(super) fn insert(sql: &dyn Sql, row: &NewRow<'_>) -> Result<bool, StorageError> {
    let state = if row.started {
        State::Started
    } else {
        State::Waiting
    };
    let inserted = sql.execute(
        "INSERT INTO durability_operations
            (generation, id, name, state, attempts, interruptions, due_at, created_at, payload)
         VALUES (?, ?, ?, ?, 0, 0, ?, ?, ?)
         ON CONFLICT (id) DO NOTHING",
        &[
            row.generation.into(),
            row.id.into(),
            row.name.into(),
            state.as_str().into(),
            row.due_at.into(),
            row.created_at.into(),
            row.payload.into(),
        ],
    )?;
    Ok(inserted == 1)
}

/// Whose call an id is.
pub(super) fn name_of(sql: &dyn Sql, id: &str) -> Result<Option<String>, StorageError> {
    sql.first(
        "SELECT name FROM durability_operations WHERE id = ?",
        &[id.into()],
        |row| row.string(0),
    )
}

/// The earliest time of a call that has not ended.
pub(super) fn earliest(sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT due_at FROM durability_operations
         WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1",
        &[],
        |row| row.time(0),
    )
}

/// The earliest time after `now` of a call that has not ended.
pub(super) fn earliest_after(
    sql: &dyn Sql,
    now: Timestamp,
) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT due_at FROM durability_operations WHERE due_at > ? ORDER BY due_at LIMIT 1",
        &[now.into()],
        |row| row.time(0),
    )
}

/// The generations of at most `limit` calls that are due, longest due first.
pub(super) fn due(sql: &dyn Sql, now: Timestamp, limit: u64) -> Result<Vec<u64>, StorageError> {
    sql.all(
        "SELECT generation FROM durability_operations
         WHERE due_at <= ? ORDER BY due_at, generation LIMIT ?",
        &[now.into(), limit.into()],
        |row| row.count(0),
    )
}

/// A due call, as it is needed to start an attempt.
pub(super) struct DueRow {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) progress: Progress,
    pub(super) payload: Option<String>,
}

fn state(row: &dyn Row, index: usize) -> Result<State, StorageError> {
    State::parse(row.text(index)?).ok_or(StorageError::Value {
        column: index,
        expected: "the state of an operation",
    })
}

/// The call of a generation, if it is (still) due.
pub(super) fn due_row(
    sql: &dyn Sql,
    generation: u64,
    now: Timestamp,
) -> Result<Option<DueRow>, StorageError> {
    sql.first(
        "SELECT id, name, state, attempts, interruptions, payload
         FROM durability_operations WHERE generation = ? AND due_at <= ?",
        &[generation.into(), now.into()],
        |row| {
            Ok(DueRow {
                id: row.string(0)?,
                name: row.string(1)?,
                progress: Progress {
                    state: state(row, 2)?,
                    attempts: row.count(3)?,
                    interruptions: row.count(4)?,
                },
                payload: row.optional_string(5)?,
            })
        },
    )
}

/// An attempt starts. The due time stays, so the index is not touched.
pub(super) fn start(
    sql: &dyn Sql,
    generation: u64,
    interruptions: u64,
) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_operations SET state = 'started', interruptions = ?
         WHERE generation = ?",
        &[interruptions.into(), generation.into()],
    )?;
    Ok(())
}

/// Puts a call off without counting anything.
pub(super) fn postpone(
    sql: &dyn Sql,
    generation: u64,
    until: Timestamp,
    error: &str,
) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_operations SET state = 'waiting', due_at = ?, last_error = ?
         WHERE generation = ?",
        &[until.into(), error.into(), generation.into()],
    )?;
    Ok(())
}

/// Counts a failed attempt; the next is due at `due_at`. `false` if the call is gone.
pub(super) fn retry(
    sql: &dyn Sql,
    generation: u64,
    attempts: u64,
    due_at: Timestamp,
    error: &str,
) -> Result<bool, StorageError> {
    let changed = sql.execute(
        "UPDATE durability_operations
         SET state = 'waiting', attempts = ?, due_at = ?, last_error = ?
         WHERE generation = ?",
        &[
            attempts.into(),
            due_at.into(),
            error.into(),
            generation.into(),
        ],
    )?;
    Ok(changed == 1)
}

/// Stores a call's result and drops its payload. `false` if the call is gone.
pub(super) fn complete(
    sql: &dyn Sql,
    generation: u64,
    attempts: u64,
    result: &str,
    now: Timestamp,
) -> Result<bool, StorageError> {
    let changed = sql.execute(
        "UPDATE durability_operations
         SET state = 'completed', attempts = ?, due_at = NULL, ended_at = ?, last_error = NULL,
             result = ?, payload = NULL
         WHERE generation = ?",
        &[
            attempts.into(),
            now.into(),
            result.into(),
            generation.into(),
        ],
    )?;
    Ok(changed == 1)
}

/// Ends a call without a result. Without an `error` its last one stays, and so does its payload, for
/// whoever looks into the failure. `false` if the call is gone.
pub(super) fn end(
    sql: &dyn Sql,
    generation: u64,
    reason: TerminalReason,
    attempts: u64,
    error: Option<&str>,
    now: Timestamp,
) -> Result<bool, StorageError> {
    let changed = sql.execute(
        "UPDATE durability_operations
         SET state = ?, attempts = ?, due_at = NULL, ended_at = ?,
             last_error = coalesce(?, last_error)
         WHERE generation = ?",
        &[
            State::Ended(reason).as_str().into(),
            attempts.into(),
            now.into(),
            error.into(),
            generation.into(),
        ],
    )?;
    Ok(changed == 1)
}

/// Has a running call end as cancelled.
pub(super) fn request_cancel(sql: &dyn Sql, generation: u64) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_operations SET state = 'cancelling' WHERE generation = ?",
        &[generation.into()],
    )?;
    Ok(())
}

/// A call as its status is told.
pub(super) struct StatusRow {
    pub(super) generation: u64,
    pub(super) name: String,
    pub(super) state: State,
    pub(super) attempts: u64,
    pub(super) due_at: Option<Timestamp>,
    pub(super) last_error: Option<String>,
    pub(super) result: Option<String>,
}

/// The call of an id.
pub(super) fn status(sql: &dyn Sql, id: &str) -> Result<Option<StatusRow>, StorageError> {
    sql.first(
        "SELECT generation, name, state, attempts, due_at, last_error, result
         FROM durability_operations WHERE id = ?",
        &[id.into()],
        |row| {
            Ok(StatusRow {
                generation: row.count(0)?,
                name: row.string(1)?,
                state: state(row, 2)?,
                attempts: row.count(3)?,
                due_at: row.optional_time(4)?,
                last_error: row.optional_string(5)?,
                result: row.optional_string(6)?,
            })
        },
    )
}

/// A call as purging looks at it.
pub(super) struct OldRow {
    pub(super) generation: u64,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) attempts: u64,
    pub(super) created_at: Timestamp,
    pub(super) ended_at: Option<Timestamp>,
}

/// At most `limit` calls after the generation `after`, oldest first.
pub(super) fn oldest(sql: &dyn Sql, after: u64, limit: u64) -> Result<Vec<OldRow>, StorageError> {
    sql.all(
        "SELECT generation, id, name, attempts, created_at, ended_at FROM durability_operations
         WHERE generation > ? ORDER BY generation LIMIT ?",
        &[after.into(), limit.into()],
        old_row,
    )
}

/// The call of an id, as purging looks at it.
pub(super) fn by_id(sql: &dyn Sql, id: &str) -> Result<Option<OldRow>, StorageError> {
    sql.first(
        "SELECT generation, id, name, attempts, created_at, ended_at FROM durability_operations
         WHERE id = ?",
        &[id.into()],
        old_row,
    )
}

fn old_row(row: &dyn Row) -> Result<OldRow, StorageError> {
    Ok(OldRow {
        generation: row.count(0)?,
        id: row.string(1)?,
        name: row.string(2)?,
        attempts: row.count(3)?,
        created_at: row.time(4)?,
        ended_at: row.optional_time(5)?,
    })
}

/// Removes a call.
pub(super) fn delete(sql: &dyn Sql, generation: u64) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_operations WHERE generation = ?",
        &[generation.into()],
    )?;
    Ok(())
}
