//! The holder's table and every statement on it. What is written is decided in
//! [`round`](super::round).

use crate::error::StorageError;
use crate::host::{Row, Sql};
use crate::migrations::Migration;
use crate::time::Timestamp;

use super::ledger::{GroupSum, Ledger};

// Ids are ordered, so new rows and their index entries are appended. The index holds only grants
// that a cleanup may still concern, so that the next deadline and what is due are found without
// reading the others.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_grants",
    up: "CREATE TABLE durability_semaphore_grants (
            grant_id TEXT PRIMARY KEY NOT NULL,
            client_id TEXT NOT NULL,
            grp TEXT NOT NULL,
            permits INTEGER NOT NULL,
            claimed INTEGER NOT NULL,
            released INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL
         ) STRICT, WITHOUT ROWID;
         CREATE INDEX durability_semaphore_grants_unclaimed
            ON durability_semaphore_grants (expires_at) WHERE claimed < permits;",
    down: "DROP TABLE durability_semaphore_grants;",
}];

/// A stored grant. Always `released <= claimed <= permits` and `released < permits`: a grant that
/// has nothing outstanding is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrantRow {
    /// Names the grant; rises with every grant that the object makes.
    pub grant_id: String,
    /// Whose it is.
    pub client_id: String,
    /// The group that it was given to.
    pub group: String,
    /// Permits given; cut to what was claimed once the claim deadline has passed.
    pub permits: u64,
    /// Permits ever claimed.
    pub claimed: u64,
    /// Claimed permits ever given back.
    pub released: u64,
    /// The start of the round that made it.
    pub created_at: Timestamp,
    /// The claim deadline: what is unclaimed from here on goes back.
    pub expires_at: Timestamp,
}

impl GrantRow {
    /// Permits given and not released, as stored.
    pub fn outstanding(&self) -> u64 {
        self.permits.saturating_sub(self.released)
    }

    /// Whether a cleanup at `now` takes permits back.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.expires_at && self.claimed < self.permits
    }
}

/// What a decision changes in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Changes {
    /// New rows, in the order in which they were made.
    pub inserted: Vec<GrantRow>,
    /// Rows of which more than `released` differs from what is stored.
    pub updated: Vec<GrantRow>,
    /// Rows of which only `released` differs: the most frequent change, and one that no index sees.
    pub released: Vec<GrantRow>,
    /// Ids of rows to delete.
    pub removed: Vec<String>,
}

fn read(row: &dyn Row) -> Result<GrantRow, StorageError> {
    Ok(GrantRow {
        grant_id: row.string(0)?,
        client_id: row.string(1)?,
        group: row.string(2)?,
        permits: row.count(3)?,
        claimed: row.count(4)?,
        released: row.count(5)?,
        created_at: row.time(6)?,
        expires_at: row.time(7)?,
    })
}

/// One grant, if it is stored.
pub(super) fn grant(sql: &dyn Sql, grant_id: &str) -> Result<Option<GrantRow>, StorageError> {
    sql.first(
        "SELECT grant_id, client_id, grp, permits, claimed, released, created_at, expires_at
         FROM durability_semaphore_grants WHERE grant_id = ?",
        &[grant_id.into()],
        read,
    )
}

/// The grants that a cleanup at `now` concerns.
pub(super) fn due(sql: &dyn Sql, now: Timestamp) -> Result<Vec<GrantRow>, StorageError> {
    sql.all(
        "SELECT grant_id, client_id, grp, permits, claimed, released, created_at, expires_at
         FROM durability_semaphore_grants WHERE claimed < permits AND expires_at <= ?",
        &[now.into()],
        read,
    )
}

/// By group, the permits that a cleanup at `now` would take back.
pub(super) fn due_by_group(
    sql: &dyn Sql,
    now: Timestamp,
) -> Result<Vec<(String, u64)>, StorageError> {
    sql.all(
        "SELECT grp, SUM(permits - claimed) FROM durability_semaphore_grants
         WHERE claimed < permits AND expires_at <= ? GROUP BY grp",
        &[now.into()],
        |row| Ok((row.string(0)?, row.count(1)?)),
    )
}

/// The earliest claim deadline of a grant with unclaimed permits.
pub(super) fn next_deadline(sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT expires_at FROM durability_semaphore_grants
         WHERE claimed < permits ORDER BY expires_at LIMIT 1",
        &[],
        |row| row.time(0),
    )
}

/// The sums over all rows. Reads the whole table: for opening the object and for checks.
pub(super) fn sums(sql: &dyn Sql) -> Result<Ledger, StorageError> {
    let mut ledger = Ledger::default();
    sql.query(
        "SELECT grp, SUM(permits - released), COUNT(*)
         FROM durability_semaphore_grants GROUP BY grp",
        &[],
        &mut |row| {
            let sum = GroupSum {
                outstanding: row.count(1)?,
                grants: row.count(2)?,
            };
            ledger.load_group(row.string(0)?, sum);
            Ok(())
        },
    )?;
    Ok(ledger)
}

/// All grants by creation time, then insertion.
#[cfg(feature = "testing")]
pub(super) fn all(sql: &dyn Sql) -> Result<Vec<GrantRow>, StorageError> {
    sql.all(
        "SELECT grant_id, client_id, grp, permits, claimed, released, created_at, expires_at
         FROM durability_semaphore_grants ORDER BY created_at, grant_id",
        &[],
        read,
    )
}

/// Writes what a decision changed.
pub(super) fn write(sql: &dyn Sql, changes: &Changes) -> Result<(), StorageError> {
    for row in &changes.inserted {
        sql.execute(
            "INSERT INTO durability_semaphore_grants
                (grant_id, client_id, grp, permits, claimed, released, created_at, expires_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            &[
                (&row.grant_id).into(),
                (&row.client_id).into(),
                (&row.group).into(),
                row.permits.into(),
                row.claimed.into(),
                row.released.into(),
                row.created_at.into(),
                row.expires_at.into(),
            ],
        )?;
    }
    for row in &changes.updated {
        sql.execute(
            "UPDATE durability_semaphore_grants SET permits = ?, claimed = ?, released = ?
             WHERE grant_id = ?",
            &[
                row.permits.into(),
                row.claimed.into(),
                row.released.into(),
                (&row.grant_id).into(),
            ],
        )?;
    }
    for row in &changes.released {
        sql.execute(
            "UPDATE durability_semaphore_grants SET released = ? WHERE grant_id = ?",
            &[row.released.into(), (&row.grant_id).into()],
        )?;
    }
    for grant_id in &changes.removed {
        sql.execute(
            "DELETE FROM durability_semaphore_grants WHERE grant_id = ?",
            &[grant_id.into()],
        )?;
    }
    Ok(())
}
