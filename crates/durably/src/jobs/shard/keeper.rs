//! What a shard remembers for itself: the newest list of shards per account, so that a router with
//! an older one is told so, and when ended operations are forgotten next.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use super::{OutdatedList, Parts, store};
use crate::bugs::{Bug, is_on};
use crate::error::{BoxError, StorageError};
use crate::host::{LocalFuture, Sql};
use crate::migrations::Migration;
use crate::scheduler::{Participant, Scheduler};
use crate::time::Timestamp;

/// Ended operations are looked through this many times within the time that they are kept.
const PURGES_PER_RETENTION: u32 = 24;

/// The most operations that are forgotten in one go; the rest follows with the next alarm.
const PURGE_LIMIT: u64 = 10_000;

/// The most accounts whose version is kept in memory.
const KNOWN_VERSIONS: usize = 1_024;

pub(super) struct Keeper {
    scheduler: Scheduler,
    retention: Duration,
    /// The newest version noted of accounts that called lately, as their rows say.
    versions: RefCell<HashMap<String, u64>>,
    purge_at: Cell<Option<Timestamp>>,
    parts: OnceCell<Weak<Parts>>,
}

impl Keeper {
    pub(super) fn new(scheduler: Scheduler, retention: Duration) -> Rc<Self> {
        Rc::new(Keeper {
            scheduler,
            retention,
            versions: RefCell::default(),
            purge_at: Cell::new(None),
            parts: OnceCell::new(),
        })
    }

    /// Names what is looked through; once, before the scheduler is opened.
    pub(super) fn watch(&self, parts: &Rc<Parts>) {
        // A second time would be a fault of ours and changes nothing.
        let _ = self.parts.set(Rc::downgrade(parts));
    }

    /// Notes that the account has a list of this version, and refuses an older one than noted.
    /// From then on, who goes by an older list is refused.
    pub(super) async fn hear(
        self: &Rc<Self>,
        account: String,
        version: u64,
    ) -> Result<Result<(), OutdatedList>, StorageError> {
        // Almost every submission goes by the newest list, and needs no transaction to learn it.
        let known = self.versions.borrow().get(&account).copied();
        match known {
            Some(newest) if version == newest => return Ok(Ok(())),
            Some(newest) if version < newest && !is_on(Bug::OldShardList) => {
                return Ok(Err(OutdatedList { newest }));
            }
            _ => {}
        }
        let keeper = self.clone();
        self.scheduler
            .transaction(move |transaction| {
                let stored = store::list_version(transaction.sql(), &account)?;
                if version > stored {
                    store::set_list_version(transaction.sql(), &account, version)?;
                }
                let newest = stored.max(version);
                transaction.on_release(Box::new(move || keeper.know(account, newest)));
                Ok(match version < newest && !is_on(Bug::OldShardList) {
                    true => Err(OutdatedList { newest }),
                    false => Ok(()),
                })
            })
            .await
    }

    fn know(&self, account: String, version: u64) {
        let mut versions = self.versions.borrow_mut();
        if versions.len() >= KNOWN_VERSIONS && !versions.contains_key(&account) {
            versions.clear();
        }
        versions.insert(account, version);
    }

    /// Has ended operations looked through from now on, if that is not arranged yet.
    pub(super) async fn arrange_purge(self: &Rc<Self>) -> Result<(), StorageError> {
        if self.purge_at.get().is_some() {
            return Ok(());
        }
        self.set_purge_at(Some(self.scheduler.now() + self.interval()))
            .await
    }

    fn interval(&self) -> Duration {
        let millis = (self.retention / PURGES_PER_RETENTION).as_millis();
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX).max(1_000))
    }

    async fn set_purge_at(self: &Rc<Self>, at: Option<Timestamp>) -> Result<(), StorageError> {
        let keeper = self.clone();
        self.scheduler
            .transaction(move |transaction| {
                store::set_purge_at(transaction.sql(), at)?;
                transaction.on_release(Box::new(move || keeper.purge_at.set(at)));
                Ok(())
            })
            .await
    }

    async fn purge(self: Rc<Self>, now: Timestamp) -> Result<(), BoxError> {
        let due = self.purge_at.get().is_some_and(|at| at <= now);
        let parts = self.parts.get().and_then(Weak::upgrade);
        let (true, Some(parts)) = (due, parts) else {
            return Ok(());
        };
        let before = Timestamp::from_millis(
            now.as_millis()
                .saturating_sub(u64::try_from(self.retention.as_millis()).unwrap_or(u64::MAX)),
        );
        let purged = parts
            .operations
            .purge_ended_before(before, PURGE_LIMIT)
            .await?;
        let next = if purged == PURGE_LIMIT {
            Some(now)
        } else if parts.queue.knows_any().await? {
            Some(now + self.interval())
        } else {
            None
        };
        self.set_purge_at(next).await?;
        // A job that came in meanwhile found the purge arranged.
        if next.is_none() && parts.queue.knows_any().await? {
            self.arrange_purge().await?;
        }
        Ok(())
    }
}

impl Participant for Keeper {
    fn name(&self) -> &'static str {
        "job_shard"
    }

    fn migrations(&self) -> &'static [Migration] {
        store::MIGRATIONS
    }

    fn load(&self, sql: &dyn Sql, _now: Timestamp) -> Result<(), StorageError> {
        self.purge_at.set(store::purge_at(sql)?);
        Ok(())
    }

    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        // Read from the row: what is in memory follows it only when the savepoint is released.
        store::purge_at(sql)
    }

    fn next_wake_at(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        Ok(store::purge_at(sql)?.filter(|at| *at > now))
    }

    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(self.purge(now))
    }
}
