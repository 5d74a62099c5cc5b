//! A change of a group: what an updater is shown, what it drafts, and what of the draft is a change.
//! Decided here, without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::canonical;
use super::error::{MAX_HINT_BYTES, MAX_ID_BYTES, MAX_META_BYTES, MAX_STATE_BYTES, TopologyError};
use super::snapshot::{Member, MemberState};
use crate::error::ConfigError;
use crate::time::Timestamp;

/// A group as an updater is shown it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Current {
    /// Its version; `None` for a group that does not exist.
    pub version: Option<u64>,
    /// Its members, by id.
    pub members: Vec<Member>,
    /// The values of its state channels, also of channels that are not configured.
    pub states: BTreeMap<String, Value>,
}

/// What a group is to be. What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Draft {
    /// All its members, in any order; a member of the group that is not here is removed.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<NewMember>>,
    /// New values for state channels; `null` is a value like any other.
    #[serde(deserialize_with = "absent_if_null")]
    pub states: BTreeMap<String, Value>,
    /// Allows this update to remove more or fewer members than the topology is configured for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<RemovalGuard>,
}

/// A list that is given must be one: `null` would be taken for "no change" by mistake.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<NewMember>>, D::Error> {
    Vec::deserialize(deserializer).map(Some)
}

fn absent_if_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Value>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Draft {
    /// A draft with these members.
    pub fn members(members: impl IntoIterator<Item = impl Into<NewMember>>) -> Self {
        Draft {
            members: Some(members.into_iter().map(Into::into).collect()),
            ..Draft::default()
        }
    }

    /// The same draft with a new value for a state channel.
    #[must_use]
    pub fn state(mut self, channel: impl Into<String>, value: impl Into<Value>) -> Self {
        self.states.insert(channel.into(), value.into());
        self
    }

    /// The same draft with a guard of its own.
    #[must_use]
    pub fn guard(mut self, guard: RemovalGuard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Refuses what could not be the draft of a new group in a topology with these state channels, so that a
    /// coordinator need not be made only to refuse it.
    ///
    /// # Errors
    ///
    /// What [`Topology::update`](super::Topology::update) would say of it, but for the length of the
    /// snapshot.
    pub fn check_new(&self, group: &str, channels: &[&str]) -> Result<(), TopologyError> {
        let Some(members) = &self.members else {
            return Err(TopologyError::UnknownGroup(group.to_owned()));
        };
        membership(&[], members.clone(), Timestamp::ZERO)?;
        for (channel, value) in &self.states {
            let is_known = channels.contains(&channel.as_str());
            check_state(channel, is_known, &canonical::text(value))?;
        }
        Ok(())
    }

    /// Reads a draft that comes as data.
    ///
    /// # Errors
    ///
    /// [`TopologyError::InvalidDraft`], naming the place.
    pub fn from_json(draft: Value) -> Result<Self, TopologyError> {
        if !draft.is_object() {
            let problem = "it must be an object".to_owned();
            return Err(TopologyError::InvalidDraft(problem));
        }
        serde_path_to_error::deserialize(draft)
            .map_err(|error| TopologyError::InvalidDraft(error.to_string()))
    }
}

/// Refuses a value that no channel takes; `canonical` is its text.
pub(super) fn check_state(
    channel: &str,
    is_known: bool,
    canonical: &str,
) -> Result<(), TopologyError> {
    if !is_known {
        return Err(TopologyError::UnknownChannel(channel.to_owned()));
    }
    let (channel, bytes) = (channel.to_owned(), canonical.len());
    match bytes > MAX_STATE_BYTES {
        true => Err(TopologyError::StateTooLarge { channel, bytes }),
        false => Ok(()),
    }
}

/// A member as a draft names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NewMember {
    /// Its id, unique in its group.
    pub id: String,
    /// Whether it takes new work.
    pub state: MemberState,
    /// Where it would best live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location_hint: Option<String>,
    /// What the application wants to know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
    /// When a draining member is removed by the coordinator itself. Absent, a member that drains
    /// already keeps what it was given, and another stays until a draft omits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainEnd>,
}

/// When a draining member is removed by the coordinator itself: whichever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct DrainEnd {
    /// This long after the update, in whole ms up to 2^31 - 1.
    #[serde(
        rename = "withinMs",
        with = "millis",
        skip_serializing_if = "Option::is_none"
    )]
    pub within: Option<Duration>,
    /// As soon as the topology's `drained` callback says that the member holds nothing any more.
    pub when_drained: bool,
}

impl DrainEnd {
    /// Removed `within` that long.
    pub fn within(within: Duration) -> Self {
        DrainEnd {
            within: Some(within),
            when_drained: false,
        }
    }

    /// Removed as soon as the `drained` callback says so.
    pub fn when_drained() -> Self {
        DrainEnd {
            within: None,
            when_drained: true,
        }
    }
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => {
                serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
            }
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

impl NewMember {
    /// A member that takes new work.
    pub fn active(id: impl Into<String>) -> Self {
        NewMember {
            id: id.into(),
            state: MemberState::Active,
            location_hint: None,
            meta: None,
            drain: None,
        }
    }

    /// A member that takes no new work.
    pub fn draining(id: impl Into<String>) -> Self {
        NewMember {
            state: MemberState::Draining,
            ..NewMember::active(id)
        }
    }

    /// The same member with metadata.
    #[must_use]
    pub fn meta(mut self, meta: impl Into<Value>) -> Self {
        self.meta = Some(meta.into());
        self
    }

    /// The same member with a hint of where it would best live.
    #[must_use]
    pub fn location_hint(mut self, hint: impl Into<String>) -> Self {
        self.location_hint = Some(hint.into());
        self
    }

    /// The same member, draining until `end`.
    #[must_use]
    pub fn drain(mut self, end: DrainEnd) -> Self {
        self.state = MemberState::Draining;
        self.drain = Some(end);
        self
    }

    /// Refuses it for anything but the length of its metadata.
    fn check(&self) -> Result<(), TopologyError> {
        let refuse = |problem: String| Err(invalid(&self.id, problem));
        if self.id.is_empty() || self.id.len() > MAX_ID_BYTES {
            let bytes = self.id.len();
            return refuse(format!(
                "an id has 1 to {MAX_ID_BYTES} bytes, this one has {bytes}"
            ));
        }
        let hint = self.location_hint.as_deref().map_or(0, str::len);
        if hint > MAX_HINT_BYTES {
            return refuse(format!(
                "its location hint has {hint} bytes, at most {MAX_HINT_BYTES} are allowed"
            ));
        }
        let Some(end) = self.drain else { return Ok(()) };
        if self.state != MemberState::Draining {
            return refuse("only a draining member has an end of its draining".to_owned());
        }
        if end.within.is_none() && !end.when_drained {
            return refuse(
                "the end of its draining names neither a time nor whenDrained".to_owned(),
            );
        }
        match end
            .within
            .map(|within| crate::time::check_duration("withinMs", within))
        {
            Some(Err(error)) => refuse(error.to_string()),
            _ => Ok(()),
        }
    }
}

impl From<Member> for NewMember {
    fn from(member: Member) -> Self {
        NewMember {
            id: member.id,
            state: member.state,
            location_hint: member.location_hint,
            meta: member.meta,
            drain: None,
        }
    }
}

impl From<&Member> for NewMember {
    fn from(member: &Member) -> Self {
        member.clone().into()
    }
}

/// The largest share of a group's members that one update may remove, between 0 and 1. One member may
/// be removed whatever the share, unless it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct RemovalGuard(f64);

impl RemovalGuard {
    /// All members may be removed.
    pub const NONE: RemovalGuard = RemovalGuard(1.0);

    /// At most this share.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming `removal_guard` for what is not between 0 and 1.
    pub fn share(share: f64) -> Result<Self, ConfigError> {
        if !(0.0..=1.0).contains(&share) {
            return Err(ConfigError::new("removal_guard", "must be between 0 and 1"));
        }
        Ok(RemovalGuard(share))
    }

    /// How many of `members` may be removed.
    fn allows(self, members: usize) -> usize {
        let share = (members as f64 * self.0).floor() as usize;
        share.max(usize::from(self.0 > 0.0))
    }

    pub(super) fn check(self, removed: usize, members: usize) -> Result<(), TopologyError> {
        let allowed = self.allows(members);
        if removed <= allowed {
            return Ok(());
        }
        Err(TopologyError::TooManyRemoved {
            removed,
            members,
            allowed,
        })
    }
}

impl TryFrom<f64> for RemovalGuard {
    type Error = ConfigError;

    fn try_from(share: f64) -> Result<Self, ConfigError> {
        RemovalGuard::share(share)
    }
}

impl From<RemovalGuard> for f64 {
    fn from(guard: RemovalGuard) -> f64 {
        guard.0
    }
}

/// What a draft changes of the members.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Membership {
    /// All members, by id.
    pub(super) after: Vec<Member>,
    /// The places in `after` of members that are new or differ.
    pub(super) written: Vec<usize>,
    /// Ids of members that are no longer there.
    pub(super) removed: Vec<String>,
    /// Ends of draining that were given, by id.
    pub(super) drains: Vec<(String, DrainEnd)>,
}

impl Membership {
    /// Whether the snapshot is another one.
    pub(super) fn is_change(&self) -> bool {
        !(self.written.is_empty() && self.removed.is_empty())
    }
}

/// Checks the members of a draft and finds what differs from those `before`, which are by id.
pub(super) fn membership(
    before: &[Member],
    drafted: Vec<NewMember>,
    now: Timestamp,
) -> Result<Membership, TopologyError> {
    if drafted.is_empty() {
        return Err(TopologyError::NoMembers);
    }
    for member in &drafted {
        member.check()?;
    }
    let mut drafted = drafted;
    drafted.sort_by(|one, other| one.id.cmp(&other.id));
    if let Some(pair) = drafted.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(TopologyError::DuplicateMember(pair[0].id.clone()));
    }
    let mut old = before.iter().peekable();
    let mut change = Membership {
        after: Vec::with_capacity(drafted.len()),
        written: Vec::new(),
        removed: Vec::new(),
        drains: Vec::new(),
    };
    for member in drafted {
        while let Some(gone) = old.next_if(|old| old.id < member.id) {
            change.removed.push(gone.id.clone());
        }
        let known = old.next_if(|old| old.id == member.id);
        if let Some(end) = member.drain {
            change.drains.push((member.id.clone(), end));
        }
        let joined_at = known.map_or(now, |known| known.joined_at);
        let mut after = Member::new(member.id, member.state, joined_at);
        after.location_hint = member.location_hint;
        after.meta = member.meta;
        if !known.is_some_and(|known| same(known, &after)) {
            // What is stored is short enough.
            check_meta(&after)?;
            change.written.push(change.after.len());
        }
        change.after.push(after);
    }
    change.removed.extend(old.map(|gone| gone.id.clone()));
    Ok(change)
}

fn invalid(id: &str, problem: String) -> TopologyError {
    TopologyError::InvalidMember {
        id: id[..id.floor_char_boundary(64)].to_owned(),
        problem,
    }
}

fn check_meta(member: &Member) -> Result<(), TopologyError> {
    let bytes = member
        .meta
        .as_ref()
        .map_or(0, |meta| meta.to_string().len());
    if bytes <= MAX_META_BYTES {
        return Ok(());
    }
    let problem =
        format!("its metadata has {bytes} bytes as JSON, at most {MAX_META_BYTES} are allowed");
    Err(invalid(&member.id, problem))
}

fn same(one: &Member, other: &Member) -> bool {
    let metas = match (&one.meta, &other.meta) {
        (Some(one), Some(other)) => canonical::same(one, other),
        (one, other) => one == other,
    };
    one.state == other.state && one.location_hint == other.location_hint && metas
}

/// Which members of a group a channel reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Active members.
    #[default]
    Write,
    /// Draining members too.
    Read,
}

impl Role {
    /// Its name, as it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Write => "write",
            Role::Read => "read",
        }
    }

    /// Whether `member` is in it.
    pub fn includes(self, member: &Member) -> bool {
        self == Role::Read || member.state == MemberState::Active
    }

    /// The ids of those in it.
    pub(super) fn ids(self, members: &[Member]) -> BTreeSet<&str> {
        let members = members.iter().filter(|member| self.includes(member));
        members.map(|member| member.id.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn member(id: u8, draining: bool, meta: u8) -> NewMember {
        let id = format!("m{id}");
        let member = match draining {
            true => NewMember::draining(id),
            false => NewMember::active(id),
        };
        member.meta(json!({ "size": meta }))
    }

    fn members() -> impl Strategy<Value = Vec<NewMember>> {
        proptest::collection::btree_map(0u8..8, (any::<bool>(), 0u8..2), 1..8).prop_map(|members| {
            let members = members.into_iter();
            members
                .map(|(id, (draining, meta))| member(id, draining, meta))
                .collect()
        })
    }

    proptest! {
        /// Whatever the order of a draft: sorted, who stays keeps the time of joining, and applying
        /// the differences to what was before gives what is after.
        #[test]
        fn differences_make_the_one_of_the_other(
            first in members(),
            second in members().prop_shuffle(),
        ) {
            let (joined, now) = (Timestamp::from_millis(1), Timestamp::from_millis(2));
            let before = membership(&[], first, joined).expect("valid").after;
            let change = membership(&before, second.clone(), now).expect("valid");
            prop_assert!(change.after.is_sorted_by(|one, other| one.id < other.id));
            let mut applied: BTreeMap<_, _> =
                before.iter().map(|member| (member.id.clone(), member.clone())).collect();
            for id in &change.removed {
                prop_assert!(applied.remove(id).is_some());
            }
            for place in &change.written {
                let member = change.after[*place].clone();
                applied.insert(member.id.clone(), member);
            }
            prop_assert_eq!(applied.into_values().collect::<Vec<_>>(), change.after.clone());
            for member in &change.after {
                let stayed = before.iter().any(|old| old.id == member.id);
                prop_assert_eq!(member.joined_at, if stayed { joined } else { now });
            }
            let again = membership(&change.after, second, Timestamp::from_millis(3)).expect("valid");
            prop_assert!(!again.is_change());
        }
    }

    #[test]
    fn bad_members_are_named() {
        let refused = |members: Vec<NewMember>| {
            membership(&[], members, Timestamp::ZERO)
                .expect_err("refused")
                .code()
        };
        assert_eq!(refused(vec![]), "no_members");
        assert_eq!(refused(vec![NewMember::active("")]), "invalid_member");
        assert_eq!(
            refused(vec![NewMember::active("x".repeat(257))]),
            "invalid_member"
        );
        let large = NewMember::active("a").meta("x".repeat(MAX_META_BYTES));
        assert_eq!(refused(vec![large]), "invalid_member");
        let twice = vec![NewMember::active("a"), NewMember::draining("a")];
        assert_eq!(refused(twice), "duplicate_member");
        let mut active = NewMember::active("a").drain(DrainEnd::when_drained());
        active.state = MemberState::Active;
        assert_eq!(refused(vec![active]), "invalid_member");
        let endless = NewMember::active("a").drain(DrainEnd::default());
        assert_eq!(refused(vec![endless]), "invalid_member");
    }

    #[test]
    fn a_guard_counts_whole_members_and_lets_one_go() {
        let half = RemovalGuard::share(0.5).expect("a share");
        assert_eq!(half.check(2, 5), Ok(()));
        assert_eq!(
            half.check(3, 5).expect_err("refused").code(),
            "too_many_removed"
        );
        assert_eq!(half.check(1, 1), Ok(()));
        let none = RemovalGuard::share(0.0).expect("a share");
        assert_eq!(
            none.check(1, 100).expect_err("refused").code(),
            "too_many_removed"
        );
        assert!(RemovalGuard::share(f64::NAN).is_err());
    }
}
