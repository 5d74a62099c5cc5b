//! The holder's sums: what is outstanding in all and by group, so that a round costs what it
//! changes and not what exists.
//!
//! The rows are the truth. The sums are built from them when the object opens and follow them by
//! deltas, each applied when its transaction can no longer be undone alone. What a delta contains
//! is decided in [`round`](super::round).

use std::collections::BTreeMap;

use super::store::GrantRow;

/// Sums over the stored grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    outstanding: u64,
    groups: BTreeMap<String, GroupSum>,
}

/// Sums over the stored grants of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupSum {
    /// Permits given and not released, those past their claim deadline included until a cleanup
    /// takes them back.
    pub outstanding: u64,
    /// Stored grants.
    pub grants: u64,
}

/// What a decision changes in the sums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Delta {
    outstanding: i64,
    groups: BTreeMap<String, GroupChange>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct GroupChange {
    outstanding: i64,
    grants: i64,
}

impl Ledger {
    /// Adds what an aggregate query found for one group.
    pub(super) fn load_group(&mut self, group: String, sum: GroupSum) {
        self.outstanding = self.outstanding.saturating_add(sum.outstanding);
        self.groups.insert(group, sum);
    }

    /// Permits given and not released, over all groups.
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Stored grants, over all groups.
    pub fn grants(&self) -> u64 {
        self.groups.values().map(|sum| sum.grants).sum()
    }

    /// The sums of one group; zero for one without grants.
    pub fn group(&self, group: &str) -> GroupSum {
        self.groups.get(group).copied().unwrap_or_default()
    }

    /// The groups with a stored grant, by name.
    pub fn groups(&self) -> impl Iterator<Item = (&str, GroupSum)> {
        self.groups
            .iter()
            .map(|(group, sum)| (group.as_str(), *sum))
    }

    /// Follows the rows.
    pub fn apply(&mut self, delta: &Delta) {
        self.outstanding = shifted(self.outstanding, delta.outstanding);
        for (group, change) in &delta.groups {
            let sum = self.groups.entry(group.clone()).or_default();
            sum.outstanding = shifted(sum.outstanding, change.outstanding);
            sum.grants = shifted(sum.grants, change.grants);
            if sum.grants == 0 {
                debug_assert_eq!(sum.outstanding, 0, "permits of {group:?} without a grant");
                self.groups.remove(group);
            }
        }
    }
}

impl Delta {
    /// A row that is stored from now on.
    pub fn add(&mut self, row: &GrantRow) {
        self.shift(row, 1);
    }

    /// A row that is stored no longer, as it was.
    pub fn remove(&mut self, row: &GrantRow) {
        self.shift(row, -1);
    }

    /// Whether the sums stay as they are.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// What will be outstanding in all.
    pub fn outstanding_after(&self, ledger: &Ledger) -> u64 {
        shifted(ledger.outstanding, self.outstanding)
    }

    /// What will be outstanding in one group.
    pub fn group_outstanding_after(&self, ledger: &Ledger, group: &str) -> u64 {
        let change = self.groups.get(group).copied().unwrap_or_default();
        shifted(ledger.group(group).outstanding, change.outstanding)
    }

    fn shift(&mut self, row: &GrantRow, sign: i64) {
        let permits = sign * i64::try_from(row.outstanding()).unwrap_or(i64::MAX);
        self.outstanding = self.outstanding.saturating_add(permits);
        // The common case, a row that changes within a known group, allocates nothing.
        if !self.groups.contains_key(&row.group) {
            self.groups
                .insert(row.group.clone(), GroupChange::default());
        }
        if let Some(change) = self.groups.get_mut(&row.group) {
            change.outstanding = change.outstanding.saturating_add(permits);
            change.grants += sign;
            if *change == GroupChange::default() {
                self.groups.remove(&row.group);
            }
        }
    }
}

/// A sum after a change. One below zero would be a fault of ours; it is never wrapped.
fn shifted(sum: u64, change: i64) -> u64 {
    debug_assert!(sum.checked_add_signed(change).is_some(), "{sum} {change:+}");
    sum.saturating_add_signed(change)
}
