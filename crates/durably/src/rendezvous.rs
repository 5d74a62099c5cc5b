//! Rendezvous hashing: which of several a key belongs to, decided alike by everybody who knows the
//! same ids. When the ids change, only keys of those that left, or that a new one wins, move.
//!
//! What belongs where follows from the hash, so it never changes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The one among `all` that `key` belongs to, each known by its id; `None` of nothing. Of equal
/// hashes the last id by its bytes wins.
pub(crate) fn owner<'a, T: ?Sized>(
    all: impl IntoIterator<Item = &'a T>,
    id: impl Fn(&'a T) -> &'a str,
    key: &str,
) -> Option<&'a T> {
    let seed = xxh3_64_with_seed(key.as_bytes(), 0);
    all.into_iter().max_by_key(|one| {
        let id = id(one);
        (xxh3_64_with_seed(id.as_bytes(), seed), id)
    })
}
