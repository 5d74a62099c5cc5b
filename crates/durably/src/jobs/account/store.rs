//! What an account keeps beside its budget: its limits, how leases are given, and its lists of
//! shards.

use std::collections::BTreeMap;

use super::ShardList;
use crate::error::StorageError;
use crate::host::Sql;
use crate::migrations::Migration;
use crate::semaphore::LeaseOptions;

pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_settings_and_shards",
    up: "CREATE TABLE durability_account_limits (
             grp TEXT PRIMARY KEY,
             permits INTEGER NOT NULL
         ) STRICT, WITHOUT ROWID;
         CREATE TABLE durability_account_leases (
             id INTEGER PRIMARY KEY CHECK (id = 0),
             options TEXT
         ) STRICT;
         CREATE TABLE durability_account_shards (
             version INTEGER PRIMARY KEY,
             shards TEXT NOT NULL
         ) STRICT;",
    down: "DROP TABLE durability_account_shards; DROP TABLE durability_account_leases;
           DROP TABLE durability_account_limits;",
}];

/// The row of the account's own limit; no group has an empty name.
pub(super) const WHOLE_ACCOUNT: &str = "";

pub(super) fn limits(sql: &dyn Sql) -> Result<BTreeMap<String, u64>, StorageError> {
    let rows = sql.all(
        "SELECT grp, permits FROM durability_account_limits",
        &[],
        |row| Ok((row.string(0)?, row.count(1)?)),
    )?;
    Ok(rows.into_iter().collect())
}

pub(super) fn set_limit(
    sql: &dyn Sql,
    group: &str,
    permits: Option<u64>,
) -> Result<(), StorageError> {
    match permits {
        Some(permits) => sql.execute(
            "INSERT INTO durability_account_limits (grp, permits) VALUES (?, ?)
             ON CONFLICT (grp) DO UPDATE SET permits = excluded.permits",
            &[group.into(), permits.into()],
        )?,
        None => sql.execute(
            "DELETE FROM durability_account_limits WHERE grp = ?",
            &[group.into()],
        )?,
    };
    Ok(())
}

/// How the account gives leases, if it has a setting of its own: `Some(None)` says not at all.
pub(super) fn leases(sql: &dyn Sql) -> Result<Option<Option<LeaseOptions>>, StorageError> {
    sql.first(
        "SELECT options FROM durability_account_leases",
        &[],
        |row| {
            let Some(options) = row.optional_string(0)? else {
                return Ok(None);
            };
            let options = serde_json::from_str(&options).map_err(|_| StorageError::Value {
                column: 0,
                expected: "lease options",
            })?;
            Ok(Some(options))
        },
    )
}

pub(super) fn set_leases(
    sql: &dyn Sql,
    options: Option<&Option<LeaseOptions>>,
) -> Result<(), StorageError> {
    let Some(options) = options else {
        sql.execute("DELETE FROM durability_account_leases", &[])?;
        return Ok(());
    };
    let json = match options {
        Some(options) => {
            let json = serde_json::to_string(options);
            Some(json.map_err(|error| StorageError::Failed(error.to_string()))?)
        }
        None => None,
    };
    sql.execute(
        "INSERT INTO durability_account_leases (id, options) VALUES (0, ?)
         ON CONFLICT (id) DO UPDATE SET options = excluded.options",
        &[json.as_deref().into()],
    )?;
    Ok(())
}

/// All lists, the newest first.
pub(super) fn shard_lists(sql: &dyn Sql) -> Result<Vec<ShardList>, StorageError> {
    sql.all(
        "SELECT version, shards FROM durability_account_shards ORDER BY version DESC",
        &[],
        |row| {
            let shards = serde_json::from_str(row.text(1)?).map_err(|_| StorageError::Value {
                column: 1,
                expected: "a JSON list of names",
            })?;
            Ok(ShardList {
                version: row.count(0)?,
                shards,
            })
        },
    )
}

pub(super) fn insert_shards(sql: &dyn Sql, list: &ShardList) -> Result<(), StorageError> {
    let shards = serde_json::Value::from(list.shards.clone()).to_string();
    sql.execute(
        "INSERT INTO durability_account_shards (version, shards) VALUES (?, ?)",
        &[list.version.into(), shards.as_str().into()],
    )?;
    Ok(())
}

pub(super) fn delete_shards(sql: &dyn Sql, version: u64) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_account_shards WHERE version = ?",
        &[version.into()],
    )?;
    Ok(())
}
