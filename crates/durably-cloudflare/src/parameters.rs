//! Integers given to statements. The platform binds every number as a double, so `? / 2` would be a
//! fraction and a TEXT column would store `5.0`. Decided here: where a statement has to say that a
//! parameter is whole.

/// The statement with `CAST(… AS INTEGER)` around each placeholder whose value `is_integer`, by its
/// position from 0. Placeholders are `?` and `?1`, as everywhere in `durably`.
pub(crate) fn with_integers(statement: &str, is_integer: impl Fn(usize) -> bool) -> String {
    let bytes = statement.as_bytes();
    let mut written = String::with_capacity(statement.len() + 64);
    let mut copied = 0;
    let mut at = 0;
    let mut next = 0;
    while at < bytes.len() {
        if bytes[at] != b'?' {
            at = after(bytes, at);
            continue;
        }
        let start = at;
        at += 1;
        while at < bytes.len() && bytes[at].is_ascii_digit() {
            at += 1;
        }
        // A number that SQLite would refuse is left to it.
        let position = match &statement[start + 1..at] {
            "" => Some(next),
            number => number.parse::<usize>().ok().and_then(|n| n.checked_sub(1)),
        };
        let Some(position) = position else { continue };
        next = next.max(position.saturating_add(1));
        if is_integer(position) {
            written.push_str(&statement[copied..start]);
            written.push_str("CAST(");
            written.push_str(&statement[start..at]);
            written.push_str(" AS INTEGER)");
            copied = at;
        }
    }
    written.push_str(&statement[copied..]);
    written
}

/// Where the text goes on after the token that begins at `at`: past the whole of a comment or of
/// something in quotes, one byte further otherwise.
fn after(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let end_of = |from: usize, end: &[u8]| {
        rest[from..]
            .windows(end.len())
            .position(|window| window == end)
            .map_or(bytes.len(), |found| at + from + found + end.len())
    };
    match rest {
        // A doubled quote reads as one thing in quotes right after another, which comes to the same.
        [quote @ (b'\'' | b'"' | b'`'), ..] => end_of(1, &[*quote]),
        [b'[', ..] => end_of(1, b"]"),
        [b'-', b'-', ..] => end_of(2, b"\n"),
        [b'/', b'*', ..] => end_of(2, b"*/"),
        _ => at + 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(statement: &str) -> String {
        with_integers(statement, |_| true)
    }

    #[test]
    fn placeholders_are_cast_where_they_are_integers() {
        assert_eq!(
            with_integers("INSERT INTO a VALUES (?, ?, ?)", |position| position == 1),
            "INSERT INTO a VALUES (?, CAST(? AS INTEGER), ?)"
        );
        assert_eq!(
            with_integers("SELECT ?2, ?, ?1", |position| position == 2),
            "SELECT ?2, CAST(? AS INTEGER), ?1"
        );
        assert_eq!(
            with_integers("SELECT ?2 + ?1 + ?2", |position| position == 1),
            "SELECT CAST(?2 AS INTEGER) + ?1 + CAST(?2 AS INTEGER)"
        );
    }

    #[test]
    fn what_is_quoted_or_a_comment_is_left_alone() {
        for statement in [
            "SELECT '?', 'it''s ?', \"?\", `?`, [?]",
            "SELECT 1 -- ?\n, 2",
            "SELECT 1 /* ? */, 2 -- ?",
            "SELECT 'open ?",
            "SELECT 1 /* open ?",
            "SELECT ?0",
        ] {
            assert_eq!(all(statement), statement);
        }
        assert_eq!(
            all("SELECT '?' || ? -- ?\n || ?"),
            "SELECT '?' || CAST(? AS INTEGER) -- ?\n || CAST(? AS INTEGER)"
        );
        assert_eq!(
            all("SELECT 4 - ?, 6 / ?"),
            "SELECT 4 - CAST(? AS INTEGER), 6 / CAST(? AS INTEGER)"
        );
    }

    proptest! {
        #[test]
        fn nothing_else_changes(statement in "[?0-9'\"`/*\\-\n a-cé\\[\\]]{0,40}") {
            prop_assert_eq!(with_integers(&statement, |_| false), statement.clone());
            let taken_back = all(&statement).replace("CAST(", "").replace(" AS INTEGER)", "");
            prop_assert_eq!(taken_back, statement);
        }
    }
}
