//! What a queue keeps in memory: how many items wait in each group, which items hold permits, what
//! each holder has yet to be told, and when something is to be done next. Rows are the truth; this
//! follows them when a transaction's changes can no longer be undone, and is read from them when the
//! object opens. Pure: no I/O, no clock.
//!
//! Memory follows what waits and runs: a key with neither is forgotten as soon as its holder may be
//! asked again.

mod asking;
mod changes;
mod jobs;
mod leases;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use super::claim::{Claim, Standing};
use super::item::{KeyUsage, WaitReason, Waiting};
use super::lease::Lease;
use crate::semaphore::protocol::{GrantReport, LeaseReport};
use crate::time::Timestamp;

pub(super) use asking::Ask;
pub(super) use leases::Source;

/// The name of a key, group, grant or item.
pub(super) type Name = Rc<str>;

/// Something that is done by itself, at most once at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Job {
    /// Report to a key's holder.
    Tell(Name),
    /// Ask a key's holder.
    Ask(Name),
    /// Hand items of a key's grant to the application.
    Admit(Name, Name),
    /// Ask the application which admitted items have ended.
    Check,
    /// Look after a key's leases.
    Tend(Name),
    /// Draw from leases for items that wait.
    Draw,
    /// Forget items that finished long ago.
    Forget,
}

/// What a message reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reports {
    pub(super) grants: Vec<GrantReport>,
    pub(super) leases: Vec<LeaseReport>,
}

/// A job that is to be done now, with what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Tell(Name, Reports),
    Ask(Ask),
    Admit(Name, Name),
    Check(Vec<Name>),
    /// The time of these leases of a key is over.
    End(Name, Vec<Name>),
    Draw,
    /// The ids of these keys' requests are not needed any more.
    Close(Vec<Name>),
    Forget,
}

/// The state of a job: whether it is being done, and when it may be next.
#[derive(Debug, Default)]
struct Lane {
    busy: bool,
    failures: u32,
    /// Not before this time.
    not_before: Option<Timestamp>,
    /// Under which time it stands among the wakes.
    armed: Option<Timestamp>,
}

#[derive(Debug)]
struct Group {
    count: u64,
    first_seq: u64,
    oldest_at: Timestamp,
    waiting: Option<Waiting>,
    refused_at: Option<Timestamp>,
    /// Under which place it stands among those that have a lease to draw from.
    matched: Option<u64>,
}

/// Permits that serve items: a grant, or what was drawn at once from a lease.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) group: Name,
    /// For a draw, its lease.
    pub(super) lease: Option<Name>,
    /// Whether it was drawn for its items as they were queued.
    pub(super) at_once: bool,
    /// Every item that the grant's claim stands for, oldest first.
    pub(super) items: Vec<Name>,
    pub(super) claim: Claim,
    /// The items before this position were handed over.
    pub(super) admitted: usize,
    admitted_at: Option<Timestamp>,
    finished: u64,
    told: u64,
    abandoned: bool,
    admit: Lane,
}

impl Grant {
    /// Of how many releases the holder has heard.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// Of its items, how many have ended.
    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// A draw is told of by its lease.
    fn is_untold(&self) -> bool {
        if self.lease.is_some() {
            return false;
        }
        let ended = self.finished == self.items.len() as u64;
        match self.claim {
            Claim::Open | Claim::Inherited => true,
            Claim::Confirmed => ended || (self.finished > self.told && !self.abandoned),
        }
    }
}

#[derive(Debug, Default)]
struct Key {
    groups: BTreeMap<Name, Group>,
    grants: BTreeMap<Name, Grant>,
    /// Grants that the holder has yet to hear of.
    untold: BTreeSet<Name>,
    leases: BTreeMap<Name, Lease>,
    /// Leases that the holder has yet to hear of.
    untold_leases: BTreeSet<Name>,
    /// By group, leases that may be drawn from.
    drawable: BTreeMap<Name, BTreeSet<Name>>,
    /// When something is to be done about a lease.
    lease_times: BTreeSet<(Timestamp, Name)>,
    ask: Lane,
    tell: Lane,
    tend: Lane,
    asking: asking::Asking,
    unreachable_since: Option<Timestamp>,
    idle_until: Option<Timestamp>,
}

/// An item that holds a permit, or is about to.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) key: Name,
    pub(super) grant: Name,
    pub(super) position: usize,
    pub(super) cancelled: bool,
    /// Where it waits again if the claim fails.
    place: Place,
}

/// A waiting item's place in time and order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) seq: u64,
    pub(super) queued_at: Timestamp,
}

/// What a grant, or a draw of a lease, is assigned to.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) grant_id: Name,
    pub(super) group: Name,
    pub(super) lease: Option<Name>,
    pub(super) items: Vec<(Name, Place)>,
    pub(super) origin: Origin,
}

/// Where assigned items come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// They never waited.
    New,
    /// They waited, and `next` is the oldest item of the group that goes on waiting.
    Waiting { next: Option<Place> },
}

/// What a queue keeps in memory of its rows, to compare with them.
#[cfg(feature = "testing")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSums {
    queued: u64,
    /// Key, group, items, place of the first and since when it waits.
    groups: Vec<(Name, Name, u64, u64, Timestamp)>,
    /// Key, grant, items, how many were admitted, how many finished.
    grants: Vec<(Name, Name, Vec<Name>, usize, u64)>,
    /// Item, grant, position, cancelled.
    held: Vec<(Name, Name, usize, bool)>,
    /// Key, lease, permits, drawn, released, number of the phase.
    leases: Vec<(Name, Name, u64, u64, u64, u64)>,
    /// Key, id of its request.
    requests: Vec<(Name, Name)>,
}

#[derive(Debug)]
pub(super) struct Book {
    max_admitted: u64,
    finished_after: Option<Duration>,
    retention: Duration,
    next_seq: u64,
    queued: u64,
    groups: u64,
    keys: BTreeMap<Name, Key>,
    held: BTreeMap<Name, Held>,
    /// Key and group of those that wait and have a lease to draw from, by the place of their oldest item.
    matched: BTreeSet<(u64, Name, Name)>,
    /// Permits asked for in requests that the next round answers, and in those that wait for one that
    /// has something for them.
    asked: u64,
    parked: u64,
    /// The longest wait that a request offers; zero for none.
    request_wait: Duration,
    busy: u64,
    ready: BTreeSet<Job>,
    /// Keys that may ask, as soon as places are free.
    ready_to_ask: BTreeSet<Name>,
    /// Keys with a request that is to be closed.
    ready_to_close: BTreeSet<Name>,
    wakes: BTreeSet<(Timestamp, Job)>,
    idle: BTreeSet<(Timestamp, Name)>,
    check: Lane,
    draw: Lane,
    forget: Lane,
}

impl Book {
    pub(super) fn new(
        max_admitted: u64,
        finished_after: Option<Duration>,
        retention: Duration,
        request_wait: Duration,
    ) -> Book {
        Book {
            max_admitted,
            finished_after,
            retention,
            next_seq: 1,
            queued: 0,
            groups: 0,
            keys: BTreeMap::new(),
            held: BTreeMap::new(),
            matched: BTreeSet::new(),
            asked: 0,
            parked: 0,
            request_wait,
            busy: 0,
            ready: BTreeSet::new(),
            ready_to_ask: BTreeSet::new(),
            ready_to_close: BTreeSet::new(),
            wakes: BTreeSet::new(),
            idle: BTreeSet::new(),
            check: Lane::default(),
            draw: Lane::default(),
            forget: Lane::default(),
        }
    }

    // What is asked of it.

    /// Items that wait.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// The place of the next item in the order of all.
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Items that may still be assigned before as many hold permits as may.
    pub(super) fn room(&self) -> u64 {
        self.max_admitted.saturating_sub(self.held.len() as u64)
    }

    pub(super) fn usage(&self, name: &str) -> KeyUsage {
        let Some(key) = self.keys.get(name) else {
            return KeyUsage::default();
        };
        let held = |grant: &Grant| (grant.items.len() as u64).saturating_sub(grant.finished);
        KeyUsage {
            waiting: key.groups.values().map(|group| group.count).sum(),
            held: key.grants.values().map(held).sum(),
            undrawn: key.leases.values().map(Lease::undrawn).sum(),
        }
    }

    pub(super) fn held(&self, id: &str) -> Option<&Held> {
        self.held.get(id)
    }

    pub(super) fn grant(&self, key: &str, grant: &str) -> Option<&Grant> {
        self.keys.get(key)?.grants.get(grant)
    }

    /// The grant of an item that holds a permit.
    pub(super) fn grant_of(&self, held: &Held) -> Option<&Grant> {
        self.grant(&held.key, &held.grant)
    }

    /// How the items of a grant stand.
    pub(super) fn standings(&self, key: &str, name: &str, grant: &Grant) -> Vec<Standing> {
        let standing = |id: &Name| match self.held_by(id, key, name) {
            Some(held) if held.cancelled => Standing::Cancelled,
            Some(_) => Standing::Held,
            None => Standing::Finished,
        };
        grant.items.iter().map(standing).collect()
    }

    /// Why a group waits, as far as is known.
    pub(super) fn waiting(&self, key: &str, group: &str) -> Option<Waiting> {
        let key = self.keys.get(key)?;
        match key.unreachable_since {
            Some(since) => Some(Waiting {
                reason: WaitReason::Unreachable,
                since,
            }),
            None => key.groups.get(group)?.waiting,
        }
    }

    /// Whether the item is the oldest that waits in its group.
    pub(super) fn is_first(&self, key: &str, group: &str, seq: u64) -> bool {
        self.keys
            .get(key)
            .and_then(|key| key.groups.get(group))
            .is_some_and(|group| group.first_seq == seq)
    }

    /// The items that are to be handed over next, at most `limit`, and the position behind them.
    pub(super) fn next_to_admit(
        &self,
        key: &str,
        grant_id: &str,
        limit: usize,
    ) -> Option<(Vec<Name>, usize)> {
        let grant = self.grant(key, grant_id)?;
        let mut items = Vec::new();
        let mut end = grant.admitted;
        for (position, id) in grant.items.iter().enumerate().skip(grant.admitted) {
            if items.len() == limit {
                break;
            }
            if self.held_by(id, key, grant_id).is_some() {
                items.push(id.clone());
            }
            end = position + 1;
        }
        Some((items, end))
    }

    /// The earliest time at which something is pending; the epoch if it can be done now or is being
    /// done.
    pub(super) fn next_pending_at(&self) -> Option<Timestamp> {
        let can_start = !self.ready.is_empty() || self.can_ask() || self.can_draw();
        if self.busy > 0 || can_start {
            return Some(Timestamp::ZERO);
        }
        self.first_wake()
    }

    /// The earliest time that something waits for.
    pub(super) fn first_wake(&self) -> Option<Timestamp> {
        self.wakes.first().map(|(at, _)| *at)
    }

    #[cfg(feature = "testing")]
    pub(super) fn sums(&self) -> QueueSums {
        let mut groups = Vec::new();
        let mut grants = Vec::new();
        let mut leases = Vec::new();
        let mut requests = Vec::new();
        for (name, key) in &self.keys {
            for (id, lease) in &key.leases {
                leases.push((
                    name.clone(),
                    id.clone(),
                    lease.permits,
                    lease.drawn,
                    lease.released,
                    lease.phase as u64,
                ));
            }
            requests.extend(key.asking.id().map(|id| (name.clone(), id.clone())));
            for (group, waiting) in &key.groups {
                let Group {
                    count,
                    first_seq,
                    oldest_at,
                    ..
                } = waiting;
                groups.push((name.clone(), group.clone(), *count, *first_seq, *oldest_at));
            }
            for (id, grant) in &key.grants {
                let items = grant.items.clone();
                grants.push((
                    name.clone(),
                    id.clone(),
                    items,
                    grant.admitted,
                    grant.finished,
                ));
            }
        }
        let held = self.held.iter().map(|(id, held)| {
            let grant = held.grant.clone();
            (id.clone(), grant, held.position, held.cancelled)
        });
        QueueSums {
            queued: self.queued,
            groups,
            grants,
            held: held.collect(),
            leases,
            requests,
        }
    }

    /// The item, if it is this grant's: an id that was used again may be another's.
    fn held_by(&self, id: &str, key: &str, grant_id: &str) -> Option<&Held> {
        let held = self.held.get(id)?;
        (&*held.key == key && &*held.grant == grant_id).then_some(held)
    }

    fn grant_mut(&mut self, key: &Name, grant_id: &Name) -> Option<&mut Grant> {
        self.keys.get_mut(key)?.grants.get_mut(grant_id)
    }
}

/// A key as it is known already, or a new name for it.
fn name_in(keys: &BTreeMap<Name, Key>, key: &str) -> Name {
    match keys.get_key_value(key) {
        Some((name, _)) => name.clone(),
        None => key.into(),
    }
}
