//! The holder's tables and every statement on them. What is written is decided in
//! [`round`](super::round).

use serde::{Deserialize, Serialize};

use crate::error::StorageError;
use crate::host::{Row, Sql};
use crate::migrations::Migration;
use crate::time::Timestamp;

use super::ledger::{GroupSum, Ledger};
use super::operators::Holding;
use super::protocol::LeaseGrant;

// Ids are ordered, so new rows and their index entries are appended. The first index holds only
// grants that a cleanup may still concern, so that the next deadline and what is due are found
// without reading the others; the second finds what a client has, and what was made for a request
// that is repeated. Leases are found by their expiry, by their group when that may have none any
// more, and by their client. Those that are retired are only waited for, so the first two do not
// hold them.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_grants_and_leases",
    up: "CREATE TABLE durability_semaphore_grants (
            grant_id TEXT PRIMARY KEY NOT NULL,
            client_id TEXT NOT NULL,
            grp TEXT NOT NULL,
            permits INTEGER NOT NULL,
            claimed INTEGER NOT NULL,
            released INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL,
            request_id TEXT
         ) STRICT, WITHOUT ROWID;
         CREATE INDEX durability_semaphore_grants_unclaimed
            ON durability_semaphore_grants (expires_at) WHERE claimed < permits;
         CREATE INDEX durability_semaphore_grants_client
            ON durability_semaphore_grants (client_id, request_id);
         CREATE TABLE durability_semaphore_leases (
            lease_id TEXT PRIMARY KEY NOT NULL,
            client_id TEXT NOT NULL,
            grp TEXT NOT NULL,
            permits INTEGER NOT NULL,
            released INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL,
            retired INTEGER NOT NULL,
            request_id TEXT
         ) STRICT, WITHOUT ROWID;
         CREATE INDEX durability_semaphore_leases_live
            ON durability_semaphore_leases (expires_at) WHERE retired = 0;
         CREATE INDEX durability_semaphore_leases_group
            ON durability_semaphore_leases (grp) WHERE retired = 0;
         CREATE INDEX durability_semaphore_leases_client
            ON durability_semaphore_leases (client_id);
         CREATE TABLE durability_semaphore_clients (
            client_id TEXT PRIMARY KEY NOT NULL,
            ttl INTEGER NOT NULL,
            expires_at INTEGER NOT NULL
         ) STRICT, WITHOUT ROWID;
         CREATE INDEX durability_semaphore_clients_expiry
            ON durability_semaphore_clients (expires_at);
         CREATE TABLE durability_semaphore_requests (
            client_id TEXT PRIMARY KEY NOT NULL,
            number INTEGER NOT NULL
         ) STRICT, WITHOUT ROWID;",
    down: "DROP TABLE durability_semaphore_requests; DROP TABLE durability_semaphore_clients; DROP TABLE durability_semaphore_leases;
           DROP TABLE durability_semaphore_grants;",
}];

/// A stored grant. Always `released <= claimed <= permits` and `released < permits`: a grant that
/// has nothing outstanding is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
    /// The request that it was made for, if that named itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// A stored lease. Always `released < permits`: a lease that has no footprint is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRow {
    /// Names the lease; rises with every lease that the object makes.
    pub lease_id: String,
    /// Whose it is.
    pub client_id: String,
    /// The group that it was given to.
    pub group: String,
    /// Permits that may be drawn; cut to those that were when its client gives it back.
    pub permits: u64,
    /// Drawn permits ever given back.
    pub released: u64,
    /// The start of the round that made it.
    pub created_at: Timestamp,
    /// No permit is drawn from here on, unless a report comes before.
    pub expires_at: Timestamp,
    /// No permit is drawn any more; what was drawn still counts.
    #[serde(default)]
    pub retired: bool,
    /// The request that it was made for, if that named itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// A client without storage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientRow {
    /// The client.
    pub client_id: String,
    /// How long it may be silent.
    pub ttl_ms: u64,
    /// Until when it may be silent now.
    pub expires_at: Timestamp,
}

/// What was seen of a client's requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumberRow {
    /// The client.
    pub client_id: String,
    /// The highest number of its requests.
    pub number: u64,
}

impl LeaseRow {
    /// Permits that count: all that are not known to be released, drawn or not.
    pub fn footprint(&self) -> u64 {
        self.permits.saturating_sub(self.released)
    }

    /// Whether it has gone unreported for too long.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }

    /// What its client is told about it.
    pub(super) fn told(&self, now: Timestamp) -> LeaseGrant {
        LeaseGrant {
            lease_id: self.lease_id.clone(),
            group: self.group.clone(),
            permits: self.permits,
            expires_at: if self.retired { now } else { self.expires_at },
        }
    }
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

/// What a decision changes in the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Changes {
    /// New grants, in the order in which they were made.
    pub grants_inserted: Vec<GrantRow>,
    /// Grants of which more than `released` differs from what is stored.
    pub grants_updated: Vec<GrantRow>,
    /// Grants of which only `released` differs: the most frequent change, and one that no index
    /// sees.
    pub grants_released: Vec<GrantRow>,
    /// Ids of grants to delete.
    pub grants_removed: Vec<String>,
    /// New leases, in the order in which they were made.
    pub leases_inserted: Vec<LeaseRow>,
    /// Leases that were heard of, so that they expire later; nor are they retired.
    pub leases_heard: Vec<LeaseRow>,
    /// Leases that are retired from now on.
    pub leases_retired: Vec<LeaseRow>,
    /// Leases of which only `permits` and `released` differ, which no index sees.
    pub leases_shrunk: Vec<LeaseRow>,
    /// Ids of leases to delete.
    pub leases_removed: Vec<String>,
    /// By client, the highest number of a request that was seen.
    pub numbers: Vec<(String, u64)>,
}

fn read_grant(row: &dyn Row) -> Result<GrantRow, StorageError> {
    Ok(GrantRow {
        grant_id: row.string(0)?,
        client_id: row.string(1)?,
        group: row.string(2)?,
        permits: row.count(3)?,
        claimed: row.count(4)?,
        released: row.count(5)?,
        created_at: row.time(6)?,
        expires_at: row.time(7)?,
        request_id: row.optional_string(8)?,
    })
}

fn read_lease(row: &dyn Row) -> Result<LeaseRow, StorageError> {
    Ok(LeaseRow {
        lease_id: row.string(0)?,
        client_id: row.string(1)?,
        group: row.string(2)?,
        permits: row.count(3)?,
        released: row.count(4)?,
        created_at: row.time(5)?,
        expires_at: row.time(6)?,
        retired: row.count(7)? != 0,
        request_id: row.optional_string(8)?,
    })
}

/// One grant, if it is stored.
pub(super) fn grant(sql: &dyn Sql, grant_id: &str) -> Result<Option<GrantRow>, StorageError> {
    sql.first(
        "SELECT grant_id, client_id, grp, permits, claimed, released, created_at, expires_at,
            request_id
         FROM durability_semaphore_grants WHERE grant_id = ?",
        &[grant_id.into()],
        read_grant,
    )
}

/// The grants that a cleanup at `now` concerns.
pub(super) fn due(sql: &dyn Sql, now: Timestamp) -> Result<Vec<GrantRow>, StorageError> {
    sql.all(
        "SELECT grant_id, client_id, grp, permits, claimed, released, created_at, expires_at,
            request_id
         FROM durability_semaphore_grants WHERE claimed < permits AND expires_at <= ?",
        &[now.into()],
        read_grant,
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

/// The grants that were made for a request of a client.
pub(super) fn grants_of_request(
    sql: &dyn Sql,
    client_id: &str,
    request_id: &str,
) -> Result<Vec<GrantRow>, StorageError> {
    sql.all(
        "SELECT grant_id, client_id, grp, permits, claimed, released, created_at, expires_at,
            request_id
         FROM durability_semaphore_grants
         WHERE client_id = ? AND request_id = ?",
        &[client_id.into(), request_id.into()],
        read_grant,
    )
}

/// All grants of a client.
pub(super) fn grants_of_client(
    sql: &dyn Sql,
    client_id: &str,
) -> Result<Vec<GrantRow>, StorageError> {
    sql.all(
        "SELECT grant_id, client_id, grp, permits, claimed, released, created_at, expires_at,
            request_id
         FROM durability_semaphore_grants WHERE client_id = ?",
        &[client_id.into()],
        read_grant,
    )
}

/// What the next `limit` clients after `after` hold, by group; grants and leases apart.
pub(super) fn holdings(
    sql: &dyn Sql,
    after: &str,
    limit: u64,
) -> Result<Vec<Holding>, StorageError> {
    let clients: Vec<String> = sql.all(
        "SELECT client_id FROM (
            SELECT DISTINCT client_id FROM durability_semaphore_grants WHERE client_id > ?1
            UNION SELECT DISTINCT client_id FROM durability_semaphore_leases WHERE client_id > ?1)
         ORDER BY client_id LIMIT ?2",
        &[after.into(), limit.into()],
        |row| row.string(0),
    )?;
    let mut holdings = Vec::new();
    for client_id in clients {
        let read = |granted: bool| {
            let client_id = client_id.clone();
            move |row: &dyn Row| {
                let permits = row.count(1)?;
                Ok(Holding {
                    client_id: client_id.clone(),
                    group: row.string(0)?,
                    granted: if granted { permits } else { 0 },
                    leased: if granted { 0 } else { permits },
                    since: row.time(2)?,
                    last_report: None,
                })
            }
        };
        holdings.extend(sql.all(
            "SELECT grp, SUM(permits - released), MIN(created_at)
             FROM durability_semaphore_grants WHERE client_id = ? GROUP BY grp",
            &[(&client_id).into()],
            read(true),
        )?);
        holdings.extend(sql.all(
            "SELECT grp, SUM(permits - released), MIN(created_at)
             FROM durability_semaphore_leases WHERE client_id = ? GROUP BY grp",
            &[(&client_id).into()],
            read(false),
        )?);
    }
    Ok(holdings)
}

/// One lease, if it is stored.
pub(super) fn lease(sql: &dyn Sql, lease_id: &str) -> Result<Option<LeaseRow>, StorageError> {
    sql.first(
        "SELECT lease_id, client_id, grp, permits, released, created_at, expires_at, retired,
            request_id
         FROM durability_semaphore_leases WHERE lease_id = ?",
        &[lease_id.into()],
        read_lease,
    )
}

/// The leases that expire by `now` and are not retired.
pub(super) fn expired_leases(sql: &dyn Sql, now: Timestamp) -> Result<Vec<LeaseRow>, StorageError> {
    sql.all(
        "SELECT lease_id, client_id, grp, permits, released, created_at, expires_at, retired,
            request_id
         FROM durability_semaphore_leases WHERE retired = 0 AND expires_at <= ?",
        &[now.into()],
        read_lease,
    )
}

/// The leases of a group that are not retired.
pub(super) fn leases_of_group(sql: &dyn Sql, group: &str) -> Result<Vec<LeaseRow>, StorageError> {
    sql.all(
        "SELECT lease_id, client_id, grp, permits, released, created_at, expires_at, retired,
            request_id
         FROM durability_semaphore_leases WHERE retired = 0 AND grp = ?",
        &[group.into()],
        read_lease,
    )
}

/// All leases of a client.
pub(super) fn leases_of_client(
    sql: &dyn Sql,
    client_id: &str,
) -> Result<Vec<LeaseRow>, StorageError> {
    sql.all(
        "SELECT lease_id, client_id, grp, permits, released, created_at, expires_at, retired,
            request_id
         FROM durability_semaphore_leases WHERE client_id = ?",
        &[client_id.into()],
        read_lease,
    )
}

/// Whether any client without storage is registered.
pub(super) fn knows_clients(sql: &dyn Sql) -> Result<bool, StorageError> {
    let any = sql.first(
        "SELECT 1 FROM durability_semaphore_clients LIMIT 1",
        &[],
        |_| Ok(()),
    )?;
    Ok(any.is_some())
}

/// Registers a client that may be silent for `ttl` ms.
pub(super) fn register_client(
    sql: &dyn Sql,
    client_id: &str,
    ttl: u64,
    now: Timestamp,
) -> Result<(), StorageError> {
    let expires_at = now + std::time::Duration::from_millis(ttl);
    sql.execute(
        "INSERT INTO durability_semaphore_clients (client_id, ttl, expires_at) VALUES (?, ?, ?)
         ON CONFLICT (client_id) DO UPDATE SET ttl = excluded.ttl, expires_at = excluded.expires_at",
        &[client_id.into(), ttl.into(), expires_at.into()],
    )?;
    Ok(())
}

/// Has a client that was heard of expire later, if it is registered.
pub(super) fn renew_client(
    sql: &dyn Sql,
    client_id: &str,
    now: Timestamp,
) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_semaphore_clients SET expires_at = ? + ttl WHERE client_id = ?",
        &[now.into(), client_id.into()],
    )?;
    Ok(())
}

pub(super) fn next_client_expiry(sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT expires_at FROM durability_semaphore_clients ORDER BY expires_at LIMIT 1",
        &[],
        |row| row.time(0),
    )
}

/// The first `limit` clients that have been silent for too long at `now`.
pub(super) fn expired_clients(
    sql: &dyn Sql,
    now: Timestamp,
    limit: u64,
) -> Result<Vec<String>, StorageError> {
    sql.all(
        "SELECT client_id FROM durability_semaphore_clients WHERE expires_at <= ?
         ORDER BY expires_at, client_id LIMIT ?",
        &[now.into(), limit.into()],
        |row| row.string(0),
    )
}

pub(super) fn forget_client(sql: &dyn Sql, client_id: &str) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_semaphore_clients WHERE client_id = ?",
        &[client_id.into()],
    )?;
    sql.execute(
        "DELETE FROM durability_semaphore_requests WHERE client_id = ?",
        &[client_id.into()],
    )?;
    Ok(())
}

/// The highest number that was stored of a client's requests.
pub(super) fn request_number(sql: &dyn Sql, client_id: &str) -> Result<Option<u64>, StorageError> {
    sql.first(
        "SELECT number FROM durability_semaphore_requests WHERE client_id = ?",
        &[client_id.into()],
        |row| row.count(0),
    )
}

fn write_number(sql: &dyn Sql, client_id: &str, number: u64) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_semaphore_requests (client_id, number) VALUES (?, ?)
         ON CONFLICT (client_id) DO UPDATE SET number = excluded.number
         WHERE excluded.number > number",
        &[client_id.into(), number.into()],
    )?;
    Ok(())
}

/// The sums over all rows. Reads both tables: for opening the object and for checks.
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
                ..GroupSum::default()
            };
            ledger.load_group(row.string(0)?, sum);
            Ok(())
        },
    )?;
    sql.query(
        "SELECT grp, SUM(permits - released), COUNT(*), SUM(1 - retired)
         FROM durability_semaphore_leases GROUP BY grp",
        &[],
        &mut |row| {
            let sum = GroupSum {
                footprint: row.count(1)?,
                leases: row.count(2)?,
                live_leases: row.count(3)?,
                ..GroupSum::default()
            };
            ledger.load_group(row.string(0)?, sum);
            Ok(())
        },
    )?;
    Ok(ledger)
}

/// All grants by creation time, then insertion.
pub(super) fn all_grants(sql: &dyn Sql) -> Result<Vec<GrantRow>, StorageError> {
    sql.all(
        "SELECT grant_id, client_id, grp, permits, claimed, released, created_at, expires_at,
            request_id
         FROM durability_semaphore_grants ORDER BY created_at, grant_id",
        &[],
        read_grant,
    )
}

/// All leases by creation time, then insertion.
pub(super) fn all_leases(sql: &dyn Sql) -> Result<Vec<LeaseRow>, StorageError> {
    sql.all(
        "SELECT lease_id, client_id, grp, permits, released, created_at, expires_at, retired,
            request_id
         FROM durability_semaphore_leases ORDER BY created_at, lease_id",
        &[],
        read_lease,
    )
}

/// All clients without storage, by id.
pub(super) fn all_clients(sql: &dyn Sql) -> Result<Vec<ClientRow>, StorageError> {
    sql.all(
        "SELECT client_id, ttl, expires_at FROM durability_semaphore_clients ORDER BY client_id",
        &[],
        |row| {
            Ok(ClientRow {
                client_id: row.string(0)?,
                ttl_ms: row.count(1)?,
                expires_at: row.time(2)?,
            })
        },
    )
}

/// The highest request numbers, by client.
pub(super) fn all_numbers(sql: &dyn Sql) -> Result<Vec<NumberRow>, StorageError> {
    sql.all(
        "SELECT client_id, number FROM durability_semaphore_requests ORDER BY client_id",
        &[],
        |row| {
            Ok(NumberRow {
                client_id: row.string(0)?,
                number: row.count(1)?,
            })
        },
    )
}

#[cfg(feature = "testing")]
pub(super) fn insert_client(sql: &dyn Sql, row: &ClientRow) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_semaphore_clients (client_id, ttl, expires_at) VALUES (?, ?, ?)",
        &[
            (&row.client_id).into(),
            row.ttl_ms.into(),
            row.expires_at.into(),
        ],
    )?;
    Ok(())
}

/// Writes what a decision changed.
pub(super) fn write(sql: &dyn Sql, changes: &Changes) -> Result<(), StorageError> {
    write_grants(sql, changes)?;
    write_leases(sql, changes)?;
    for (client_id, number) in &changes.numbers {
        write_number(sql, client_id, *number)?;
    }
    Ok(())
}

fn write_grants(sql: &dyn Sql, changes: &Changes) -> Result<(), StorageError> {
    for row in &changes.grants_inserted {
        sql.execute(
            "INSERT INTO durability_semaphore_grants
                (grant_id, client_id, grp, permits, claimed, released, created_at, expires_at,
                 request_id)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            &[
                (&row.grant_id).into(),
                (&row.client_id).into(),
                (&row.group).into(),
                row.permits.into(),
                row.claimed.into(),
                row.released.into(),
                row.created_at.into(),
                row.expires_at.into(),
                row.request_id.as_deref().into(),
            ],
        )?;
    }
    for row in &changes.grants_updated {
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
    for row in &changes.grants_released {
        sql.execute(
            "UPDATE durability_semaphore_grants SET released = ? WHERE grant_id = ?",
            &[row.released.into(), (&row.grant_id).into()],
        )?;
    }
    for grant_id in &changes.grants_removed {
        sql.execute(
            "DELETE FROM durability_semaphore_grants WHERE grant_id = ?",
            &[grant_id.into()],
        )?;
    }
    Ok(())
}

fn write_leases(sql: &dyn Sql, changes: &Changes) -> Result<(), StorageError> {
    for row in &changes.leases_inserted {
        sql.execute(
            "INSERT INTO durability_semaphore_leases
                (lease_id, client_id, grp, permits, released, created_at, expires_at, retired,
                 request_id)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            &[
                (&row.lease_id).into(),
                (&row.client_id).into(),
                (&row.group).into(),
                row.permits.into(),
                row.released.into(),
                row.created_at.into(),
                row.expires_at.into(),
                u64::from(row.retired).into(),
                row.request_id.as_deref().into(),
            ],
        )?;
    }
    for row in &changes.leases_heard {
        sql.execute(
            "UPDATE durability_semaphore_leases
             SET permits = ?, released = ?, expires_at = ? WHERE lease_id = ?",
            &[
                row.permits.into(),
                row.released.into(),
                row.expires_at.into(),
                (&row.lease_id).into(),
            ],
        )?;
    }
    for row in &changes.leases_retired {
        sql.execute(
            "UPDATE durability_semaphore_leases
             SET permits = ?, released = ?, expires_at = ?, retired = 1 WHERE lease_id = ?",
            &[
                row.permits.into(),
                row.released.into(),
                row.expires_at.into(),
                (&row.lease_id).into(),
            ],
        )?;
    }
    for row in &changes.leases_shrunk {
        sql.execute(
            "UPDATE durability_semaphore_leases SET permits = ?, released = ? WHERE lease_id = ?",
            &[
                row.permits.into(),
                row.released.into(),
                (&row.lease_id).into(),
            ],
        )?;
    }
    for lease_id in &changes.leases_removed {
        sql.execute(
            "DELETE FROM durability_semaphore_leases WHERE lease_id = ?",
            &[lease_id.into()],
        )?;
    }
    Ok(())
}
