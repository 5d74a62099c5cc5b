//! *Older jobs go first: none is given a permit while an older one of its key, group and shard goes on
//! waiting.*

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use durably::StorageError;
use durably::host::Sql;

use crate::host::VirtualStorage;
use crate::simulation::run::Run;

const NAME: &str = "older jobs go first";

/// The stored states of items that wait and of items with a permit.
const QUEUED: u64 = 0;
const ASSIGNED: u64 = 1;

/// A job in its shard.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    of: (String, String),
    seq: i64,
    state: u64,
}

/// The order of jobs in one shard, followed commit by commit.
#[derive(Default)]
pub struct Order {
    commits: Cell<u64>,
    places: RefCell<BTreeMap<String, Place>>,
}

impl Order {
    /// Reads what was committed since the last call, and checks who was given a permit.
    pub fn follow(&self, run: &Run, shard: &str, storage: &VirtualStorage) {
        if self.commits.replace(storage.commits()) == storage.commits() {
            return;
        }
        // Before the first commit there is no table.
        let Ok(after) = storage.read(read) else {
            return;
        };
        let before = self.places.replace(after);
        let after = self.places.borrow();
        let waited = |(id, place): &(&String, &Place)| {
            place.state == QUEUED && before.get(*id).is_some_and(|known| known.state == QUEUED)
        };
        for (left, place) in after.iter().filter(waited) {
            let passed = after.iter().find(|(id, other)| {
                other.state == ASSIGNED
                    && other.of == place.of
                    && other.seq > place.seq
                    && before.get(*id).is_none_or(|known| known.state == QUEUED)
            });
            if let Some((id, _)) = passed {
                let (key, group) = &place.of;
                let message = format!("{id} passed {left} in {group} of {key}");
                run.fail(NAME, shard, message);
            }
        }
    }
}

fn read(sql: &dyn Sql) -> Result<BTreeMap<String, Place>, StorageError> {
    let items = sql.all(
        "SELECT id, key, grp, seq, state FROM durability_semaphore_queue_items WHERE state <= 1",
        &[],
        |row| {
            let place = Place {
                of: (row.string(1)?, row.string(2)?),
                seq: row.integer(3)?,
                state: row.count(4)?,
            };
            Ok((row.string(0)?, place))
        },
    )?;
    Ok(items.into_iter().collect())
}
