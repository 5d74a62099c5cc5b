//! Statements on what gives items their permits: grants, leases and what was drawn from them, and the
//! ids of requests.

use std::time::Duration;

use super::{ids, list};
use crate::error::StorageError;
use crate::host::{Row, Sql};
use crate::semaphore::queue::lease::Phase;
use crate::time::{MAX_SAFE_INTEGER, Timestamp};

pub(in super::super) struct GrantRow {
    pub(in super::super) key: String,
    pub(in super::super) grant_id: String,
    pub(in super::super) group: String,
    pub(in super::super) items: Vec<String>,
    pub(in super::super) admitted: u64,
    /// For a draw, the lease that it was drawn from.
    pub(in super::super) lease_id: Option<String>,
    /// Whether its items were drawn for as they were queued.
    pub(in super::super) at_once: bool,
}

pub(in super::super) struct LeaseRow {
    pub(in super::super) key: String,
    pub(in super::super) lease_id: String,
    pub(in super::super) group: String,
    pub(in super::super) permits: u64,
    pub(in super::super) settled: u64,
    pub(in super::super) phase: Phase,
    pub(in super::super) until: Timestamp,
    pub(in super::super) lifetime: Duration,
}

/// Stores a grant, or a draw of `lease`, which was drawn for new items if it was `at_once`. `false` if one of that name is known.
pub(in super::super) fn insert_grant(
    sql: &dyn Sql,
    key: &str,
    grant_id: &str,
    group: &str,
    items: &[&str],
    lease: Option<&str>,
    at_once: bool,
) -> Result<bool, StorageError> {
    let changed = sql.execute(
        "INSERT INTO durability_semaphore_queue_grants
            (key, grant_id, grp, items, admitted, lease_id, at_once)
         VALUES (?, ?, ?, ?, 0, ?, ?) ON CONFLICT DO NOTHING",
        &[
            key.into(),
            grant_id.into(),
            group.into(),
            (&list(items)).into(),
            lease.into(),
            at_once.into(),
        ],
    )?;
    Ok(changed > 0)
}

pub(in super::super) fn cut_grant(
    sql: &dyn Sql,
    key: &str,
    grant_id: &str,
    items: &[&str],
) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_grants SET items = ? WHERE key = ? AND grant_id = ?",
        &[(&list(items)).into(), key.into(), grant_id.into()],
    )?;
    Ok(())
}

pub(in super::super) fn mark_admitted(
    sql: &dyn Sql,
    key: &str,
    grant_id: &str,
    admitted: u64,
) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_grants SET admitted = ?
         WHERE key = ? AND grant_id = ?",
        &[admitted.into(), key.into(), grant_id.into()],
    )?;
    Ok(())
}

pub(in super::super) fn remove_grant(
    sql: &dyn Sql,
    key: &str,
    grant_id: &str,
) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_semaphore_queue_grants WHERE key = ? AND grant_id = ?",
        &[key.into(), grant_id.into()],
    )?;
    Ok(())
}

/// All grants and draws that are not settled.
pub(in super::super) fn grants(sql: &dyn Sql) -> Result<Vec<GrantRow>, StorageError> {
    sql.all(
        "SELECT key, grant_id, grp, items, admitted, lease_id, at_once
         FROM durability_semaphore_queue_grants",
        &[],
        |row| {
            Ok(GrantRow {
                key: row.string(0)?,
                grant_id: row.string(1)?,
                group: row.string(2)?,
                items: ids(row, 3)?,
                admitted: row.count(4)?,
                lease_id: row.optional_string(5)?,
                at_once: row.count(6)? != 0,
            })
        },
    )
}

/// `false` if the lease is known.
pub(in super::super) fn insert_lease(
    sql: &dyn Sql,
    lease: &LeaseRow,
) -> Result<bool, StorageError> {
    let changed = sql.execute(
        "INSERT INTO durability_semaphore_queue_leases
            (key, lease_id, grp, permits, settled, phase, draw_until, lifetime)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        &[
            (&lease.key).into(),
            (&lease.lease_id).into(),
            (&lease.group).into(),
            lease.permits.into(),
            lease.settled.into(),
            (lease.phase as i64).into(),
            lease.until.into(),
            millis(lease.lifetime).into(),
        ],
    )?;
    Ok(changed > 0)
}

/// Draws of a lease are gone; `settled` permits of it have been drawn and released by all that are.
pub(in super::super) fn settle_draws(
    sql: &dyn Sql,
    key: &str,
    lease_id: &str,
    settled: u64,
) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_leases SET settled = ? WHERE key = ? AND lease_id = ?",
        &[settled.into(), key.into(), lease_id.into()],
    )?;
    Ok(())
}

pub(in super::super) fn stop_lease(
    sql: &dyn Sql,
    key: &str,
    lease_id: &str,
    phase: Phase,
) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_leases SET phase = ? WHERE key = ? AND lease_id = ?",
        &[(phase as i64).into(), key.into(), lease_id.into()],
    )?;
    Ok(())
}

pub(in super::super) fn extend_lease(
    sql: &dyn Sql,
    key: &str,
    lease_id: &str,
    until: Timestamp,
    lifetime: Duration,
) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_queue_leases SET draw_until = ?, lifetime = ?
         WHERE key = ? AND lease_id = ?",
        &[
            until.into(),
            millis(lifetime).into(),
            key.into(),
            lease_id.into(),
        ],
    )?;
    Ok(())
}

pub(in super::super) fn remove_lease(
    sql: &dyn Sql,
    key: &str,
    lease_id: &str,
) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_semaphore_queue_leases WHERE key = ? AND lease_id = ?",
        &[key.into(), lease_id.into()],
    )?;
    Ok(())
}

/// All leases that are not settled.
pub(in super::super) fn leases(sql: &dyn Sql) -> Result<Vec<LeaseRow>, StorageError> {
    sql.all(
        "SELECT key, lease_id, grp, permits, settled, phase, draw_until, lifetime
         FROM durability_semaphore_queue_leases",
        &[],
        |row| {
            Ok(LeaseRow {
                key: row.string(0)?,
                lease_id: row.string(1)?,
                group: row.string(2)?,
                permits: row.count(3)?,
                settled: row.count(4)?,
                phase: phase(row, 5)?,
                until: row.time(6)?,
                lifetime: Duration::from_millis(row.count(7)?),
            })
        },
    )
}

/// Sets the id of a key's next request.
pub(in super::super) fn set_request(
    sql: &dyn Sql,
    key: &str,
    request_id: &str,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_semaphore_queue_requests (key, request_id) VALUES (?1, ?2)
         ON CONFLICT (key) DO UPDATE SET request_id = ?2",
        &[key.into(), request_id.into()],
    )?;
    Ok(())
}

pub(in super::super) fn remove_request(sql: &dyn Sql, key: &str) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_semaphore_queue_requests WHERE key = ?",
        &[key.into()],
    )?;
    Ok(())
}

/// Keys with the ids of their requests.
pub(in super::super) fn requests(sql: &dyn Sql) -> Result<Vec<(String, String)>, StorageError> {
    sql.all(
        "SELECT key, request_id FROM durability_semaphore_queue_requests",
        &[],
        |row| Ok((row.string(0)?, row.string(1)?)),
    )
}

fn phase(row: &dyn Row, column: usize) -> Result<Phase, StorageError> {
    match row.integer(column)? {
        0 => Ok(Phase::Live),
        1 => Ok(Phase::Stopped),
        2 => Ok(Phase::Unknown),
        _ => Err(StorageError::Value {
            column,
            expected: "a lease's phase",
        }),
    }
}

fn millis(duration: Duration) -> u64 {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(MAX_SAFE_INTEGER);
    millis.min(MAX_SAFE_INTEGER)
}
