//! An object's storage: closures in transactions, statements, and the alarm among them.
//!
//! Each closure has a `transactionSync` of its own, a savepoint. The platform commits together what
//! is written without an await in between, and holds back everything that leaves the object until
//! that is durable.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use durably::error::StorageError;
use durably::host::{EachRow, Row, Sql, Transaction, Value, Work};
use durably::time::Timestamp;
use js_sys::{Array, Uint8Array};
use wasm_bindgen::closure::ScopedClosure;
use wasm_bindgen::{JsCast, JsValue};

use crate::counters::{self, Counters};
use crate::errors::storage_error;
use crate::instance::panic_text;
use crate::javascript::{self, Cursor, SqlStorage, exception_text};
use crate::numbers::{from_double, to_double};
use crate::parameters::with_integers;

/// The latest alarm that the platform holds, which keeps nanoseconds in 64 bits: in the year 2255.
const LATEST_ALARM_MS: u64 = 9_000_000_000_000;

/// How many statement texts are kept ready. The texts of `durably` are constant and far fewer.
const MAX_TEXTS: usize = 1_000;

/// What one statement read and wrote.
#[derive(Clone, Copy)]
struct Rows {
    read: u64,
    written: u64,
}

pub(crate) struct Storage {
    raw: javascript::Storage,
    counters: Rc<Cell<Counters>>,
}

/// What became of one closure.
pub(crate) enum Outcome {
    /// Its changes stand; these follow them.
    Released(Vec<Box<dyn FnOnce()>>),
    /// It asked to be undone.
    RolledBack,
    /// It panicked and was undone.
    Panicked(String),
    /// The transaction itself failed.
    Failed(StorageError),
}

impl Storage {
    /// Counts what it reads and writes in `counters`.
    pub(crate) fn new(raw: javascript::Storage, counters: Rc<Cell<Counters>>) -> Storage {
        Storage { raw, counters }
    }

    /// Whether an instance has stored its schema.
    pub(crate) fn has_schema(&self) -> Result<bool, StorageError> {
        let open = Open {
            storage: self,
            sql: self.raw.sql().map_err(|exception| error_of(&exception))?,
            hooks: RefCell::default(),
        };
        let mut found = false;
        open.query(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'durability_migrations'",
            &[],
            &mut |_| {
                found = true;
                Ok(())
            },
        )?;
        Ok(found)
    }

    /// Runs one closure in a transaction.
    pub(crate) fn transact(&self, work: Work) -> Outcome {
        let sql = match self.raw.sql() {
            Ok(sql) => sql,
            Err(exception) => return Outcome::Failed(error_of(&exception)),
        };
        let open = Open {
            storage: self,
            sql,
            hooks: RefCell::default(),
        };
        let mut work = Some(work);
        let mut outcome = None;
        let mut run = || {
            let Some(work) = work.take() else {
                return Err(JsValue::NULL);
            };
            let undone = match catch_unwind(AssertUnwindSafe(|| work(&open))) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(_)) => Outcome::RolledBack,
                Err(panic) => Outcome::Panicked(panic_text(&*panic)),
            };
            outcome = Some(undone);
            // Throwing is how a transaction is undone.
            Err(JsValue::NULL)
        };
        let ran = self
            .raw
            .transaction_sync(&ScopedClosure::borrow_mut_assert_unwind_safe(&mut run));
        match (outcome, ran) {
            (Some(outcome), _) => outcome,
            (None, Ok(_)) => Outcome::Released(open.hooks.into_inner()),
            (None, Err(exception)) => Outcome::Failed(error_of(&exception)),
        }
    }

    fn count(&self, cursor: &Cursor) -> Result<Rows, StorageError> {
        let count = |counted: Result<f64, JsValue>| match counted {
            Ok(counted) => Ok(counted as u64),
            Err(exception) => Err(error_of(&exception)),
        };
        let counted = Rows {
            read: count(cursor.rows_read())?,
            written: count(cursor.rows_written())?,
        };
        counters::count(&self.counters, |counters| {
            counters.rows_read += counted.read;
            counters.rows_written += counted.written;
        });
        Ok(counted)
    }
}

/// The transaction that a closure works on.
struct Open<'a> {
    storage: &'a Storage,
    sql: SqlStorage,
    hooks: RefCell<Vec<Box<dyn FnOnce()>>>,
}

impl Open<'_> {
    /// Runs a statement to its end and says how many rows it read and wrote.
    fn run(
        &self,
        statement: &str,
        parameters: &[Value<'_>],
        each: EachRow<'_>,
    ) -> Result<Rows, StorageError> {
        let bound = bind(parameters)?;
        let text = text_of(statement, parameters);
        let cursor = self
            .sql
            .exec(&text, &bound)
            .map_err(|exception| error_of(&exception))?;
        let rows = cursor.raw().map_err(|exception| error_of(&exception))?;
        let answered = loop {
            match rows.next() {
                Ok(next) if next.done() => break Ok(()),
                Ok(next) => match Cells::read(&next.value()).and_then(|cells| each(&cells)) {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
                Err(exception) => break Err(error_of(&exception)),
            }
        };
        let counted = self.storage.count(&cursor);
        answered.and(counted)
    }
}

impl Sql for Open<'_> {
    fn execute(&self, statement: &str, parameters: &[Value<'_>]) -> Result<u64, StorageError> {
        let rows = self.run(statement, parameters, &mut |_| Ok(()))?;
        if rows.written == 0 {
            return Ok(0);
        }
        let mut changed = 0;
        self.run("SELECT changes()", &[], &mut |row| {
            changed = row.count(0)?;
            Ok(())
        })?;
        Ok(changed)
    }

    fn query(
        &self,
        statement: &str,
        parameters: &[Value<'_>],
        each: EachRow<'_>,
    ) -> Result<(), StorageError> {
        self.run(statement, parameters, each).map(drop)
    }

    fn script(&self, statements: &str) -> Result<(), StorageError> {
        self.run(statements, &[], &mut |_| Ok(())).map(drop)
    }
}

impl Transaction for Open<'_> {
    fn set_alarm(&self, at: Option<Timestamp>) -> Result<(), StorageError> {
        let raw = &self.storage.raw;
        let set = match at {
            Some(at) => {
                counters::count(&self.storage.counters, |counters| counters.alarms_set += 1);
                raw.set_alarm(at.as_millis().min(LATEST_ALARM_MS) as f64)
            }
            None => raw.delete_alarm(),
        };
        // Nobody waits for the promise: what leaves the object waits for the disk anyway.
        set.map(drop).map_err(|exception| error_of(&exception))
    }

    fn on_release(&self, apply: Box<dyn FnOnce()>) {
        self.hooks.borrow_mut().push(apply);
    }

    fn sql(&self) -> &dyn Sql {
        self
    }
}

fn error_of(exception: &JsValue) -> StorageError {
    storage_error(exception_text(exception))
}

fn bind(parameters: &[Value<'_>]) -> Result<Array, StorageError> {
    let bound = Array::new();
    for parameter in parameters {
        bound.push(&match *parameter {
            Value::Null => JsValue::NULL,
            Value::Integer(whole) => to_double(whole)?.into(),
            Value::Real(real) => real.into(),
            Value::Text(text) => text.into(),
            Value::Blob(bytes) => Uint8Array::from(bytes).into(),
        });
    }
    Ok(bound)
}

thread_local! {
    /// Statements as JavaScript strings, by text and by which parameters are integers. All objects of
    /// an isolate share them.
    static TEXTS: RefCell<HashMap<Box<str>, Vec<(u128, JsValue)>>> = RefCell::default();
}

/// The statement as the platform is to run it with these parameters.
fn text_of(statement: &str, parameters: &[Value<'_>]) -> JsValue {
    let is_integer = |position: usize| matches!(parameters.get(position), Some(Value::Integer(_)));
    let prepare = || JsValue::from_str(&with_integers(statement, is_integer));
    if parameters.len() > 128 {
        // More than a statement takes, so this one will be refused.
        return prepare();
    }
    let integers = (0..parameters.len())
        .filter(|&position| is_integer(position))
        .fold(0u128, |integers, position| integers | (1 << position));
    TEXTS.with_borrow_mut(|texts| {
        if let Some(known) = texts.get_mut(statement) {
            if let Some((_, text)) = known.iter().find(|(which, _)| *which == integers) {
                return text.clone();
            }
            let text = prepare();
            known.push((integers, text.clone()));
            return text;
        }
        if texts.len() >= MAX_TEXTS {
            texts.clear();
        }
        let text = prepare();
        texts.insert(statement.into(), vec![(integers, text.clone())]);
        text
    })
}

/// One row, read.
struct Cells(Vec<Content>);

enum Content {
    Null,
    Number(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl Cells {
    fn read(row: &JsValue) -> Result<Cells, StorageError> {
        let Some(row) = row.dyn_ref::<Array>() else {
            return Err(StorageError::Failed("a row was no array".into()));
        };
        let read = |value: JsValue| {
            if value.is_null() {
                return Ok(Content::Null);
            }
            if let Some(number) = value.as_f64() {
                return Ok(Content::Number(number));
            }
            if let Some(text) = value.as_string() {
                return Ok(Content::Text(text));
            }
            match value.dyn_ref::<js_sys::ArrayBuffer>() {
                Some(buffer) => Ok(Content::Blob(Uint8Array::new(buffer).to_vec())),
                None => Err(StorageError::Failed(format!(
                    "a value of an unknown kind: {value:?}"
                ))),
            }
        };
        row.iter().map(read).collect::<Result<_, _>>().map(Cells)
    }
}

impl Row for Cells {
    fn value(&self, index: usize) -> Value<'_> {
        match self.0.get(index) {
            None | Some(Content::Null) => Value::Null,
            Some(Content::Number(number)) => from_double(*number),
            Some(Content::Text(text)) => Value::Text(text),
            Some(Content::Blob(bytes)) => Value::Blob(bytes),
        }
    }
}
