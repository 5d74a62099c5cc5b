//! Where a job lives: its address, the shard that owns it, and the names made of them.

use xxhash_rust::xxh3::xxh3_64;

use super::{JobError, ShardLists};
use crate::rendezvous;
use crate::semaphore::protocol::MAX_ID_BYTES;

/// The group of a job that names none.
pub const DEFAULT_GROUP: &str = "default";

/// The id under which queue and operations of a shard know a job: account and id, each with what
/// could be mistaken for the separator escaped. It is also the job's `Idempotency-Key`, so it
/// consists of visible ASCII only.
pub(super) fn item_id(account: &str, id: &str) -> String {
    let mut item = String::with_capacity(account.len() + id.len() + 1);
    escape(account, &mut item);
    item.push('/');
    escape(id, &mut item);
    item
}

fn escape(part: &str, into: &mut String) {
    for byte in part.bytes() {
        if byte.is_ascii_graphic() && byte != b'/' && byte != b'%' {
            into.push(char::from(byte));
        } else {
            into.push('%');
            for digit in [byte >> 4, byte & 15] {
                into.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
    }
}

/// The job's id within its account, read back from an item's id.
pub(super) fn job_id(item: &str) -> Option<String> {
    let (_, escaped) = item.split_once('/')?;
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let text = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(text, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// What the ids of all items of an account begin with, and the least that sorts after them.
pub(super) fn item_ids_of(account: &str) -> (String, String) {
    let first = item_id(account, "");
    let mut end = first.clone();
    end.pop();
    // The character after the separator.
    end.push('0');
    (first, end)
}

/// The shards of an account that was never given a list.
pub(super) fn default_shards(account: &str, count: u32) -> Vec<String> {
    // The longest accounts leave no room for a number. Two of them that got the same shards would share
    // them, like any that are told to.
    let hashed = format!("{:016x}", xxh3_64(account.as_bytes()));
    let readable = account.len() + "-1000".len() <= MAX_ID_BYTES;
    let stem = if readable { account } else { &hashed };
    (0..count).map(|index| format!("{stem}-{index}")).collect()
}

/// The shard among `shards` that owns `id`: when the list changes, only ids of shards that left, or
/// that a new one wins, move.
pub(super) fn owner<'a>(shards: &'a [String], id: &str) -> Option<&'a str> {
    rendezvous::owner(shards, String::as_str, id).map(String::as_str)
}

/// Where a job goes, and who may know it from before the list changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// The shard that owns the job now.
    pub owner: &'a str,
    /// Its owners by former lists, none twice and without the present one.
    pub former: Vec<&'a str>,
}

/// Routes a job of the account by its lists of shards; `None` for a list without shards, which is
/// never stored.
pub fn route<'a>(lists: &'a ShardLists, id: &str) -> Option<Route<'a>> {
    let present = owner(&lists.current.shards, id)?;
    let mut former = Vec::new();
    for list in &lists.former {
        if let Some(before) = owner(&list.shards, id)
            && before != present
            && !former.contains(&before)
        {
            former.push(before);
        }
    }
    Some(Route {
        owner: present,
        former,
    })
}

/// Refuses an account, job id or group that is empty or longer than 256 bytes.
///
/// # Errors
///
/// [`JobError::Invalid`] naming `field`.
pub fn check_part(field: &'static str, part: &str) -> Result<(), JobError> {
    if part.is_empty() {
        Err(JobError::invalid(field, "must not be empty"))
    } else if part.len() > MAX_ID_BYTES {
        Err(JobError::invalid(
            field,
            format!("must be at most {MAX_ID_BYTES} bytes long"),
        ))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::lists::check_shards;
    use super::*;

    proptest! {
        #[test]
        fn addresses_that_differ_have_ids_that_differ(
            left in (".{0,6}", ".{0,6}"), right in (".{0,6}", ".{0,6}"),
        ) {
            let same = item_id(&left.0, &left.1) == item_id(&right.0, &right.1);
            prop_assert_eq!(same, left == right);
        }

        #[test]
        fn an_items_id_tells_its_job(account in ".{0,6}", id in ".{0,6}") {
            let item = item_id(&account, &id);
            let (first, end) = item_ids_of(&account);
            prop_assert!(first <= item && item < end);
            prop_assert_eq!(job_id(&item), Some(id));
        }

        #[test]
        fn an_idempotency_key_is_visible_ascii(account in ".{1,20}", id in ".{1,20}") {
            prop_assert!(item_id(&account, &id).bytes().all(|byte| byte.is_ascii_graphic()));
        }

        #[test]
        fn only_ids_of_a_shard_that_left_move(id in "[a-z0-9]{1,12}", gone in 0..6usize) {
            let before = default_shards("acme", 6);
            let mut after = before.clone();
            let removed = after.remove(gone);
            let old = owner(&before, &id).unwrap();
            let new = owner(&after, &id).unwrap();
            prop_assert!(old == removed || old == new);
        }
    }

    #[test]
    fn the_shards_of_any_account_have_names_that_a_list_may_have() {
        for bytes in [1, 250, 251, 252, 256] {
            let shards = default_shards(&"x".repeat(bytes), 1_000);
            assert!(check_shards(&shards).is_ok(), "{bytes}");
        }
    }

    #[test]
    fn shards_share_the_ids() {
        let shards = default_shards("acme", 4);
        let owners: BTreeSet<_> = (0..100)
            .filter_map(|index| owner(&shards, &format!("job-{index}")))
            .collect();
        assert_eq!(owners.len(), 4);
    }
}
