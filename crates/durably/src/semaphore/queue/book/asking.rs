//! Who is asked for how many permits, and when. A request names what no lease covers; it is asked once
//! more, under the same id, until its answer is stored, so that what a lost answer gave is told again.
//!
//! A group whose holder has said why it waits has its next request *parked*: the holder keeps it until
//! it has something to give. A parked request takes no places from those that others may ask for, and
//! is made anew if it does not name any more what waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Book, Job, Key, Name, Reports, Start};
use crate::semaphore::protocol::Blocked;
use crate::semaphore::queue::item::Waiting;
use crate::semaphore::queue::turn::{Asked, Candidate, share_out};
use crate::time::Timestamp;

/// How many groups are asked for in one message.
const MAX_GROUPS: usize = 1_000;

/// A request that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Ask {
    pub(in super::super) key: Name,
    /// Which one it is among those sent to the holder; a later one takes its place. It rises with the
    /// clock, so that it also does from one instance to the next, unless the clock was set back: then
    /// the holder says how far it was.
    pub(in super::super) number: u64,
    /// Its id, if one is stored.
    pub(in super::super) id: Option<Name>,
    pub(in super::super) asked: Vec<Asked>,
    pub(in super::super) reports: Reports,
    /// How long the holder may keep it if it has nothing to give.
    pub(in super::super) wait: Option<Duration>,
}

/// What is known of the requests to a key's holder.
#[derive(Debug, Default)]
pub(super) struct Asking {
    id: Option<Name>,
    /// A request of this id may have been taken without its answer being stored.
    open: bool,
    number: u64,
    /// Permits asked for in the one that is out.
    asked: u64,
    parked: Option<Parked>,
    /// How soon after one request the holder wants the next.
    period: Duration,
}

/// What a request that waits at its holder asks for.
#[derive(Debug)]
struct Parked {
    groups: BTreeSet<Name>,
    demand: u64,
}

/// What there is to say in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    /// Permits are wanted.
    Permits,
    /// None are wanted, but the last request is not closed.
    Closing,
}

impl Asking {
    pub(super) fn id(&self) -> Option<&Name> {
        self.id.as_ref()
    }

    /// Whether there is nothing that an answer could still be about.
    pub(super) fn is_closed(&self) -> bool {
        !self.open && self.parked.is_none()
    }
}

impl Key {
    /// Items of the group that no lease has a permit for.
    fn uncovered(&self, group: &Name, count: u64) -> u64 {
        let Some(leases) = self.drawable.get(group) else {
            return count;
        };
        let covered = leases.iter().filter_map(|id| self.leases.get(id));
        count.saturating_sub(covered.map(|lease| lease.undrawn()).sum())
    }

    pub(super) fn wish(&self) -> Wish {
        let mut demands = self.groups.iter().filter_map(|(group, waiting)| {
            let count = self.uncovered(group, waiting.count);
            (count > 0).then_some((group, count))
        });
        let Some(parked) = &self.asking.parked else {
            return match (demands.next(), self.asking.open) {
                (Some(_), _) => Wish::Permits,
                (None, true) => Wish::Closing,
                (None, false) => Wish::Nothing,
            };
        };
        let mut demand = 0;
        for (group, count) in demands {
            demand += count;
            if !parked.groups.contains(group) || demand >= parked.demand.saturating_mul(2) {
                return Wish::Permits;
            }
        }
        // What it waits for is not wanted any more.
        match demand {
            0 => Wish::Closing,
            _ => Wish::Nothing,
        }
    }
}

impl Book {
    /// The id of the key's request, if one is stored.
    pub(in super::super) fn request_id(&self, key: &str) -> Option<&Name> {
        self.keys.get(key)?.asking.id()
    }

    /// Items of the key that wait.
    pub(in super::super) fn waiting_in(&self, key: &str) -> u64 {
        let key = self.keys.get(key);
        key.map_or(0, |key| key.groups.values().map(|group| group.count).sum())
    }

    /// Whether the request that the row stands for is over and nothing waits that would make another.
    pub(in super::super) fn may_close(&self, key: &str) -> bool {
        self.keys
            .get(key)
            .is_some_and(|key| key.asking.is_closed() && key.groups.is_empty() && !key.ask.busy)
    }

    /// A request's id was found in its row: it may have been sent by an earlier instance.
    pub(in super::super) fn load_request(&mut self, key: &str, id: &str) {
        let name = super::name_in(&self.keys, key);
        let key = self.keys.entry(name.clone()).or_default();
        key.asking.id = Some(id.into());
        key.asking.open = true;
        self.touch(&name);
    }

    /// The id of the key's next request was stored, or its row was removed.
    pub(in super::super) fn request_set(&mut self, key: &str, id: Option<Name>) {
        let name = super::name_in(&self.keys, key);
        if let Some(key) = self.keys.get_mut(&name) {
            key.asking.id = id;
        }
        self.touch(&name);
    }

    /// Whether requests may be made, as far as places go.
    pub(super) fn can_ask(&self) -> bool {
        !self.ready_to_close.is_empty()
            || (!self.ready_to_ask.is_empty() && self.room() > self.asked)
    }

    pub(super) fn start_asking(&mut self, now: Timestamp) -> Vec<Start> {
        let mut by_key: BTreeMap<Name, Vec<Asked>> = BTreeMap::new();
        for name in std::mem::take(&mut self.ready_to_close) {
            by_key.insert(name, Vec::new());
        }
        let room = self.room();
        let free = room.saturating_sub(self.asked);
        if free > 0 && !self.ready_to_ask.is_empty() {
            for asked in share_out(self.candidates(), free, room, self.groups) {
                let of_key = by_key.entry(asked.key.clone()).or_default();
                if of_key.len() < MAX_GROUPS {
                    of_key.push(asked);
                }
            }
        }
        by_key
            .into_iter()
            .filter_map(|(name, asked)| self.begin_asking(name, asked, room, now))
            .collect()
    }

    fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for name in &self.ready_to_ask {
            let Some(key) = self.keys.get(name) else {
                continue;
            };
            candidates.extend(key.groups.iter().filter_map(|(group, waiting)| {
                let count = key.uncovered(group, waiting.count);
                (count > 0).then(|| Candidate {
                    key: name.clone(),
                    group: group.clone(),
                    count,
                    oldest_at: waiting.oldest_at,
                    refused_at: waiting.refused_at,
                })
            }));
        }
        candidates
    }

    fn begin_asking(
        &mut self,
        name: Name,
        asked: Vec<Asked>,
        room: u64,
        now: Timestamp,
    ) -> Option<Start> {
        let total = asked.iter().map(|asked| asked.count).sum();
        self.unpark(&name);
        let parked = self.parks(&name, &asked, total, room);
        let is_parked = parked.is_some();
        let key = self.keys.get_mut(&name)?;
        key.asking.number = (key.asking.number + 1).max(now.as_millis());
        key.asking.open = true;
        key.asking.asked = total;
        key.asking.parked = parked;
        let (number, id) = (key.asking.number, key.asking.id.clone());
        // Reports are cumulative, so it does no harm if both lanes carry one; but what the other one
        // is telling right now need not be said twice. Of leases a request says all there is.
        let with_grants = !key.tell.busy;
        if is_parked {
            // It is out, yet another may take its place.
            key.ask.not_before = Some(now + key.asking.period);
            self.parked += total;
            self.busy += 1;
            self.touch(&name);
        } else {
            self.asked += total;
            self.begin(&Job::Ask(name.clone()));
        }
        let grants = match with_grants {
            true => self.grant_reports(&name),
            false => Vec::new(),
        };
        let leases = self.carried_leases(&name);
        Some(Start::Ask(Ask {
            key: name,
            number,
            id,
            asked,
            reports: Reports { grants, leases },
            wait: is_parked.then_some(self.request_wait),
        }))
    }

    /// What the request parks for, if it does: its holder has said why each group waits, it names all
    /// there is, and all that is parked could run.
    fn parks(&self, name: &Name, asked: &[Asked], total: u64, room: u64) -> Option<Parked> {
        let key = self.keys.get(name)?;
        let mut demand = 0;
        let mut groups = 0;
        for (group, waiting) in &key.groups {
            let count = key.uncovered(group, waiting.count);
            demand += count;
            groups += usize::from(count > 0);
        }
        let is_explained = |asked: &Asked| {
            let group = key.groups.get(&asked.group);
            group.is_some_and(|group| group.waiting.is_some() && group.refused_at.is_some())
        };
        let parks = !self.request_wait.is_zero()
            && !asked.is_empty()
            && asked.len() == groups
            && asked.iter().all(is_explained)
            && key.unreachable_since.is_none()
            && self.parked + total <= room;
        parks.then(|| Parked {
            groups: asked.iter().map(|asked| asked.group.clone()).collect(),
            demand,
        })
    }

    /// A parked request is parked no longer.
    fn unpark(&mut self, name: &Name) -> Option<u64> {
        let key = self.keys.get_mut(name)?;
        key.asking.parked.take()?;
        let asked = std::mem::take(&mut key.asking.asked);
        self.parked = self.parked.saturating_sub(asked);
        self.busy -= 1;
        Some(asked)
    }

    /// The answer of a request has come, or will not. `false` if another request has taken its
    /// place, which will be answered for both.
    pub(in super::super) fn ask_ended(&mut self, name: &Name, number: u64) -> bool {
        let key = self.keys.get(name);
        if key.is_none_or(|key| key.asking.number != number) {
            return false;
        }
        if let Some(asked) = self.unpark(name) {
            if let Some(key) = self.keys.get_mut(name) {
                key.asking.asked = asked;
                key.ask.not_before = None;
            }
            self.asked += asked;
            self.begin(&Job::Ask(name.clone()));
        }
        true
    }

    /// A request, sent at `sent`, was answered: what it gave is stored. It may be made again at
    /// `next_at`.
    pub(in super::super) fn ask_answered(
        &mut self,
        name: &Name,
        asked: &[Asked],
        blocked: &[Blocked],
        (sent, now): (Timestamp, Timestamp),
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
            key.asking.open = false;
            // The answer to one that waited comes when the next one is long welcome.
            if next_at > now {
                key.asking.period = next_at.since(sent);
            }
            key.ask.failures = 0;
            key.ask.not_before = Some(next_at);
            // It is there: what could not be told goes out now, before claims run out.
            key.tell.recover();
        }
        self.end_asking(name);
    }

    /// A request failed; it is made again after `delay` from the number of failures in a row. `true`
    /// if the holder answered before.
    pub(in super::super) fn ask_failed(
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

    /// The holder has seen requests up to this number.
    pub(in super::super) fn number_seen(&mut self, name: &Name, seen: Option<u64>) {
        if let (Some(key), Some(seen)) = (self.keys.get_mut(name), seen) {
            key.asking.number = key.asking.number.max(seen);
        }
    }

    fn end_asking(&mut self, name: &Name) {
        if let Some(key) = self.keys.get_mut(name) {
            let asked = std::mem::take(&mut key.asking.asked);
            self.asked = self.asked.saturating_sub(asked);
        }
        self.end(&Job::Ask(name.clone()));
    }
}
