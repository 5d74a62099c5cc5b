//! Leases: what there is to do with them at a moment, and which a round retires and gives. What may be
//! configured is in `lease_options`, how a report is taken in [`book`](super::book).
//!
//! A lease is a block of permits that its client draws from without asking. The holder learns only
//! from reports what was drawn, so a lease that nobody reports counts in full, however long ago it
//! expired: its client may be cut off with work still running.
//!
//! Pure, like [`round`](super::round), which runs the pass over leases as its last part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::book::Book;
use super::event::SemaphoreEvent;
use super::lease_options::{LeaseOptions, LimitedGroups, Provisioning};
use super::ledger::Ledger;
use super::protocol::{LeaseGrant, LeaseReport, PermitRequest};
use super::round::{Policy, added};
use super::store::LeaseRow;
use crate::bugs::{Bug, is_on};
use crate::time::{MAX_SAFE_INTEGER, Timestamp};

/// What a holder has to do with leases at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Leasing {
    /// None are given and none are stored; what messages say about leases is ignored.
    Off,
    /// None are given, but some are stored: they count as in strict, are reported and settled, and
    /// the next round retires them.
    WindingDown,
    /// They are given.
    On(LeaseOptions),
}

impl Leasing {
    /// As it is with these options while leases of so many permits are stored.
    pub fn new(options: Option<LeaseOptions>, footprint: u64) -> Leasing {
        match options {
            Some(options) => Leasing::On(options),
            None if footprint > 0 => Leasing::WindingDown,
            None => Leasing::Off,
        }
    }

    /// Whether there is anything to do with leases.
    pub fn is_active(&self) -> bool {
        !matches!(self, Leasing::Off)
    }

    /// How far a report moves the expiry of a lease.
    pub(super) fn ttl(&self) -> Option<Duration> {
        match self {
            Leasing::On(options) => Some(options.ttl),
            Leasing::Off | Leasing::WindingDown => None,
        }
    }

    /// What a report of a lease that the holder does not know takes from its round: the client may
    /// be running that much.
    pub(super) fn charge(&self, report: &LeaseReport) -> u64 {
        match self {
            Leasing::On(_) if is_on(Bug::UnknownLeaseIsFree) => 0,
            Leasing::On(options) => report
                .drawn
                .saturating_sub(report.released)
                .min(options.permits_per_lease),
            Leasing::Off | Leasing::WindingDown => 0,
        }
    }

    /// Whether a group with this policy may have leases.
    pub fn is_eligible(&self, policy: Option<&Policy>) -> bool {
        match (self, policy) {
            (Leasing::On(options), Some(Policy::Open { ceiling })) => {
                ceiling.is_none() || options.limited_groups == LimitedGroups::WithinGroupLimit
            }
            _ => false,
        }
    }

    /// What grants may still receive in all, with so many permits granted, leased and charged.
    pub fn room(&self, limit: u64, outstanding: u64, footprint: u64, charge: u64) -> u64 {
        let footprint = match is_on(Bug::ForgetFootprint) {
            true => 0,
            false => footprint,
        };
        let within_limit = || {
            limit
                .saturating_sub(outstanding)
                .saturating_sub(footprint)
                .saturating_sub(charge)
        };
        let provisioning = match self {
            Leasing::Off => return limit.saturating_sub(outstanding),
            Leasing::WindingDown => Provisioning::Strict,
            Leasing::On(options) => options.provisioning,
        };
        match provisioning {
            Provisioning::Strict => within_limit(),
            Provisioning::Under { reserve } => {
                let reserve = reserve.of(limit).min(limit.saturating_sub(1));
                within_limit().min(limit.saturating_sub(reserve).saturating_sub(outstanding))
            }
            Provisioning::Over { extra } if is_on(Bug::ExtraCountedTwice) => {
                (limit.saturating_add(extra.of(limit))).saturating_sub(outstanding)
            }
            Provisioning::Over { .. } => limit.saturating_sub(outstanding),
        }
    }

    /// Whether demand that the limit held back makes a round contended.
    fn contends_by_limit(&self) -> bool {
        match self {
            Leasing::Off => false,
            Leasing::WindingDown => true,
            Leasing::On(options) => options.provisioning == Provisioning::Strict,
        }
    }
}

/// The most permits that leases may stand for, with so many granted.
fn budget(provisioning: Provisioning, limit: u64, outstanding: u64) -> u64 {
    let left = limit.saturating_sub(outstanding);
    match provisioning {
        Provisioning::Strict => left,
        Provisioning::Under { reserve } => left.min(reserve.of(limit).min(limit.saturating_sub(1))),
        Provisioning::Over { extra } => extra.of(limit).min(MAX_SAFE_INTEGER),
    }
}

/// What the pass over leases works on, beside the book.
pub(super) struct Pass<'a> {
    pub(super) now: Timestamp,
    pub(super) limit: u64,
    pub(super) leasing: &'a Leasing,
    pub(super) policies: &'a BTreeMap<String, Policy>,
    pub(super) requests: &'a [Arc<PermitRequest>],
    /// The requests that are given nothing, because they are repeated or late.
    pub(super) given_nothing: &'a [bool],
    /// Permits that reports of unknown leases take from this round.
    pub(super) charge: u64,
    /// Whether the limit held demand back.
    pub(super) held_back: bool,
    pub(super) ledger: &'a Ledger,
}

/// What the pass did, in order.
#[derive(Default)]
pub(super) struct Passed {
    /// What clients are told, with the client's id.
    pub(super) told: Vec<(String, LeaseGrant)>,
    pub(super) events: Vec<SemaphoreEvent>,
    /// Somebody was left waiting whom returned leases could help.
    pub(super) contended: bool,
}

/// A client's wish for a lease of a group.
struct Candidate<'a> {
    client: &'a str,
    group: &'a str,
    oldest_at: Timestamp,
    /// The request that asks for it.
    place: usize,
}

impl Pass<'_> {
    /// Retires and gives leases. Every lease that is expired, or whose group may have none any more,
    /// must be in the book, and all that were reported.
    pub(super) fn run(self, book: &mut Book, next_id: &mut dyn FnMut() -> String) -> Passed {
        let mut passed = Passed::default();
        if !self.leasing.is_active() {
            return passed;
        }
        self.retire_ended(book, &mut passed);
        passed.contended = self.held_back && self.leasing.contends_by_limit();
        let Leasing::On(options) = self.leasing else {
            return passed;
        };
        let candidates = self.candidates(book);
        let wanted: usize = candidates.values().map(BTreeMap::len).sum();
        let chosen = chosen(candidates, options);

        let outstanding = book.delta().outstanding_after(self.ledger);
        let footprint = book.delta().footprint_after(self.ledger);
        let budget = budget(options.provisioning, self.limit, outstanding);
        let excess = added(footprint, self.charge).saturating_sub(budget);
        self.retire_newest(book, excess, None, &mut passed);
        for (group, ceiling) in self.ceilings() {
            let used = added(
                book.delta().group_outstanding_after(self.ledger, group),
                book.delta().group_footprint_after(self.ledger, group),
            );
            self.retire_newest(book, used.saturating_sub(ceiling), Some(group), &mut passed);
        }

        let mut remaining = budget.saturating_sub(footprint).saturating_sub(self.charge);
        let share = options
            .permits_per_lease
            .min((remaining / (chosen.len() as u64).max(1)).max(1));
        let mut given = 0;
        for candidate in chosen {
            let ceiling = self.policies.get(candidate.group).and_then(|p| p.ceiling());
            let room = ceiling.map_or(u64::MAX, |ceiling| {
                ceiling
                    .saturating_sub(
                        book.delta()
                            .group_outstanding_after(self.ledger, candidate.group),
                    )
                    .saturating_sub(
                        book.delta()
                            .group_footprint_after(self.ledger, candidate.group),
                    )
            });
            let permits = share.min(room).min(remaining);
            if permits == 0 {
                continue;
            }
            remaining -= permits;
            given += 1;
            let row = LeaseRow {
                lease_id: next_id(),
                client_id: candidate.client.to_owned(),
                group: candidate.group.to_owned(),
                permits,
                released: 0,
                created_at: self.now,
                expires_at: self.now + options.ttl,
                retired: false,
                request_id: self.requests[candidate.place].request_id.clone(),
            };
            passed.events.push(SemaphoreEvent::LeaseGranted {
                timestamp: self.now,
                lease_id: row.lease_id.clone(),
                client_id: row.client_id.clone(),
                group: row.group.clone(),
                permits,
            });
            passed.tell(&row, self.now);
            book.give_lease(row);
        }
        passed.contended |= given < wanted;
        passed
    }

    /// Retires what is expired, or belongs to a group that may have no leases any more.
    fn retire_ended(&self, book: &mut Book, passed: &mut Passed) {
        let mut ended: Vec<(Timestamp, String)> = book
            .leases()
            .filter(|row| !row.retired)
            .filter(|row| {
                row.is_expired(self.now) || !self.leasing.is_eligible(self.policies.get(&row.group))
            })
            .map(|row| (row.created_at, row.lease_id.clone()))
            .collect();
        ended.sort_unstable();
        for (_, lease_id) in ended {
            self.retire(book, &lease_id, passed);
        }
    }

    /// Retires leases, the latest created first, until permits that are reported undrawn make up for
    /// `excess`. They are not free before their client confirms how much it drew.
    fn retire_newest(
        &self,
        book: &mut Book,
        mut excess: u64,
        group: Option<&str>,
        passed: &mut Passed,
    ) {
        if excess == 0 {
            return;
        }
        let mut live: Vec<(std::cmp::Reverse<Timestamp>, String, u64)> = book
            .leases()
            .filter(|row| !row.retired && group.is_none_or(|group| group == row.group))
            .map(|row| (row, book.undrawn(row)))
            .filter(|(_, undrawn)| *undrawn > 0)
            .map(|(row, undrawn)| {
                let created = std::cmp::Reverse(row.created_at);
                (created, row.lease_id.clone(), undrawn)
            })
            .collect();
        live.sort_unstable();
        for (_, lease_id, undrawn) in live {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(undrawn);
            self.retire(book, &lease_id, passed);
        }
    }

    fn retire(&self, book: &mut Book, lease_id: &str, passed: &mut Passed) {
        let Some(row) = book.retire_lease(lease_id) else {
            return;
        };
        passed.events.push(SemaphoreEvent::LeaseRetired {
            timestamp: self.now,
            lease_id: row.lease_id.clone(),
            client_id: row.client_id.clone(),
            group: row.group.clone(),
            permits: book.undrawn(&row),
        });
        passed.tell(&row, self.now);
    }

    /// Who wants a lease, by group and client, beside those that still have permits to draw.
    fn candidates(&self, book: &Book) -> BTreeMap<&str, BTreeMap<&str, Candidate<'_>>> {
        let supplied: BTreeSet<(&str, &str)> = book
            .leases()
            .filter(|row| !row.retired && book.undrawn(row) > 0)
            .map(|row| (row.client_id.as_str(), row.group.as_str()))
            .collect();
        let mut candidates: BTreeMap<&str, BTreeMap<&str, Candidate<'_>>> = BTreeMap::new();
        for (place, request) in self.requests.iter().enumerate() {
            if request.leases.is_none() || self.given_nothing[place] {
                continue;
            }
            let client = request.client_id.as_str();
            for demand in &request.demand {
                let group = demand.group.as_str();
                if !self.leasing.is_eligible(self.policies.get(group))
                    || supplied.contains(&(client, group))
                {
                    continue;
                }
                let candidate = Candidate {
                    client,
                    group,
                    oldest_at: demand.oldest_at,
                    place,
                };
                let of_group = candidates.entry(group).or_default();
                match of_group.get_mut(client) {
                    Some(known) if known.oldest_at <= candidate.oldest_at => {}
                    Some(known) => *known = candidate,
                    None => {
                        of_group.insert(client, candidate);
                    }
                }
            }
        }
        candidates
    }

    fn ceilings(&self) -> impl Iterator<Item = (&str, u64)> {
        self.policies
            .iter()
            .filter_map(|(group, policy)| Some((group.as_str(), policy.ceiling()?)))
    }
}

/// The candidates whose turn it is, in order: the group with the oldest demand first, within it the
/// oldest client.
fn chosen<'a>(
    candidates: BTreeMap<&'a str, BTreeMap<&'a str, Candidate<'a>>>,
    options: &LeaseOptions,
) -> Vec<Candidate<'a>> {
    let mut groups: Vec<(Timestamp, &str, Vec<Candidate<'_>>)> = candidates
        .into_iter()
        .map(|(group, clients)| {
            let mut clients: Vec<Candidate<'_>> = clients.into_values().collect();
            clients.sort_by_key(|candidate| (candidate.oldest_at, candidate.client));
            (clients[0].oldest_at, group, clients)
        })
        .collect();
    groups.sort_by_key(|(oldest_at, group, _)| (*oldest_at, *group));
    let most_groups = usize::try_from(options.max_groups).unwrap_or(usize::MAX);
    let most_clients = usize::try_from(options.max_clients_per_group).unwrap_or(usize::MAX);
    groups
        .into_iter()
        .take(most_groups)
        .flat_map(|(_, _, clients)| clients.into_iter().take(most_clients))
        .collect()
}

impl Passed {
    fn tell(&mut self, row: &LeaseRow, now: Timestamp) {
        self.told.push((row.client_id.clone(), row.told(now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::semaphore::Amount;

    #[test]
    fn a_reserve_never_takes_the_last_permit() {
        let under = |reserve| {
            Leasing::On(LeaseOptions {
                provisioning: Provisioning::Under {
                    reserve: Amount::Permits(reserve),
                },
                ..LeaseOptions::default()
            })
        };
        assert_eq!(under(20).room(100, 0, 0, 0), 80);
        assert_eq!(under(200).room(100, 0, 0, 0), 1);
        assert_eq!(under(200).room(100, 1, 0, 0), 0);
        assert_eq!(under(200).room(0, 0, 0, 0), 0);
        assert_eq!(under(20).room(100, 0, 90, 5), 5);
    }
}
