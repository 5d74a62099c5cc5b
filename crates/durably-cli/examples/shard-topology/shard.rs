//! The shards: they take orders and work them off.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object, Sql};
use durably::migrations::Migration;
use durably::scheduler::Participant;
use durably::topology::{StateReceiver, StateUpdate};
use durably::{Scheduler, StorageError, Timestamp};
use durably_native::SystemRef;

use crate::tenant::Tenant;
use crate::{TENANT, quick};

/// The rate of a shard that was not told one yet.
const FIRST_RATE: u64 = 20;

/// A shard's orders, as rows.
struct Orders;

impl Participant for Orders {
    fn name(&self) -> &'static str {
        "orders"
    }

    fn migrations(&self) -> &'static [Migration] {
        &[Migration {
            name: "0001_orders",
            up: "CREATE TABLE orders (id TEXT NOT NULL PRIMARY KEY, done INTEGER NOT NULL) STRICT, WITHOUT ROWID;
                 CREATE INDEX orders_open ON orders (id) WHERE done = 0;
                 CREATE TABLE shard (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;",
            down: "DROP TABLE orders; DROP TABLE shard;",
        }]
    }

    fn load(&self, _: &dyn Sql, _: Timestamp) -> Result<(), StorageError> {
        Ok(())
    }

    /// Orders that wait bring the object back after a crash, through its alarm.
    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        Ok(next_order(sql)?.map(|_| Timestamp::ZERO))
    }

    fn next_wake_at(&self, _: &dyn Sql, _: Timestamp) -> Result<Option<Timestamp>, StorageError> {
        Ok(None)
    }

    fn run_due(self: Rc<Self>, _: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async { Ok(()) })
    }
}

fn next_order(sql: &dyn Sql) -> Result<Option<String>, StorageError> {
    sql.first(
        "SELECT id FROM orders WHERE done = 0 ORDER BY id LIMIT 1",
        &[],
        |row| row.string(0),
    )
}

fn number(sql: &dyn Sql, name: &str) -> Result<Option<u64>, StorageError> {
    sql.first(
        "SELECT value FROM shard WHERE name = ?",
        &[name.into()],
        |row| row.count(0),
    )
}

fn set_number(sql: &dyn Sql, name: &str, value: u64) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO shard (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        &[name.into(), value.into()],
    )?;
    Ok(())
}

/// What a shard says to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Stored,
    /// The shard is closed: the order belongs elsewhere.
    Closed,
}

pub(crate) struct Shard {
    scheduler: Scheduler,
    states: StateReceiver,
    system: SystemRef,
    /// The scheduler holds it weakly.
    _orders: Rc<Orders>,
    pub(crate) rate: Cell<u64>,
    working: Cell<bool>,
    /// An order came while others were worked off.
    more: Cell<bool>,
}

impl Object for Shard {
    const CLASS: &'static str = "shard";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move {
            self.work();
            Ok(self.scheduler.alarm().await?)
        })
    }
}

impl Shard {
    pub(crate) async fn open(host: Rc<dyn Host>, system: SystemRef) -> Result<Shard, BoxError> {
        let scheduler = Scheduler::new(host, quick())?;
        let orders = Rc::new(Orders);
        scheduler.attach(&orders)?;
        let states = StateReceiver::new(&scheduler)?;
        scheduler.open().await?;
        let rate = scheduler
            .transaction(|transaction| number(transaction.sql(), "rate"))
            .await?;
        Ok(Shard {
            scheduler,
            states,
            system,
            _orders: orders,
            rate: Cell::new(rate.unwrap_or(FIRST_RATE)),
            working: Cell::new(false),
            more: Cell::new(false),
        })
    }

    /// Takes an order: it is stored when this answers.
    pub(crate) async fn take(self: Rc<Self>, order: String) -> Result<Taken, BoxError> {
        let stored = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            if number(sql, "closed")?.is_some() {
                return Ok::<_, StorageError>((Taken::Closed, false));
            }
            sql.execute(
                "INSERT INTO orders (id, done) VALUES (?, 0) ON CONFLICT DO NOTHING",
                &[(&order).into()],
            )?;
            Ok((Taken::Stored, number(sql, "joined")?.is_none()))
        });
        let (taken, is_stranger) = stored.await?;
        if is_stranger {
            // Nothing tells the coordinator of it but this; a repeat changes nothing.
            let name = self.scheduler.host().name().to_owned();
            let tenant = self.system.object::<Tenant>(TENANT);
            tenant
                .call(|tenant| async move { tenant.join(name).await })
                .await??;
            self.note_joined().await?;
        }
        if taken == Taken::Stored {
            self.work();
        }
        Ok(taken)
    }

    pub(crate) async fn note_joined(&self) -> Result<(), StorageError> {
        let noted = self
            .scheduler
            .transaction(|transaction| set_number(transaction.sql(), "joined", 1));
        noted.await
    }

    /// Works the orders off in the background, at the rate that the coordinator said last.
    fn work(self: &Rc<Self>) {
        self.more.set(true);
        if self.working.replace(true) {
            return;
        }
        let shard = self.clone();
        self.scheduler.host().spawn(Box::pin(async move {
            while shard.more.take() {
                while let Ok(true) = shard.work_one_off().await {}
            }
            shard.working.set(false);
        }));
    }

    pub(crate) async fn work_one_off(&self) -> Result<bool, StorageError> {
        let pause = Duration::from_millis(1_000 / self.rate.get().max(1));
        self.scheduler.host().sleep(pause).await;
        let done = self.scheduler.transaction(|transaction| {
            let sql = transaction.sql();
            let Some(order) = next_order(sql)? else {
                return Ok::<_, StorageError>(false);
            };
            sql.execute(
                "UPDATE orders SET done = done + 1 WHERE id = ?",
                &[(&order).into()],
            )?;
            Ok(true)
        });
        done.await
    }

    /// What the coordinator delivers: only what is newer than what the shard has is applied, in one
    /// transaction with what follows from it.
    pub(crate) async fn apply(&self, update: StateUpdate) -> Result<(), StorageError> {
        let rate = update.value["perSecond"].as_u64().unwrap_or(FIRST_RATE);
        let applied = self.states.apply(update, move |transaction, _| {
            // Who is told something is a member.
            set_number(transaction.sql(), "joined", 1)?;
            set_number(transaction.sql(), "rate", rate)
        });
        if applied.await? {
            self.rate.set(rate);
        }
        Ok(())
    }

    /// Whether a draining shard holds nothing any more. It is closed in the transaction that looks, so
    /// an order that is still on its way here is refused and not lost.
    pub(crate) async fn close_if_empty(&self) -> Result<bool, StorageError> {
        let closed = self.scheduler.transaction(|transaction| {
            let sql = transaction.sql();
            let is_empty = next_order(sql)?.is_none();
            if is_empty {
                set_number(sql, "closed", 1)?;
            }
            Ok(is_empty)
        });
        closed.await
    }

    /// How often each order was done.
    pub(crate) async fn orders(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let read = self.scheduler.transaction(|transaction| {
            let sql = transaction.sql();
            sql.all("SELECT id, done FROM orders", &[], |row| {
                Ok((row.string(0)?, row.count(1)?))
            })
        });
        read.await
    }
}
