//! What the fuzz targets do with an input, for `cargo fuzz` and for the tests that replay its seeds.
//!
//! Each target takes any bytes and panics if it finds a fault. What it must not find: a panic inside an object, a call that is
//! never answered, work that goes round in circles, and whatever the target itself promises.

mod configuration;
mod rows;
mod stand;
mod wire;

pub use configuration::configuration;
pub use rows::rows;
pub use wire::wire;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets, by the names of their folders of seeds.
pub const TARGETS: [(&str, Target); 3] = [
    ("wire", wire),
    ("configuration", configuration),
    ("rows", rows),
];

/// The most lines of an input that are looked at, so that inputs stay small and quick.
const MAX_LINES: usize = 8;

/// The lines of an input.
fn lines(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = input.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.is_empty()).take(MAX_LINES)
}
