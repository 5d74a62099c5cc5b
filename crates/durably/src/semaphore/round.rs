//! What a round decides: who gets permits and why others wait.
//!
//! Pure: plain functions over rows, sums and a time, with ordered maps, so that traces, property
//! tests and a model checker drive exactly what runs. Reports are taken by the [`Book`], leases
//! given and retired by [`leases`](super::leases), requests that come too late told by `numbers`. Not decided here: when a round takes place and
//! what the limits are (`holder`), and how rows are stored (`store`).
//!
//! A round sees only the rows that it may change: those that its reports name, grants that are due
//! for cleanup, leases that have expired or whose group may have none any more, and what repeated
//! requests were given before. All else it knows from the [`Ledger`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::book::Book;
use super::event::{GroupUsage, SemaphoreEvent, Usage};
use super::leases::{Leasing, Pass, Passed};
use super::ledger::{Delta, Ledger};
use super::numbers::{overtaken, to_store};
use super::protocol::{
    Blocked, BlockedReason, Demand, Grant, GrantReply, LeaseGrant, LeaseReport, MAX_LIST_LENGTH,
    PermitRequest,
};
use super::store::{Changes, GrantRow, LeaseRow};
use crate::bugs::{Bug, is_on};
use crate::time::{MAX_SAFE_INTEGER, Timestamp};

/// Of how many leases that a request does not report it is told that they are over. The others' turn
/// comes with the next one, so that the list stays short enough to be read.
const MAX_STOPPED: usize = MAX_LIST_LENGTH / 4;

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
    /// The policies of all groups that are demanded and, while leases are given, of all that have a
    /// lease.
    pub policies: BTreeMap<String, Policy>,
    /// What there is to do with leases.
    pub leasing: Leasing,
    /// In order of arrival, each as [`accept`] leaves it.
    pub requests: Vec<Arc<PermitRequest>>,
    /// How many of the requests, the first ones, were in a round before: their reports are taken
    /// and their waiting is told already.
    pub parked: usize,
    /// The stored grants that the requests name or were given before, and all that are due at
    /// `now`.
    pub grants: Vec<GrantRow>,
    /// The stored leases that the requests name, all of clients whose requests name themselves, and
    /// those that are not retired but expired at `now` or of a group that may have none.
    pub leases: Vec<LeaseRow>,
    /// The highest request number that was seen before of each client whose requests have one.
    pub numbers: BTreeMap<String, u64>,
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
    /// By request, whether its client has to hear the answer: it was given or lost something, or
    /// waits for what became of a report.
    pub matters: Vec<bool>,
    /// The highest request number seen of each client whose requests have one.
    pub numbers: BTreeMap<String, u64>,
    /// Whether clients should give back what they do not need.
    pub contended: bool,
    /// Grants taken back and leases retired and given, in order.
    pub events: Vec<SemaphoreEvent>,
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
        let mut events = self.events;
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

/// Holds a round, as if at one instant. `next_id` names the new grants and leases and must rise.
pub fn decide(
    input: RoundInput,
    ledger: &Ledger,
    next_id: &mut dyn FnMut() -> String,
) -> RoundOutcome {
    let RoundInput {
        now,
        limit,
        policies,
        leasing,
        requests,
        parked,
        grants,
        leases,
        mut numbers,
        grant_timeout,
        round_period,
        with_usage,
    } = input;

    let late = overtaken(&requests, parked, &mut numbers);
    let mut book = Book::new(grants, leases);
    let mut charge = 0;
    let mut matters: Vec<bool> = Vec::with_capacity(requests.len());
    let mut replies: Vec<GrantReply> = Vec::with_capacity(requests.len());
    for (place, request) in requests.iter().enumerate() {
        let client = request.client_id.as_str();
        let is_parked = place < parked;
        let reports = request.grants.iter().filter(|_| !is_parked);
        let grant_results: Vec<_> = reports
            .map(|report| book.report(client, report, now))
            .collect();
        let mut echoes = Echoes::default();
        let mut is_news = !grant_results.is_empty();
        if leasing.is_active() && !is_parked {
            for report in request.leases.iter().flatten() {
                let echo = book.report_lease(client, report, &leasing, now);
                charge = added(charge, echo.charge);
                is_news |= ends(report, &echo.lease, now);
                echoes.put(echo.lease);
            }
        }
        matters.push(is_news);
        replies.push(GrantReply {
            grants: Vec::new(),
            blocked: Vec::new(),
            grant_results,
            next_request_at: now + round_period,
            leases: request.leases.as_ref().map(|_| echoes.list),
            contended: false,
            request_number: request
                .request_number
                .and_then(|_| numbers.get(client).copied()),
            now: None,
        });
    }
    let mut events = book.clean_up(now);
    let repeated = carry(&requests, &book, &mut replies);
    let given_nothing: Vec<bool> = repeated
        .iter()
        .zip(late)
        .map(|(repeated, late)| *repeated || late)
        .collect();

    let served = serve(
        &Serving {
            now,
            grant_timeout,
            requests: &requests,
            parked,
            policies: &policies,
            given_nothing: &given_nothing,
            ledger,
            room: leasing.room(
                limit,
                book.delta().outstanding_after(ledger),
                book.delta().footprint_after(ledger),
                charge,
            ),
        },
        &mut book,
        &mut replies,
        next_id,
    );
    let held_back = replies
        .iter()
        .flat_map(|reply| &reply.blocked)
        .any(|blocked| blocked.reason == BlockedReason::Limit);
    let passed = Pass {
        now,
        limit,
        leasing: &leasing,
        policies: &policies,
        requests: &requests,
        given_nothing: &given_nothing,
        charge,
        held_back,
        ledger,
    }
    .run(&mut book, next_id);
    let told = Told::new(&passed, &book);
    for (place, (request, reply)) in requests.iter().zip(&mut replies).enumerate() {
        let heard = told.tell(request, reply, now);
        matters[place] |= heard || given_nothing[place] || !reply.grants.is_empty();
        reply.contended = passed.contended && request.leases.is_some();
    }
    let contended = passed.contended;
    events.extend(passed.events);
    let (mut changes, delta) = book.close();
    if leasing.is_active() {
        changes.numbers = to_store(&requests, &repeated, &numbers, &changes);
    }

    RoundOutcome {
        usage: with_usage.then(|| {
            let mut after = ledger.clone();
            after.apply(&delta);
            usage(limit, &leasing, charge, &policies, &after)
        }),
        blocked: merged_blocked(&replies[parked..], &served.left_waiting[parked..]),
        changes,
        delta,
        replies,
        matters,
        numbers,
        contended,
        events,
        requested: served.requested,
        granted: served.granted,
    }
}

/// Whether a client learns from the echo of its report that a lease has ended: that it must not be
/// drawn from, is unknown or is settled. Of one that it has given back, only the latter.
fn ends(report: &LeaseReport, echo: &LeaseGrant, now: Timestamp) -> bool {
    echo.expires_at <= now && (!report.retired || echo.permits <= report.released)
}

/// What a parked request is told in the end: what its first round answered, and what has come since.
pub(crate) fn merged(before: GrantReply, after: GrantReply) -> GrantReply {
    let leases = before.leases.map(|list| {
        let mut echoes = Echoes::of(list);
        for lease in after.leases.into_iter().flatten() {
            echoes.put(lease);
        }
        echoes.list
    });
    GrantReply {
        grant_results: before.grant_results,
        leases,
        ..after
    }
}

/// The lease entries of a reply: one for each lease, a later one in the place of an earlier.
#[derive(Default)]
struct Echoes {
    list: Vec<LeaseGrant>,
    places: BTreeMap<String, usize>,
}

impl Echoes {
    fn of(list: Vec<LeaseGrant>) -> Echoes {
        let places = list.iter().enumerate();
        Echoes {
            places: places
                .map(|(place, lease)| (lease.lease_id.clone(), place))
                .collect(),
            list,
        }
    }

    fn put(&mut self, lease: LeaseGrant) {
        match self.places.get(&lease.lease_id) {
            Some(&place) => self.list[place] = lease,
            None => {
                self.places.insert(lease.lease_id.clone(), self.list.len());
                self.list.push(lease);
            }
        }
    }
}

/// Puts what repeated requests were given before into their replies, and says which those are: a
/// request is repeated as long as something lives that was made for it.
fn carry(requests: &[Arc<PermitRequest>], book: &Book, replies: &mut [GrantReply]) -> Vec<bool> {
    let mut repeated = vec![false; requests.len()];
    if requests.iter().all(|request| request.request_id.is_none()) {
        return repeated;
    }
    let mut grants: BTreeMap<(&str, &str), Vec<Grant>> = BTreeMap::new();
    for row in book.grants() {
        if let Some(request_id) = &row.request_id {
            let made = grants.entry((&row.client_id, request_id)).or_default();
            made.push(Grant {
                grant_id: row.grant_id.clone(),
                group: row.group.clone(),
                permits: row.permits,
            });
        }
    }
    let leased: BTreeSet<(&str, &str)> = book
        .leases()
        .filter_map(|row| Some((row.client_id.as_str(), row.request_id.as_deref()?)))
        .collect();
    for (place, request) in requests.iter().enumerate() {
        let Some(request_id) = &request.request_id else {
            continue;
        };
        let name = (request.client_id.as_str(), request_id.as_str());
        replies[place].grants = grants.get(&name).cloned().unwrap_or_default();
        repeated[place] = !replies[place].grants.is_empty() || leased.contains(&name);
        repeated[place] &= !is_on(Bug::RepeatGivesAgain);
    }
    repeated
}

/// What there is to tell about leases, by client.
struct Told<'a> {
    passed: BTreeMap<&'a str, Vec<&'a LeaseGrant>>,
    stored: BTreeMap<&'a str, Vec<&'a LeaseRow>>,
}

impl<'a> Told<'a> {
    fn new(passed: &'a Passed, book: &'a Book) -> Told<'a> {
        let mut told = Told {
            passed: BTreeMap::new(),
            stored: BTreeMap::new(),
        };
        for (client, lease) in &passed.told {
            told.passed.entry(client).or_default().push(lease);
        }
        for row in book.leases() {
            told.stored.entry(&row.client_id).or_default().push(row);
        }
        told
    }

    /// Tells a client what the pass over leases did for it and, if its request names itself, every
    /// lease that the request does not report: as it is if it was made for this request, as stopped
    /// otherwise, so that a lease whose reply was lost is given back. `true` if anything was told.
    fn tell(&self, request: &PermitRequest, reply: &mut GrantReply, now: Timestamp) -> bool {
        let Some(list) = reply.leases.take() else {
            return false;
        };
        let client = request.client_id.as_str();
        let mut echoes = Echoes::of(list);
        let passed = self.passed.get(client).into_iter().flatten();
        let mut told = false;
        let mut stopped = 0;
        for lease in passed {
            let is_reported = echoes.places.contains_key(&lease.lease_id);
            if request.request_id.is_some() && !is_reported && lease.expires_at <= now {
                if stopped == MAX_STOPPED {
                    continue;
                }
                stopped += 1;
            }
            echoes.put((*lease).clone());
            told = true;
        }
        if let Some(request_id) = &request.request_id {
            // A parked request has been answered about these before.
            let reports = request.leases.iter().flatten();
            let reported: BTreeSet<&str> = reports.map(|report| &*report.lease_id).collect();
            let stored = self.stored.get(client).into_iter().flatten();
            for row in stored {
                if echoes.places.contains_key(&row.lease_id)
                    || reported.contains(row.lease_id.as_str())
                {
                    continue;
                }
                let mut lease = row.told(now);
                if row.request_id.as_ref() != Some(request_id) {
                    lease.expires_at = now;
                }
                if lease.expires_at <= now {
                    if stopped == MAX_STOPPED {
                        continue;
                    }
                    stopped += 1;
                }
                echoes.put(lease);
                told = true;
            }
        }
        reply.leases = Some(echoes.list);
        told
    }
}

/// What demand is served from.
struct Serving<'a> {
    now: Timestamp,
    grant_timeout: Duration,
    requests: &'a [Arc<PermitRequest>],
    parked: usize,
    policies: &'a BTreeMap<String, Policy>,
    /// The requests that are repeated or late.
    given_nothing: &'a [bool],
    ledger: &'a Ledger,
    /// What may be given in all.
    room: u64,
}

struct Served {
    requested: u64,
    granted: u64,
    /// By request, for each entry of `blocked` in its reply, how much was left.
    left_waiting: Vec<Vec<u64>>,
}

/// Serves the oldest demand first.
fn serve(
    serving: &Serving<'_>,
    book: &mut Book,
    replies: &mut [GrantReply],
    next_id: &mut dyn FnMut() -> String,
) -> Served {
    let requests = serving.requests;
    let mut room = serving.room + u64::from(is_on(Bug::LimitOffByOne));
    let mut group_rooms: BTreeMap<&str, u64> = serving
        .policies
        .iter()
        .filter_map(|(group, policy)| {
            let outstanding = book.delta().group_outstanding_after(serving.ledger, group);
            let footprint = book.delta().group_footprint_after(serving.ledger, group);
            let left = policy.ceiling()?.saturating_sub(outstanding);
            if is_on(Bug::ForgetGroupFootprint) {
                return Some((group.as_str(), left));
            }
            Some((group.as_str(), left.saturating_sub(footprint)))
        })
        .collect();

    let mut served = Served {
        requested: 0,
        granted: 0,
        left_waiting: vec![Vec::new(); requests.len()],
    };
    for (place, demand) in in_service_order(requests) {
        if serving.given_nothing[place] {
            continue;
        }
        if place >= serving.parked {
            served.requested = added(served.requested, demand.count);
        }
        let group = demand.group.as_str();
        let (give, reason) = match serving.policies.get(group) {
            // A group without a policy would be a fault of the caller; it stays closed.
            None => (0, BlockedReason::LimitResolutionError),
            Some(Policy::Closed(reason)) if !is_on(Bug::GiveToClosedGroup) => (0, *reason),
            Some(_) => {
                let group_room = group_rooms.get_mut(group);
                let give = demand
                    .count
                    .min(room)
                    .min(group_room.as_deref().copied().unwrap_or(u64::MAX));
                room -= give;
                let group_is_full = group_room.is_some_and(|group_room| {
                    if !is_on(Bug::GroupCeilingPerDemand) {
                        *group_room -= give;
                    }
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
            served.granted += give;
            let row = GrantRow {
                grant_id: next_id(),
                client_id: requests[place].client_id.clone(),
                group: demand.group.clone(),
                permits: give,
                claimed: 0,
                released: 0,
                created_at: serving.now,
                expires_at: serving.now + serving.grant_timeout,
                request_id: requests[place].request_id.clone(),
            };
            reply.grants.push(Grant {
                grant_id: row.grant_id.clone(),
                group: demand.group.clone(),
                permits: give,
            });
            book.give_grant(row);
        }
        if give < demand.count {
            reply.blocked.push(Blocked {
                group: demand.group.clone(),
                reason,
            });
            served.left_waiting[place].push(demand.count - give);
        }
    }
    served
}

/// Every demand with the place of its request: the oldest first, then by the client's id, then as
/// they arrived.
fn in_service_order(requests: &[Arc<PermitRequest>]) -> Vec<(usize, &Demand)> {
    let mut demands: Vec<(usize, &Demand)> = requests
        .iter()
        .enumerate()
        .flat_map(|(place, request)| request.demand.iter().map(move |demand| (place, demand)))
        .collect();
    // Stable, so arrival and position decide where age and client do not.
    demands.sort_by_key(|(place, demand)| (demand.oldest_at, requests[*place].client_id.as_str()));
    if is_on(Bug::NewestFirst) {
        demands.reverse();
    }
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

/// The usage with these sums; `charge` is what the round has taken for leases that nobody knows.
pub(super) fn usage(
    limit: u64,
    leasing: &Leasing,
    charge: u64,
    policies: &BTreeMap<String, Policy>,
    sums: &Ledger,
) -> Usage {
    let groups = sums.groups().filter(|(_, sum)| sum.grants > 0);
    let groups = groups.map(|(group, sum)| {
        let usage = GroupUsage {
            granted: sum.outstanding,
            limit: policies.get(group).and_then(|policy| policy.ceiling()),
        };
        (group.to_owned(), usage)
    });
    Usage {
        limit,
        granted: sums.outstanding(),
        leased: sums.footprint(),
        available: leasing.room(limit, sums.outstanding(), sums.footprint(), charge),
        groups: groups.collect(),
    }
}

/// A sum that stays a count.
pub(super) fn added(left: u64, right: u64) -> u64 {
    left.saturating_add(right).min(MAX_SAFE_INTEGER)
}

#[cfg(test)]
mod properties;
