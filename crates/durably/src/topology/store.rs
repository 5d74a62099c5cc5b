//! The tables of a coordinator. Members are rows, so that a change of one writes one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::draft::Role;
use super::snapshot::{Incarnation, Member, MemberState};
use crate::error::StorageError;
use crate::host::{Row, Sql};
use crate::migrations::Migration;
use crate::time::Timestamp;

/// The capability's schema, oldest migration first.
pub const MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_topology",
    up: "CREATE TABLE durability_topology_coordinator (
            singleton INTEGER PRIMARY KEY CHECK (singleton = 0),
            created_at INTEGER NOT NULL,
            nonce TEXT NOT NULL
        ) STRICT;
        CREATE TABLE durability_topology_groups (
            group_id TEXT PRIMARY KEY,
            version INTEGER NOT NULL,
            deleted INTEGER NOT NULL,
            staged_version INTEGER,
            updated_at INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX durability_topology_unstaged
            ON durability_topology_groups (group_id) WHERE staged_version IS NOT version;
        CREATE TABLE durability_topology_members (
            group_id TEXT NOT NULL,
            member_id TEXT NOT NULL,
            state TEXT NOT NULL,
            location_hint TEXT,
            meta TEXT,
            joined_at INTEGER NOT NULL,
            PRIMARY KEY (group_id, member_id)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE durability_topology_states (
            group_id TEXT NOT NULL,
            channel TEXT NOT NULL,
            digest TEXT NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (group_id, channel)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE durability_topology_channels (
            channel TEXT PRIMARY KEY,
            role TEXT
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE durability_topology_writes (
            group_id TEXT NOT NULL,
            id TEXT NOT NULL,
            land_by INTEGER NOT NULL,
            PRIMARY KEY (group_id, id)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE durability_topology_drains (
            group_id TEXT NOT NULL,
            member_id TEXT NOT NULL,
            deadline INTEGER,
            when_drained INTEGER NOT NULL,
            check_at INTEGER NOT NULL,
            PRIMARY KEY (group_id, member_id)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX durability_topology_drains_due ON durability_topology_drains (check_at);",
    down: "DROP TABLE durability_topology_drains;
        DROP TABLE durability_topology_writes;
        DROP TABLE durability_topology_channels;
        DROP TABLE durability_topology_states;
        DROP TABLE durability_topology_members;
        DROP TABLE durability_topology_groups;
        DROP TABLE durability_topology_coordinator;",
}];

fn parse<T: serde::de::DeserializeOwned>(
    text: &str,
    column: usize,
    expected: &'static str,
) -> Result<T, StorageError> {
    serde_json::from_str(text).map_err(|_| StorageError::Value { column, expected })
}

/// The coordinator's incarnation, if it has one.
pub(super) fn incarnation(sql: &dyn Sql) -> Result<Option<Incarnation>, StorageError> {
    sql.first(
        "SELECT created_at, nonce FROM durability_topology_coordinator WHERE singleton = 0",
        &[],
        |row| {
            Ok(Incarnation {
                created_at: row.time(0)?,
                nonce: row.string(1)?,
            })
        },
    )
}

pub(super) fn set_incarnation(
    sql: &dyn Sql,
    incarnation: &Incarnation,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_topology_coordinator (singleton, created_at, nonce)
         VALUES (0, ?, ?) ON CONFLICT (singleton) DO UPDATE SET
            created_at = excluded.created_at, nonce = excluded.nonce",
        &[incarnation.created_at.into(), (&incarnation.nonce).into()],
    )?;
    Ok(())
}

/// A group, deleted ones included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupRow {
    pub(super) group: String,
    pub(super) version: u64,
    pub(super) deleted: bool,
}

fn group_row(row: &dyn Row) -> Result<GroupRow, StorageError> {
    Ok(GroupRow {
        group: row.string(0)?,
        version: row.count(1)?,
        deleted: row.integer(2)? != 0,
    })
}

pub(super) fn group(sql: &dyn Sql, group: &str) -> Result<Option<GroupRow>, StorageError> {
    sql.first(
        "SELECT group_id, version, deleted FROM durability_topology_groups WHERE group_id = ?",
        &[group.into()],
        group_row,
    )
}

/// Groups in order, at most `limit` after `after`.
pub(super) fn groups_after(
    sql: &dyn Sql,
    after: &str,
    limit: u64,
) -> Result<Vec<GroupRow>, StorageError> {
    sql.all(
        "SELECT group_id, version, deleted FROM durability_topology_groups
         WHERE group_id > ? ORDER BY group_id LIMIT ?",
        &[after.into(), limit.into()],
        group_row,
    )
}

/// Stores a group's version, and which of its versions was last staged for publication; `None` leaves
/// that as it is.
pub(super) fn put_group(
    sql: &dyn Sql,
    row: &GroupRow,
    staged: bool,
    now: Timestamp,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_topology_groups
            (group_id, version, deleted, staged_version, updated_at)
         VALUES (?1, ?2, ?3, CASE WHEN ?4 THEN ?2 END, ?5)
         ON CONFLICT (group_id) DO UPDATE SET
            version = excluded.version, deleted = excluded.deleted,
            staged_version = coalesce(excluded.staged_version, staged_version),
            updated_at = excluded.updated_at",
        &[
            (&row.group).into(),
            row.version.into(),
            row.deleted.into(),
            staged.into(),
            now.into(),
        ],
    )?;
    Ok(())
}

/// Notes that the current version of a group has been staged for publication.
pub(super) fn set_staged(sql: &dyn Sql, group: &str) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_topology_groups SET staged_version = version WHERE group_id = ?",
        &[group.into()],
    )?;
    Ok(())
}

/// Notes that no group has been staged for publication.
pub(super) fn set_all_unstaged(sql: &dyn Sql) -> Result<(), StorageError> {
    sql.execute(
        "UPDATE durability_topology_groups SET staged_version = NULL
         WHERE staged_version IS NOT NULL",
        &[],
    )?;
    Ok(())
}

/// The groups whose current version was never staged for publication, in order.
pub(super) fn unstaged(sql: &dyn Sql) -> Result<Vec<GroupRow>, StorageError> {
    sql.all(
        "SELECT group_id, version, deleted FROM durability_topology_groups
         WHERE staged_version IS NOT version ORDER BY group_id",
        &[],
        group_row,
    )
}

fn member_row(row: &dyn Row) -> Result<Member, StorageError> {
    let state = match row.text(1)? {
        "active" => MemberState::Active,
        "draining" => MemberState::Draining,
        _ => {
            return Err(StorageError::Value {
                column: 1,
                expected: "the state of a member",
            });
        }
    };
    let mut member = Member::new(row.string(0)?, state, row.time(4)?);
    member.location_hint = row.optional_string(2)?;
    let meta = row.optional_text(3)?;
    member.meta = meta
        .map(|meta| parse(meta, 3, "metadata in JSON"))
        .transpose()?;
    Ok(member)
}

/// The members of a group, by id.
pub(super) fn members(sql: &dyn Sql, group: &str) -> Result<Vec<Member>, StorageError> {
    sql.all(
        "SELECT member_id, state, location_hint, meta, joined_at
         FROM durability_topology_members WHERE group_id = ? ORDER BY member_id",
        &[group.into()],
        member_row,
    )
}

pub(super) fn member(sql: &dyn Sql, group: &str, id: &str) -> Result<Option<Member>, StorageError> {
    sql.first(
        "SELECT member_id, state, location_hint, meta, joined_at
         FROM durability_topology_members WHERE group_id = ? AND member_id = ?",
        &[group.into(), id.into()],
        member_row,
    )
}

pub(super) fn put_member(sql: &dyn Sql, group: &str, member: &Member) -> Result<(), StorageError> {
    let meta = member.meta.as_ref().map(Value::to_string);
    sql.execute(
        "INSERT INTO durability_topology_members
            (group_id, member_id, state, location_hint, meta, joined_at)
         VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (group_id, member_id) DO UPDATE SET
            state = excluded.state, location_hint = excluded.location_hint,
            meta = excluded.meta, joined_at = excluded.joined_at",
        &[
            group.into(),
            (&member.id).into(),
            member.state.as_str().into(),
            member.location_hint.as_ref().into(),
            meta.as_ref().into(),
            member.joined_at.into(),
        ],
    )?;
    Ok(())
}

pub(super) fn delete_member(sql: &dyn Sql, group: &str, id: &str) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_topology_members WHERE group_id = ? AND member_id = ?",
        &[group.into(), id.into()],
    )?;
    Ok(())
}

/// Removes what belongs to a group beside its own row and its write records.
pub(super) fn clear_group(sql: &dyn Sql, group: &str) -> Result<(), StorageError> {
    for statement in [
        "DELETE FROM durability_topology_members WHERE group_id = ?",
        "DELETE FROM durability_topology_states WHERE group_id = ?",
        "DELETE FROM durability_topology_drains WHERE group_id = ?",
    ] {
        sql.execute(statement, &[group.into()])?;
    }
    Ok(())
}

/// The value of a state channel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StateRow {
    pub(super) digest: String,
    pub(super) value: Value,
}

/// The values of a group's state channels.
pub(super) fn states(
    sql: &dyn Sql,
    group: &str,
) -> Result<BTreeMap<String, StateRow>, StorageError> {
    let rows = sql.all(
        "SELECT channel, digest, value FROM durability_topology_states WHERE group_id = ?",
        &[group.into()],
        |row| {
            let state = StateRow {
                digest: row.string(1)?,
                value: parse(row.text(2)?, 2, "a value in JSON")?,
            };
            Ok((row.string(0)?, state))
        },
    )?;
    Ok(rows.into_iter().collect())
}

/// The value that one channel has in a group.
pub(super) fn state(
    sql: &dyn Sql,
    group: &str,
    channel: &str,
) -> Result<Option<Value>, StorageError> {
    sql.first(
        "SELECT value FROM durability_topology_states WHERE group_id = ? AND channel = ?",
        &[group.into(), channel.into()],
        |row| parse(row.text(0)?, 0, "a value in JSON"),
    )
}

/// The groups in which a channel has a value, with the value's digest, in order.
pub(super) fn groups_with_state(
    sql: &dyn Sql,
    channel: &str,
) -> Result<Vec<(String, String)>, StorageError> {
    sql.all(
        "SELECT group_id, digest FROM durability_topology_states WHERE channel = ?
         ORDER BY group_id",
        &[channel.into()],
        |row| Ok((row.string(0)?, row.string(1)?)),
    )
}

pub(super) fn put_state(
    sql: &dyn Sql,
    group: &str,
    channel: &str,
    digest: &str,
    value: &str,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_topology_states (group_id, channel, digest, value)
         VALUES (?, ?, ?, ?)
         ON CONFLICT (group_id, channel) DO UPDATE SET
            digest = excluded.digest, value = excluded.value",
        &[group.into(), channel.into(), digest.into(), value.into()],
    )?;
    Ok(())
}

/// Every channel that there ever was, with its role in the last instance, if it was there.
pub(super) fn channels(sql: &dyn Sql) -> Result<BTreeMap<String, Option<String>>, StorageError> {
    let rows = sql.all(
        "SELECT channel, role FROM durability_topology_channels",
        &[],
        |row| Ok((row.string(0)?, row.optional_string(1)?)),
    )?;
    Ok(rows.into_iter().collect())
}

pub(super) fn put_channel(
    sql: &dyn Sql,
    channel: &str,
    role: Option<Role>,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_topology_channels (channel, role) VALUES (?, ?)
         ON CONFLICT (channel) DO UPDATE SET role = excluded.role",
        &[channel.into(), role.map(Role::as_str).into()],
    )?;
    Ok(())
}

/// Records a write that is about to start.
pub(super) fn record_write(
    sql: &dyn Sql,
    group: &str,
    id: &str,
    land_by: Timestamp,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_topology_writes (group_id, id, land_by) VALUES (?, ?, ?)",
        &[group.into(), id.into(), land_by.into()],
    )?;
    Ok(())
}

/// Forgets a write that has ended.
pub(super) fn forget_write(sql: &dyn Sql, group: &str, id: &str) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_topology_writes WHERE group_id = ? AND id = ?",
        &[group.into(), id.into()],
    )?;
    Ok(())
}

/// Forgets the writes that could land until `until` at the latest, and says until when the others
/// can.
pub(super) fn writes_after(
    sql: &dyn Sql,
    group: &str,
    until: Timestamp,
) -> Result<Option<Timestamp>, StorageError> {
    sql.execute(
        "DELETE FROM durability_topology_writes WHERE group_id = ? AND land_by <= ?",
        &[group.into(), until.into()],
    )?;
    let latest = sql.first(
        "SELECT MAX(land_by) FROM durability_topology_writes WHERE group_id = ?",
        &[group.into()],
        |row| row.optional_time(0),
    )?;
    Ok(latest.flatten())
}

/// How a draining member is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DrainRow {
    pub(super) group: String,
    pub(super) member: String,
    pub(super) deadline: Option<Timestamp>,
    pub(super) when_drained: bool,
}

pub(super) fn put_drain(
    sql: &dyn Sql,
    drain: &DrainRow,
    check_at: Timestamp,
) -> Result<(), StorageError> {
    sql.execute(
        "INSERT INTO durability_topology_drains
            (group_id, member_id, deadline, when_drained, check_at)
         VALUES (?, ?, ?, ?, ?)
         ON CONFLICT (group_id, member_id) DO UPDATE SET
            deadline = excluded.deadline, when_drained = excluded.when_drained,
            check_at = excluded.check_at",
        &[
            (&drain.group).into(),
            (&drain.member).into(),
            drain.deadline.into(),
            drain.when_drained.into(),
            check_at.into(),
        ],
    )?;
    Ok(())
}

pub(super) fn delete_drain(sql: &dyn Sql, group: &str, member: &str) -> Result<(), StorageError> {
    sql.execute(
        "DELETE FROM durability_topology_drains WHERE group_id = ? AND member_id = ?",
        &[group.into(), member.into()],
    )?;
    Ok(())
}

fn drain_row(row: &dyn Row) -> Result<DrainRow, StorageError> {
    Ok(DrainRow {
        group: row.string(0)?,
        member: row.string(1)?,
        deadline: row.optional_time(2)?,
        when_drained: row.integer(3)? != 0,
    })
}

pub(super) fn drain(
    sql: &dyn Sql,
    group: &str,
    member: &str,
) -> Result<Option<DrainRow>, StorageError> {
    sql.first(
        "SELECT group_id, member_id, deadline, when_drained FROM durability_topology_drains
         WHERE group_id = ? AND member_id = ?",
        &[group.into(), member.into()],
        drain_row,
    )
}

/// Drains that are to be looked at by `now`, longest due first.
pub(super) fn due_drains(
    sql: &dyn Sql,
    now: Timestamp,
    limit: u64,
) -> Result<Vec<DrainRow>, StorageError> {
    sql.all(
        "SELECT group_id, member_id, deadline, when_drained FROM durability_topology_drains
         WHERE check_at <= ? ORDER BY check_at LIMIT ?",
        &[now.into(), limit.into()],
        drain_row,
    )
}

/// When the next drain is to be looked at.
pub(super) fn next_drain(sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT check_at FROM durability_topology_drains ORDER BY check_at LIMIT 1",
        &[],
        |row| row.time(0),
    )
}

/// When the next drain after `now` is to be looked at.
pub(super) fn next_drain_after(
    sql: &dyn Sql,
    now: Timestamp,
) -> Result<Option<Timestamp>, StorageError> {
    sql.first(
        "SELECT check_at FROM durability_topology_drains WHERE check_at > ?
         ORDER BY check_at LIMIT 1",
        &[now.into()],
        |row| row.time(0),
    )
}
