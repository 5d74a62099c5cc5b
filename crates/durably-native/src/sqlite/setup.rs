//! How a connection becomes an object's database: settings, what applications may not do, and whose
//! file it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use durably::StorageError;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::{Connection, OptionalExtension};

use super::settings::Settings;

/// The version of SQLite without which objects are not safe: older ones can corrupt a database when
/// its write-ahead log starts over.
const OLDEST_SQLITE: i32 = 3_051_003;

/// Refuses a SQLite library that is too old to be trusted with objects.
///
/// # Errors
///
/// Names the version that was found.
pub fn check_library() -> Result<(), StorageError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(StorageError::Failed(format!(
            "SQLite {} can corrupt databases with a write-ahead log: link 3.51.3 or newer",
            rusqlite::version()
        )));
    }
    Ok(())
}

pub(super) type ObjectRow = (String, String, Option<i64>);

/// Sets a connection up and reads the object's row; the inner error says what is wrong with a file
/// that SQLite can read.
pub(super) fn configure(
    connection: &mut Connection,
    settings: &Settings,
    host_speaks: &Arc<AtomicBool>,
    wal_pages: &Arc<AtomicU32>,
) -> rusqlite::Result<Result<Option<ObjectRow>, String>> {
    connection.set_prepared_statement_cache_capacity(128);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    let limit = i32::try_from(settings.max_value_bytes).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, limit)?;
    // What `Sql` promises and no more, so that a statement that Cloudflare would refuse fails here.
    connection.set_limit(Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 100)?;
    connection.set_limit(Limit::SQLITE_LIMIT_COMPOUND_SELECT, 5)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50)?;
    connection.set_limit(Limit::SQLITE_LIMIT_EXPR_DEPTH, 99)?;
    connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, 100_000)?;
    connection.execute_batch(&format!(
        "PRAGMA cache_size = -{}; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = ON;",
        settings.cache_kib
    ))?;
    if let Some(bytes) = settings.max_file_bytes {
        connection.execute_batch(&format!(
            "PRAGMA max_page_count = {}",
            (bytes / 4_096).max(1)
        ))?;
    }
    let known: bool = connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'durability_object')",
        [],
        |row| row.get(0),
    )?;
    if !known {
        return Ok(Err("it is not an object's file".into()));
    }
    let stored = connection
        .query_row(
            "SELECT class, name, alarm_at FROM durability_object WHERE id = 0",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let pages = wal_pages.clone();
    // This takes the place of SQLite's own checkpoints, which would come before the reply.
    connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, in_log| {
        pages.store(u32::try_from(in_log).unwrap_or(0), Relaxed);
        Ok(())
    }))?;
    let host_speaks = host_speaks.clone();
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        if host_speaks.load(Relaxed) {
            Authorization::Allow
        } else {
            authorize(&context.action)
        }
    }))?;
    Ok(Ok(stored))
}

/// What a statement of an application may do.
fn authorize(action: &AuthAction<'_>) -> Authorization {
    let allowed = match *action {
        AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. } => false,
        // Full-text indexes ask for the first while they read, and adding a column that is not
        // null asks for the second.
        AuthAction::Pragma { pragma_name, .. } => {
            matches!(pragma_name, "data_version" | "quick_check")
        }
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. } => {
            !table_name.eq_ignore_ascii_case("durability_object")
        }
        _ => true,
    };
    if allowed {
        Authorization::Allow
    } else {
        Authorization::Deny
    }
}
