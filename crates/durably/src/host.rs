//! What an object gets from where it lives: transactions over SQL with the alarm inside, a clock,
//! timers, background tasks, randomness and its name.
//!
//! The traits are small and object-safe, so no capability carries a type parameter for its host.
//! Every host passes the same exam, [`crate::testing`].
//!
//! # The promises of a host
//!
//! - One instance of an object lives at a time, on one thread; nothing in it locks.
//! - [`Host::transact`] runs closures in the order in which they were handed in. Several may share
//!   one commit; each is then undone alone if it fails. A future resolves only when its commit is
//!   durable, or when the host holds back all that leaves the object until it is. A failed commit
//!   fails every closure in it and ends the instance.
//! - The alarm set by a transaction commits with its rows. A committed alarm fires at or after its
//!   time, also when the object or its process died meanwhile, and again until its handler succeeds.
//!   An alarm that the object puts off while it opens need not fire at its old time.
//! - When an instance ends, its tasks stop where they stand; what was not committed is gone.

use std::any::Any;
use std::cell::{OnceCell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use crate::error::{BoxError, StorageError};
use crate::time::Timestamp;

/// A future that stays on the object's thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A value given to a statement or read from a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// A whole number; between -(2^53 - 1) and 2^53 - 1, since one host passes it as a double.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// Text.
    Text(&'a str),
    /// Bytes.
    Blob(&'a [u8]),
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Value::Integer(value)
    }
}

impl From<u64> for Value<'_> {
    /// Counts are at most 2^53 - 1 wherever they enter; larger ones would be a fault of ours and
    /// are cut, never wrapped.
    fn from(value: u64) -> Self {
        debug_assert!(value <= crate::time::MAX_SAFE_INTEGER);
        Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Value<'_> {
    fn from(value: u32) -> Self {
        Value::Integer(i64::from(value))
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Value::Integer(i64::from(value))
    }
}

impl From<Timestamp> for Value<'_> {
    fn from(value: Timestamp) -> Self {
        Value::Integer(value.as_sql())
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Value::Text(value)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(value: &'a String) -> Self {
        Value::Text(value)
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(value: &'a [u8]) -> Self {
        Value::Blob(value)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// One row of an answer.
pub trait Row {
    /// The value of the column at `index`, from 0; [`Value::Null`] past the last one.
    fn value(&self, index: usize) -> Value<'_>;
}

impl dyn Row + '_ {
    /// The column as text.
    pub fn text(&self, index: usize) -> Result<&str, StorageError> {
        match self.value(index) {
            Value::Text(text) => Ok(text),
            _ => Err(StorageError::Value {
                column: index,
                expected: "text",
            }),
        }
    }

    /// The column as a string of one's own.
    pub fn string(&self, index: usize) -> Result<String, StorageError> {
        self.text(index).map(str::to_owned)
    }

    /// The column as text, or `None` for NULL.
    pub fn optional_text(&self, index: usize) -> Result<Option<&str>, StorageError> {
        match self.value(index) {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            _ => Err(StorageError::Value {
                column: index,
                expected: "text or NULL",
            }),
        }
    }

    /// The column as a string of one's own, or `None` for NULL.
    pub fn optional_string(&self, index: usize) -> Result<Option<String>, StorageError> {
        Ok(self.optional_text(index)?.map(str::to_owned))
    }

    /// The column as a whole number.
    pub fn integer(&self, index: usize) -> Result<i64, StorageError> {
        match self.value(index) {
            Value::Integer(integer) => Ok(integer),
            _ => Err(StorageError::Value {
                column: index,
                expected: "an integer",
            }),
        }
    }

    /// The column as a count: a whole number that is not negative.
    pub fn count(&self, index: usize) -> Result<u64, StorageError> {
        u64::try_from(self.integer(index)?).map_err(|_| StorageError::Value {
            column: index,
            expected: "a count",
        })
    }

    /// The column as a count, or `None` for NULL.
    pub fn optional_count(&self, index: usize) -> Result<Option<u64>, StorageError> {
        match self.value(index) {
            Value::Null => Ok(None),
            _ => self.count(index).map(Some),
        }
    }

    /// The column as a time.
    pub fn time(&self, index: usize) -> Result<Timestamp, StorageError> {
        self.count(index).map(Timestamp::from_millis)
    }

    /// The column as a time, or `None` for NULL.
    pub fn optional_time(&self, index: usize) -> Result<Option<Timestamp>, StorageError> {
        Ok(self.optional_count(index)?.map(Timestamp::from_millis))
    }
}

/// What a query calls for each of its rows.
pub type EachRow<'a> = &'a mut dyn FnMut(&dyn Row) -> Result<(), StorageError>;

/// The object's database, within a transaction.
///
/// Statements are prepared once per text, so a text should not contain values. `BEGIN`, `COMMIT`,
/// `SAVEPOINT` and pragmas belong to the host and are refused. Every host takes up to 100
/// parameters, 5 terms in a compound `SELECT`, 50 bytes in a `LIKE` pattern, 99 levels in an expression
/// and 100 KB of text in a statement; Cloudflare takes no more.
pub trait Sql {
    /// Runs one statement and returns how many rows it changed.
    fn execute(&self, statement: &str, parameters: &[Value<'_>]) -> Result<u64, StorageError>;

    /// Runs one statement and hands each row of its answer to `each`, stopping at its first error.
    fn query(
        &self,
        statement: &str,
        parameters: &[Value<'_>],
        each: EachRow<'_>,
    ) -> Result<(), StorageError>;

    /// Runs a script of several statements without parameters, as migrations do.
    fn script(&self, statements: &str) -> Result<(), StorageError>;
}

impl dyn Sql + '_ {
    /// The first row of an answer, if there is one.
    pub fn first<T>(
        &self,
        statement: &str,
        parameters: &[Value<'_>],
        mut read: impl FnMut(&dyn Row) -> Result<T, StorageError>,
    ) -> Result<Option<T>, StorageError> {
        let mut found = None;
        self.query(statement, parameters, &mut |row| {
            if found.is_none() {
                found = Some(read(row)?);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// All rows of an answer, in order.
    pub fn all<T>(
        &self,
        statement: &str,
        parameters: &[Value<'_>],
        mut read: impl FnMut(&dyn Row) -> Result<T, StorageError>,
    ) -> Result<Vec<T>, StorageError> {
        let mut rows = Vec::new();
        self.query(statement, parameters, &mut |row| {
            rows.push(read(row)?);
            Ok(())
        })?;
        Ok(rows)
    }
}

/// What a closure given to [`Host::transact`] works on.
pub trait Transaction: Sql {
    /// Sets the object's one alarm, or removes it. It commits, or is undone, with the rows.
    fn set_alarm(&self, at: Option<Timestamp>) -> Result<(), StorageError>;

    /// Has `apply` run as soon as this closure's changes can no longer be undone alone, before the
    /// next closure of the object runs. This is where sums in memory follow the rows; should the
    /// commit itself fail, the instance ends and they go with it.
    fn on_release(&self, apply: Box<dyn FnOnce()>);

    /// The same object as [`Sql`] only.
    fn sql(&self) -> &dyn Sql;
}

/// The answer of a closure: `Err` undoes what it did.
pub type WorkResult = Result<(), RolledBack>;

/// Says that a closure wants its changes undone; its reason stays with whoever wrote the closure.
#[derive(Clone, Copy, Debug)]
pub struct RolledBack;

/// A closure that a host runs within a transaction.
pub type Work = Box<dyn FnOnce(&dyn Transaction) -> WorkResult>;

/// Where an object lives.
pub trait Host {
    /// The object's name within its class.
    fn name(&self) -> &str;

    /// An id that is the object's alone, among all classes and all systems that might ask the same
    /// holder, and the same in every instance.
    fn id(&self) -> &str;

    /// Runs `work` in a transaction and resolves when its commit is durable (`Ok` also when the
    /// closure asked to be undone, which the typed [`transaction`](trait@Host#method.transaction) tells
    /// apart). The work runs even if the future is dropped. Whether it runs before this returns or
    /// later is the host's matter, so the caller holds no borrow that the work, or what it leaves to
    /// [`Transaction::on_release`], takes too.
    fn transact(&self, work: Work) -> LocalFuture<Result<(), StorageError>>;

    /// The wall clock. It may stand still while code runs without awaiting, and may step back.
    fn now(&self) -> Timestamp;

    /// Resolves after at least `duration`.
    fn sleep(&self, duration: Duration) -> LocalFuture<()>;

    /// Runs a task in the background; the object stays in memory until it has ended. The task is
    /// not polled before this returns.
    fn spawn(&self, task: LocalFuture<()>);

    /// Fills `bytes` with randomness fit for ids.
    fn random(&self, bytes: &mut [u8]);

    /// The place where this instance keeps what exists once per object.
    fn instance(&self) -> &Instance;
}

impl dyn Host {
    /// Runs `work` in a transaction: all that it stored and the alarm that it set commit together,
    /// or nothing does. Resolves when the commit is durable, with what `work` returned.
    pub fn transaction<T, E, Work>(
        &self,
        work: Work,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, Work>
    where
        T: 'static,
        E: From<StorageError> + 'static,
        Work: FnOnce(&dyn Transaction) -> Result<T, E> + 'static,
    {
        let slot: Rc<RefCell<Option<Result<T, E>>>> = Rc::default();
        let result = slot.clone();
        let done = self.transact(Box::new(move |transaction| {
            let outcome = work(transaction);
            let answer = outcome.as_ref().map(|_| ()).map_err(|_| RolledBack);
            *slot.borrow_mut() = Some(outcome);
            answer
        }));
        async move {
            let committed = done.await;
            let outcome = result.borrow_mut().take();
            match (committed, outcome) {
                // A closure's own error says more than what became of its commit.
                (_, Some(Err(error))) => Err(error),
                (Err(error), _) => Err(error.into()),
                (Ok(()), Some(Ok(value))) => Ok(value),
                (Ok(()), None) => {
                    Err(StorageError::Ended("the transaction never ran".into()).into())
                }
            }
        }
    }
}

/// What exists once per instance of an object: its scheduler.
#[derive(Default)]
pub struct Instance {
    scheduler: OnceCell<Weak<dyn Any>>,
}

impl Instance {
    /// Registers the object's scheduler; `false` if it has one that is still alive.
    pub(crate) fn register(&self, scheduler: Weak<dyn Any>) -> bool {
        self.scheduler.set(scheduler).is_ok()
    }

    pub(crate) fn scheduler(&self) -> Option<Rc<dyn Any>> {
        self.scheduler.get().and_then(Weak::upgrade)
    }
}

/// A class of objects: what a host calls when an object of it is needed.
///
/// The instance is built by the function with which the class was registered at its host.
pub trait Object: 'static {
    /// The name of the class; part of every object's identity, so it must not change.
    const CLASS: &'static str;

    /// The alarm went off. An error makes the host call again later. Usually this is
    /// [`Scheduler::alarm`](crate::Scheduler::alarm).
    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>>;
}
