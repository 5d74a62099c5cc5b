//! *Every registered call ends, once, as its attempts have earned it: attempts never overlap within an
//! instance, no more run than there are slots, only failed attempts count as such, and what has ended
//! stays as it is.*

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use durably::StorageError;
use durably::host::Sql;

use crate::host::VirtualStorage;
use crate::simulation::run::Run;

/// The name of the promise about attempts at one call.
pub const OVERLAP: &str = "attempts at a call do not overlap";

/// The name of the promise about the pool.
pub const SLOTS: &str = "no more handlers run than there are slots";

const ENDED: &str = "what has ended stays as it is";
const EARNED: &str = "calls end as their attempts have earned it";
const LOST: &str = "no call is lost";

/// What a call's handler did and how the call ended.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Registering it was answered.
    pub acknowledged: bool,
    /// Cancelling it was answered with success.
    pub cancelled: bool,
    /// Somebody tried to cancel it.
    pub perhaps_cancelled: bool,
    /// Numbers of attempts that began.
    pub begun: BTreeSet<u64>,
    /// What attempts returned as results.
    pub results: BTreeSet<String>,
    /// Numbers of attempts that failed or ran out of time.
    pub failed: BTreeSet<u64>,
    /// An attempt said that trying again would not help.
    pub hopeless: bool,
}

/// A call as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    state: String,
    attempts: u64,
    due: bool,
    result: Option<String>,
}

impl Stored {
    fn has_ended(&self) -> bool {
        !matches!(self.state.as_str(), "waiting" | "started" | "cancelling")
    }
}

/// The calls of one object, followed commit by commit.
#[derive(Default)]
pub struct Calls {
    commits: Cell<u64>,
    stored: RefCell<BTreeMap<String, Stored>>,
}

impl Calls {
    /// Reads what was committed since the last call, and checks what has ended.
    pub fn follow(
        &self,
        run: &Run,
        storage: &VirtualStorage,
        most_attempts: u64,
        seen: impl Fn(&str) -> Seen,
    ) {
        if self.commits.replace(storage.commits()) == storage.commits() {
            return;
        }
        // Before the first commit there is no table.
        let Ok(after) = storage.read(read) else {
            return;
        };
        let before = self.stored.replace(after);
        let after = self.stored.borrow();
        for (id, call) in after.iter() {
            let known = before.get(id);
            if known == Some(call) {
                continue;
            }
            if known.is_some_and(Stored::has_ended) {
                run.fail(ENDED, id, format!("it was {known:?} and is {call:?}"));
            }
            if call.attempts > most_attempts {
                let attempts = call.attempts;
                run.fail(
                    EARNED,
                    id,
                    format!("{attempts} of {most_attempts} attempts"),
                );
            }
            if call.has_ended() {
                earned(run, id, call, most_attempts, &seen(id));
            }
        }
        for id in before.keys() {
            if !after.contains_key(id) {
                run.fail(LOST, id, "its row is gone".to_owned());
            }
        }
    }

    /// A call that has not ended, or nobody knows.
    pub fn left(&self, id: &str, seen: &Seen) -> Option<String> {
        match self.stored.borrow().get(id) {
            Some(call) if call.has_ended() => None,
            Some(call) => Some(format!("{id} has not ended: {call:?}")),
            None if !seen.acknowledged => Some(format!("{id} is not registered")),
            None => Some(format!("{id} was registered and is not stored")),
        }
    }
}

/// Checks how a call ended against what its attempts did.
fn earned(run: &Run, id: &str, call: &Stored, most_attempts: u64, seen: &Seen) {
    let state = call.state.as_str();
    let earned = match state {
        "completed" => {
            let result = call.result.as_deref().unwrap_or_default();
            seen.results.contains(result) && !seen.cancelled
        }
        "attempts_exhausted" => (1..=most_attempts).all(|number| seen.failed.contains(&number)),
        "non_retryable" => seen.hopeless,
        "cancelled" => seen.perhaps_cancelled,
        "interrupted" => true,
        _ => false,
    };
    if !earned {
        run.fail(EARNED, id, format!("it ended as {call:?}, after {seen:?}"));
    }
    if call.due {
        run.fail(EARNED, id, format!("it ended and is due: {call:?}"));
    }
}

fn read(sql: &dyn Sql) -> Result<BTreeMap<String, Stored>, StorageError> {
    let calls = sql.all(
        "SELECT id, state, attempts, due_at, result FROM durability_operations",
        &[],
        |row| {
            let stored = Stored {
                state: row.string(1)?,
                attempts: row.count(2)?,
                due: row.optional_time(3)?.is_some(),
                result: row.optional_string(4)?,
            };
            Ok((row.string(0)?, stored))
        },
    )?;
    Ok(calls.into_iter().collect())
}
