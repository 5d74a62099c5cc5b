//! *A member never applies an older value after a newer one, and what follows from a value is stored
//! with it or not at all.*

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use durably::host::Sql;
use durably::topology::Incarnation;
use durably::{StorageError, Timestamp};

use crate::host::VirtualStorage;
use crate::simulation::run::Run;

const RISE: &str = "a member never applies an older value after a newer one";
const TOGETHER: &str = "what follows from a value is stored with it";

/// The table that members keep beside their receiver's, one row for each group and channel.
pub const FOLLOWING: &str = "CREATE TABLE IF NOT EXISTS following (
        group_id TEXT NOT NULL, channel TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (group_id, channel)) STRICT;";

/// What a member has of a group's channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    coordinator: String,
    incarnation: Incarnation,
    version: u64,
    /// As JSON.
    pub value: String,
    following: Option<String>,
}

type Values = BTreeMap<(String, String), Value>;

/// What one member has applied, followed commit by commit.
#[derive(Default)]
pub struct Applied {
    commits: Cell<u64>,
    values: RefCell<Values>,
}

impl Applied {
    /// Reads what was committed since the last call, and compares it with what was there.
    pub fn follow(&self, run: &Run, member: &str, storage: &VirtualStorage) {
        if self.commits.replace(storage.commits()) == storage.commits() {
            return;
        }
        // Before the first commit there are no tables.
        let Ok(after) = storage.read(read) else {
            return;
        };
        let before = self.values.replace(after);
        let after = self.values.borrow();
        for (key, old) in &before {
            let is_older = after.get(key).is_none_or(|new| {
                new.coordinator == old.coordinator
                    && (&new.incarnation, new.version) < (&old.incarnation, old.version)
            });
            if is_older {
                let message = format!("of {key:?} it had {old:?} and has {:?}", after.get(key));
                run.fail(RISE, member, message);
            }
        }
        for (key, value) in after.iter() {
            if value.following.as_ref() != Some(&value.value) {
                run.fail(TOGETHER, member, format!("of {key:?} it has {value:?}"));
            }
            let is_new = before.get(key) != Some(value);
            run.cover_times("value applied", u64::from(is_new));
        }
    }

    /// The value that it has.
    pub fn value(&self, group: &str, channel: &str) -> Option<String> {
        let values = self.values.borrow();
        let value = values.get(&(group.to_owned(), channel.to_owned()))?;
        Some(value.value.clone())
    }
}

fn read(sql: &dyn Sql) -> Result<Values, StorageError> {
    let rows = sql.all(
        "SELECT applied.group_id, applied.channel, coordinator, created_at, nonce, version,
                applied.value, following.value
         FROM durability_topology_applied AS applied LEFT JOIN following
              ON following.group_id = applied.group_id AND following.channel = applied.channel",
        &[],
        |row| {
            let created_at: Timestamp = row.time(3)?;
            let value = Value {
                coordinator: row.string(2)?,
                incarnation: Incarnation {
                    created_at,
                    nonce: row.string(4)?,
                },
                version: row.count(5)?,
                value: row.string(6)?,
                following: row.optional_string(7)?,
            };
            Ok(((row.string(0)?, row.string(1)?), value))
        },
    )?;
    Ok(rows.into_iter().collect())
}
