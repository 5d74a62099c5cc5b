//! The database as a closure within a transaction sees it.

use std::cell::RefCell;

use durably::StorageError;
use durably::Timestamp;
use durably::host::{EachRow, Row, Sql, Transaction, Value};
use durably::time::MAX_SAFE_INTEGER;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Batch, Statement, ToSql};

use super::errors::storage_error;
use super::{Database, HOST};

/// What a closure works on: the database until the closure returns.
pub(super) struct Open<'a> {
    pub(super) database: &'a Database,
    pub(super) hooks: RefCell<Vec<Box<dyn FnOnce()>>>,
}

impl Open<'_> {
    /// Refuses to go on in a transaction that SQLite has undone: each statement would commit alone.
    fn check_alive(&self) -> Result<(), StorageError> {
        match &*self.database.undone.borrow() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn check(&self, statement: &str) -> Result<(), StorageError> {
        self.check_alive()?;
        if statement.trim_start().starts_with(HOST) {
            return Err(StorageError::Failed(format!(
                "a statement may not start with {HOST}, the host's own mark"
            )));
        }
        Ok(())
    }

    /// Maps an error; some of them, a full disk above all, make SQLite undo the whole transaction.
    fn failed(&self, error: rusqlite::Error) -> StorageError {
        let error = storage_error(error);
        if self.database.connection.is_autocommit() {
            *self.database.undone.borrow_mut() = Some(error.clone());
        }
        error
    }

    /// Steps a statement, whose parameters are bound, to its end.
    fn step(
        &self,
        statement: &mut Statement<'_>,
        text: &str,
        each: Option<EachRow<'_>>,
    ) -> Result<u64, StorageError> {
        let connection = &self.database.connection;
        let kind = Kind::of(text, statement.readonly());
        if matches!(kind, Kind::Schema | Kind::Other) {
            self.database.unwatch_rows()?;
        }
        let schema = self.database.schema_version(kind)?;
        let before = connection.total_changes();
        let mut outcome = Ok(());
        let mut rows = statement.raw_query();
        let mut each = each;
        loop {
            match rows.next() {
                Ok(Some(row)) => {
                    if let Some(each) = &mut each {
                        outcome = each(&SqliteRow(row));
                        if outcome.is_err() {
                            break;
                        }
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(self.failed(error));
                    break;
                }
            }
        }
        drop(rows);
        let changed = connection.total_changes() - before;
        // Asked for before anything else runs, or SQLite would answer for that.
        let direct = if changed == 0 {
            0
        } else {
            connection.changes()
        };
        let other_change = match kind {
            Kind::Reads | Kind::Rows => false,
            Kind::Schema => outcome.is_err() || self.database.schema_version(kind)? != schema,
            Kind::Other => true,
        };
        self.database.stepped(changed, other_change);
        outcome?;
        Ok(direct)
    }

    fn run(
        &self,
        text: &str,
        parameters: &[Value<'_>],
        each: Option<EachRow<'_>>,
    ) -> Result<u64, StorageError> {
        self.check(text)?;
        self.database.watch_rows()?;
        let mut statement = self
            .database
            .connection
            .prepare_cached(text)
            .map_err(|error| self.failed(error))?;
        if statement.parameter_count() != parameters.len() {
            return Err(StorageError::Failed(format!(
                "the statement takes {} parameters and was given {}: {text}",
                statement.parameter_count(),
                parameters.len()
            )));
        }
        for (index, value) in parameters.iter().enumerate() {
            check_range(*value)?;
            statement
                .raw_bind_parameter(index + 1, Bound(*value))
                .map_err(|error| self.failed(error))?;
        }
        self.step(&mut statement, text, each)
    }
}

impl Sql for Open<'_> {
    fn execute(&self, statement: &str, parameters: &[Value<'_>]) -> Result<u64, StorageError> {
        self.run(statement, parameters, None)
    }

    fn query(
        &self,
        statement: &str,
        parameters: &[Value<'_>],
        each: EachRow<'_>,
    ) -> Result<(), StorageError> {
        self.run(statement, parameters, Some(each)).map(|_| ())
    }

    fn script(&self, statements: &str) -> Result<(), StorageError> {
        self.check(statements)?;
        let mut batch = Batch::new(&self.database.connection, statements);
        loop {
            self.database.watch_rows()?;
            let next = batch.next().map_err(|error| self.failed(error))?;
            let Some(mut statement) = next else {
                return Ok(());
            };
            self.check_alive()?;
            let text = statement.expanded_sql().unwrap_or_default();
            self.step(&mut statement, &text, None)?;
        }
    }
}

impl Transaction for Open<'_> {
    fn set_alarm(&self, at: Option<Timestamp>) -> Result<(), StorageError> {
        self.check_alive()?;
        self.database.stage_alarm(at);
        Ok(())
    }

    fn on_release(&self, apply: Box<dyn FnOnce()>) {
        self.hooks.borrow_mut().push(apply);
    }

    fn sql(&self) -> &dyn Sql {
        self
    }
}

/// What a statement can change, and so how to tell whether it did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Reads,
    /// Rows, which SQLite counts.
    Rows,
    /// The schema, which has a version. Creating what exists changes nothing.
    Schema,
    /// Something else; taken for a change.
    Other,
}

impl Kind {
    fn of(statement: &str, reads_only: bool) -> Self {
        if reads_only {
            return Kind::Reads;
        }
        let word = statement
            .trim_start()
            .split(|character: char| !character.is_ascii_alphabetic())
            .next()
            .unwrap_or_default();
        let is = |known: &[&str]| known.iter().any(|known| word.eq_ignore_ascii_case(known));
        if is(&["insert", "update", "delete", "replace", "with"]) {
            Kind::Rows
        } else if is(&["create", "drop", "alter"]) {
            Kind::Schema
        } else {
            Kind::Other
        }
    }
}

/// Whole numbers are the same on every host, and one of them passes them as doubles.
fn check_range(value: Value<'_>) -> Result<(), StorageError> {
    match value {
        Value::Integer(integer) if integer.unsigned_abs() > MAX_SAFE_INTEGER => Err(
            StorageError::TooLarge(format!("{integer} is beyond 2^53 - 1")),
        ),
        _ => Ok(()),
    }
}

struct Bound<'a>(Value<'a>);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Value::Null => ValueRef::Null,
            Value::Integer(integer) => ValueRef::Integer(integer),
            Value::Real(real) => ValueRef::Real(real),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(blob) => ValueRef::Blob(blob),
        }))
    }
}

struct SqliteRow<'a>(&'a rusqlite::Row<'a>);

impl Row for SqliteRow<'_> {
    fn value(&self, index: usize) -> Value<'_> {
        match self.0.get_ref(index) {
            Ok(ValueRef::Integer(integer)) => Value::Integer(integer),
            Ok(ValueRef::Real(real)) => Value::Real(real),
            // Text that is not UTF-8 was not written by us; as bytes it fails whoever asks for text.
            Ok(ValueRef::Text(text)) => {
                std::str::from_utf8(text).map_or(Value::Blob(text), Value::Text)
            }
            Ok(ValueRef::Blob(blob)) => Value::Blob(blob),
            Ok(ValueRef::Null) | Err(_) => Value::Null,
        }
    }
}
