//! *Whatever runs is accounted for: no client runs more than its holder has as claimed or leased.*
//! With the [ceiling](super::ceiling) it follows that no more run than the limit allows.

use std::collections::BTreeMap;

use super::books::Books;
use crate::simulation::run::Run;

const NAME: &str = "what runs is accounted for";

/// What runs with permits of one key, by client and group.
#[derive(Clone, Debug, Default)]
pub struct Runs(BTreeMap<(String, String), u64>);

impl Runs {
    /// One more runs.
    pub fn started(&mut self, shard: &str, group: &str) {
        let name = (shard.to_owned(), group.to_owned());
        *self.0.entry(name).or_default() += 1;
    }

    /// One runs no longer.
    pub fn ended(&mut self, shard: &str, group: &str) {
        let name = (shard.to_owned(), group.to_owned());
        if let Some(running) = self.0.get_mut(&name) {
            *running = running.saturating_sub(1);
        }
    }
}

/// Checks what runs against the book of its holder. `client_of` makes a client's id of a shard's
/// name.
pub fn check(run: &Run, books: &Books, key: &str, runs: &Runs, client_of: impl Fn(&str) -> String) {
    if let Some((shard, message)) = excess(books, key, runs, client_of) {
        run.fail(NAME, &shard, message);
    }
}

/// A shard that runs more than its holder knows of, and how much.
pub fn excess(
    books: &Books,
    key: &str,
    runs: &Runs,
    client_of: impl Fn(&str) -> String,
) -> Option<(String, String)> {
    for ((shard, group), running) in &runs.0 {
        if *running == 0 {
            continue;
        }
        let client = client_of(shard);
        let in_use = books.with(key, |book| book.in_use(&client, group));
        let in_use = in_use.unwrap_or(0);
        if *running > in_use {
            let message = format!(
                "{running} of {shard} in {group} run with permits of {key}, which knows of {in_use}"
            );
            return Some((shard.clone(), message));
        }
    }
    None
}
