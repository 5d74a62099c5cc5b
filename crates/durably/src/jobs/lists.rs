//! An account's lists of shards, and how they are published: as a group of a topology, named like the
//! account, so that whoever routes jobs finds their shards through a reader.
//!
//! Decided here, without I/O: which lists there are. A shard of the present list is an active member, one of
//! former lists only is draining, and each member's metadata names the lists that it is on.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::JobError;
use crate::topology::{Draft, MAX_ID_BYTES, Member, NewMember, Snapshot};

/// The most shards that one account is spread over.
const MAX_SHARDS: usize = 1_000;

/// The most lists that are not drained yet; asking every former owner of a job costs a call each.
const MAX_FORMER_LISTS: usize = 8;

/// A list of shards, and which of the account's lists it is: later ones have higher versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardList {
    /// From 1, by one.
    pub version: u64,
    /// The names of the shards, in order.
    pub shards: Vec<String>,
}

/// The list that new jobs go by, and the former ones whose shards may still know jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardLists {
    /// Where new jobs go.
    pub current: ShardList,
    /// Lists before it that are not drained, the newest first.
    pub former: Vec<ShardList>,
}

/// What a member's metadata says.
#[derive(Serialize, Deserialize)]
struct Listed {
    /// The versions of the lists that the shard is on.
    lists: BTreeSet<u64>,
}

impl ShardLists {
    /// The lists as they are published, for instance as a
    /// [`TopologyReader`](crate::topology::TopologyReader) reads the group that is named like the account;
    /// `None` for a snapshot that no account has published.
    pub fn of(snapshot: &Snapshot) -> Option<ShardLists> {
        ShardLists::of_members(&snapshot.members)
    }

    pub(super) fn of_members(members: &[Member]) -> Option<ShardLists> {
        let mut by_version: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for member in members {
            let Listed { lists } = member.meta_as().ok()?;
            for version in lists {
                by_version
                    .entry(version)
                    .or_default()
                    .push(member.id.clone());
            }
        }
        let newest_first = by_version.into_iter().rev();
        let mut lists = newest_first.map(|(version, shards)| ShardList { version, shards });
        Some(ShardLists {
            current: lists.next()?,
            former: lists.collect(),
        })
    }

    /// The first list of an account.
    pub(super) fn first(shards: Vec<String>) -> ShardLists {
        ShardLists {
            current: ShardList { version: 1, shards },
            former: Vec::new(),
        }
    }

    /// The lists after the present one was replaced; the same if it has these shards already.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] if too many former lists are not drained yet.
    pub(super) fn replaced(mut self, shards: Vec<String>) -> Result<ShardLists, JobError> {
        let held: BTreeSet<&String> = self.current.shards.iter().collect();
        if held == shards.iter().collect() {
            return Ok(self);
        }
        if self.former.len() >= MAX_FORMER_LISTS {
            return Err(JobError::invalid(
                "shards",
                format!(
                    "were changed {MAX_FORMER_LISTS} times and the former ones still know jobs: \
                     wait until they are drained"
                ),
            ));
        }
        let version = self.current.version + 1;
        let replaced = std::mem::replace(&mut self.current, ShardList { version, shards });
        self.former.insert(0, replaced);
        Ok(self)
    }

    /// The lists without a former one.
    pub(super) fn without_former(mut self, version: u64) -> ShardLists {
        self.former.retain(|list| list.version != version);
        self
    }

    /// The group that says so.
    pub(super) fn draft(&self) -> Draft {
        let mut listed: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for list in std::iter::once(&self.current).chain(&self.former) {
            for shard in &list.shards {
                listed.entry(shard).or_default().insert(list.version);
            }
        }
        let members = listed.into_iter().map(|(shard, lists)| {
            let member = match lists.contains(&self.current.version) {
                true => NewMember::active(shard),
                false => NewMember::draining(shard),
            };
            member.meta(serde_json::json!(Listed { lists }))
        });
        Draft::members(members)
    }
}

/// Refuses a list of shards that is empty, too long, or has bad or doubled names.
pub(super) fn check_shards(shards: &[String]) -> Result<(), JobError> {
    if shards.is_empty() || shards.len() > MAX_SHARDS {
        return Err(JobError::invalid(
            "shards",
            format!("must name 1 to {MAX_SHARDS} shards"),
        ));
    }
    if shards
        .iter()
        .any(|name| name.is_empty() || name.len() > MAX_ID_BYTES)
    {
        return Err(JobError::invalid(
            "shards",
            format!("must have names of 1 to {MAX_ID_BYTES} bytes"),
        ));
    }
    if shards.iter().collect::<BTreeSet<_>>().len() < shards.len() {
        return Err(JobError::invalid("shards", "must not name a shard twice"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Timestamp;
    use crate::topology::MemberState;

    fn some_shards() -> impl Strategy<Value = Vec<String>> {
        prop::collection::btree_set("[a-d]", 1..4).prop_map(|shards| shards.into_iter().collect())
    }

    /// The members that the coordinator makes of a draft.
    fn members(lists: &ShardLists) -> Vec<Member> {
        let drafted = lists.draft().members.unwrap_or_default();
        let made = drafted.into_iter().map(|member| {
            let mut made = Member::new(member.id, member.state, Timestamp::ZERO);
            made.meta = member.meta;
            made
        });
        made.collect()
    }

    proptest! {
        #[test]
        fn what_is_published_says_which_lists_there_are(
            first in some_shards(),
            changes in prop::collection::vec((some_shards(), any::<prop::sample::Index>()), 0..12),
        ) {
            let mut lists = ShardLists::first(first);
            for (shards, forgotten) in changes {
                let before = lists.clone();
                match lists.clone().replaced(shards.clone()) {
                    Ok(replaced) => lists = replaced,
                    Err(_) => prop_assert_eq!(before.former.len(), MAX_FORMER_LISTS),
                }
                if lists != before {
                    prop_assert_eq!(&lists.current.shards, &shards);
                    prop_assert!(lists.current.version > before.current.version);
                    prop_assert_eq!(&lists.former[0], &before.current);
                }
                if !lists.former.is_empty() && forgotten.index(3) == 0 {
                    let version = lists.former[forgotten.index(lists.former.len())].version;
                    lists = lists.without_former(version);
                    prop_assert!(lists.former.iter().all(|list| list.version != version));
                }
                let members = members(&lists);
                prop_assert_eq!(ShardLists::of_members(&members), Some(lists.clone()));
                for member in members {
                    let active = lists.current.shards.contains(&member.id);
                    prop_assert_eq!(member.state == MemberState::Active, active);
                }
            }
        }
    }

    #[test]
    fn a_group_of_others_is_no_list() {
        let stranger = Member::new("a", MemberState::Active, Timestamp::ZERO);
        assert_eq!(ShardLists::of_members(&[stranger]), None);
        assert_eq!(ShardLists::of_members(&[]), None);
    }
}
