//! Counting rows: what is counted is what a listing of every table and index shows to have changed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use durably::StorageError;
use durably::host::{RolledBack, Transaction, Value};
use durably_native::sqlite::{Counters, Database, Settings, TableRows};
use proptest::prelude::*;

/// A database in memory whose rows are counted.
struct Counted {
    database: Database,
    counters: Arc<Counters>,
}

impl Counted {
    fn new(schema: &'static str) -> Counted {
        let counters = Arc::new(Counters::new(true));
        let mut settings = Settings::default();
        settings.counters = Some(counters.clone());
        let database = Database::in_memory("Counter", "one", &settings).expect("it opens");
        let counted = Counted { database, counters };
        counted
            .run(|transaction| transaction.script(schema))
            .expect("a schema");
        counted
    }

    fn run<T: 'static>(
        &self,
        work: impl FnOnce(&dyn Transaction) -> Result<T, StorageError> + 'static,
    ) -> Result<T, StorageError> {
        let slot = Rc::new(RefCell::new(None));
        let result = slot.clone();
        let committed = self.database.commit(vec![Box::new(move |transaction| {
            let outcome = work(transaction);
            let answer = outcome.as_ref().map(|_| ()).map_err(|_| RolledBack);
            *slot.borrow_mut() = Some(outcome);
            answer
        })]);
        assert!(committed.fatal.is_none(), "{:?}", committed.fatal);
        result.borrow_mut().take().expect("the closure ran")
    }

    /// What a statement wrote, and what it took out of indexes.
    fn cost(&self, statement: impl Into<String>) -> (u64, u64) {
        let statement = statement.into();
        let before = self.sum();
        let total_before = self.counters.snapshot().rows_written;
        self.run(move |transaction| transaction.execute(&statement, &[]))
            .expect("it runs");
        let after = self.sum();
        let written = after.written - before.written;
        let total = self.counters.snapshot().rows_written - total_before;
        assert_eq!(total, written, "the sum of all is the sum of the tables");
        (
            written,
            after.index_entries_removed - before.index_entries_removed,
        )
    }

    fn sum(&self) -> TableRows {
        let tables = self.counters.rows_by_table();
        let mut sum = TableRows::default();
        for (table, rows) in tables {
            if table != "durability_object" {
                sum.written += rows.written;
                sum.index_entries_removed += rows.index_entries_removed;
            }
        }
        sum
    }

    /// Every entry of a table or index, as `listing` shows it.
    fn entries(&self, listing: &'static str) -> Vec<String> {
        self.run(move |transaction| {
            transaction.sql().all(listing, &[], |row| {
                let columns = (0..8).map(|column| text(row.value(column)));
                Ok(columns.collect::<Vec<_>>().join("|"))
            })
        })
        .expect("it can be listed")
    }
}

fn text(value: Value<'_>) -> String {
    format!("{value:?}")
}

#[test]
fn entries_of_indexes_count_where_they_are_written() {
    let counted = Counted::new(
        "CREATE TABLE plain (a INTEGER PRIMARY KEY, b INTEGER, c INTEGER) STRICT;
         CREATE INDEX plain_b ON plain (b);
         CREATE INDEX plain_c ON plain (c);
         CREATE TABLE keyed (a TEXT PRIMARY KEY, b INTEGER) STRICT, WITHOUT ROWID;",
    );
    let cost = |statement| counted.cost(statement);
    assert_eq!(
        cost("INSERT INTO plain VALUES (1, 1, 1), (2, 2, 2)"),
        (6, 0)
    );
    assert_eq!(cost("UPDATE plain SET b = 5 WHERE a = 1"), (2, 1));
    // An index is rewritten for a column that is named, whatever its value.
    assert_eq!(cost("UPDATE plain SET b = 5 WHERE a = 1"), (2, 1));
    assert_eq!(cost("UPDATE plain SET a = 9 WHERE a = 1"), (3, 2));
    assert_eq!(cost("DELETE FROM plain WHERE a = 9"), (1, 2));
    assert_eq!(cost("DELETE FROM plain"), (1, 2));
    assert_eq!(cost("INSERT INTO keyed VALUES ('a', 1)"), (1, 0));
    assert_eq!(cost("UPDATE keyed SET b = 2"), (1, 0));
    assert_eq!(cost("INSERT OR IGNORE INTO keyed VALUES ('a', 3)"), (0, 0));
    assert_eq!(cost("INSERT OR REPLACE INTO keyed VALUES ('a', 3)"), (1, 0));
    assert_eq!(cost("SELECT a FROM keyed"), (0, 0));
    assert_eq!(
        cost("INSERT INTO keyed SELECT 'b' || value, 1 FROM (SELECT 1 AS value UNION SELECT 2)"),
        (2, 0)
    );
}

#[test]
fn counting_follows_the_schema_and_outlives_what_is_undone() {
    let counted = Counted::new("CREATE TABLE items (a INTEGER, b TEXT UNIQUE) STRICT;");
    assert_eq!(counted.cost("INSERT INTO items VALUES (1, 'x')"), (2, 0));
    let undone: Result<(), _> = counted.run(|transaction| {
        transaction.script("CREATE INDEX items_a ON items (a); DELETE FROM items;")?;
        Err(StorageError::Failed("on purpose".into()))
    });
    assert!(undone.is_err());
    assert_eq!(counted.cost("INSERT INTO items VALUES (2, 'y')"), (2, 0));
    counted
        .run(|transaction| {
            transaction.script(
                "CREATE INDEX \"odd \"\" name\" ON items (a) WHERE b <> 'where (b)' AND a > 5;
                 ALTER TABLE items RENAME TO things;
                 ALTER TABLE things ADD COLUMN c INTEGER;",
            )
        })
        .expect("a new schema");
    assert_eq!(
        counted.cost("INSERT INTO things VALUES (6, 'z', 1)"),
        (3, 0)
    );
    assert_eq!(counted.cost("UPDATE things SET c = 2"), (3, 0));
    assert_eq!(counted.cost("UPDATE things SET b = b || '!'"), (7, 4));
    assert_eq!(counted.cost("DELETE FROM things WHERE a = 6"), (1, 2));
    let tables = counted.counters.rows_by_table();
    let mut names: Vec<&str> = tables.keys().map(String::as_str).collect();
    names.retain(|name| *name != "durability_object");
    assert_eq!(names, ["items", "things"]);
}

#[test]
fn nothing_is_counted_unless_it_was_asked_for() {
    let counters = Arc::new(Counters::new(false));
    let mut settings = Settings::default();
    settings.counters = Some(counters.clone());
    let database = Database::in_memory("Counter", "one", &settings).expect("it opens");
    let committed = database.commit(vec![Box::new(|transaction| {
        transaction
            .script("CREATE TABLE items (a INTEGER); INSERT INTO items VALUES (1);")
            .map_err(|_| RolledBack)
    })]);
    assert!(committed.fatal.is_none());
    assert_eq!(counters.snapshot().rows_written, 0);
    assert!(counters.rows_by_table().is_empty());
}

const SCHEMA: &str = "
    CREATE TABLE plain (
        id INTEGER PRIMARY KEY, b INTEGER, c INTEGER, state INTEGER NOT NULL, note INTEGER
    ) STRICT;
    CREATE INDEX plain_b ON plain (b);
    CREATE INDEX plain_c ON plain (c) WHERE state = 0;
    CREATE INDEX plain_sum ON plain (b + c) WHERE c IS NOT NULL;
    CREATE TABLE keyed (
        id TEXT PRIMARY KEY NOT NULL, b INTEGER, c INTEGER UNIQUE, state INTEGER NOT NULL,
        note INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX keyed_queued ON keyed (b, c, state) WHERE state = 0 AND note IS NOT NULL;";

/// The tables, then the indexes, each with its key, so that every entry is another one.
const TABLES: [&str; 2] = ["SELECT * FROM plain", "SELECT * FROM keyed"];
const INDEXES: [&str; 5] = [
    "SELECT b, id FROM plain INDEXED BY plain_b",
    "SELECT c, id FROM plain INDEXED BY plain_c WHERE state = 0",
    "SELECT b + c, id FROM plain INDEXED BY plain_sum WHERE c IS NOT NULL",
    "SELECT c, id FROM keyed",
    "SELECT b, c, state, id FROM keyed INDEXED BY keyed_queued
     WHERE state = 0 AND note IS NOT NULL",
];

/// A statement, and whether it deletes rows, and whether it may replace some.
#[derive(Clone, Debug)]
struct Statement {
    text: String,
    deletes: bool,
    replaces: bool,
}

/// Statements whose assignments change every value that they name, so that a listing shows every
/// entry that was written. `{fresh}` is a number that was never used.
fn statements() -> impl Strategy<Value = Statement> {
    let table = prop_oneof![Just("plain"), Just("keyed")];
    (table, 0..9_u8, 0..12_u8, 0..3_u8, 0..4_u8).prop_map(|(table, kind, id, state, pick)| {
        let key = |id: u8| match table {
            "plain" => id.to_string(),
            _ => format!("'{id}'"),
        };
        let row = |id: u8| {
            // An entry with NULL would look the same after it was replaced.
            let c = if pick == 0 && kind != 5 {
                "NULL".to_owned()
            } else {
                format!("{{fresh}} + {id}")
            };
            let note = if pick == 1 { "NULL" } else { "{fresh}" };
            format!("({}, {{fresh}} + {id}, {c}, {state}, {note})", key(id))
        };
        let set = match pick {
            0 => "note = {fresh}, b = {fresh} + b, c = {fresh} + coalesce(c, 0)".to_owned(),
            1 => "b = {fresh} + b, note = {fresh}".to_owned(),
            2 => format!("state = {state}, b = {{fresh}} + b, c = {{fresh}} + coalesce(c, 0)"),
            _ => format!("c = {{fresh}} * 100 + rank(), state = {state}, b = {{fresh}} + b"),
        };
        // Every row of a table that has a unique column needs a value of its own.
        let set = set.replace("rank()", "CAST(id AS INTEGER)");
        let set = match (table, pick) {
            ("keyed", 0 | 2) => format!(
                "b = {{fresh}} + b, c = {{fresh}} * 100 + CAST(id AS INTEGER), state = {state}"
            ),
            _ => set,
        };
        let rows = format!("{}, {}", row(id), row((id + 3) % 12));
        let text = match kind {
            0 | 1 => format!("INSERT OR IGNORE INTO {table} VALUES {rows}"),
            2 | 3 => {
                format!("INSERT INTO {table} VALUES {rows} ON CONFLICT (id) DO UPDATE SET {set}")
            }
            4 => format!(
                "INSERT INTO {table} VALUES {rows} ON CONFLICT (id) DO UPDATE SET {set}
                 WHERE state = {state}"
            ),
            5 => format!("INSERT OR REPLACE INTO {table} VALUES {rows}"),
            6 => format!("UPDATE {table} SET {set} WHERE CAST(id AS INTEGER) % 4 = {pick}"),
            7 => format!("UPDATE {table} SET {set}"),
            _ if id == 0 => format!("DELETE FROM {table}"),
            _ => format!("DELETE FROM {table} WHERE CAST(id AS INTEGER) % 5 = {state}"),
        };
        Statement {
            text,
            deletes: kind == 8,
            replaces: kind == 5,
        }
    })
}

/// How many entries of `left` are not in `right`.
fn beyond(left: &[String], right: &[String]) -> u64 {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    left.iter()
        .for_each(|entry| *counts.entry(entry).or_default() += 1);
    right
        .iter()
        .for_each(|entry| *counts.entry(entry).or_default() -= 1);
    counts
        .values()
        .map(|count| (*count).max(0).unsigned_abs())
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn rows_are_counted_as_a_listing_shows_them(
        statements in prop::collection::vec(statements(), 1..30)
    ) {
        let counted = Counted::new(SCHEMA);
        for (number, statement) in statements.iter().enumerate() {
            // Scattered, so that no sum of some is the same as that of others.
            let mixed = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let fresh = (mixed ^ (mixed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 24;
            let text = statement.text.replace("{fresh}", &fresh.to_string());
            let list = |listings: &[&'static str]| -> Vec<Vec<String>> {
                listings.iter().map(|listing| counted.entries(listing)).collect()
            };
            let (tables, indexes) = (list(&TABLES), list(&INDEXES));
            let (written, removed) = counted.cost(text.clone());
            let (tables_after, indexes_after) = (list(&TABLES), list(&INDEXES));
            let sum = |left: &[Vec<String>], right: &[Vec<String>]| -> u64 {
                left.iter().zip(right).map(|(left, right)| beyond(left, right)).sum()
            };
            let mut expected = sum(&tables_after, &tables) + sum(&indexes_after, &indexes);
            if statement.deletes {
                expected += sum(&tables, &tables_after);
            }
            prop_assert_eq!(written, expected, "{}", text);
            // What a row that is replaced leaves behind is not seen.
            if !statement.replaces {
                prop_assert_eq!(removed, sum(&indexes, &indexes_after), "{}", text);
            }
        }
    }
}
