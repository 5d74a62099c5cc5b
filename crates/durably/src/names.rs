//! Names that every file system, every bucket and every URL takes, for things whose own names may hold
//! anything.

use std::fmt::Write;

/// How much of a name shows.
const READABLE_CHARACTERS: usize = 40;

/// A safe name that no other hash shares: what is readable of `name`, and the hash.
pub fn safe_name(name: &str, hash: &[u8; 16]) -> String {
    let readable: String = name
        .chars()
        .take(READABLE_CHARACTERS)
        .map(|character| match character {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => character,
            _ => '_',
        })
        .collect();
    format!("{readable}-{}", hexadecimal(hash))
}

/// Bytes as digits from 0 to f, two each.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
