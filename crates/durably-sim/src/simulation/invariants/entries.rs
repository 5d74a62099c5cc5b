//! *Nothing that was staged is lost: it is pending until it has arrived, was taken back or has a newer
//! version; only its own outcome ends a version, and versions only rise. What is taken back has ended.
//! What is staged commits with the rows that it follows from.*

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use durably::StorageError;
use durably::host::Sql;

use super::coordinated::{EntryView, entries};
use crate::host::VirtualStorage;
use crate::simulation::run::Run;

const LOST: &str = "nothing that was staged is lost";
const RISE: &str = "versions of a key only rise";
const EARNED: &str = "only its own outcome ends a version";
const TOGETHER: &str = "what is staged commits with what it follows from";
const NOW: &str = "what is told to be out is out";
const BACK: &str = "what is told to be taken back is not pending";

/// The table that senders keep beside their outbox's: what was staged last of every key.
pub const WANTED: &str = "CREATE TABLE IF NOT EXISTS wanted (
        channel TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, value INTEGER NOT NULL,
        PRIMARY KEY (channel, key)) STRICT;";

/// A channel and a key.
pub type Name = (String, String);

/// What was staged last of a key, by its sender's own row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    version: u64,
    value: u64,
}

/// The entries of one sender, followed commit by commit.
#[derive(Default)]
pub struct Entries {
    commits: Cell<u64>,
    stored: RefCell<BTreeMap<Name, EntryView>>,
    wanted: RefCell<BTreeMap<Name, Wanted>>,
    arrived: RefCell<BTreeSet<(Name, u64)>>,
    needless: RefCell<BTreeSet<(Name, u64)>>,
    taken_back: RefCell<BTreeSet<Name>>,
}

impl Entries {
    /// A call for a version is about to answer that it has arrived.
    pub fn arrives(&self, name: &Name, version: u64) {
        self.arrived.borrow_mut().insert((name.clone(), version));
    }

    /// A call for a version is about to answer that nobody needs it.
    pub fn is_needless(&self, name: &Name, version: u64) {
        self.needless.borrow_mut().insert((name.clone(), version));
    }

    /// Somebody is about to take back what is pending for a key.
    pub fn takes_back(&self, name: &Name) {
        self.taken_back.borrow_mut().insert(name.clone());
    }

    /// The version that is pending for a key.
    pub fn pending(&self, name: &Name) -> Option<u64> {
        let stored = self.stored.borrow();
        let entry = stored.get(name).filter(|entry| entry.ended.is_none());
        entry.map(|entry| entry.version)
    }

    /// Somebody was told that all of a key is out, of which `before` was pending when they asked.
    pub fn told(&self, run: &Run, name: &Name, before: Option<u64>) {
        self.ended(run, NOW, name, before);
    }

    /// Somebody was told that a key's value is taken back, of which `before` was pending when they asked.
    pub fn told_back(&self, run: &Run, name: &Name, before: Option<u64>) {
        self.ended(run, BACK, name, before);
    }

    fn ended(&self, run: &Run, invariant: &'static str, name: &Name, before: Option<u64>) {
        let pending = self.pending(name);
        if before.is_some() && pending == before {
            let message = format!("version {pending:?} of {name:?} is pending");
            run.fail(invariant, &name.1, message);
        }
    }

    /// Reads what was committed since the last call, and compares it with what was there.
    pub fn follow(&self, run: &Run, storage: &VirtualStorage) {
        if self.commits.replace(storage.commits()) == storage.commits() {
            return;
        }
        // Before the first commit there are no tables.
        let Ok((after, wanted)) = storage.read(|sql| Ok((entries(sql)?, read(sql)?))) else {
            return;
        };
        self.wanted.replace(wanted);
        let before = self.stored.replace(after);
        let (after, wanted) = (self.stored.borrow(), self.wanted.borrow());
        for (name, old) in &before {
            match after.get(name) {
                None => run.fail(LOST, &name.1, format!("the row of {name:?} is gone")),
                Some(new) if new.version < old.version => {
                    run.fail(
                        RISE,
                        &name.1,
                        format!("{name:?} was {old:?} and is {new:?}"),
                    );
                }
                Some(new) if new.version == old.version && old.ended.is_some() => {
                    if new.ended != old.ended {
                        run.fail(
                            EARNED,
                            &name.1,
                            format!("{name:?} was {old:?} and is {new:?}"),
                        );
                    }
                }
                Some(_) => {}
            }
        }
        for (name, new) in after.iter() {
            if before.get(name) == Some(new) {
                continue;
            }
            self.check(run, name, new);
            let follows = wanted.get(name).map(|wanted| wanted.version);
            if follows != Some(new.version) {
                let message =
                    format!("{name:?} is {new:?}, and its sender's row is of {follows:?}");
                run.fail(TOGETHER, &name.1, message);
            }
        }
    }

    fn check(&self, run: &Run, name: &Name, entry: &EntryView) {
        if entry.ended.is_some() == entry.due_at.is_some() {
            run.fail(
                LOST,
                &name.1,
                format!("{name:?} has ended or is due: {entry:?}"),
            );
        }
        let call = (name.clone(), entry.version);
        let earned = match entry.ended.as_deref() {
            None => true,
            Some("delivered") => self.arrived.borrow().contains(&call),
            Some(_) => {
                self.needless.borrow().contains(&call) || self.taken_back.borrow().contains(name)
            }
        };
        if !earned {
            let message = format!("{name:?} is {entry:?}, and no call of this version said so");
            run.fail(EARNED, &name.1, message);
        }
    }

    /// The first entry that has not come where it belongs; `received` says which version and value a
    /// receiver has.
    pub fn left(&self, received: impl Fn(&Name) -> Option<(u64, u64)>) -> Option<(String, String)> {
        let (stored, wanted) = (self.stored.borrow(), self.wanted.borrow());
        stored.iter().find_map(|(name, entry)| {
            let left = |text| Some((name.1.clone(), text));
            match entry.ended.as_deref() {
                None => left(format!("{name:?} is pending: {entry:?}")),
                Some("delivered") => {
                    let wanted = wanted
                        .get(name)
                        .map(|wanted| (wanted.version, wanted.value));
                    let has = received(name);
                    let is_there = has == wanted;
                    (!is_there).then(|| {
                        let text = format!("{name:?} is {wanted:?}, and its receiver has {has:?}");
                        (name.1.clone(), text)
                    })
                }
                Some(_) => None,
            }
        })
    }
}

fn read(sql: &dyn Sql) -> Result<BTreeMap<Name, Wanted>, StorageError> {
    let rows = sql.all(
        "SELECT channel, key, version, value FROM wanted",
        &[],
        |row| {
            let wanted = Wanted {
                version: row.count(2)?,
                value: row.count(3)?,
            };
            Ok(((row.string(0)?, row.string(1)?), wanted))
        },
    )?;
    Ok(rows.into_iter().collect())
}
