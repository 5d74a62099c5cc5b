//! Published texts for tests of stores and readers. Outside tests only a coordinator makes them.

use crate::topology::{Edition, Member, encode};

/// What a coordinator publishes of `group`: its members, or the tombstone of a deleted group.
pub fn text(group: &str, edition: &Edition, members: Option<&[Member]>) -> String {
    encode(group, edition, members)
}
