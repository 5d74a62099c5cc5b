//! How the book follows the rows: what they say when the object opens, and what each transaction
//! changes.

use std::collections::BTreeSet;

use super::jobs::disarm;
use super::{Assignment, Book, Grant, Group, Held, Job, Lane, Name, Origin, Place, name_in};
use crate::bugs::{Bug, is_on};
use crate::semaphore::queue::claim::{Claim, Verdict};
use crate::semaphore::queue::store;
use crate::time::Timestamp;

impl Book {
    // What the rows say, when the object opens.

    pub(in super::super) fn load_group(
        &mut self,
        key: &str,
        group: &str,
        count: u64,
        seqs: (u64, u64),
    ) {
        let first = Place {
            seq: seqs.0,
            queued_at: Timestamp::ZERO,
        };
        let key = name_in(&self.keys, key);
        self.add_waiting(&key, &group.into(), count, first);
        self.next_seq = self.next_seq.max(seqs.1 + 1);
        self.touch(&key);
    }

    pub(in super::super) fn load_oldest(&mut self, key: &str, group: &str, oldest_at: Timestamp) {
        let group = self
            .keys
            .get_mut(key)
            .and_then(|key| key.groups.get_mut(group));
        if let Some(group) = group {
            group.oldest_at = oldest_at;
        }
    }

    /// `items` with the places of those that are not finished, and whether they were cancelled.
    pub(in super::super) fn load_grant(
        &mut self,
        row: &store::GrantRow,
        items: Vec<(Name, Option<(Place, bool)>)>,
    ) {
        let key = name_in(&self.keys, &row.key);
        let grant_id: Name = row.grant_id.as_str().into();
        let admitted = usize::try_from(row.admitted).unwrap_or(usize::MAX);
        // What tells of an item's end may have died with the instance that admitted it, so the
        // application is asked at once: permits must not idle until it is time to ask anyway.
        let admitted_at = (admitted > 0).then_some(Timestamp::ZERO);
        let lease: Option<Name> = row.lease_id.as_deref().map(Into::into);
        let mut grant = Grant {
            group: row.group.as_str().into(),
            items: Vec::with_capacity(items.len()),
            claim: match (admitted, &lease) {
                (0, None) if !is_on(Bug::BelieveInheritedClaim) => Claim::Inherited,
                _ => Claim::Confirmed,
            },
            lease: lease.clone(),
            at_once: row.at_once,
            admitted,
            admitted_at,
            finished: 0,
            told: 0,
            abandoned: false,
            admit: Lane::default(),
        };
        if is_on(Bug::ForgetToAdmit) {
            grant.admitted = items.len();
        }
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
        let (drawn, released) = (grant.items.len() as u64, grant.finished);
        let book = self.keys.entry(key.clone()).or_default();
        book.grants.insert(grant_id.clone(), grant);
        self.follow(&key, &grant_id);
        if let Some(lease) = lease {
            self.change_lease(&key, &lease, |lease| {
                lease.drawn += drawn;
                lease.released += released;
            });
        }
        self.expect_check(admitted_at);
    }

    pub(in super::super) fn load_settled(&mut self, first: Option<Timestamp>) {
        self.forget_from(first);
    }

    // What transactions change.

    /// New items that wait were stored, by key, group and place, from [`next_seq`](Self::next_seq) on.
    pub(in super::super) fn enqueued(&mut self, items: Vec<(String, String, Place)>) {
        let mut keys = BTreeSet::new();
        for (key, group, place) in items {
            let key = name_in(&self.keys, &key);
            self.next_seq = self.next_seq.max(place.seq + 1);
            self.add_waiting(&key, &group.into(), 1, place);
            keys.insert(key);
        }
        // Once for all items: what is to be done about a key may depend on all its groups.
        for key in &keys {
            self.touch(key);
        }
    }

    /// A waiting item is gone; `next` is then the oldest of its group if it was that.
    pub(in super::super) fn unqueued(
        &mut self,
        key: &str,
        group: &str,
        was_first: bool,
        next: Option<Place>,
    ) {
        let first = if was_first { Some(next) } else { None };
        let key = name_in(&self.keys, key);
        self.remove_waiting(&key, &group.into(), 1, first);
        self.touch(&key);
    }

    pub(in super::super) fn assigned(&mut self, key: &Name, assignment: Assignment) {
        let Assignment {
            grant_id,
            group,
            lease,
            items,
            origin,
        } = assignment;
        let count = items.len() as u64;
        match origin {
            Origin::Waiting { next } => self.remove_waiting(key, &group, count, Some(next)),
            Origin::New => {
                let last = items.last().map_or(0, |(_, place)| place.seq);
                self.next_seq = self.next_seq.max(last + 1);
            }
        }
        let grant = Grant {
            group,
            lease: lease.clone(),
            at_once: matches!(origin, Origin::New),
            items: items.iter().map(|(id, _)| id.clone()).collect(),
            claim: match lease {
                None => Claim::Open,
                Some(_) => Claim::Confirmed,
            },
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
        if let Some(lease) = lease {
            self.change_lease(key, &lease, |lease| lease.drawn += count);
        }
    }

    /// An assigned item will not be admitted.
    pub(in super::super) fn cancelled(&mut self, id: &str) {
        if let Some(held) = self.held.get_mut(id) {
            held.cancelled = true;
        }
    }

    /// An item that held a permit has ended.
    pub(in super::super) fn finished(&mut self, id: &str) {
        let Some(held) = self.held.remove(id) else {
            return;
        };
        let mut drawn_from = None;
        if let Some(grant) = self.grant_mut(&held.key, &held.grant) {
            grant.finished += 1 + u64::from(is_on(Bug::ReleaseTwice));
            drawn_from = grant.lease.clone();
        }
        self.follow(&held.key, &held.grant);
        if let Some(lease) = drawn_from {
            let released = 1 + u64::from(is_on(Bug::ReleaseTwice));
            self.change_lease(&held.key, &lease, |lease| lease.released += released);
        }
        if self.held.is_empty() && !self.check.busy {
            self.check.not_before = None;
            self.touch_check();
        }
    }

    /// The items before position `end` were handed over.
    pub(in super::super) fn admitted(
        &mut self,
        key: &Name,
        grant_id: &Name,
        end: usize,
        now: Timestamp,
    ) {
        if let Some(grant) = self.grant_mut(key, grant_id) {
            grant.admitted = end;
            grant.admitted_at = Some(now);
            grant.admit.failures = 0;
        }
        self.follow(key, grant_id);
        self.expect_check(Some(now));
    }

    /// A holder has answered a report.
    pub(in super::super) fn judged(&mut self, key: &Name, grant_id: &Name, verdict: &Verdict) {
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
            if self.held_by(id, key, grant_id).is_none() {
                finished += 1;
            } else if let Some(held) = self.held.get_mut(id) {
                held.position = position;
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
    pub(in super::super) fn settled(&mut self, settled_at: Timestamp) {
        if self.forget.not_before.is_none() {
            self.forget_from(Some(settled_at));
        }
    }

    // Within.

    fn add_waiting(&mut self, key: &Name, group: &Name, count: u64, place: Place) {
        self.queued += count;
        let name = key;
        let key = self.keys.entry(name.clone()).or_default();
        match key.groups.get_mut(group) {
            Some(waiting) => {
                waiting.count += count;
                if place.seq < waiting.first_seq {
                    waiting.first_seq = place.seq;
                    waiting.oldest_at = place.queued_at;
                    self.match_up(name, group);
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
                    matched: None,
                };
                key.groups.insert(group.clone(), waiting);
                self.match_up(name, group);
            }
        }
    }

    /// `first`, if given, is the oldest that is left.
    fn remove_waiting(
        &mut self,
        name: &Name,
        group: &Name,
        count: u64,
        first: Option<Option<Place>>,
    ) {
        let Some(key) = self.keys.get_mut(name) else {
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
            if let Some(seq) = waiting.matched {
                self.matched.remove(&(seq, name.clone(), group.clone()));
            }
            key.groups.remove(group);
            self.groups -= 1;
        } else {
            self.match_up(name, group);
        }
    }

    pub(super) fn remove_grant(&mut self, key: &Name, grant_id: &Name) {
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
}
