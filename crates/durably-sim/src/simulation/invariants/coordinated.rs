//! What a coordinator has committed, for the invariants about it. Read from the database itself.

use std::collections::BTreeMap;

use durably::host::Sql;
use durably::topology::{Edition, Incarnation, MemberState};
use durably::{StorageError, Timestamp};

/// The channel of the outbox that publications are staged in.
const PUBLICATIONS: &str = "durability.topology";

/// A group as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its version.
    pub version: u64,
    /// Whether it was deleted.
    pub deleted: bool,
    /// Its members and all that is known of them.
    pub members: BTreeMap<String, MemberView>,
}

/// A member as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Whether it takes new work.
    pub state: MemberState,
    joined_at: Timestamp,
    meta: Option<String>,
}

/// An entry of the outbox as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryView {
    /// Its version.
    pub version: u64,
    /// How it ended.
    pub ended: Option<String>,
    /// When its next attempt is due.
    pub due_at: Option<Timestamp>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

/// What a coordinator has committed.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Its incarnation.
    pub incarnation: Option<Incarnation>,
    /// Its groups, deleted ones included.
    pub groups: BTreeMap<String, GroupView>,
    /// The values of channels, as JSON, by group and channel.
    pub states: BTreeMap<(String, String), String>,
    /// The entries of its outbox, by channel and key.
    pub entries: BTreeMap<(String, String), EntryView>,
    /// Members whose draining has an end, by group.
    pub drains: Vec<(String, String)>,
}

impl View {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub fn read(sql: &dyn Sql) -> Result<View, StorageError> {
        let incarnation = sql.first(
            "SELECT created_at, nonce FROM durability_topology_coordinator",
            &[],
            |row| {
                let (created_at, nonce) = (row.time(0)?, row.string(1)?);
                Ok(Incarnation { created_at, nonce })
            },
        )?;
        let groups = sql.all(
            "SELECT group_id, version, deleted FROM durability_topology_groups",
            &[],
            |row| {
                let group = GroupView {
                    version: row.count(1)?,
                    deleted: row.integer(2)? != 0,
                    members: BTreeMap::new(),
                };
                Ok((row.string(0)?, group))
            },
        )?;
        let mut groups: BTreeMap<String, GroupView> = groups.into_iter().collect();
        let members = sql.all(
            "SELECT group_id, member_id, state, joined_at, meta FROM durability_topology_members",
            &[],
            |row| {
                let state = match row.text(2)? {
                    "active" => MemberState::Active,
                    _ => MemberState::Draining,
                };
                let member = MemberView {
                    state,
                    joined_at: row.time(3)?,
                    meta: row.optional_string(4)?,
                };
                Ok((row.string(0)?, row.string(1)?, member))
            },
        )?;
        for (group, id, member) in members {
            if let Some(group) = groups.get_mut(&group) {
                group.members.insert(id, member);
            }
        }
        let states = sql.all(
            "SELECT group_id, channel, value FROM durability_topology_states",
            &[],
            |row| Ok(((row.string(0)?, row.string(1)?), row.string(2)?)),
        )?;
        let drains = sql.all(
            "SELECT group_id, member_id FROM durability_topology_drains",
            &[],
            |row| Ok((row.string(0)?, row.string(1)?)),
        )?;
        Ok(View {
            incarnation,
            groups,
            states: states.into_iter().collect(),
            entries: entries(sql)?,
            drains,
        })
    }

    /// Which edition of a group it has.
    pub fn edition(&self, coordinator: &str, group: &str) -> Option<Edition> {
        Some(Edition {
            coordinator: coordinator.to_owned(),
            incarnation: self.incarnation.clone()?,
            version: self.groups.get(group)?.version,
        })
    }

    /// The publication of a group.
    pub fn publication(&self, group: &str) -> Option<&EntryView> {
        self.entries
            .get(&(PUBLICATIONS.to_owned(), group.to_owned()))
    }

    /// The delivery of a channel's value to a member.
    pub fn delivery(&self, group: &str, channel: &str, member: &str) -> Option<&EntryView> {
        let key = serde_json::json!([group, member]).to_string();
        self.entries
            .get(&(format!("{PUBLICATIONS}.{channel}"), key))
    }
}

/// The entries of an outbox, by channel and key.
///
/// # Errors
///
/// What storage answers.
pub fn entries(sql: &dyn Sql) -> Result<BTreeMap<(String, String), EntryView>, StorageError> {
    let entries = sql.all(
        "SELECT channel, key, version, ended, due_at, last_error FROM durability_outbox",
        &[],
        |row| {
            let entry = EntryView {
                version: row.count(2)?,
                ended: row.optional_string(3)?,
                due_at: row.optional_time(4)?,
                last_error: row.optional_string(5)?,
            };
            Ok(((row.string(0)?, row.string(1)?), entry))
        },
    )?;
    Ok(entries.into_iter().collect())
}
