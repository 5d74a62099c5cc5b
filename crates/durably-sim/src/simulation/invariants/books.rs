//! What holders have stored, followed commit by commit, for the invariants over it.
//!
//! Rows are read from the database itself, not from the holder's memory, whenever something was
//! committed. They are few in a simulation.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use durably::StorageError;
use durably::host::Sql;
use durably::semaphore::LeaseOptions;
use durably::semaphore::protocol::Reply;

use super::{ceiling, committed, marks};
use crate::host::VirtualStorage;
use crate::simulation::run::Run;

/// What a holder's rounds may give out at a moment.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// The limit as it was last answered.
    pub limit: u64,
    /// The ceilings as they were last answered, by group.
    pub ceilings: BTreeMap<String, Option<u64>>,
    /// How leases may be given; one of these applies.
    pub leases: Vec<Option<LeaseOptions>>,
}

/// A stored grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantLine {
    /// Whose it is.
    pub client: String,
    /// Its group.
    pub group: String,
    /// Its permits.
    pub permits: u64,
    /// Those that were claimed.
    pub claimed: u64,
    /// Those of them that came back.
    pub released: u64,
}

/// A stored lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseLine {
    /// Whose it is.
    pub client: String,
    /// Its group.
    pub group: String,
    /// Its permits.
    pub permits: u64,
    /// Those that came back.
    pub released: u64,
    /// Nothing is drawn from it any more.
    pub retired: bool,
}

/// The rows of a holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    /// Grants by id.
    pub grants: BTreeMap<String, GrantLine>,
    /// Leases by id.
    pub leases: BTreeMap<String, LeaseLine>,
}

impl Book {
    /// Permits granted and not released, of one group or of all.
    pub fn outstanding(&self, group: Option<&str>) -> u64 {
        let of = self.grants.values();
        of.filter(|grant| group.is_none_or(|group| group == grant.group))
            .map(|grant| grant.permits.saturating_sub(grant.released))
            .sum()
    }

    /// Permits leased and not released, of one group or of all.
    pub fn footprint(&self, group: Option<&str>) -> u64 {
        let of = self.leases.values();
        of.filter(|lease| group.is_none_or(|group| group == lease.group))
            .map(|lease| lease.permits.saturating_sub(lease.released))
            .sum()
    }

    /// What a client may be running in a group: claimed or leased, and not released.
    pub fn in_use(&self, client: &str, group: &str) -> u64 {
        let grants = self.grants.values();
        let claimed: u64 = grants
            .filter(|grant| grant.client == client && grant.group == group)
            .map(|grant| grant.claimed.saturating_sub(grant.released))
            .sum();
        let leases = self.leases.values();
        let leased: u64 = leases
            .filter(|lease| lease.client == client && lease.group == group)
            .map(|lease| lease.permits.saturating_sub(lease.released))
            .sum();
        claimed + leased
    }

    /// The groups with a row.
    pub fn groups(&self) -> BTreeSet<&str> {
        let grants = self.grants.values().map(|grant| grant.group.as_str());
        let leases = self.leases.values().map(|lease| lease.group.as_str());
        grants.chain(leases).collect()
    }

    fn read(sql: &dyn Sql) -> Result<Book, StorageError> {
        let grants = sql.all(
            "SELECT grant_id, client_id, grp, permits, claimed, released
             FROM durability_semaphore_grants",
            &[],
            |row| {
                let line = GrantLine {
                    client: row.string(1)?,
                    group: row.string(2)?,
                    permits: row.count(3)?,
                    claimed: row.count(4)?,
                    released: row.count(5)?,
                };
                Ok((row.string(0)?, line))
            },
        )?;
        let leases = sql.all(
            "SELECT lease_id, client_id, grp, permits, released, retired
             FROM durability_semaphore_leases",
            &[],
            |row| {
                let line = LeaseLine {
                    client: row.string(1)?,
                    group: row.string(2)?,
                    permits: row.count(3)?,
                    released: row.count(4)?,
                    retired: row.count(5)? != 0,
                };
                Ok((row.string(0)?, line))
            },
        )?;
        Ok(Book {
            grants: grants.into_iter().collect(),
            leases: leases.into_iter().collect(),
        })
    }
}

/// The books of all holders of a run.
#[derive(Default)]
pub struct Books(RefCell<BTreeMap<String, Followed>>);

#[derive(Default)]
struct Followed {
    commits: u64,
    book: Book,
    /// Every grant and lease that was ever stored.
    ever: BTreeSet<String>,
}

impl Books {
    /// Reads what was committed since the last call, and checks what it changed. Says whether anything
    /// was.
    pub fn follow(
        &self,
        run: &Run,
        key: &str,
        storage: &VirtualStorage,
        allowed: impl FnOnce() -> Allowed,
    ) -> bool {
        let mut books = self.0.borrow_mut();
        if !books.contains_key(key) {
            books.insert(key.to_owned(), Followed::default());
        }
        let Some(followed) = books.get_mut(key) else {
            return false;
        };
        let commits = storage.commits();
        if followed.commits == commits {
            return false;
        }
        followed.commits = commits;
        // Before the first commit there are no tables.
        let Ok(after) = storage.read(Book::read) else {
            return false;
        };
        if after == followed.book {
            return false;
        }
        ceiling::check(run, key, &followed.book, &after, &allowed());
        marks::check(run, key, &followed.book, &after);
        let settled = followed.book.leases.iter();
        for (id, lease) in settled {
            if lease.retired && !after.leases.contains_key(id) {
                run.cover("retired lease settled");
            }
        }
        let ids = after.grants.keys().chain(after.leases.keys());
        for id in ids {
            if !followed.ever.contains(id) {
                followed.ever.insert(id.clone());
            }
        }
        followed.book = after;
        true
    }

    /// A holder has answered.
    pub fn told(&self, run: &Run, key: &str, reply: &Reply) {
        let books = self.0.borrow();
        if let Some(followed) = books.get(key) {
            committed::check(run, key, &followed.ever, reply);
        }
    }

    /// Some grant or lease that is or was stored, by its place among all.
    pub fn any_id(&self, key: &str, place: usize) -> Option<String> {
        let books = self.0.borrow();
        let ever = &books.get(key)?.ever;
        ever.iter().nth(place % ever.len().max(1)).cloned()
    }

    /// Looks at the book of a holder.
    pub fn with<T>(&self, key: &str, look: impl FnOnce(&Book) -> T) -> Option<T> {
        self.0
            .borrow()
            .get(key)
            .map(|followed| look(&followed.book))
    }
}
