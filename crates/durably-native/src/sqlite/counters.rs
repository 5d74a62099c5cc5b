//! What databases did, counted rather than timed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::rows::TableRows;

/// Counts of what all databases that share it did.
///
/// All of them are exact. Rows written are B-tree entries, index entries included, as Cloudflare
/// bills them: entries put into tables and indexes, and rows deleted. Changes to the schema count
/// none.
#[derive(Debug, Default)]
pub struct Counters {
    flushes: AtomicU64,
    transactions: AtomicU64,
    statements: AtomicU64,
    rows_written: AtomicU64,
    /// Rows by table, the host's own included.
    tables: Mutex<BTreeMap<String, TableRows>>,
    /// Rows are counted only on demand: it takes triggers on every table.
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

    /// Rows written by table, since the start; the host's own table and indexes included. Empty
    /// unless counting rows is switched on.
    pub fn rows_by_table(&self) -> BTreeMap<String, TableRows> {
        self.tables().clone()
    }

    pub(super) fn counts_rows(&self) -> bool {
        self.count_rows
    }

    /// Adds what one commit did; databases gather it first so that threads meet here rarely.
    pub(super) fn add(&self, done: CountersSnapshot) {
        self.flushes.fetch_add(done.flushes, Relaxed);
        self.transactions.fetch_add(done.transactions, Relaxed);
        self.statements.fetch_add(done.statements, Relaxed);
    }

    /// Adds rows to those of their tables, and to the sum of all.
    pub(super) fn add_rows(&self, rows: impl IntoIterator<Item = (String, TableRows)>) {
        let mut tables = self.tables();
        for (table, rows) in rows {
            self.rows_written.fetch_add(rows.written, Relaxed);
            tables.entry(table).or_default().add(rows);
        }
    }

    fn tables(&self) -> MutexGuard<'_, BTreeMap<String, TableRows>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
