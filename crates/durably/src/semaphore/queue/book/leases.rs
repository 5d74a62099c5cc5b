//! Leases in the book: which may be drawn from, for whom, and which their holder has yet to hear of.
//! What a lease's marks mean is not decided here ([`lease`](crate::semaphore::queue::lease)).

use std::time::Duration;

use super::{Book, Job, Key, Name, name_in};
use crate::semaphore::protocol::{LeaseReport, MAX_LIST_LENGTH};
use crate::semaphore::queue::lease::{Echo, Lease, Phase};
use crate::semaphore::queue::store;
use crate::time::Timestamp;

/// A lease that a group may draw from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Source {
    pub(in super::super) lease: Name,
    /// Permits drawn so far, which names the next draw.
    pub(in super::super) drawn: u64,
    pub(in super::super) undrawn: u64,
}

impl Source {
    /// The name of the next draw among the key's grants. It sorts by lease and then by order, and no
    /// draw of the lease ever had it, since what was drawn only grows.
    pub(in super::super) fn draw_name(&self) -> Name {
        format!("{}/{:016x}", self.lease, self.drawn).into()
    }
}

impl Book {
    pub(in super::super) fn lease(&self, key: &str, lease: &str) -> Option<&Lease> {
        self.keys.get(key)?.leases.get(lease)
    }

    /// From what the group may draw at `now`, oldest lease first.
    pub(in super::super) fn sources(&self, key: &str, group: &str, now: Timestamp) -> Vec<Source> {
        let Some(key) = self.keys.get(key) else {
            return Vec::new();
        };
        let leases = key.drawable.get(group).into_iter().flatten();
        let sources = leases.filter_map(|id| {
            let lease = key.leases.get(id)?;
            let source = Source {
                lease: id.clone(),
                drawn: lease.drawn,
                undrawn: lease.drawable_at(now),
            };
            // A holder may name its grants as it likes.
            let is_free = !key.grants.contains_key(&source.draw_name());
            (source.undrawn > 0 && is_free).then_some(source)
        });
        sources.collect()
    }

    /// Whether items of the group wait.
    pub(in super::super) fn waits(&self, key: &str, group: &str) -> bool {
        self.keys
            .get(key)
            .is_some_and(|key| key.groups.contains_key(group))
    }

    /// Groups that wait and have something to draw from at `now`, the one with the oldest item first,
    /// at most `limit`.
    pub(in super::super) fn to_draw(
        &self,
        now: Timestamp,
        limit: u64,
    ) -> Vec<(Name, Name, Vec<Source>)> {
        let mut groups = Vec::new();
        for (_, key, group) in &self.matched {
            if groups.len() as u64 >= limit {
                break;
            }
            let sources = self.sources(key, group, now);
            if !sources.is_empty() {
                groups.push((key.clone(), group.clone(), sources));
            }
        }
        groups
    }

    pub(super) fn can_draw(&self) -> bool {
        !self.matched.is_empty() && self.room() > 0 && self.draw.not_before.is_none()
    }

    /// Whether drawing for waiting items is to begin.
    pub(super) fn starts_drawing(&self, now: Timestamp) -> bool {
        !self.draw.busy && self.can_draw() && !self.to_draw(now, 1).is_empty()
    }

    /// Items were drawn for, or there was nothing to draw from.
    pub(in super::super) fn draw_ended(&mut self) {
        self.draw.failures = 0;
        self.end(&Job::Draw);
    }

    pub(in super::super) fn draw_failed(
        &mut self,
        now: Timestamp,
        delay: impl FnOnce(u32) -> Duration,
    ) {
        self.draw.fail(now, delay);
        self.end(&Job::Draw);
    }

    /// Leases with undrawn permits in groups for which nothing waits.
    pub(in super::super) fn idle_leases(&self, key: &str) -> Vec<Name> {
        let Some(key) = self.keys.get(key) else {
            return Vec::new();
        };
        let idle = key.drawable.iter();
        idle.filter(|(group, _)| !key.groups.contains_key(*group))
            .flat_map(|(_, leases)| leases.iter().cloned())
            .collect()
    }

    /// What a request reports of leases: all that are not settled, those first whose undrawn permits
    /// would otherwise count as drawn; at most half of what a list may have, since the answer tells of
    /// others as well.
    pub(super) fn carried_leases(&self, key: &Name) -> Vec<LeaseReport> {
        let Some(key) = self.keys.get(key) else {
            return Vec::new();
        };
        let drawable = key.drawable.values().flatten();
        let drawable = drawable.filter_map(|id| Some((id, key.leases.get(id)?)));
        let others = key
            .leases
            .iter()
            .filter(|(_, lease)| lease.undrawn() == 0 && lease.is_carried());
        drawable
            .chain(others)
            .take(MAX_LIST_LENGTH / 2)
            .map(|(id, lease)| lease.report(id))
            .collect()
    }

    /// The leases that the holder has yet to hear of.
    pub(super) fn lease_reports(&self, key: &Name) -> Vec<LeaseReport> {
        let Some(key) = self.keys.get(key) else {
            return Vec::new();
        };
        let untold = key.untold_leases.iter().take(super::jobs::MAX_REPORTS);
        untold
            .filter_map(|id| Some(key.leases.get(id)?.report(id)))
            .collect()
    }

    // How it follows the rows.

    pub(in super::super) fn load_lease(&mut self, row: &store::LeaseRow) {
        let key: Name = name_in(&self.keys, &row.key);
        self.lease_stored(&key, row);
    }

    /// A lease was stored.
    pub(in super::super) fn lease_stored(&mut self, key: &Name, row: &store::LeaseRow) {
        let id: Name = row.lease_id.as_str().into();
        let group = row.group.as_str().into();
        let mut lease = Lease::new(group, row.permits, row.phase, row.until, row.lifetime);
        lease.settled = row.settled;
        lease.drawn = row.settled;
        lease.released = row.settled;
        let book = self.keys.entry(key.clone()).or_default();
        book.leases.insert(id.clone(), lease);
        self.follow_lease(key, &id);
    }

    /// Changes a lease and what follows from it.
    pub(super) fn change_lease(&mut self, key: &Name, id: &Name, change: impl FnOnce(&mut Lease)) {
        let lease = self
            .keys
            .get_mut(key)
            .and_then(|key| key.leases.get_mut(id));
        if let Some(lease) = lease {
            change(lease);
            self.follow_lease(key, id);
        }
    }

    /// Nothing is drawn from these leases any more.
    pub(in super::super) fn leases_stopped(
        &mut self,
        key: &Name,
        ids: &[Name],
        phase: Phase,
        now: Timestamp,
    ) {
        for id in ids {
            self.change_lease(key, id, |lease| lease.stop(phase, now));
        }
    }

    /// The holder has answered a report, and did not settle the lease.
    pub(in super::super) fn lease_heard(
        &mut self,
        key: &Name,
        id: &Name,
        report: &LeaseReport,
        sent: Timestamp,
        echo: &Echo,
    ) {
        self.change_lease(key, id, |lease| lease.heard(report, sent, echo));
    }

    /// The time until which a lease is drawn from was stored.
    pub(in super::super) fn lease_extended(&mut self, key: &Name, id: &Name, until: Timestamp) {
        self.change_lease(key, id, |lease| lease.stored_until = until);
    }

    pub(in super::super) fn lease_removed(&mut self, key: &Name, id: &Name) {
        let Some(book) = self.keys.get_mut(key) else {
            return;
        };
        let Some(lease) = book.leases.remove(id) else {
            return;
        };
        book.untold_leases.remove(id);
        if let Some(at) = lease.timed {
            book.lease_times.remove(&(at, id.clone()));
        }
        book.show(&lease.group, id, false);
        let group = lease.group;
        self.match_up(key, &group);
        self.touch(key);
    }

    /// A draw whose items have all ended is gone.
    pub(in super::super) fn draw_settled(&mut self, key: &Name, draw: &Name) {
        let Some(grant) = self.grant(key, draw) else {
            return;
        };
        let (lease, items) = (grant.lease.clone(), grant.items.len() as u64);
        self.remove_grant(key, draw);
        if let Some(lease) = lease {
            self.change_lease(key, &lease, |lease| lease.settled += items);
        }
        self.touch(key);
    }

    /// A lease's time has come. Returns those that must not be drawn from any more.
    pub(super) fn pass_lease_times(&mut self, key: &Name, now: Timestamp) -> Vec<Name> {
        let mut ended = Vec::new();
        while let Some(id) = self.first_due_lease(key, now) {
            let mut has_ended = false;
            self.change_lease(key, &id, |lease| has_ended = lease.pass_time(now));
            if has_ended {
                ended.push(id);
            }
        }
        ended
    }

    fn first_due_lease(&self, key: &Name, now: Timestamp) -> Option<Name> {
        let (at, id) = self.keys.get(key)?.lease_times.first()?;
        (*at <= now).then(|| id.clone())
    }

    /// The leases whose time was over have been stopped.
    pub(in super::super) fn end_ended(&mut self, key: &Name) {
        if let Some(key) = self.keys.get_mut(key) {
            key.tend.failures = 0;
        }
        self.end(&Job::Tend(key.clone()));
    }

    /// They could not be.
    pub(in super::super) fn end_failed(
        &mut self,
        key: &Name,
        ids: &[Name],
        now: Timestamp,
        delay: impl FnOnce(u32) -> Duration,
    ) {
        for id in ids {
            self.change_lease(key, id, Lease::not_ended);
        }
        if let Some(key) = self.keys.get_mut(key) {
            key.tend.fail(now, delay);
        }
        self.end(&Job::Tend(key.clone()));
    }

    // Within.

    /// Brings what is to be done about a lease, and its key, up to date.
    fn follow_lease(&mut self, name: &Name, id: &Name) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let Some(lease) = key.leases.get_mut(id) else {
            return;
        };
        if lease.is_untold() {
            key.untold_leases.insert(id.clone());
        } else {
            key.untold_leases.remove(id);
        }
        let at = lease.next_at();
        if lease.timed != at {
            if let Some(at) = lease.timed {
                key.lease_times.remove(&(at, id.clone()));
            }
            if let Some(at) = at {
                key.lease_times.insert((at, id.clone()));
            }
            lease.timed = at;
        }
        let (group, is_drawable) = (lease.group.clone(), lease.undrawn() > 0);
        key.show(&group, id, is_drawable);
        self.match_up(name, &group);
        self.touch(name);
    }

    /// Notes whether the group waits and has something to draw from.
    pub(super) fn match_up(&mut self, name: &Name, group: &Name) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let Some(waiting) = key.groups.get_mut(group) else {
            return;
        };
        let place = key
            .drawable
            .contains_key(group)
            .then_some(waiting.first_seq);
        let before = std::mem::replace(&mut waiting.matched, place);
        if before == place {
            return;
        }
        let at = |seq| (seq, name.clone(), group.clone());
        if let Some(seq) = before {
            self.matched.remove(&at(seq));
        }
        self.matched.extend(place.map(at));
    }
}

impl Key {
    fn show(&mut self, group: &Name, id: &Name, is_drawable: bool) {
        if is_drawable {
            let leases = self.drawable.entry(group.clone()).or_default();
            leases.insert(id.clone());
        } else if let Some(leases) = self.drawable.get_mut(group) {
            leases.remove(id);
            if leases.is_empty() {
                self.drawable.remove(group);
            }
        }
    }
}
