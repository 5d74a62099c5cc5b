//! What a report or a cleanup changes in the rows that a decision works on, and how the sums follow.
//!
//! Pure: whoever decides loads the rows that matter, changes them here, and writes what differs at
//! the end. Reports carry marks that only rise and stay within what was given, so reports that are
//! lost, repeated or late never free a permit twice. Not decided here: what a round gives and takes
//! ([`round`](super::round), [`leases`](super::leases)).

use std::collections::BTreeMap;

use super::event::SemaphoreEvent;
use super::leases::Leasing;
use super::ledger::Delta;
use super::operators::ForceReleased;
use super::protocol::{GrantReport, GrantResult, GrantStatus, LeaseGrant, LeaseReport};
use super::store::{Changes, GrantRow, LeaseRow};
use crate::bugs::{Bug, is_on};
use crate::time::Timestamp;

/// The rows of a decision, as they were and as they become.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Book {
    grants_before: BTreeMap<String, GrantRow>,
    grants: BTreeMap<String, GrantRow>,
    leases_before: BTreeMap<String, LeaseRow>,
    leases: BTreeMap<String, LeaseRow>,
    /// What was last reported as drawn, by lease.
    drawn: BTreeMap<String, u64>,
    delta: Delta,
}

/// How a report of a lease was taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseEcho {
    /// What the client is told.
    pub lease: LeaseGrant,
    /// What the report takes from its round: its client may be running so much of a lease that the
    /// holder does not know.
    pub charge: u64,
}

impl Book {
    /// Opens the book on stored rows; one that is given twice counts once.
    pub fn new(
        grants: impl IntoIterator<Item = GrantRow>,
        leases: impl IntoIterator<Item = LeaseRow>,
    ) -> Book {
        let grants: BTreeMap<_, _> = grants
            .into_iter()
            .map(|row| (row.grant_id.clone(), row))
            .collect();
        let leases: BTreeMap<_, _> = leases
            .into_iter()
            .map(|row| (row.lease_id.clone(), row))
            .collect();
        Book {
            grants: grants.clone(),
            grants_before: grants,
            leases: leases.clone(),
            leases_before: leases,
            ..Book::default()
        }
    }

    /// How the sums follow.
    pub fn delta(&self) -> &Delta {
        &self.delta
    }

    /// The grants as they are now.
    pub fn grants(&self) -> impl Iterator<Item = &GrantRow> {
        self.grants.values()
    }

    /// The leases as they are now.
    pub fn leases(&self) -> impl Iterator<Item = &LeaseRow> {
        self.leases.values()
    }

    /// Permits of a lease that its client says it has not drawn; of one that was not reported, none.
    pub fn undrawn(&self, row: &LeaseRow) -> u64 {
        let drawn = self.drawn.get(&row.lease_id);
        drawn.map_or(0, |drawn| row.permits.saturating_sub(*drawn))
    }

    /// Applies a report of a grant.
    pub fn report(&mut self, client_id: &str, report: &GrantReport, now: Timestamp) -> GrantResult {
        let known = self.grants.get_mut(&report.grant_id);
        let is_own = |row: &&mut GrantRow| row.client_id == client_id || is_on(Bug::ForeignReport);
        let Some(row) = known.filter(is_own) else {
            return GrantResult {
                grant_id: report.grant_id.clone(),
                claimed: 0,
                status: GrantStatus::NotFound,
            };
        };
        self.delta.remove_grant(row);
        let late = now >= row.expires_at && !is_on(Bug::ClaimAfterDeadline);
        if late {
            row.permits = row.claimed;
        }
        row.claimed = row.claimed.max(report.claimed.min(row.permits));
        row.released = row.released.max(report.released.min(row.claimed));
        if is_on(Bug::TrustReportedClaim) {
            row.claimed = row.claimed.max(report.claimed);
        }
        if is_on(Bug::TrustReportedRelease) {
            row.released = row.released.max(report.released);
        }
        if is_on(Bug::MarkFalls) {
            row.released = report.released.min(row.claimed);
        }
        let claimed = row.claimed;
        if row.released >= row.permits {
            self.grants.remove(&report.grant_id);
        } else {
            self.delta.add_grant(row);
        }
        GrantResult {
            grant_id: report.grant_id.clone(),
            claimed,
            status: if late && report.claimed > claimed {
                GrantStatus::Expired
            } else {
                GrantStatus::Ok
            },
        }
    }

    /// Applies a report of a lease.
    pub fn report_lease(
        &mut self,
        client_id: &str,
        report: &LeaseReport,
        leasing: &Leasing,
        now: Timestamp,
    ) -> LeaseEcho {
        let known = self.leases.get_mut(&report.lease_id);
        let Some(row) = known.filter(|row| row.client_id == client_id) else {
            return LeaseEcho {
                lease: LeaseGrant {
                    lease_id: report.lease_id.clone(),
                    group: String::new(),
                    permits: 0,
                    expires_at: now,
                },
                charge: leasing.charge(report),
            };
        };
        self.delta.remove_lease(row);
        let drawn = report.drawn.min(row.permits);
        row.released = row.released.max(report.released.min(drawn));
        if report.retired {
            row.permits = row.released.max(drawn);
            row.retired = true;
        } else if row.is_expired(now) && !is_on(Bug::RenewExpiredLease) {
            row.retired = true;
        } else if is_on(Bug::ReviveRetiredLease) {
            row.retired = false;
        }
        if !row.retired
            && let Some(ttl) = leasing.ttl()
        {
            row.expires_at = now + ttl;
        }
        let lease = if row.released >= row.permits {
            LeaseGrant {
                expires_at: now,
                ..row.told(now)
            }
        } else {
            row.told(now)
        };
        if row.released >= row.permits {
            self.leases.remove(&report.lease_id);
        } else {
            self.delta.add_lease(row);
            self.drawn.insert(report.lease_id.clone(), report.drawn);
        }
        LeaseEcho { lease, charge: 0 }
    }

    /// Takes back what was not claimed in time, by creation time, then insertion.
    pub fn clean_up(&mut self, now: Timestamp) -> Vec<SemaphoreEvent> {
        let mut due: Vec<(Timestamp, String)> = self
            .grants
            .values()
            .filter(|row| row.is_due(now))
            .map(|row| (row.created_at, row.grant_id.clone()))
            .collect();
        due.sort_unstable();
        let mut events = Vec::with_capacity(due.len());
        for (_, grant_id) in due {
            let Some(row) = self.grants.get_mut(&grant_id) else {
                continue;
            };
            events.push(SemaphoreEvent::GrantReclaimed {
                timestamp: now,
                grant_id: row.grant_id.clone(),
                client_id: row.client_id.clone(),
                group: row.group.clone(),
                permits: row.permits - row.claimed,
            });
            self.delta.remove_grant(row);
            row.permits = row.claimed;
            if row.released >= row.permits {
                self.grants.remove(&grant_id);
            } else {
                self.delta.add_grant(row);
            }
        }
        events
    }

    /// Takes everything away, or what belongs to one group.
    pub(crate) fn take_away(&mut self, group: Option<&str>) -> ForceReleased {
        let mut released = ForceReleased::default();
        let goes = |of: &str| group.is_none_or(|group| group == of);
        self.grants.retain(|_, row| {
            if goes(&row.group) {
                self.delta.remove_grant(row);
                released.granted += row.outstanding();
            }
            !goes(&row.group)
        });
        self.leases.retain(|_, row| {
            if goes(&row.group) {
                self.delta.remove_lease(row);
                released.leased += row.footprint();
            }
            !goes(&row.group)
        });
        released
    }

    /// Adds a new grant.
    pub(super) fn give_grant(&mut self, row: GrantRow) {
        self.delta.add_grant(&row);
        self.grants.insert(row.grant_id.clone(), row);
    }

    /// Adds a new lease, of which all is drawn as far as is known.
    pub(super) fn give_lease(&mut self, row: LeaseRow) {
        self.delta.add_lease(&row);
        self.leases.insert(row.lease_id.clone(), row);
    }

    /// Has no more drawn from a lease; its footprint stays. Gives it as it is then.
    pub(super) fn retire_lease(&mut self, lease_id: &str) -> Option<LeaseRow> {
        let drawn = self.drawn.get(lease_id).copied();
        let row = self.leases.get_mut(lease_id)?;
        self.delta.remove_lease(row);
        row.retired = true;
        if is_on(Bug::RetireFreesUndrawn) {
            row.permits = row.permits.min(drawn.unwrap_or(row.permits));
        }
        self.delta.add_lease(row);
        Some(row.clone())
    }

    /// Closes the book: what differs is to be written.
    pub fn close(mut self) -> (Changes, Delta) {
        let mut changes = Changes::default();
        for (grant_id, before) in self.grants_before {
            match self.grants.remove(&grant_id) {
                Some(after) if after == before => {}
                Some(after) => {
                    if (after.permits, after.claimed) == (before.permits, before.claimed) {
                        changes.grants_released.push(after);
                    } else {
                        changes.grants_updated.push(after);
                    }
                }
                None => changes.grants_removed.push(grant_id),
            }
        }
        // What was not there before; ids are ordered, and so are these.
        changes.grants_inserted = self.grants.into_values().collect();
        for (lease_id, before) in self.leases_before {
            match self.leases.remove(&lease_id) {
                Some(after) if after == before => {}
                Some(after) if after.retired != before.retired => {
                    changes.leases_retired.push(after)
                }
                Some(after) if after.expires_at != before.expires_at => {
                    changes.leases_heard.push(after);
                }
                Some(after) => changes.leases_shrunk.push(after),
                None => changes.leases_removed.push(lease_id),
            }
        }
        changes.leases_inserted = self.leases.into_values().collect();
        (changes, self.delta)
    }
}
