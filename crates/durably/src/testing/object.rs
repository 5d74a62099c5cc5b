//! The object that a host serves during the exam: a log in its storage, and an alarm handler that
//! does what the storage tells it to.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use super::{alarms, instances, transactions, values};
use crate::error::{BoxError, StorageError};
use crate::host::{Host, LocalFuture, Object, Sql};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS exam_log (
        position INTEGER PRIMARY KEY,
        entry TEXT NOT NULL,
        at INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS exam_settings (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
";

/// The one class of the exam. A host builds it with [`open`](Self::open) and passes requests to
/// [`call`](Self::call).
pub struct ExamObject {
    pub(super) host: Rc<dyn Host>,
    /// Differs from instance to instance.
    pub(super) instance: String,
    /// Something that only memory holds.
    pub(super) memory: Rc<Cell<u64>>,
}

impl ExamObject {
    /// Builds an instance: the factory to register.
    ///
    /// # Errors
    ///
    /// What storage answers, and whatever a case has told it to fail with.
    pub async fn open(host: Rc<dyn Host>) -> Result<Rc<ExamObject>, BoxError> {
        let refused = host
            .transaction(|transaction| {
                transaction.script(SCHEMA)?;
                take_setting(transaction.sql(), "refuse")
            })
            .await?;
        match refused.as_deref() {
            None => {}
            Some("panic") => panic!("told to panic while opening"),
            Some(reason) => return Err(reason.into()),
        }
        let mut random = [0; 8];
        host.random(&mut random);
        Ok(Rc::new(ExamObject {
            instance: u64::from_le_bytes(random).to_string(),
            host,
            memory: Rc::default(),
        }))
    }

    /// Does one step of a case and says what came of it.
    ///
    /// # Errors
    ///
    /// What went wrong, for the verdict.
    pub async fn call(self: Rc<Self>, request: &str) -> Result<String, String> {
        let (room, step) = request.split_once(' ').unwrap_or((request, ""));
        let (step, argument) = step.split_once(' ').unwrap_or((step, ""));
        match room {
            "object" => self.step(step, argument).await,
            "transactions" => transactions::step(&self, step, argument).await,
            "alarms" => alarms::step(&self, step, argument).await,
            "instances" => instances::step(&self, step, argument).await,
            "values" => values::step(&self, step, argument).await,
            _ => unknown(request),
        }
    }

    async fn step(&self, step: &str, argument: &str) -> Result<String, String> {
        match step {
            "log" => {
                let log = self.host.transaction(|transaction| {
                    transaction.sql().all(
                        "SELECT entry FROM exam_log ORDER BY position",
                        &[],
                        |row| row.string(0),
                    )
                });
                Ok(log.await.map_err(said)?.join("\n"))
            }
            "note" => self.note(argument).await.map_err(said),
            "set" => {
                let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
                let (name, value) = (name.to_owned(), value.to_owned());
                let set = self
                    .host
                    .transaction(move |transaction| put_setting(transaction.sql(), &name, &value));
                set.await.map_err(said).map(|()| String::new())
            }
            "instance" => Ok(self.instance.clone()),
            _ => unknown(step),
        }
    }

    /// Writes to the log, in a transaction of its own.
    pub(super) async fn note(&self, entry: &str) -> Result<String, StorageError> {
        let entry = entry.to_owned();
        let now = self.host.now();
        self.host
            .transaction(move |transaction| {
                log(transaction.sql(), &entry, now.as_sql())?;
                Ok(String::new())
            })
            .await
    }

    /// What the storage tells the alarm handler to do this time.
    async fn handle_alarm(&self) -> Result<(), BoxError> {
        let now = self.host.now();
        let order = self
            .host
            .transaction(move |transaction| {
                let sql = transaction.sql();
                log(sql, "alarm", now.as_sql())?;
                take_setting(sql, "alarm")
            })
            .await?;
        match order.as_deref() {
            None => Ok(()),
            Some("fail") => Err("told to fail".into()),
            Some("panic") => panic!("told to panic"),
            Some("hang") => pending().await,
            Some("set again") => {
                let at = self.host.now() + Duration::from_millis(100);
                self.host
                    .transaction(move |transaction| transaction.set_alarm(Some(at)))
                    .await?;
                Ok(())
            }
            Some("write slowly") => {
                self.host.sleep(Duration::from_millis(20)).await;
                self.note("written by the handler").await?;
                Ok(())
            }
            Some(other) => Err(format!("no such order: {other}").into()),
        }
    }
}

impl Object for ExamObject {
    const CLASS: &'static str = "durably-exam";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { self.handle_alarm().await })
    }
}

/// Appends to the log.
pub(super) fn log(sql: &dyn Sql, entry: &str, at: i64) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO exam_log (entry, at) VALUES (?, ?)",
        &[entry.into(), at.into()],
    )?;
    Ok(())
}

fn put_setting(sql: &dyn Sql, name: &str, value: &str) -> Result<(), StorageError> {
    sql.execute(
        "INSERT OR REPLACE INTO exam_settings (name, value) VALUES (?, ?)",
        &[name.into(), value.into()],
    )?;
    Ok(())
}

/// Reads a setting and removes it.
fn take_setting(sql: &dyn Sql, name: &str) -> Result<Option<String>, StorageError> {
    let value = sql.first(
        "SELECT value FROM exam_settings WHERE name = ?",
        &[name.into()],
        |row| row.string(0),
    )?;
    if value.is_some() {
        sql.execute("DELETE FROM exam_settings WHERE name = ?", &[name.into()])?;
    }
    Ok(value)
}

/// An error as the verdict shows it.
pub(super) fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(super) fn unknown(step: &str) -> Result<String, String> {
    Err(format!("the exam has no step {step:?}"))
}
