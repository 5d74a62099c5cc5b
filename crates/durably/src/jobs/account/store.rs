//! What an account keeps beside its budget and its shards: its limits, and how leases are given.

use std::collections::BTreeMap;

use crate::error::StorageError;
use crate::host::Sql;
use crate::migrations::Migration;
use crate::semaphore::LeaseOptions;

pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_settings",
    up: "CREATE TABLE durability_account_limits (
             grp TEXT PRIMARY KEY,
             permits INTEGER NOT NULL
         ) STRICT, WITHOUT ROWID;
         CREATE TABLE durability_account_leases (
             id INTEGER PRIMARY KEY CHECK (id = 0),
             options TEXT
         ) STRICT;",
    down: "DROP TABLE durability_account_leases; DROP TABLE durability_account_limits;",
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
