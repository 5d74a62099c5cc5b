//! The table of published texts, in pieces: a row has its limits, on some platforms 2 MB.

use crate::error::StorageError;
use crate::host::Sql;
use crate::migrations::Migration;

/// The longest piece, in bytes.
const PIECE: usize = 1 << 20;

/// The capability's schema, oldest migration first.
pub const SHELF_MIGRATIONS: &[Migration] = &[Migration {
    name: "0001_topology_shelf",
    up: "CREATE TABLE durability_topology_shelf (
            group_id TEXT NOT NULL,
            piece INTEGER NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (group_id, piece)
        ) STRICT, WITHOUT ROWID;",
    down: "DROP TABLE durability_topology_shelf;",
}];

/// The text of a group.
pub(super) fn text(sql: &dyn Sql, group: &str) -> Result<Option<String>, StorageError> {
    let mut text: Option<String> = None;
    sql.query(
        "SELECT text FROM durability_topology_shelf WHERE group_id = ? ORDER BY piece",
        &[group.into()],
        &mut |row| {
            text.get_or_insert_default().push_str(row.text(0)?);
            Ok(())
        },
    )?;
    Ok(text)
}

/// Replaces the text of a group.
pub(super) fn put(sql: &dyn Sql, group: &str, text: &str) -> Result<(), StorageError> {
    let pieces = pieces(text);
    for (number, piece) in pieces.iter().enumerate() {
        sql.execute(
            "INSERT INTO durability_topology_shelf (group_id, piece, text) VALUES (?, ?, ?)
             ON CONFLICT (group_id, piece) DO UPDATE SET text = excluded.text",
            &[group.into(), (number as u64).into(), (*piece).into()],
        )?;
    }
    sql.execute(
        "DELETE FROM durability_topology_shelf WHERE group_id = ? AND piece >= ?",
        &[group.into(), (pieces.len() as u64).into()],
    )?;
    Ok(())
}

/// The text in pieces that end where characters do.
fn pieces(mut text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let (piece, rest) = text.split_at(text.floor_char_boundary(PIECE));
        pieces.push(piece);
        text = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_short_and_make_the_text() {
        for text in ["", "a", &"é".repeat(PIECE), &"x🦀".repeat(PIECE / 4 + 1)] {
            let pieces = pieces(text);
            assert_eq!(pieces.concat(), text);
            assert!(
                pieces
                    .iter()
                    .all(|piece| (1..=PIECE).contains(&piece.len()))
            );
        }
    }
}
