//! What databases did, counted rather than timed.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rusqlite::Connection;

/// Counts of what all databases that share it did.
///
/// Flushes, transactions and statements are exact. Rows written are B-tree entries, index entries
/// included, as Cloudflare bills them: the rows that a statement changed times the B-trees that its
/// program writes. That is exact for plain inserts, updates and deletes on tables with plain
/// indexes. It is an upper bound where SQLite skips an index at run time: partial indexes, and the
/// update half of an upsert. Rows that triggers and cascades change count as if they were the
/// statement's own. Changes to the schema count none.
#[derive(Debug, Default)]
pub struct Counters {
    flushes: AtomicU64,
    transactions: AtomicU64,
    statements: AtomicU64,
    rows_written: AtomicU64,
    /// Rows are counted only on demand: it takes an `EXPLAIN` per statement text and database.
    count_rows: bool,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CountersSnapshot {
    /// Commits that wrote, each of which waited for the disk under `synchronous=FULL`.
    pub flushes: u64,
    /// Closures that ran in transactions, undone ones included.
    pub transactions: u64,
    /// Statements that ran, without those that begin and end transactions.
    pub statements: u64,
    /// B-tree entries written; zero unless counting rows is switched on.
    pub rows_written: u64,
}

impl Counters {
    /// Counters at zero; `count_rows` switches the counting of rows on.
    pub fn new(count_rows: bool) -> Self {
        Counters {
            count_rows,
            ..Counters::default()
        }
    }

    /// The counts now.
    pub fn snapshot(&self) -> CountersSnapshot {
        CountersSnapshot {
            flushes: self.flushes.load(Relaxed),
            transactions: self.transactions.load(Relaxed),
            statements: self.statements.load(Relaxed),
            rows_written: self.rows_written.load(Relaxed),
        }
    }

    pub(super) fn counts_rows(&self) -> bool {
        self.count_rows
    }

    /// Adds what one commit did; databases gather it first so that threads meet here rarely.
    pub(super) fn add(&self, done: CountersSnapshot) {
        self.flushes.fetch_add(done.flushes, Relaxed);
        self.transactions.fetch_add(done.transactions, Relaxed);
        self.statements.fetch_add(done.statements, Relaxed);
        self.rows_written.fetch_add(done.rows_written, Relaxed);
    }
}

/// How many B-trees the program of a statement writes for each row, by statement text.
#[derive(Debug, Default)]
pub(super) struct Trees(HashMap<String, u64>);

impl Trees {
    /// The B-trees that `statement` writes for each row that it changes.
    pub(super) fn of(&mut self, connection: &Connection, statement: &str) -> u64 {
        if let Some(known) = self.0.get(statement) {
            return *known;
        }
        // A statement that cannot be explained has already run, so this is out of reach; one tree
        // is the least that a changed row costs.
        let trees = explain(connection, statement).unwrap_or(1).max(1);
        self.0.insert(statement.to_owned(), trees);
        trees
    }

    /// Forgets everything: the schema, and with it every program, may have changed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

fn explain(connection: &Connection, statement: &str) -> rusqlite::Result<u64> {
    let mut explained = connection.prepare(&format!("EXPLAIN {statement}"))?;
    let mut opened = HashSet::new();
    let mut written = HashSet::new();
    let mut cleared = 0;
    let mut rows = explained.raw_query();
    while let Some(row) = rows.next()? {
        let opcode: String = row.get(1)?;
        let cursor: i64 = row.get(2)?;
        match opcode.as_str() {
            "OpenWrite" => {
                opened.insert(cursor);
            }
            "Insert" | "IdxInsert" | "Delete" | "IdxDelete" => {
                written.insert(cursor);
            }
            // How SQLite deletes all rows of a table at once, one for each of its trees.
            "Clear" => cleared += 1,
            _ => {}
        }
    }
    Ok(opened.intersection(&written).count() as u64 + cleared)
}
