//! Which requests a client does not wait for any more, by their numbers, and which numbers must outlast
//! an instance of the holder. Pure, like [`round`](super::round), of which it is a part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::protocol::PermitRequest;
use super::store::Changes;

/// Says which requests have been overtaken: a client hears only of the answer to the one with the highest
/// number, so that one alone may be given anything. Raises `numbers` to those of this round.
pub(super) fn overtaken(
    requests: &[Arc<PermitRequest>],
    parked: usize,
    numbers: &mut BTreeMap<String, u64>,
) -> Vec<bool> {
    let before: Vec<Option<u64>> = requests
        .iter()
        .map(|request| numbers.get(&request.client_id).copied())
        .collect();
    for request in requests {
        let Some(number) = request.request_number else {
            continue;
        };
        let highest = numbers.entry(request.client_id.clone()).or_default();
        *highest = number.max(*highest);
    }
    let requests = requests.iter().zip(before).enumerate();
    requests
        .map(|(place, (request, before))| {
            let Some(number) = request.request_number else {
                return false;
            };
            let is_overtaken = numbers
                .get(&request.client_id)
                .is_some_and(|highest| number < *highest);
            // One that is parked has been seen before.
            let is_copy = place >= parked && before.is_some_and(|before| number <= before);
            is_overtaken || is_copy
        })
        .collect()
}

/// The numbers that must outlast this instance: a lease that an overtaken request was given would not come
/// back by itself. They are those of clients that may have nothing more to ask for after this answer: it
/// gives them something, for the first time or again, or they say that they want nothing any more.
/// Without leases none is stored.
pub(super) fn to_store(
    requests: &[Arc<PermitRequest>],
    repeated: &[bool],
    numbers: &BTreeMap<String, u64>,
    changes: &Changes,
) -> Vec<(String, u64)> {
    let grants = changes.grants_inserted.iter().map(|row| &row.client_id);
    let leases = changes.leases_inserted.iter().map(|row| &row.client_id);
    let last_words = requests.iter().zip(repeated);
    let last_words = last_words
        .filter(|(request, repeated)| **repeated || request.demand.is_empty())
        .map(|(request, _)| &request.client_id);
    let clients: BTreeSet<&String> = grants.chain(leases).chain(last_words).collect();
    let numbers = clients.into_iter().filter_map(|client| {
        let number = numbers.get(client)?;
        Some((client.clone(), *number))
    });
    numbers.collect()
}
