//! What the exceptions of the platform's storage mean to an object. They are told apart by their
//! text, which ends with SQLite's own name of the error; those about anything else say themselves what to
//! do, as for a class without SQLite.

use durably::StorageError;

/// Maps the text of an exception to what the object can do about it.
pub(crate) fn storage_error(text: String) -> StorageError {
    // Whatever a statement contains comes before the name.
    let name = text.rfind("SQLITE_").map_or("", |start| &text[start..]);
    let is = |prefix: &str| name.starts_with(prefix);
    if is("SQLITE_CONSTRAINT") {
        StorageError::Constraint(text)
    } else if is("SQLITE_FULL") {
        StorageError::Full(text)
    } else if is("SQLITE_TOOBIG") {
        StorageError::TooLarge(text)
    } else if is("SQLITE_CORRUPT") || is("SQLITE_NOTADB") {
        StorageError::Damaged(text)
    } else if is("SQLITE_BUSY") || is("SQLITE_LOCKED") {
        StorageError::Locked(text)
    } else {
        StorageError::Failed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_their_last_name() {
        let code = |text: &str| storage_error(text.to_owned()).code();
        assert_eq!(
            code("UNIQUE constraint failed: a.b: SQLITE_CONSTRAINT"),
            "storage_constraint"
        );
        assert_eq!(
            code("cannot store TEXT value in INTEGER column a.b: SQLITE_CONSTRAINT_DATATYPE"),
            "storage_constraint"
        );
        assert_eq!(
            code("string or blob too big: SQLITE_TOOBIG"),
            "storage_too_large"
        );
        assert_eq!(
            code("database or disk is full: SQLITE_FULL"),
            "storage_full"
        );
        assert_eq!(
            code("no such column: SQLITE_FULL: SQLITE_ERROR"),
            "storage_failed"
        );
        assert_eq!(code("anything else"), "storage_failed");
    }
}
