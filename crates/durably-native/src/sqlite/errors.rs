//! What SQLite's errors mean to an object.

use durably::StorageError;
use rusqlite::{Error, ErrorCode};

/// Maps an error of SQLite to what the object can do about it.
pub(super) fn storage_error(error: Error) -> StorageError {
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StorageError::Full(text),
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed,
        ) => StorageError::Locked(text),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StorageError::Damaged(text),
        Some(ErrorCode::ConstraintViolation) => StorageError::Constraint(text),
        Some(ErrorCode::TooBig) => StorageError::TooLarge(text),
        Some(ErrorCode::AuthorizationForStatementDenied) => StorageError::Failed(format!(
            "transactions, pragmas, attached files and the table durability_object belong to the \
             host ({text})"
        )),
        _ => StorageError::Failed(text),
    }
}

/// The same for an error of the file system.
pub(super) fn file_error(error: &std::io::Error, path: &std::path::Path) -> StorageError {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            StorageError::Full(text)
        }
        _ => StorageError::Failed(text),
    }
}
