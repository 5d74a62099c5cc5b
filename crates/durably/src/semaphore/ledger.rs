//! The holder's sums: what is outstanding and what is leased, in all and by group, so that a round
//! costs what it changes and not what exists.
//!
//! The rows are the truth. The sums are built from them when the object opens and follow them by
//! deltas, each applied when its transaction can no longer be undone alone. What a delta contains
//! is decided in [`book`](super::book).

use std::collections::BTreeMap;

use super::store::{GrantRow, LeaseRow};

/// Sums over the stored grants and leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    outstanding: u64,
    footprint: u64,
    groups: BTreeMap<String, GroupSum>,
}

/// Sums over the stored grants and leases of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupSum {
    /// Permits given and not released, those past their claim deadline included until a cleanup
    /// takes them back.
    pub outstanding: u64,
    /// Stored grants.
    pub grants: u64,
    /// Permits of leases that are not released, retired leases included.
    pub footprint: u64,
    /// Stored leases.
    pub leases: u64,
    /// Stored leases that are not retired.
    pub live_leases: u64,
}

/// What a decision changes in the sums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Delta {
    outstanding: i64,
    footprint: i64,
    groups: BTreeMap<String, GroupChange>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct GroupChange {
    outstanding: i64,
    grants: i64,
    footprint: i64,
    leases: i64,
    live_leases: i64,
}

impl Ledger {
    /// Adds what an aggregate query found for one group.
    pub(super) fn load_group(&mut self, group: String, sum: GroupSum) {
        self.outstanding = self.outstanding.saturating_add(sum.outstanding);
        self.footprint = self.footprint.saturating_add(sum.footprint);
        let known = self.groups.entry(group).or_default();
        known.outstanding = known.outstanding.saturating_add(sum.outstanding);
        known.grants += sum.grants;
        known.footprint = known.footprint.saturating_add(sum.footprint);
        known.leases += sum.leases;
        known.live_leases += sum.live_leases;
    }

    /// Permits granted and not released, over all groups.
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Permits leased and not released, over all groups.
    pub fn footprint(&self) -> u64 {
        self.footprint
    }

    /// Stored grants, over all groups.
    pub fn grants(&self) -> u64 {
        self.groups.values().map(|sum| sum.grants).sum()
    }

    /// Stored leases, over all groups.
    pub fn leases(&self) -> u64 {
        self.groups.values().map(|sum| sum.leases).sum()
    }

    /// The sums of one group; zero for one with nothing stored.
    pub fn group(&self, group: &str) -> GroupSum {
        self.groups.get(group).copied().unwrap_or_default()
    }

    /// The groups with a stored grant or lease, by name.
    pub fn groups(&self) -> impl Iterator<Item = (&str, GroupSum)> {
        self.groups
            .iter()
            .map(|(group, sum)| (group.as_str(), *sum))
    }

    /// The sums over all, and of the groups only those of one.
    pub(super) fn of_group(&self, group: &str) -> Ledger {
        let sum = self.groups.get_key_value(group);
        Ledger {
            outstanding: self.outstanding,
            footprint: self.footprint,
            groups: sum
                .map(|(group, sum)| (group.clone(), *sum))
                .into_iter()
                .collect(),
        }
    }

    /// Counts permits of a group as given back, though its rows say otherwise.
    pub(super) fn take_back(&mut self, group: &str, permits: u64) {
        self.outstanding = self.outstanding.saturating_sub(permits);
        if let Some(sum) = self.groups.get_mut(group) {
            sum.outstanding = sum.outstanding.saturating_sub(permits);
        }
    }

    /// Follows the rows.
    pub fn apply(&mut self, delta: &Delta) {
        self.outstanding = shifted(self.outstanding, delta.outstanding);
        self.footprint = shifted(self.footprint, delta.footprint);
        for (group, change) in &delta.groups {
            let sum = self.groups.entry(group.clone()).or_default();
            sum.outstanding = shifted(sum.outstanding, change.outstanding);
            sum.grants = shifted(sum.grants, change.grants);
            sum.footprint = shifted(sum.footprint, change.footprint);
            sum.leases = shifted(sum.leases, change.leases);
            sum.live_leases = shifted(sum.live_leases, change.live_leases);
            if sum.grants == 0 && sum.leases == 0 {
                debug_assert_eq!(*sum, GroupSum::default(), "{group:?} has sums without rows");
                self.groups.remove(group);
            }
        }
    }
}

impl Delta {
    /// A grant that is stored from now on.
    pub fn add_grant(&mut self, row: &GrantRow) {
        self.shift_grant(row, 1);
    }

    /// A grant that is stored no longer, as it was.
    pub fn remove_grant(&mut self, row: &GrantRow) {
        self.shift_grant(row, -1);
    }

    /// A lease that is stored from now on.
    pub fn add_lease(&mut self, row: &LeaseRow) {
        self.shift_lease(row, 1);
    }

    /// A lease that is stored no longer, as it was.
    pub fn remove_lease(&mut self, row: &LeaseRow) {
        self.shift_lease(row, -1);
    }

    /// Whether the sums stay as they are.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether less is outstanding or leased afterwards, in all or in some group, so that somebody
    /// else may have it.
    pub fn frees(&self) -> bool {
        self.groups
            .values()
            .any(|change| change.outstanding < 0 || change.footprint < 0)
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

    /// What will be leased in all.
    pub fn footprint_after(&self, ledger: &Ledger) -> u64 {
        shifted(ledger.footprint, self.footprint)
    }

    /// What will be leased in one group.
    pub fn group_footprint_after(&self, ledger: &Ledger, group: &str) -> u64 {
        let change = self.groups.get(group).copied().unwrap_or_default();
        shifted(ledger.group(group).footprint, change.footprint)
    }

    fn shift_grant(&mut self, row: &GrantRow, sign: i64) {
        let permits = sign * i64::try_from(row.outstanding()).unwrap_or(i64::MAX);
        self.outstanding = self.outstanding.saturating_add(permits);
        self.shift(&row.group, |change| {
            change.outstanding = change.outstanding.saturating_add(permits);
            change.grants += sign;
        });
    }

    fn shift_lease(&mut self, row: &LeaseRow, sign: i64) {
        let permits = sign * i64::try_from(row.footprint()).unwrap_or(i64::MAX);
        self.footprint = self.footprint.saturating_add(permits);
        self.shift(&row.group, |change| {
            change.footprint = change.footprint.saturating_add(permits);
            change.leases += sign;
            if !row.retired {
                change.live_leases += sign;
            }
        });
    }

    fn shift(&mut self, group: &str, change: impl FnOnce(&mut GroupChange)) {
        // The common case, a row that changes within a known group, allocates nothing.
        if !self.groups.contains_key(group) {
            self.groups.insert(group.to_owned(), GroupChange::default());
        }
        if let Some(known) = self.groups.get_mut(group) {
            change(known);
            if *known == GroupChange::default() {
                self.groups.remove(group);
            }
        }
    }
}

/// A sum after a change. One below zero would be a fault of ours; it is never wrapped.
fn shifted(sum: u64, change: i64) -> u64 {
    debug_assert!(sum.checked_add_signed(change).is_some(), "{sum} {change:+}");
    sum.saturating_add_signed(change)
}
