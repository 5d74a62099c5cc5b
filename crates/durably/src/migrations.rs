//! Schemas and their history. Every capability owns an ordered list of migrations; what is applied
//! stands in `durability_migrations`, each with the script that undoes it.

use std::rc::Rc;

use crate::error::{OpenError, StorageError};
use crate::host::{Host, Sql, Transaction};
use crate::time::Timestamp;

/// How many unknown migrations an older build undoes with their stored scripts.
const MAX_UNDONE: usize = 2;

/// One step of a capability's schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its name, unique within the capability.
    pub name: &'static str,
    /// The script that applies it.
    pub up: &'static str,
    /// The script that undoes it, for builds that do not know it.
    pub down: &'static str,
}

const CREATE_HISTORY: &str = "CREATE TABLE durability_migrations (
    capability TEXT NOT NULL,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    down TEXT NOT NULL,
    applied_at INTEGER NOT NULL,
    PRIMARY KEY (capability, position)
) STRICT, WITHOUT ROWID";

/// Creates the table of what is applied, if there is none. An object that opens with its schema in
/// place must not count as one that writes, and even `IF NOT EXISTS` does.
pub(crate) fn prepare(sql: &dyn Sql) -> Result<(), StorageError> {
    let exists = sql.first(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'durability_migrations'",
        &[],
        |_| Ok(()),
    )?;
    match exists {
        Some(()) => Ok(()),
        None => sql.script(CREATE_HISTORY),
    }
}

struct Applied {
    name: String,
    down: String,
}

fn history(sql: &dyn Sql, capability: &str) -> Result<Vec<Applied>, OpenError> {
    Ok(sql.all(
        "SELECT name, down FROM durability_migrations WHERE capability = ? ORDER BY position",
        &[capability.into()],
        |row| {
            Ok(Applied {
                name: row.string(0)?,
                down: row.string(1)?,
            })
        },
    )?)
}

/// Brings the schema of `capability` to the end of `known`, undoing at most two migrations that a
/// newer build applied. After [`prepare`].
pub(crate) fn bring_up(
    sql: &dyn Sql,
    capability: &str,
    known: &[Migration],
    now: Timestamp,
) -> Result<(), OpenError> {
    let applied = history(sql, capability)?;
    let ahead = applied.len().saturating_sub(known.len());
    if ahead > MAX_UNDONE {
        return Err(OpenError::TooFarAhead {
            capability: capability.to_owned(),
            ahead,
            allowed: MAX_UNDONE,
        });
    }
    step(sql, capability, known, &applied, known.len(), now)
}

/// Moves one capability's schema to the migration named `target`, or removes it for `None`.
///
/// For operators: the object must not use the capability meanwhile.
///
/// # Errors
///
/// [`OpenError::UnknownMigration`] if there is no such migration, and what storage answers. Nothing
/// is changed then.
pub async fn migrate(
    host: Rc<dyn Host>,
    capability: &'static str,
    known: &'static [Migration],
    target: Option<&str>,
) -> Result<(), OpenError> {
    let end = match target {
        None => 0,
        Some(name) => {
            let position = known.iter().position(|migration| migration.name == name);
            position.ok_or_else(|| OpenError::UnknownMigration {
                capability: capability.to_owned(),
                target: name.to_owned(),
            })? + 1
        }
    };
    let now = host.now();
    host.transaction(move |transaction: &dyn Transaction| {
        let sql = transaction.sql();
        prepare(sql)?;
        let applied = history(sql, capability)?;
        step(sql, capability, known, &applied, end, now)
    })
    .await
}

/// Undoes what stands beyond `end`, newest first, then applies what is missing up to it.
fn step(
    sql: &dyn Sql,
    capability: &str,
    known: &[Migration],
    applied: &[Applied],
    end: usize,
    now: Timestamp,
) -> Result<(), OpenError> {
    for (found, expected) in applied.iter().zip(known) {
        if found.name != expected.name {
            return Err(OpenError::HistoryDiffers {
                capability: capability.to_owned(),
                found: found.name.clone(),
                expected: expected.name.to_owned(),
            });
        }
    }
    for (position, migration) in applied.iter().enumerate().skip(end).rev() {
        sql.script(&migration.down)?;
        sql.execute(
            "DELETE FROM durability_migrations WHERE capability = ? AND position = ?",
            &[capability.into(), (position as u64).into()],
        )?;
    }
    for (position, migration) in known.iter().enumerate().take(end).skip(applied.len()) {
        sql.script(migration.up)?;
        sql.execute(
            "INSERT INTO durability_migrations (capability, position, name, down, applied_at)
             VALUES (?, ?, ?, ?, ?)",
            &[
                capability.into(),
                (position as u64).into(),
                migration.name.into(),
                migration.down.into(),
                now.into(),
            ],
        )?;
    }
    Ok(())
}
