//! What a shard keeps beside its queue and operations: the newest list of shards that it has heard
//! of, per account, and when it forgets ended operations next.

use crate::error::StorageError;
use crate::host::Sql;
use crate::migrations::Migration;
use crate::time::Timestamp;

pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_lists_and_purge",
    up: "CREATE TABLE durability_job_lists (
             account TEXT PRIMARY KEY,
             version INTEGER NOT NULL
         ) STRICT, WITHOUT ROWID;
         CREATE TABLE durability_job_purge (
             singleton INTEGER PRIMARY KEY CHECK (singleton = 0),
             due_at INTEGER NOT NULL
         ) STRICT;",
    down: "DROP TABLE durability_job_purge; DROP TABLE durability_job_lists;",
}];

/// The newest version heard of; 0 for none.
pub(super) fn list_version(sql: &dyn Sql, account: &str) -> Result<u64, StorageError> {
    let version = sql.first(
        "SELECT version FROM durability_job_lists WHERE account = ?",
        &[account.into()],
        |row| row.count(0),
    )?;
    Ok(version.unwrap_or(0))
}

pub(super) fn set_list_version(
    sql: &dyn Sql,
    account: &str,
    version: u64,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_job_lists (account, version) VALUES (?, ?)
         ON CONFLICT (account) DO UPDATE SET version = excluded.version",
        &[account.into(), version.into()],
    )?;
    Ok(())
}

pub(super) fn purge_at(sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT due_at FROM durability_job_purge WHERE singleton = 0",
        &[],
        |row| row.time(0),
    )
}

pub(super) fn set_purge_at(sql: &dyn Sql, at: Option<Timestamp>) -> Result<(), StorageError> {
    match at {
        Some(at) => sql.execute(
            "INSERT INTO durability_job_purge (singleton, due_at) VALUES (0, ?)
             ON CONFLICT (singleton) DO UPDATE SET due_at = excluded.due_at",
            &[at.into()],
        )?,
        None => sql.execute("DELETE FROM durability_job_purge WHERE singleton = 0", &[])?,
    };
    Ok(())
}
