//! The queue's tables and every statement on them. What is written is decided elsewhere.
//!
//! An item costs as few B-tree entries as its life allows. The only index holds the waiting items, in
//! their order; it names their state so that counting them never reads a row with its body. Which
//! items a grant serves stands in the grant's row, so neither they nor the finished ones need an
//! index: the former are found through the grants, which are few, the latter through rows that name a
//! whole batch to be forgotten together.
//!
//! What is drawn from a lease at once is a row like a grant's, so a lease's own row changes only when
//! a draw is gone, and its marks are that row's and those of its draws together. The least that an
//! item can cost is three entries: it must be known while it runs (stored), not run again (finished)
//! and not be kept for ever (forgotten). An item that is drawn as it is queued costs just that, one
//! that waits three more: it enters the index, leaves it, and is assigned. What stands for many items
//! costs six entries for each draw (stored, taken, gone; the lease's mark; the list of what is to be
//! forgotten, twice), one less for each grant.

mod permits;

use serde_json::value::RawValue;

use super::book::Place;
use crate::error::StorageError;
use crate::host::{Row, Sql};
use crate::migrations::Migration;
use crate::time::Timestamp;

pub(super) use permits::{
    GrantRow, LeaseRow, cut_grant, extend_lease, grants, insert_grant, insert_lease, leases,
    mark_admitted, remove_grant, remove_lease, remove_request, requests, set_request, settle_draws,
    stop_lease,
};

pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_items_grants_and_leases",
    up: "CREATE TABLE durability_semaphore_queue_items (
            id TEXT PRIMARY KEY NOT NULL,
            key TEXT NOT NULL,
            grp TEXT NOT NULL,
            seq INTEGER NOT NULL,
            state INTEGER NOT NULL,
            grant_id TEXT,
            queued_at INTEGER NOT NULL,
            finished_at INTEGER,
            body TEXT
         ) STRICT, WITHOUT ROWID;
         CREATE INDEX durability_semaphore_queue_items_queued
            ON durability_semaphore_queue_items (key, grp, seq, state) WHERE state = 0;
         CREATE TABLE durability_semaphore_queue_grants (
            key TEXT NOT NULL,
            grant_id TEXT NOT NULL,
            grp TEXT NOT NULL,
            items TEXT NOT NULL,
            admitted INTEGER NOT NULL,
            lease_id TEXT,
            at_once INTEGER NOT NULL,
            PRIMARY KEY (key, grant_id)
         ) STRICT, WITHOUT ROWID;
         CREATE TABLE durability_semaphore_queue_leases (
            key TEXT NOT NULL,
            lease_id TEXT NOT NULL,
            grp TEXT NOT NULL,
            permits INTEGER NOT NULL,
            settled INTEGER NOT NULL,
            phase INTEGER NOT NULL,
            draw_until INTEGER NOT NULL,
            lifetime INTEGER NOT NULL,
            PRIMARY KEY (key, lease_id)
         ) STRICT, WITHOUT ROWID;
         CREATE TABLE durability_semaphore_queue_requests (
            key TEXT PRIMARY KEY NOT NULL,
            request_id TEXT NOT NULL
         ) STRICT, WITHOUT ROWID;
         CREATE TABLE durability_semaphore_queue_finished (
            batch INTEGER PRIMARY KEY,
            settled_at INTEGER NOT NULL,
            items TEXT NOT NULL
         ) STRICT;",
    down: "DROP TABLE durability_semaphore_queue_finished;
           DROP TABLE durability_semaphore_queue_requests;
           DROP TABLE durability_semaphore_queue_leases;
           DROP TABLE durability_semaphore_queue_grants;
           DROP TABLE durability_semaphore_queue_items;",
}];

/// How far places in a group are counted.
pub(super) const MAX_PLACE: u64 = 10_000;

/// Where a stored item stands. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// 0: it waits.
    Queued,
    /// 1: it is one of its grant's or draw's items; whether claimed or admitted, that one knows.
    Assigned,
    /// 2: assigned, but to be given back as soon as the claim is answered.
    Cancelled,
    /// 3: it has given its permit back.
    Finished,
}

pub(super) struct ItemRow {
    pub(super) key: String,
    pub(super) group: String,
    pub(super) place: Place,
    pub(super) state: State,
    pub(super) grant_id: Option<String>,
    pub(super) finished_at: Option<Timestamp>,
}

pub(super) struct WaitingItem {
    pub(super) id: String,
    pub(super) place: Place,
}

pub(super) struct WaitingGroup {
    pub(super) key: String,
    pub(super) group: String,
    pub(super) count: u64,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
}

pub(super) struct FinishedBatch {
    pub(super) batch: i64,
    pub(super) settled_at: Timestamp,
    pub(super) items: Vec<String>,
}

/// Stores an item, waiting or assigned to `draw`, also instead of one that finished by `forgotten`.
/// `false` if its id is known.
pub(super) fn insert(
    sql: &dyn Sql,
    item: &super::NewItem,
    place: Place,
    draw: Option<&str>,
    forgotten: Option<Timestamp>,
) -> Result<bool, StorageError> {
    let changed = sql.execute(
        "INSERT INTO durability_semaphore_queue_items
            (id, key, grp, seq, state, grant_id, queued_at, finished_at, body)
         VALUES (?1, ?2, ?3, ?4, ?8, ?9, ?5, NULL, ?6)
         ON CONFLICT (id) DO UPDATE
            SET key = ?2, grp = ?3, seq = ?4, state = ?8, grant_id = ?9, queued_at = ?5,
                finished_at = NULL, body = ?6
            WHERE state = 3 AND finished_at <= ?7",
        &[
            (&item.id).into(),
            (&item.key).into(),
            (&item.group).into(),
            place.seq.into(),
            place.queued_at.into(),
            item.body.get().into(),
            forgotten.into(),
            draw.is_some().into(),
            draw.into(),
        ],
    )?;
    Ok(changed > 0)
}

pub(super) fn item(sql: &dyn Sql, id: &str) -> Result<Option<ItemRow>, StorageError> {
    sql.first(
        "SELECT key, grp, seq, queued_at, state, grant_id, finished_at
         FROM durability_semaphore_queue_items WHERE id = ?",
        &[id.into()],
        |row| {
            Ok(ItemRow {
                key: row.string(0)?,
                group: row.string(1)?,
                place: Place {
                    seq: row.count(2)?,
                    queued_at: row.time(3)?,
                },
                state: state(row, 4)?,
                grant_id: row.optional_string(5)?,
                finished_at: row.optional_time(6)?,
            })
        },
    )
}

/// When an item was queued, and its body; `None` once it has ended.
pub(super) fn body(
    sql: &dyn Sql,
    id: &str,
) -> Result<Option<(Timestamp, Box<RawValue>)>, StorageError> {
    let stored = sql.first(
        "SELECT queued_at, body FROM durability_semaphore_queue_items WHERE id = ?",
        &[id.into()],
        |row| {
            let Some(body) = row.optional_string(1)? else {
                return Ok(None);
            };
            let body = RawValue::from_string(body).map_err(|_| StorageError::Value {
                column: 1,
                expected: "JSON",
            })?;
            Ok(Some((row.time(0)?, body)))
        },
    )?;
    Ok(stored.flatten())
}

/// The ids of known items after `after` and before `end`, in order, at most `limit`.
pub(super) fn ids_between(
    sql: &dyn Sql,
    after: &str,
    end: &str,
    limit: u64,
) -> Result<Vec<String>, StorageError> {
    sql.all(
        "SELECT id FROM durability_semaphore_queue_items
         WHERE id > ? AND id < ? ORDER BY id LIMIT ?",
        &[after.into(), end.into(), limit.into()],
        |row| row.string(0),
    )
}

/// Whether any item is known.
pub(super) fn knows_any(sql: &dyn Sql) -> Result<bool, StorageError> {
    let any = sql.first(
        "SELECT 1 FROM durability_semaphore_queue_items LIMIT 1",
        &[],
        |_| Ok(()),
    )?;
    Ok(any.is_some())
}

/// The oldest waiting items of a group, at most `limit`.
pub(super) fn oldest(
    sql: &dyn Sql,
    key: &str,
    group: &str,
    limit: u64,
) -> Result<Vec<WaitingItem>, StorageError> {
    sql.all(
        "SELECT id, seq, queued_at FROM durability_semaphore_queue_items
         WHERE state = 0 AND key = ? AND grp = ? ORDER BY seq LIMIT ?",
        &[key.into(), group.into(), limit.into()],
        |row| {
            Ok(WaitingItem {
                id: row.string(0)?,
                place: Place {
                    seq: row.count(1)?,
                    queued_at: row.time(2)?,
                },
            })
        },
    )
}

/// How many items of the group wait before `seq`, counted up to [`MAX_PLACE`].
pub(super) fn waiting_before(
    sql: &dyn Sql,
    key: &str,
    group: &str,
    seq: u64,
) -> Result<u64, StorageError> {
    let counted = sql.first(
        "SELECT COUNT(*) FROM (
            SELECT 1 FROM durability_semaphore_queue_items
            WHERE state = 0 AND key = ? AND grp = ? AND seq < ? LIMIT ?)",
        &[key.into(), group.into(), seq.into(), MAX_PLACE.into()],
        |row| row.count(0),
    )?;
    Ok(counted.unwrap_or(0))
}

/// All groups with waiting items; reads the whole index of those.
pub(super) fn waiting_groups(sql: &dyn Sql) -> Result<Vec<WaitingGroup>, StorageError> {
    sql.all(
        "SELECT key, grp, COUNT(*), MIN(seq), MAX(seq) FROM durability_semaphore_queue_items
         WHERE state = 0 GROUP BY key, grp",
        &[],
        |row| {
            Ok(WaitingGroup {
                key: row.string(0)?,
                group: row.string(1)?,
                count: row.count(2)?,
                first_seq: row.count(3)?,
                last_seq: row.count(4)?,
            })
        },
    )
}

pub(super) fn assign(sql: &dyn Sql, id: &str, grant_id: &str) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_items SET state = 1, grant_id = ? WHERE id = ?",
        &[grant_id.into(), id.into()],
    )?;
    Ok(())
}

pub(super) fn mark_cancelled(sql: &dyn Sql, id: &str) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_items SET state = 2 WHERE id = ?",
        &[id.into()],
    )?;
    Ok(())
}

/// Puts an assigned item back to its place.
pub(super) fn requeue(sql: &dyn Sql, id: &str) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_items SET state = 0, grant_id = NULL WHERE id = ?",
        &[id.into()],
    )?;
    Ok(())
}

pub(super) fn finish(sql: &dyn Sql, id: &str, now: Timestamp) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_items SET state = 3, finished_at = ?, body = NULL
         WHERE id = ?",
        &[now.into(), id.into()],
    )?;
    Ok(())
}

pub(super) fn remove(sql: &dyn Sql, id: &str) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_semaphore_queue_items WHERE id = ?",
        &[id.into()],
    )?;
    Ok(())
}

/// Has finished items forgotten together, a while after `now`.
pub(super) fn insert_finished(
    sql: &dyn Sql,
    items: &[&str],
    now: Timestamp,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_semaphore_queue_finished (settled_at, items) VALUES (?, ?)",
        &[now.into(), (&list(items)).into()],
    )?;
    Ok(())
}

/// The batch that is to be forgotten next.
pub(super) fn first_finished(sql: &dyn Sql) -> Result<Option<FinishedBatch>, StorageError> {
    sql.first(
        "SELECT batch, settled_at, items FROM durability_semaphore_queue_finished
         ORDER BY batch LIMIT 1",
        &[],
        |row| {
            Ok(FinishedBatch {
                batch: row.integer(0)?,
                settled_at: row.time(1)?,
                items: ids(row, 2)?,
            })
        },
    )
}

/// Forgets a batch. An item whose id was used again since is another one and stays.
pub(super) fn forget(sql: &dyn Sql, batch: &FinishedBatch) -> Result<(), StorageError> {
    for id in &batch.items {
        sql.execute(
            "DELETE FROM durability_semaphore_queue_items
             WHERE id = ? AND state = 3 AND finished_at <= ?",
            &[id.into(), batch.settled_at.into()],
        )?;
    }
    sql.execute(
        "DELETE FROM durability_semaphore_queue_finished WHERE batch = ?",
        &[batch.batch.into()],
    )?;
    Ok(())
}

fn state(row: &dyn Row, column: usize) -> Result<State, StorageError> {
    match row.integer(column)? {
        0 => Ok(State::Queued),
        1 => Ok(State::Assigned),
        2 => Ok(State::Cancelled),
        3 => Ok(State::Finished),
        _ => Err(StorageError::Value {
            column,
            expected: "an item's state",
        }),
    }
}

/// A list of ids as it is stored: a JSON array.
fn list(items: &[&str]) -> String {
    serde_json::Value::from(items.to_vec()).to_string()
}

fn ids(row: &dyn Row, column: usize) -> Result<Vec<String>, StorageError> {
    serde_json::from_str(row.text(column)?).map_err(|_| StorageError::Value {
        column,
        expected: "a list of ids",
    })
}
