//! What a round, a sync and a cleanup decide: which reports count, what is taken back, who gets
//! permits and why others wait.
//!
//! Pure: plain functions over rows, sums and a time, with ordered maps, so that traces, property
//! tests and a model checker drive exactly what runs. Not decided here: when a round takes place
//! and what the limits are (`holder`), and how rows are stored
//! (`store`).
//!
//! A round sees only the rows that its reports name and those that are due for cleanup; all else
//! it knows from the [`Ledger`].

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::{GroupUsage, SemaphoreEvent, Usage};
use super::ledger::{Delta, Ledger};
use super::protocol::{
    Blocked, BlockedReason, Demand, Grant, GrantReply, GrantReport, GrantResult, GrantStatus,
    PermitRequest,
};
use super::store::{Changes, GrantRow};
use crate::time::{MAX_SAFE_INTEGER, Timestamp};

/// What a group may receive in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Permits, up to a ceiling of its own if it has one; a ceiling of zero stops it.
    Open {
        /// Its own ceiling.
        ceiling: Option<u64>,
    },
    /// Nothing, whatever is left.
    Closed(BlockedReason),
}

impl Policy {
    /// The group's own ceiling; a closed group has none.
    pub fn ceiling(self) -> Option<u64> {
        match self {
            Policy::Open { ceiling } => ceiling,
            Policy::Closed(_) => None,
        }
    }
}

/// What a round works on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoundInput {
    /// When the round started; everything in it is dated and judged by this.
    pub now: Timestamp,
    /// Permits that may be out at once.
    pub limit: u64,
    /// The policies of all groups that are demanded.
    pub policies: BTreeMap<String, Policy>,
    /// In order of arrival, each as [`accept`] leaves it.
    pub requests: Vec<PermitRequest>,
    /// The stored grants that the requests name and all that are due at `now`.
    pub rows: Vec<GrantRow>,
    /// How long the new grants may be claimed.
    pub grant_timeout: Duration,
    /// How long after `now` clients may ask again.
    pub round_period: Duration,
    /// Whether anybody wants to know the usage after the round.
    pub with_usage: bool,
}

/// What a round decided. Nothing of it holds before `changes` are committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoundOutcome {
    /// What to write.
    pub changes: Changes,
    /// How the sums follow.
    pub delta: Delta,
    /// The answers, one for each request in their order; `now` is left to whoever sends them.
    pub replies: Vec<GrantReply>,
    /// Permits taken back, in order.
    pub reclaimed: Vec<SemaphoreEvent>,
    /// Permits asked for, cut to 2^53 - 1.
    pub requested: u64,
    /// Permits handed out.
    pub granted: u64,
    /// Permits left waiting by group and reason, in order of first appearance in the replies.
    pub blocked: Vec<(Blocked, u64)>,
    /// The usage after the round, if it was wanted.
    pub usage: Option<Usage>,
}

impl RoundOutcome {
    /// The events of the round in the order in which they are told; `ended_at` dates those that
    /// speak of the round as a whole.
    pub fn events(self, ended_at: Timestamp) -> Vec<SemaphoreEvent> {
        let mut events = self.reclaimed;
        if let Some(usage) = self.usage {
            events.push(SemaphoreEvent::Round {
                timestamp: ended_at,
                requested: self.requested,
                granted: self.granted,
                usage,
            });
        }
        events.extend(
            self.blocked
                .into_iter()
                .map(|(blocked, count)| SemaphoreEvent::Blocked {
                    timestamp: ended_at,
                    group: blocked.group,
                    reason: blocked.reason,
                    count,
                }),
        );
        events
    }
}

/// Prepares a request that arrived at `now` on the holder's clock: ages that were measured on a
/// stated clock are carried over to this one, and a group that is demanded twice becomes one
/// demand at its first place.
pub fn accept(request: &mut PermitRequest, now: Timestamp) {
    if let Some(sent_at) = request.sent_at {
        for demand in &mut request.demand {
            let age = sent_at.since(demand.oldest_at).as_millis();
            let age = u64::try_from(age).unwrap_or(u64::MAX);
            demand.oldest_at = Timestamp::from_millis(now.as_millis().saturating_sub(age));
        }
    }
    let mut places = BTreeMap::new();
    let mut merged: Vec<Demand> = Vec::with_capacity(request.demand.len());
    for demand in request.demand.drain(..) {
        match places.get(&demand.group) {
            Some(&place) => {
                let first: &mut Demand = &mut merged[place];
                first.count = added(first.count, demand.count);
                first.oldest_at = first.oldest_at.min(demand.oldest_at);
            }
            None => {
                places.insert(demand.group.clone(), merged.len());
                merged.push(demand);
            }
        }
    }
    request.demand = merged;
}

/// The rows of a decision, as they were and as they become.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Book {
    before: BTreeMap<String, GrantRow>,
    after: BTreeMap<String, GrantRow>,
}

impl Book {
    /// Opens the book on stored rows; one that is given twice counts once.
    pub fn new(rows: impl IntoIterator<Item = GrantRow>) -> Book {
        let before: BTreeMap<_, _> = rows
            .into_iter()
            .map(|row| (row.grant_id.clone(), row))
            .collect();
        Book {
            after: before.clone(),
            before,
        }
    }

    /// Applies one report. Marks only rise and stay within the grant, so reports that are lost,
    /// repeated or late never free a permit twice.
    pub fn report(&mut self, client_id: &str, report: &GrantReport, now: Timestamp) -> GrantResult {
        let known = self.after.get_mut(&report.grant_id);
        let Some(row) = known.filter(|row| row.client_id == client_id) else {
            return GrantResult {
                grant_id: report.grant_id.clone(),
                claimed: 0,
                status: GrantStatus::NotFound,
            };
        };
        let late = now >= row.expires_at;
        if late {
            row.permits = row.claimed;
        }
        row.claimed = row.claimed.max(report.claimed.min(row.permits));
        row.released = row.released.max(report.released.min(row.claimed));
        let claimed = row.claimed;
        if row.released >= row.permits {
            self.after.remove(&report.grant_id);
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

    /// Takes back what was not claimed in time, by creation time, then insertion.
    pub fn clean_up(&mut self, now: Timestamp) -> Vec<SemaphoreEvent> {
        let mut due: Vec<(Timestamp, String)> = self
            .after
            .values()
            .filter(|row| row.is_due(now))
            .map(|row| (row.created_at, row.grant_id.clone()))
            .collect();
        due.sort_unstable();
        let mut events = Vec::with_capacity(due.len());
        for (_, grant_id) in due {
            let Some(row) = self.after.get_mut(&grant_id) else {
                continue;
            };
            events.push(SemaphoreEvent::GrantReclaimed {
                timestamp: now,
                grant_id: row.grant_id.clone(),
                client_id: row.client_id.clone(),
                group: row.group.clone(),
                permits: row.permits - row.claimed,
            });
            row.permits = row.claimed;
            if row.released >= row.permits {
                self.after.remove(&grant_id);
            }
        }
        events
    }

    /// Closes the book: what differs is to be written.
    pub fn close(mut self) -> (Changes, Delta) {
        let mut changes = Changes::default();
        let mut delta = Delta::default();
        for (grant_id, before) in self.before {
            match self.after.remove(&grant_id) {
                Some(after) if after == before => {}
                Some(after) => {
                    delta.remove(&before);
                    delta.add(&after);
                    if (after.permits, after.claimed) == (before.permits, before.claimed) {
                        changes.released.push(after);
                    } else {
                        changes.updated.push(after);
                    }
                }
                None => {
                    delta.remove(&before);
                    changes.removed.push(grant_id);
                }
            }
        }
        (changes, delta)
    }
}

/// Holds a round, as if at one instant. `next_id` names the new grants and must rise.
pub fn decide(
    input: RoundInput,
    ledger: &Ledger,
    next_id: &mut dyn FnMut() -> String,
) -> RoundOutcome {
    let RoundInput {
        now,
        limit,
        policies,
        requests,
        rows,
        grant_timeout,
        round_period,
        with_usage,
    } = input;

    let mut book = Book::new(rows);
    let mut replies: Vec<GrantReply> = requests
        .iter()
        .map(|request| GrantReply {
            grants: Vec::new(),
            blocked: Vec::new(),
            grant_results: request
                .grants
                .iter()
                .map(|report| book.report(&request.client_id, report, now))
                .collect(),
            next_request_at: now + round_period,
            leases: request.leases.as_ref().map(|_| Vec::new()),
            contended: false,
            now: None,
        })
        .collect();
    let reclaimed = book.clean_up(now);
    let (mut changes, mut delta) = book.close();

    let mut room = limit.saturating_sub(delta.outstanding_after(ledger));
    let mut group_rooms: BTreeMap<&str, u64> = policies
        .iter()
        .filter_map(|(group, policy)| {
            let used = delta.group_outstanding_after(ledger, group);
            Some((group.as_str(), policy.ceiling()?.saturating_sub(used)))
        })
        .collect();

    let mut requested = 0;
    let mut granted = 0;
    let mut left_waiting: Vec<Vec<u64>> = vec![Vec::new(); requests.len()];
    for (place, demand) in in_service_order(&requests) {
        requested = added(requested, demand.count);
        let group = demand.group.as_str();
        let (give, reason) = match policies.get(group) {
            // A group without a policy would be a fault of the caller; it stays closed.
            None => (0, BlockedReason::LimitResolutionError),
            Some(Policy::Closed(reason)) => (0, *reason),
            Some(Policy::Open { .. }) => {
                let group_room = group_rooms.get_mut(group);
                let give = demand
                    .count
                    .min(room)
                    .min(group_room.as_deref().copied().unwrap_or(u64::MAX));
                room -= give;
                let group_is_full = group_room.is_some_and(|group_room| {
                    *group_room -= give;
                    *group_room == 0
                });
                // The group's ceiling is named first, though the limit may be used up as well.
                let reason = if group_is_full {
                    BlockedReason::GroupLimit
                } else {
                    BlockedReason::Limit
                };
                (give, reason)
            }
        };
        let reply = &mut replies[place];
        if give > 0 {
            granted += give;
            let row = GrantRow {
                grant_id: next_id(),
                client_id: requests[place].client_id.clone(),
                group: demand.group.clone(),
                permits: give,
                claimed: 0,
                released: 0,
                created_at: now,
                expires_at: now + grant_timeout,
            };
            reply.grants.push(Grant {
                grant_id: row.grant_id.clone(),
                group: demand.group.clone(),
                permits: give,
            });
            delta.add(&row);
            changes.inserted.push(row);
        }
        if give < demand.count {
            reply.blocked.push(Blocked {
                group: demand.group.clone(),
                reason,
            });
            left_waiting[place].push(demand.count - give);
        }
    }

    RoundOutcome {
        usage: with_usage.then(|| usage_after(limit, &policies, ledger, &delta)),
        blocked: merged_blocked(&replies, &left_waiting),
        changes,
        delta,
        replies,
        reclaimed,
        requested,
        granted,
    }
}

/// Every demand with the place of its request: the oldest first, then by the client's id, then as
/// they arrived.
fn in_service_order(requests: &[PermitRequest]) -> Vec<(usize, &Demand)> {
    let mut demands: Vec<(usize, &Demand)> = requests
        .iter()
        .enumerate()
        .flat_map(|(place, request)| request.demand.iter().map(move |demand| (place, demand)))
        .collect();
    // Stable, so arrival and position decide where age and client do not.
    demands.sort_by_key(|(place, demand)| (demand.oldest_at, requests[*place].client_id.as_str()));
    demands
}

/// What stayed behind, by group and reason.
fn merged_blocked(replies: &[GrantReply], left_waiting: &[Vec<u64>]) -> Vec<(Blocked, u64)> {
    let mut places: BTreeMap<(&str, BlockedReason), usize> = BTreeMap::new();
    let mut merged: Vec<(Blocked, u64)> = Vec::new();
    for (reply, counts) in replies.iter().zip(left_waiting) {
        for (blocked, count) in reply.blocked.iter().zip(counts) {
            let place = *places
                .entry((blocked.group.as_str(), blocked.reason))
                .or_insert(merged.len());
            if place == merged.len() {
                merged.push((blocked.clone(), 0));
            }
            merged[place].1 = added(merged[place].1, *count);
        }
    }
    merged
}

fn usage_after(
    limit: u64,
    policies: &BTreeMap<String, Policy>,
    ledger: &Ledger,
    delta: &Delta,
) -> Usage {
    let mut after = ledger.clone();
    after.apply(delta);
    let groups = after.groups().map(|(group, sum)| {
        let usage = GroupUsage {
            granted: sum.outstanding,
            limit: policies.get(group).and_then(|policy| policy.ceiling()),
        };
        (group.to_owned(), usage)
    });
    Usage {
        limit,
        granted: after.outstanding(),
        leased: 0,
        available: limit.saturating_sub(after.outstanding()),
        groups: groups.collect(),
    }
}

/// A sum of counts, cut to what crosses the wire.
fn added(left: u64, right: u64) -> u64 {
    left.saturating_add(right).min(MAX_SAFE_INTEGER)
}

#[cfg(test)]
mod properties;
