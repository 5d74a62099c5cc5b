//! Counting the rows that statements write, exactly, by temporary triggers.
//!
//! What counts is what Cloudflare bills, which its SQLite counts by executed opcodes: one for each
//! entry that is put into a table or an index, be it new or rewritten, and one for each row that is
//! deleted. Entries that leave an index are free; they are counted apart. An update rewrites the
//! row's entry in an index if it *names* a column of the index, whatever value it sets, and a partial
//! index has entries only for the rows that it covers. `UPDATE OF` triggers fire by the very same
//! rule, and SQLite itself evaluates the condition of a partial index, so nothing has to be guessed
//! from outside.
//!
//! Not counted: changes of the schema, virtual tables, `AUTOINCREMENT`'s own table, and what a
//! foreign key's action makes an update rewrite beyond the columns that it names.
//!
//! The triggers slow statements down, so they exist only where counting was asked for.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

/// Rows of one table, its indexes included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableRows {
    /// Entries put into the table and its indexes, and rows deleted: what Cloudflare bills.
    pub written: u64,
    /// Entries that left an index because their row changed or went, which Cloudflare does not bill.
    pub index_entries_removed: u64,
}

impl TableRows {
    pub(super) fn add(&mut self, other: TableRows) {
        self.written += other.written;
        self.index_entries_removed += other.index_entries_removed;
    }
}

/// Names of the triggers begin with this.
const PREFIX: &str = "durability_rows_";

/// The function that the triggers call: place of the table, rows written, index entries removed.
const FUNCTION: &str = "durability_count_rows";

/// Counts rows of one connection.
#[derive(Debug, Default)]
pub(super) struct RowCounter {
    tally: Arc<Mutex<Tally>>,
}

/// Tables in the order in which they were first seen, and what was written to each.
type Tally = Vec<(String, TableRows)>;

impl RowCounter {
    /// Gives the connection the function that triggers call.
    pub(super) fn new(connection: &Connection) -> rusqlite::Result<RowCounter> {
        let counter = RowCounter::default();
        let tally = counter.tally.clone();
        connection.create_scalar_function(
            FUNCTION,
            3,
            FunctionFlags::SQLITE_UTF8,
            move |arguments| {
                let place: i64 = arguments.get(0)?;
                let rows = TableRows {
                    written: arguments.get::<i64>(1)?.unsigned_abs(),
                    index_entries_removed: arguments.get::<i64>(2)?.unsigned_abs(),
                };
                let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                if let Some((_, sum)) = tally.get_mut(place) {
                    sum.add(rows);
                }
                Ok(0)
            },
        )?;
        Ok(counter)
    }

    /// Watches every table as the schema is now.
    pub(super) fn watch(&self, connection: &Connection) -> rusqlite::Result<()> {
        unwatch(connection)?;
        for table in tables(connection)? {
            let place = self.place(&table.name);
            connection.execute_batch(&triggers(&table, place))?;
        }
        Ok(())
    }

    fn place(&self, table: &str) -> usize {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally
            .iter()
            .position(|(known, _)| known == table)
            .unwrap_or_else(|| {
                tally.push((table.to_owned(), TableRows::default()));
                tally.len() - 1
            })
    }

    /// What was counted since the last time, by table.
    pub(super) fn take(&self) -> Vec<(String, TableRows)> {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = tally.iter_mut();
        counted
            .filter(|(_, rows)| *rows != TableRows::default())
            .map(|(table, rows)| (table.clone(), std::mem::take(rows)))
            .collect()
    }
}

/// Stops watching, so that a change of the schema meets no triggers.
pub(super) fn unwatch(connection: &Connection) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(
        "SELECT name FROM temp.sqlite_schema WHERE type = 'trigger' AND instr(name, ?1) = 1",
    )?;
    let names = statement
        .query_map([PREFIX], |row| row.get::<_, String>(0))?
        .collect::<Result<Vec<_>, _>>()?;
    drop(statement);
    for name in names {
        connection.execute_batch(&format!("DROP TRIGGER temp.{}", quoted(&name)))?;
    }
    Ok(())
}

struct Table {
    name: String,
    columns: Vec<String>,
    /// Columns whose change moves the row in all its indexes.
    key: Vec<String>,
    indexes: Vec<Index>,
}

struct Index {
    /// Columns that it stores or asks about.
    columns: Vec<String>,
    /// Which rows it covers, if not all.
    condition: Option<String>,
}

fn tables(connection: &Connection) -> rusqlite::Result<Vec<Table>> {
    let mut statement = connection.prepare(
        "SELECT name, wr FROM pragma_table_list
         WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
         ORDER BY name",
    )?;
    let listed = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<Vec<(String, bool)>, _>>()?;
    listed
        .into_iter()
        .map(|(name, without_rowid)| table(connection, name, without_rowid))
        .collect()
}

fn table(connection: &Connection, name: String, without_rowid: bool) -> rusqlite::Result<Table> {
    let mut statement = connection.prepare("SELECT name, pk FROM pragma_table_info(?1)")?;
    let listed = statement
        .query_map([&name], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<Vec<(String, i64)>, _>>()?;
    let columns: Vec<String> = listed.iter().map(|(column, _)| column.clone()).collect();
    let mut statement = connection.prepare(
        "SELECT list.name, list.origin, schema.sql FROM pragma_index_list(?1) AS list
         LEFT JOIN main.sqlite_schema AS schema ON schema.name = list.name",
    )?;
    let found = statement
        .query_map([&name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<Vec<(String, String, Option<String>)>, _>>()?;
    // The table itself, or its integer key, has no index of its own.
    let has_key_index = !without_rowid && found.iter().any(|(_, origin, _)| origin == "pk");
    let mut indexes = Vec::new();
    for (index, origin, sql) in found {
        if without_rowid && origin == "pk" {
            continue;
        }
        indexes.push(match sql {
            Some(sql) => written_index(&sql, &columns),
            None => Index {
                columns: index_columns(connection, &index)?,
                condition: None,
            },
        });
    }
    let key = match has_key_index {
        true => Vec::new(),
        false => listed
            .into_iter()
            .filter(|(_, place)| *place > 0)
            .map(|(column, _)| column)
            .collect(),
    };
    Ok(Table {
        name,
        columns,
        key,
        indexes,
    })
}

fn index_columns(connection: &Connection, index: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT name FROM pragma_index_info(?1)")?;
    let names = statement.query_map([index], |row| row.get::<_, Option<String>>(0))?;
    names.filter_map(Result::transpose).collect()
}

/// An index as its `CREATE INDEX` says.
fn written_index(sql: &str, columns: &[String]) -> Index {
    let words = words(sql);
    let condition = words
        .iter()
        .find(|word| word.depth == 0 && word.text.eq_ignore_ascii_case("where"))
        .map(|word| sql[word.end..].to_owned());
    // After the table's name only columns and what is done with them are named.
    let named = words
        .iter()
        .filter(|word| word.depth > 0 || condition_has(&condition, sql, word));
    let named: Vec<&str> = named.map(|word| &*word.text).collect();
    let columns = columns
        .iter()
        .filter(|column| named.iter().any(|name| name.eq_ignore_ascii_case(column)))
        .cloned()
        .collect();
    Index { columns, condition }
}

fn condition_has(condition: &Option<String>, sql: &str, word: &Word) -> bool {
    condition
        .as_ref()
        .is_some_and(|condition| word.end > sql.len() - condition.len())
}

/// A name or keyword in a statement.
struct Word {
    text: String,
    /// In how many parentheses it stands.
    depth: usize,
    /// Where the text after it begins.
    end: usize,
}

/// The names and keywords of a statement, without what stands in texts and comments.
fn words(sql: &str) -> Vec<Word> {
    let bytes = sql.as_bytes();
    let mut words = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &sql[at..];
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        match bytes[at] {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            open @ (b'\'' | b'"' | b'`' | b'[') => {
                let close = if open == b'[' { b']' } else { open };
                let length = rest.as_bytes()[1..]
                    .iter()
                    .position(|byte| *byte == close)
                    .map_or(rest.len(), |length| length + 2);
                if open != b'\'' {
                    words.push(Word {
                        text: rest[1..length - 1].to_owned(),
                        depth,
                        end: at + length,
                    });
                }
                at += length;
                continue;
            }
            b'-' if rest.starts_with("--") => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            b'/' if rest.starts_with("/*") => {
                at += rest.find("*/").map_or(rest.len(), |length| length + 2);
                continue;
            }
            byte if is_name(byte) => {
                let length = rest
                    .bytes()
                    .position(|byte| !is_name(byte))
                    .unwrap_or(rest.len());
                words.push(Word {
                    text: rest[..length].to_owned(),
                    depth,
                    end: at + length,
                });
                at += length;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    words
}

/// The triggers that count what is written to `table`, as a script.
fn triggers(table: &Table, place: usize) -> String {
    let covered = |row: &str, index: &Index| covers(table, index, row);
    let sum = |row: &str| -> String {
        let terms = table.indexes.iter().map(|index| covered(row, index));
        std::iter::once("0".to_owned())
            .chain(terms)
            .collect::<Vec<_>>()
            .join(" + ")
    };
    let mut script = trigger(
        table,
        place,
        "insert",
        "INSERT",
        &format!("1 + {}", sum("NEW")),
        "0",
    );
    script += &trigger(table, place, "delete", "DELETE", "1", &sum("OLD"));
    script += &trigger(table, place, "update", "UPDATE", "1", "0");
    for (number, index) in table.indexes.iter().enumerate() {
        let columns: Vec<String> = index
            .columns
            .iter()
            .chain(&table.key)
            .map(|column| quoted(column))
            .collect();
        let event = format!("UPDATE OF {}", columns.join(", "));
        script += &trigger(
            table,
            place,
            &format!("update_{number}"),
            &event,
            &covered("NEW", index),
            &covered("OLD", index),
        );
    }
    script
}

fn trigger(
    table: &Table,
    place: usize,
    name: &str,
    event: &str,
    written: &str,
    removed: &str,
) -> String {
    format!(
        "CREATE TEMP TRIGGER {} AFTER {event} ON main.{} BEGIN
            SELECT {FUNCTION}({place}, {written}, {removed});
         END;\n",
        quoted(&format!("{PREFIX}{place}_{name}")),
        quoted(&table.name),
    )
}

/// An expression that is 1 if `index` has an entry for the row that a trigger calls `row`, else 0.
fn covers(table: &Table, index: &Index, row: &str) -> String {
    let Some(condition) = &index.condition else {
        return "1".to_owned();
    };
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!("{row}.{name} AS {name}", name = quoted(column)))
        .collect();
    format!(
        "(SELECT ({condition}) IS TRUE FROM (SELECT {}))",
        columns.join(", ")
    )
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
