//! What an account keeps beside its budget: its limits and its lists of shards.

use std::collections::BTreeMap;

use super::ShardList;
use crate::error::StorageError;
use crate::host::Sql;
use crate::migrations::Migration;

pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_limits_and_shards",
    up: "CREATE TABLE durability_account_limits (
             grp TEXT PRIMARY KEY,
             permits INTEGER NOT NULL
         ) STRICT, WITHOUT ROWID;
         CREATE TABLE durability_account_shards (
             version INTEGER PRIMARY KEY,
             shards TEXT NOT NULL
         ) STRICT;",
    down: "DROP TABLE durability_account_shards; DROP TABLE durability_account_limits;",
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
