//! A change of a group by member, as data: what it makes of the group that it meets. Without I/O.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::topology::{
    Current, Draft, DrainEnd, MemberState, NewMember, RemovalGuard, TopologyError,
};

/// What of a group is to be otherwise; all else stays.
///
/// ```
/// use durably::topology::Patch;
///
/// let patch = Patch::from_json(serde_json::json!({
///     "put": [{"id": "shard-3", "state": "active"}],
///     "drain": [{"id": "shard-1", "whenDrained": true}],
///     "remove": ["shard-0"],
///     "states": {"limits": {"jobs": 10}},
/// }))?;
/// # let _ = patch;
/// # Ok::<(), durably::topology::TopologyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Patch {
    /// Members that are added, or replaced whole.
    pub put: Vec<NewMember>,
    /// Members that take no new work from now on, with the end of their draining if it has one.
    pub drain: Vec<Drain>,
    /// Members that are removed at once.
    pub remove: Vec<String>,
    /// New values for state channels.
    pub states: BTreeMap<String, Value>,
    /// Allows this update to remove more or fewer members than the topology is configured for.
    pub guard: Option<RemovalGuard>,
}

/// A member that is to drain.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Drain {
    /// Its id.
    pub id: String,
    /// When it is removed; never by itself if this names nothing.
    #[serde(flatten)]
    pub end: DrainEnd,
}

impl Patch {
    /// Reads a patch that comes as data.
    ///
    /// # Errors
    ///
    /// [`TopologyError::InvalidDraft`], naming the place.
    pub fn from_json(patch: Value) -> Result<Self, TopologyError> {
        if !patch.is_object() {
            let problem = "it must be an object".to_owned();
            return Err(TopologyError::InvalidDraft(problem));
        }
        serde_path_to_error::deserialize(patch)
            .map_err(|error| TopologyError::InvalidDraft(error.to_string()))
    }

    /// What it makes of a group.
    ///
    /// # Errors
    ///
    /// [`TopologyError::UnknownMember`] for one that is to drain or to go and is not there, and
    /// [`TopologyError::DuplicateMember`] for one that is named twice.
    pub fn draft(self, current: &Current) -> Result<Draft, TopologyError> {
        self.check_names()?;
        let mut draft = Draft::default();
        let is_of_members =
            !(self.put.is_empty() && self.drain.is_empty() && self.remove.is_empty());
        if is_of_members {
            let members = current.members.iter();
            let mut members: BTreeMap<String, NewMember> = members
                .map(|member| (member.id.clone(), member.into()))
                .collect();
            for member in self.put {
                members.insert(member.id.clone(), member);
            }
            for Drain { id, end } in self.drain {
                let Some(member) = members.get_mut(&id) else {
                    return Err(TopologyError::UnknownMember(id));
                };
                member.state = MemberState::Draining;
                member.drain = (end != DrainEnd::default()).then_some(end);
            }
            for id in self.remove {
                if members.remove(&id).is_none() {
                    return Err(TopologyError::UnknownMember(id));
                }
            }
            draft = Draft::members(members.into_values());
        }
        for (channel, value) in self.states {
            draft = draft.state(channel, value);
        }
        Ok(match self.guard {
            Some(guard) => draft.guard(guard),
            None => draft,
        })
    }

    fn check_names(&self) -> Result<(), TopologyError> {
        let put = self.put.iter().map(|member| &member.id);
        let drain = self.drain.iter().map(|drain| &drain.id);
        let mut named = BTreeSet::new();
        for id in put.chain(drain).chain(&self.remove) {
            if !named.insert(id) {
                return Err(TopologyError::DuplicateMember(id.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Timestamp;
    use crate::topology::Member;

    fn current() -> Current {
        let member = |id: &str| Member::new(id, MemberState::Active, Timestamp::ZERO);
        Current {
            version: Some(3),
            members: vec![member("a"), member("b"), member("c")],
            ..Current::default()
        }
    }

    fn drafted(patch: Value) -> Result<Draft, &'static str> {
        let patch = Patch::from_json(patch).map_err(|error| error.code())?;
        patch.draft(&current()).map_err(|error| error.code())
    }

    #[test]
    fn it_changes_what_it_names_and_leaves_the_rest() {
        let draft = drafted(json!({
            "put": [{"id": "d", "state": "active", "meta": 1}, {"id": "a", "state": "draining"}],
            "drain": [{"id": "b", "withinMs": 5}],
            "remove": ["c"],
            "guard": 1.0,
        }));
        let expected = Draft::members([
            NewMember::draining("a"),
            NewMember::draining("b").drain(DrainEnd::within(std::time::Duration::from_millis(5))),
            NewMember::active("d").meta(1),
        ]);
        let guard = RemovalGuard::share(1.0).expect("a share");
        assert_eq!(draft, Ok(expected.guard(guard)));
    }

    #[test]
    fn one_of_values_alone_names_no_members() {
        let draft = drafted(json!({"states": {"limits": null}}));
        assert_eq!(draft, Ok(Draft::default().state("limits", Value::Null)));
        assert_eq!(drafted(json!({})), Ok(Draft::default()));
    }

    #[test]
    fn strangers_and_doubles_are_told() {
        for (patch, code) in [
            (json!({"remove": ["x"]}), "unknown_member"),
            (json!({"drain": [{"id": "x"}]}), "unknown_member"),
            (json!({"remove": ["a", "a"]}), "duplicate_member"),
            (
                json!({"remove": ["a"], "drain": [{"id": "a"}]}),
                "duplicate_member",
            ),
            (
                json!({"put": [{"id": "a", "state": "active"}], "remove": ["a"]}),
                "duplicate_member",
            ),
            (
                json!({"put": [{"id": "a", "state": "asleep"}]}),
                "invalid_draft",
            ),
            (json!({"put": {}}), "invalid_draft"),
            (
                json!({"drain": [{"id": "a", "withinMs": -1}]}),
                "invalid_draft",
            ),
            (json!({"guard": 2}), "invalid_draft"),
            (json!([]), "invalid_draft"),
        ] {
            assert_eq!(drafted(patch.clone()), Err(code), "{patch}");
        }
    }
}
