//! The binary `durably-sim`.
fn main() {}
