//! What callers do with the members of a group: pick those that take work, those that are read, and
//! the one that a key belongs to.

use super::snapshot::{Member, MemberState, Snapshot};
use crate::rendezvous;

impl Snapshot {
    /// The members that take new work: the active ones, by the bytes of their ids.
    pub fn writable(&self) -> impl Iterator<Item = &Member> {
        let active = |member: &&Member| member.state == MemberState::Active;
        self.members.iter().filter(active)
    }

    /// The members that may hold data: all, those that drain included, by the bytes of their ids.
    pub fn readable(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// The member that takes the new work of `key`, the same for everybody who knows the same active
    /// members; `None` if none is active.
    ///
    /// By rendezvous hashing: when a member joins, only the keys that it wins move, and when one
    /// drains or leaves, only its own. So work of a key that was taken before a change may lie at another
    /// member: who looks for it asks the [`readable`](Self::readable) ones, too.
    ///
    /// ```
    /// use durably::Timestamp;
    /// use durably::topology::{Member, MemberState, Snapshot};
    ///
    /// let member = |id| Member::new(id, MemberState::Active, Timestamp::ZERO);
    /// let mut snapshot = Snapshot::new("tenant-1", 1, "c", vec![member("a"), member("b")]);
    /// let shard = snapshot.shard_for("order-17").map(|member| member.id.clone());
    /// assert!(shard.is_some());
    /// snapshot.members.retain(|member| Some(&member.id) == shard.as_ref());
    /// assert_eq!(snapshot.shard_for("order-17").map(|member| &member.id), shard.as_ref());
    /// ```
    pub fn shard_for(&self, key: &str) -> Option<&Member> {
        rendezvous::owner(self.writable(), |member| &member.id, key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::time::Timestamp;

    fn group(count: usize) -> Snapshot {
        let member =
            |index| Member::new(format!("t-{index}"), MemberState::Active, Timestamp::ZERO);
        Snapshot::new("t", 1, "c", (0..count).map(member).collect())
    }

    proptest! {
        #[test]
        fn only_keys_of_a_member_that_drains_move(key in ".{0,12}", drains in 0..5usize) {
            let before = group(5);
            let mut after = before.clone();
            after.members[drains].state = MemberState::Draining;
            let old = before.shard_for(&key).expect("an active member");
            let new = after.shard_for(&key).expect("an active member");
            prop_assert_ne!(&new.id, &after.members[drains].id);
            prop_assert!(old.id == after.members[drains].id || old.id == new.id);
        }

        #[test]
        fn only_keys_that_a_new_member_wins_move(key in ".{0,12}") {
            let (before, after) = (group(5), group(6));
            let old = before.shard_for(&key).expect("an active member");
            let new = after.shard_for(&key).expect("an active member");
            prop_assert!(new.id == "t-5" || new.id == old.id);
        }
    }

    #[test]
    fn members_share_the_keys() {
        let snapshot = group(4);
        let mut keys = BTreeMap::new();
        for key in 0..4_000 {
            let shard = snapshot
                .shard_for(&key.to_string())
                .expect("an active member");
            *keys.entry(shard.id.clone()).or_insert(0) += 1;
        }
        assert!(
            keys.values().all(|count| (850..1_150).contains(count)),
            "{keys:?}"
        );
    }

    #[test]
    fn who_drains_is_read_and_not_written() {
        let mut snapshot = group(2);
        snapshot.members[0].state = MemberState::Draining;
        let ids = |members: Vec<&Member>| -> Vec<String> {
            members
                .into_iter()
                .map(|member| member.id.clone())
                .collect()
        };
        assert_eq!(ids(snapshot.writable().collect()), ["t-1"]);
        assert_eq!(ids(snapshot.readable().collect()), ["t-0", "t-1"]);
        snapshot.members[1].state = MemberState::Draining;
        assert_eq!(snapshot.shard_for("key"), None);
    }
}
