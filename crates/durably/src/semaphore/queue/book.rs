//! What a queue keeps in memory: how many items wait in each group, which items hold permits, what
//! each holder has yet to be told, and when something is to be done next. Rows are the truth; this
//! follows them when a transaction's changes can no longer be undone, and is read from them when the
//! object opens. Pure: no I/O, no clock.
//!
//! Memory follows what waits and runs: a key with neither is forgotten as soon as its holder may be
//! asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use super::claim::{Claim, Standing, Verdict};
use super::item::{WaitReason, Waiting};
use super::turn::{Asked, Candidate, share_out};
use crate::semaphore::protocol::{Blocked, GrantReport};
use crate::time::Timestamp;

/// The name of a key, group, grant or item.
pub(super) type Name = Rc<str>;

/// How many reports go into one message.
const MAX_REPORTS: usize = 1_000;

/// How many groups are asked for in one message.
const MAX_GROUPS: usize = 1_000;

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
    /// Forget items that finished long ago.
    Forget,
}

/// A job that is to be done now, with what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Tell(Name, Vec<GrantReport>),
    Ask(Name, Vec<Asked>, Vec<GrantReport>),
    Admit(Name, Name),
    Check(Vec<Name>),
    Forget,
}

/// The state of a job.
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
}

#[derive(Debug)]
pub(super) struct Grant {
    pub(super) group: Name,
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

    fn is_untold(&self) -> bool {
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
    ask: Lane,
    tell: Lane,
    /// Permits asked for in the request that is out.
    asked: u64,
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

/// What a grant is assigned to.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) grant_id: Name,
    pub(super) group: Name,
    pub(super) items: Vec<(Name, Place)>,
    /// The oldest item that goes on waiting in the group.
    pub(super) next: Option<Place>,
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
    asked: u64,
    busy: u64,
    ready: BTreeSet<Job>,
    /// Keys that may ask, as soon as places are free.
    ready_to_ask: BTreeSet<Name>,
    wakes: BTreeSet<(Timestamp, Job)>,
    idle: BTreeSet<(Timestamp, Name)>,
    check: Lane,
    forget: Lane,
}

impl Book {
    pub(super) fn new(
        max_admitted: u64,
        finished_after: Option<Duration>,
        retention: Duration,
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
            asked: 0,
            busy: 0,
            ready: BTreeSet::new(),
            ready_to_ask: BTreeSet::new(),
            wakes: BTreeSet::new(),
            idle: BTreeSet::new(),
            check: Lane::default(),
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

    pub(super) fn group_of(&self, key: &str, grant: &str) -> Option<Name> {
        self.grant(key, grant).map(|grant| grant.group.clone())
    }

    /// How the items of a grant stand.
    pub(super) fn standings(&self, name: &str, grant: &Grant) -> Vec<Standing> {
        let standing = |id: &Name| match self.held.get(id) {
            Some(held) if &*held.grant != name => Standing::Finished,
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
            if self.is_held_by(id, grant_id) {
                items.push(id.clone());
            }
            end = position + 1;
        }
        Some((items, end))
    }

    /// The earliest time at which something is pending; the epoch if it can be done now or is being
    /// done.
    pub(super) fn next_pending_at(&self) -> Option<Timestamp> {
        let can_ask = !self.ready_to_ask.is_empty() && self.room() > self.asked;
        if self.busy > 0 || !self.ready.is_empty() || can_ask {
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
        for (name, key) in &self.keys {
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
        }
    }

    // What the rows say, when the object opens.

    pub(super) fn load_group(&mut self, key: &str, group: &str, count: u64, seqs: (u64, u64)) {
        let first = Place {
            seq: seqs.0,
            queued_at: Timestamp::ZERO,
        };
        let key = name_in(&self.keys, key);
        self.add_waiting(&key, &group.into(), count, first);
        self.next_seq = self.next_seq.max(seqs.1 + 1);
        self.touch(&key);
    }

    pub(super) fn load_oldest(&mut self, key: &str, group: &str, oldest_at: Timestamp) {
        let group = self
            .keys
            .get_mut(key)
            .and_then(|key| key.groups.get_mut(group));
        if let Some(group) = group {
            group.oldest_at = oldest_at;
        }
    }

    /// `items` with the places of those that are not finished, and whether they were cancelled.
    pub(super) fn load_grant(
        &mut self,
        row: &super::store::GrantRow,
        items: Vec<(Name, Option<(Place, bool)>)>,
    ) {
        let key = name_in(&self.keys, &row.key);
        let grant_id: Name = row.grant_id.as_str().into();
        let admitted = usize::try_from(row.admitted).unwrap_or(usize::MAX);
        let mut grant = Grant {
            group: row.group.as_str().into(),
            items: Vec::with_capacity(items.len()),
            claim: match admitted {
                0 => Claim::Inherited,
                _ => Claim::Confirmed,
            },
            admitted,
            admitted_at: row.admitted_at,
            finished: 0,
            told: 0,
            abandoned: false,
            admit: Lane::default(),
        };
        for (position, (id, place)) in items.into_iter().enumerate() {
            grant.items.push(id.clone());
            let Some((place, cancelled)) = place else {
                grant.finished += 1;
                continue;
            };
            self.next_seq = self.next_seq.max(place.seq + 1);
            let held = Held {
                key: key.clone(),
                grant: grant_id.clone(),
                position,
                cancelled,
                place,
            };
            self.held.insert(id, held);
        }
        let book = self.keys.entry(key.clone()).or_default();
        book.grants.insert(grant_id.clone(), grant);
        self.follow(&key, &grant_id);
        self.expect_check(row.admitted_at);
    }

    pub(super) fn load_settled(&mut self, first: Option<Timestamp>) {
        self.forget_from(first);
    }

    // What transactions change.

    /// A new item was stored under [`next_seq`](Self::next_seq).
    pub(super) fn enqueued(&mut self, key: &str, group: &str, place: Place) {
        let key = name_in(&self.keys, key);
        self.next_seq = self.next_seq.max(place.seq + 1);
        self.add_waiting(&key, &group.into(), 1, place);
        self.touch(&key);
    }

    /// A waiting item is gone; `next` is then the oldest of its group if it was that.
    pub(super) fn unqueued(
        &mut self,
        key: &str,
        group: &str,
        was_first: bool,
        next: Option<Place>,
    ) {
        let first = if was_first { Some(next) } else { None };
        self.remove_waiting(key, group, 1, first);
        self.touch(&key.into());
    }

    pub(super) fn assigned(&mut self, key: &Name, assignment: Assignment) {
        let Assignment {
            grant_id,
            group,
            items,
            next,
        } = assignment;
        self.remove_waiting(key, &group, items.len() as u64, Some(next));
        let grant = Grant {
            group,
            items: items.iter().map(|(id, _)| id.clone()).collect(),
            claim: Claim::Open,
            admitted: 0,
            admitted_at: None,
            finished: 0,
            told: 0,
            abandoned: false,
            admit: Lane::default(),
        };
        for (position, (id, place)) in items.into_iter().enumerate() {
            let held = Held {
                key: key.clone(),
                grant: grant_id.clone(),
                position,
                cancelled: false,
                place,
            };
            self.held.insert(id, held);
        }
        let book = self.keys.entry(key.clone()).or_default();
        book.grants.insert(grant_id.clone(), grant);
        self.follow(key, &grant_id);
    }

    /// An assigned item will not be admitted.
    pub(super) fn cancelled(&mut self, id: &str) {
        if let Some(held) = self.held.get_mut(id) {
            held.cancelled = true;
        }
    }

    /// An item that held a permit has ended.
    pub(super) fn finished(&mut self, id: &str) {
        let Some(held) = self.held.remove(id) else {
            return;
        };
        if let Some(grant) = self.grant_mut(&held.key, &held.grant) {
            grant.finished += 1;
        }
        self.follow(&held.key, &held.grant);
        if self.held.is_empty() && !self.check.busy {
            self.check.not_before = None;
            self.touch_check();
        }
    }

    /// The items before position `end` were handed over.
    pub(super) fn admitted(&mut self, key: &Name, grant_id: &Name, end: usize, now: Timestamp) {
        if let Some(grant) = self.grant_mut(key, grant_id) {
            grant.admitted = end;
            grant.admitted_at = Some(now);
            grant.admit.failures = 0;
        }
        self.follow(key, grant_id);
        self.expect_check(Some(now));
    }

    /// A holder has answered a report.
    pub(super) fn judged(&mut self, key: &Name, grant_id: &Name, verdict: &Verdict) {
        let Some(grant) = self.grant_mut(key, grant_id) else {
            return;
        };
        grant.told = verdict.told;
        grant.abandoned |= verdict.abandoned;
        if verdict.confirmed {
            grant.claim = Claim::Confirmed;
        }
        let group = grant.group.clone();
        let items = grant.items.clone();
        for position in &verdict.back {
            if let Some(held) = self.held.remove(&items[*position]) {
                self.add_waiting(key, &group, 1, held.place);
            }
        }
        for position in &verdict.dropped {
            self.held.remove(&items[*position]);
        }
        for position in &verdict.unwanted {
            self.held.remove(&items[*position]);
        }
        let kept: Vec<Name> = match &verdict.kept {
            None => items,
            Some(kept) => kept
                .iter()
                .map(|position| items[*position].clone())
                .collect(),
        };
        let mut finished = 0;
        for (position, id) in kept.iter().enumerate() {
            match self.held.get_mut(id) {
                Some(held) if held.grant == *grant_id => held.position = position,
                _ => finished += 1,
            }
        }
        if let Some(grant) = self.grant_mut(key, grant_id) {
            grant.items = kept;
            grant.finished = finished;
        }
        if verdict.settled {
            self.remove_grant(key, grant_id);
        }
        self.follow(key, grant_id);
    }

    /// A batch of finished items is to be forgotten a while after `settled_at`.
    pub(super) fn settled(&mut self, settled_at: Timestamp) {
        if self.forget.not_before.is_none() && !self.forget.busy {
            self.forget_from(Some(settled_at));
        }
    }

    // What is started, and how it ends.

    /// Everything that is to be done at `now`; it counts as being done from here on.
    pub(super) fn start(&mut self, now: Timestamp) -> Vec<Start> {
        while let Some((at, _)) = self.wakes.first() {
            if *at > now {
                break;
            }
            if let Some((_, job)) = self.wakes.pop_first() {
                self.wake(&job);
            }
        }
        self.forget_idle_keys(now);
        let mut starts = Vec::new();
        while let Some(job) = self.ready.pop_first() {
            let start = match &job {
                Job::Tell(key) => {
                    let reports = self.reports(key);
                    Start::Tell(key.clone(), reports)
                }
                Job::Admit(key, grant) => Start::Admit(key.clone(), grant.clone()),
                Job::Check => Start::Check(self.long_admitted(now)),
                Job::Forget => Start::Forget,
                Job::Ask(_) => continue,
            };
            self.begin(&job);
            starts.push(start);
        }
        starts.extend(self.start_asking());
        starts
    }

    fn start_asking(&mut self) -> Vec<Start> {
        let room = self.room();
        let free = room.saturating_sub(self.asked);
        if free == 0 || self.ready_to_ask.is_empty() {
            return Vec::new();
        }
        let mut candidates = Vec::new();
        for name in &self.ready_to_ask {
            let Some(key) = self.keys.get(name) else {
                continue;
            };
            candidates.extend(key.groups.iter().map(|(group, waiting)| Candidate {
                key: name.clone(),
                group: group.clone(),
                count: waiting.count,
                oldest_at: waiting.oldest_at,
                refused_at: waiting.refused_at,
            }));
        }
        let mut by_key: BTreeMap<Name, Vec<Asked>> = BTreeMap::new();
        for asked in share_out(candidates, free, room, self.groups) {
            let of_key = by_key.entry(asked.key.clone()).or_default();
            if of_key.len() < MAX_GROUPS {
                of_key.push(asked);
            }
        }
        let mut starts = Vec::new();
        for (name, asked) in by_key {
            self.begin(&Job::Ask(name.clone()));
            let total = asked.iter().map(|asked| asked.count).sum();
            self.asked += total;
            let mut reports = Vec::new();
            if let Some(key) = self.keys.get_mut(&name) {
                key.asked = total;
                // Reports are cumulative, so it does no harm if both lanes carry one; but what the
                // other one is telling right now need not be said twice.
                if !key.tell.busy {
                    reports = self.reports(&name);
                }
            }
            starts.push(Start::Ask(name, asked, reports));
        }
        starts
    }

    /// A request was answered: its grants are stored. It may be made again at `next_at`.
    pub(super) fn ask_answered(
        &mut self,
        name: &Name,
        asked: &[Asked],
        blocked: &[Blocked],
        now: Timestamp,
        next_at: Timestamp,
    ) {
        if let Some(key) = self.keys.get_mut(name) {
            for asked in asked {
                let Some(group) = key.groups.get_mut(&asked.group) else {
                    continue;
                };
                let refused = blocked
                    .iter()
                    .find(|blocked| *blocked.group == *asked.group);
                group.refused_at = refused.map(|_| now);
                group.waiting = refused.map(|blocked| {
                    let reason = blocked.reason.into();
                    match group.waiting {
                        Some(waiting) if waiting.reason == reason => waiting,
                        _ => Waiting { reason, since: now },
                    }
                });
            }
            key.unreachable_since = None;
            key.ask.failures = 0;
            key.ask.not_before = Some(next_at);
            // It is there: what could not be told goes out now, before claims run out.
            key.tell.recover();
        }
        self.end_asking(name);
    }

    /// A request failed; it is made again after `delay` from the number of failures in a row. `true`
    /// if the holder answered before.
    pub(super) fn ask_failed(
        &mut self,
        name: &Name,
        asked: &[Asked],
        now: Timestamp,
        delay: impl FnOnce(u32) -> Duration,
    ) -> bool {
        let mut is_new = false;
        if let Some(key) = self.keys.get_mut(name) {
            for asked in asked {
                if let Some(group) = key.groups.get_mut(&asked.group) {
                    group.refused_at = Some(now);
                }
            }
            is_new = key.unreachable_since.is_none();
            key.unreachable_since.get_or_insert(now);
            key.ask.fail(now, delay);
        }
        self.end_asking(name);
        is_new
    }

    fn end_asking(&mut self, name: &Name) {
        if let Some(key) = self.keys.get_mut(name) {
            self.asked = self.asked.saturating_sub(std::mem::take(&mut key.asked));
        }
        self.end(&Job::Ask(name.clone()));
    }

    /// Reports were answered, and what follows is stored.
    pub(super) fn tell_answered(&mut self, name: &Name) {
        if let Some(key) = self.keys.get_mut(name) {
            key.unreachable_since = None;
            key.tell.failures = 0;
            key.ask.recover();
        }
        self.end(&Job::Tell(name.clone()));
    }

    /// Reports were not answered, or what follows could not be stored.
    pub(super) fn tell_failed(
        &mut self,
        name: &Name,
        now: Timestamp,
        delay: impl FnOnce(u32) -> Duration,
    ) -> bool {
        let mut is_new = false;
        if let Some(key) = self.keys.get_mut(name) {
            is_new = key.unreachable_since.is_none();
            key.unreachable_since.get_or_insert(now);
            key.tell.fail(now, delay);
        }
        self.end(&Job::Tell(name.clone()));
        is_new
    }

    /// Handing items over has ended, well or not.
    pub(super) fn admit_ended(&mut self, key: &Name, grant_id: &Name) {
        self.end(&Job::Admit(key.clone(), grant_id.clone()));
    }

    /// Handing items over failed.
    pub(super) fn admit_failed(
        &mut self,
        key: &Name,
        grant_id: &Name,
        now: Timestamp,
        delay: impl FnOnce(u32) -> Duration,
    ) {
        if let Some(grant) = self.grant_mut(key, grant_id) {
            grant.admit.fail(now, delay);
        }
        self.admit_ended(key, grant_id);
    }

    /// The application has been asked; it is asked again later if items are still admitted.
    pub(super) fn check_ended(&mut self, now: Timestamp) {
        let is_admitted = |held: &Held| {
            self.grant_of(held)
                .is_some_and(|grant| held.position < grant.admitted)
        };
        let any = self.held.values().any(is_admitted);
        self.check.not_before = match self.finished_after {
            Some(after) if any => Some(now + after),
            _ => None,
        };
        self.end(&Job::Check);
    }

    /// A batch was forgotten; the next one settled at `next`.
    pub(super) fn forgotten(&mut self, next: Option<Timestamp>) {
        self.forget.failures = 0;
        self.forget_from(next);
    }

    pub(super) fn forget_ended(&mut self) {
        self.end(&Job::Forget);
    }

    pub(super) fn forget_failed(&mut self, now: Timestamp, delay: impl FnOnce(u32) -> Duration) {
        self.forget.fail(now, delay);
        self.end(&Job::Forget);
    }

    // Within.

    fn is_held_by(&self, id: &Name, grant_id: &str) -> bool {
        self.held
            .get(id)
            .is_some_and(|held| &*held.grant == grant_id)
    }

    fn grant_mut(&mut self, key: &Name, grant_id: &Name) -> Option<&mut Grant> {
        self.keys.get_mut(key)?.grants.get_mut(grant_id)
    }

    fn add_waiting(&mut self, key: &Name, group: &Name, count: u64, place: Place) {
        self.queued += count;
        let key = self.keys.entry(key.clone()).or_default();
        match key.groups.get_mut(group) {
            Some(waiting) => {
                waiting.count += count;
                if place.seq < waiting.first_seq {
                    waiting.first_seq = place.seq;
                    waiting.oldest_at = place.queued_at;
                }
            }
            None => {
                self.groups += 1;
                let waiting = Group {
                    count,
                    first_seq: place.seq,
                    oldest_at: place.queued_at,
                    waiting: None,
                    refused_at: None,
                };
                key.groups.insert(group.clone(), waiting);
            }
        }
    }

    /// `first`, if given, is the oldest that is left.
    fn remove_waiting(&mut self, key: &str, group: &str, count: u64, first: Option<Option<Place>>) {
        let Some(key) = self.keys.get_mut(key) else {
            return;
        };
        let Some(waiting) = key.groups.get_mut(group) else {
            return;
        };
        self.queued = self.queued.saturating_sub(count);
        waiting.count = waiting.count.saturating_sub(count);
        match first {
            Some(Some(place)) => {
                waiting.first_seq = place.seq;
                waiting.oldest_at = place.queued_at;
            }
            // Nobody is left, whatever the count says.
            Some(None) => {
                debug_assert_eq!(waiting.count, 0);
                waiting.count = 0;
            }
            None => {}
        }
        if waiting.count == 0 {
            key.groups.remove(group);
            self.groups -= 1;
        }
    }

    fn remove_grant(&mut self, key: &Name, grant_id: &Name) {
        let Some(book) = self.keys.get_mut(key) else {
            return;
        };
        let Some(mut grant) = book.grants.remove(grant_id) else {
            return;
        };
        book.untold.remove(grant_id);
        let job = Job::Admit(key.clone(), grant_id.clone());
        disarm(&mut self.ready, &mut self.wakes, &mut grant.admit, &job);
        if grant.admit.busy {
            // Its end finds no grant any more.
            self.busy -= 1;
        }
    }

    /// Brings what is to be done about a grant, and its key, up to date.
    fn follow(&mut self, key: &Name, grant_id: &Name) {
        let to_admit = self
            .next_to_admit(key, grant_id, 1)
            .is_some_and(|(items, _)| !items.is_empty());
        if let Some(book) = self.keys.get_mut(key)
            && let Some(grant) = book.grants.get_mut(grant_id)
        {
            if grant.is_untold() {
                book.untold.insert(grant_id.clone());
            } else {
                book.untold.remove(grant_id);
            }
            let wanted = to_admit && grant.claim == Claim::Confirmed;
            let job = Job::Admit(key.clone(), grant_id.clone());
            arm(
                &mut self.ready,
                &mut self.wakes,
                &mut grant.admit,
                wanted,
                job,
            );
        }
        self.touch(key);
    }

    /// Brings what is to be done about a key up to date.
    fn touch(&mut self, name: &Name) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let tells = !key.untold.is_empty();
        let job = Job::Tell(name.clone());
        arm(&mut self.ready, &mut self.wakes, &mut key.tell, tells, job);
        let asks = !key.groups.is_empty();
        let job = Job::Ask(name.clone());
        arm(
            &mut self.ready,
            &mut self.wakes,
            &mut key.ask,
            asks,
            job.clone(),
        );
        // Asking also takes places, so it waits apart.
        if self.ready.remove(&job) {
            self.ready_to_ask.insert(name.clone());
        } else {
            self.ready_to_ask.remove(name);
        }
        if let Some(at) = key.idle_until.take() {
            self.idle.remove(&(at, name.clone()));
        }
        let in_use = asks || !key.grants.is_empty() || key.ask.busy || key.tell.busy;
        if !in_use {
            let at = key.ask.not_before.unwrap_or(Timestamp::ZERO);
            key.idle_until = Some(at);
            self.idle.insert((at, name.clone()));
        }
    }

    fn touch_check(&mut self) {
        let wanted = self.check.not_before.is_some();
        arm(
            &mut self.ready,
            &mut self.wakes,
            &mut self.check,
            wanted,
            Job::Check,
        );
    }

    fn forget_idle_keys(&mut self, now: Timestamp) {
        while let Some((at, _)) = self.idle.first() {
            if *at > now {
                break;
            }
            if let Some((_, name)) = self.idle.pop_first() {
                self.keys.remove(&name);
            }
        }
    }

    fn expect_check(&mut self, admitted_at: Option<Timestamp>) {
        let (Some(after), Some(admitted_at)) = (self.finished_after, admitted_at) else {
            return;
        };
        if !self.check.busy {
            let at = admitted_at + after;
            let sooner = self.check.not_before.map_or(at, |set| set.min(at));
            self.check.not_before = Some(sooner);
            self.touch_check();
        }
    }

    fn forget_from(&mut self, settled_at: Option<Timestamp>) {
        self.forget.not_before = settled_at.map(|at| at + self.retention);
        let wanted = settled_at.is_some();
        arm(
            &mut self.ready,
            &mut self.wakes,
            &mut self.forget,
            wanted,
            Job::Forget,
        );
    }

    fn lane(&mut self, job: &Job) -> Option<&mut Lane> {
        match job {
            Job::Tell(key) => Some(&mut self.keys.get_mut(key)?.tell),
            Job::Ask(key) => Some(&mut self.keys.get_mut(key)?.ask),
            Job::Admit(key, grant) => Some(&mut self.grant_mut(key, grant)?.admit),
            Job::Check => Some(&mut self.check),
            Job::Forget => Some(&mut self.forget),
        }
    }

    /// A wake's time has come.
    fn wake(&mut self, job: &Job) {
        if let Some(lane) = self.lane(job) {
            lane.armed = None;
            lane.not_before = None;
        }
        match job {
            Job::Check | Job::Forget => {
                self.ready.insert(job.clone());
            }
            _ => self.refresh(job),
        }
    }

    fn begin(&mut self, job: &Job) {
        if let Some(lane) = self.lane(job) {
            lane.busy = true;
            self.busy += 1;
        }
        self.refresh(job);
    }

    fn end(&mut self, job: &Job) {
        let was_busy = self
            .lane(job)
            .is_some_and(|lane| std::mem::take(&mut lane.busy));
        if was_busy {
            self.busy -= 1;
        }
        self.refresh(job);
    }

    fn refresh(&mut self, job: &Job) {
        match job {
            Job::Tell(key) | Job::Ask(key) => self.touch(key),
            Job::Admit(key, grant) => self.follow(key, grant),
            Job::Check => self.touch_check(),
            Job::Forget => {
                let wanted = self.forget.not_before.is_some();
                arm(
                    &mut self.ready,
                    &mut self.wakes,
                    &mut self.forget,
                    wanted,
                    Job::Forget,
                );
            }
        }
    }

    /// What a key's holder has yet to hear.
    fn reports(&self, key: &Name) -> Vec<GrantReport> {
        let Some(key) = self.keys.get(key) else {
            return Vec::new();
        };
        let untold = key.untold.iter().take(MAX_REPORTS);
        untold
            .filter_map(|grant_id| {
                let grant = key.grants.get(grant_id)?;
                Some(GrantReport {
                    grant_id: grant_id.to_string(),
                    claimed: grant.items.len() as u64,
                    released: grant.finished,
                })
            })
            .collect()
    }

    /// Items that were admitted long enough ago to ask about them.
    fn long_admitted(&self, now: Timestamp) -> Vec<Name> {
        let Some(after) = self.finished_after else {
            return Vec::new();
        };
        let is_due = |held: &Held| {
            self.grant_of(held).is_some_and(|grant| {
                held.position < grant.admitted
                    && grant.admitted_at.is_some_and(|at| at + after <= now)
            })
        };
        let due = self.held.iter().filter(|(_, held)| is_due(held));
        due.map(|(id, _)| id.clone()).collect()
    }
}

impl Lane {
    fn fail(&mut self, now: Timestamp, delay: impl FnOnce(u32) -> Duration) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + delay(self.failures));
    }

    /// Whatever made it fail is over.
    fn recover(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            self.not_before = None;
        }
    }
}

/// A key as it is known already, or a new name for it.
fn name_in(keys: &BTreeMap<Name, Key>, key: &str) -> Name {
    match keys.get_key_value(key) {
        Some((name, _)) => name.clone(),
        None => key.into(),
    }
}

fn disarm(
    ready: &mut BTreeSet<Job>,
    wakes: &mut BTreeSet<(Timestamp, Job)>,
    lane: &mut Lane,
    job: &Job,
) {
    if let Some(at) = lane.armed.take() {
        wakes.remove(&(at, job.clone()));
    }
    ready.remove(job);
}

/// Has `job` done when its time has come, if it is wanted and not being done.
fn arm(
    ready: &mut BTreeSet<Job>,
    wakes: &mut BTreeSet<(Timestamp, Job)>,
    lane: &mut Lane,
    wanted: bool,
    job: Job,
) {
    disarm(ready, wakes, lane, &job);
    if !wanted || lane.busy {
        return;
    }
    match lane.not_before {
        None => {
            ready.insert(job);
        }
        Some(at) => {
            lane.armed = Some(at);
            wakes.insert((at, job));
        }
    }
}
