//! What is to be done by itself, and when: jobs become ready, are started, end, and wait for their
//! next time. What a job does is not decided here.

use std::collections::BTreeSet;
use std::time::Duration;

use super::asking::Wish;
use super::{Book, Held, Job, Lane, Name, Reports, Start};
use crate::bugs::{Bug, is_on};
use crate::semaphore::protocol::GrantReport;
use crate::semaphore::queue::claim::Claim;
use crate::time::Timestamp;

/// How many reports of changes go into one message.
pub(super) const MAX_REPORTS: usize = 1_000;

impl Book {
    // What is started, and how it ends.

    /// Everything that is to be done at `now`; it counts as being done from here on.
    pub(in super::super) fn start(&mut self, now: Timestamp) -> Vec<Start> {
        while let Some((at, _)) = self.wakes.first() {
            if *at > now {
                break;
            }
            if let Some((_, job)) = self.wakes.pop_first() {
                self.wake(&job);
            }
        }
        let mut starts = Vec::new();
        let idle = self.forget_idle_keys(now);
        if !idle.is_empty() {
            starts.push(Start::Close(idle));
        }
        while let Some(job) = self.ready.pop_first() {
            let start = match &job {
                Job::Tell(key) => {
                    let reports = Reports {
                        grants: self.grant_reports(key),
                        leases: self.lease_reports(key),
                    };
                    Start::Tell(key.clone(), reports)
                }
                Job::Tend(key) => {
                    let ended = self.pass_lease_times(key, now);
                    if ended.is_empty() {
                        if let Some(key) = self.keys.get_mut(key) {
                            key.tend.failures = 0;
                        }
                        self.touch(key);
                        continue;
                    }
                    Start::End(key.clone(), ended)
                }
                Job::Admit(key, grant) => Start::Admit(key.clone(), grant.clone()),
                Job::Check => Start::Check(self.long_admitted(now)),
                Job::Forget => Start::Forget,
                Job::Ask(_) | Job::Draw => continue,
            };
            self.begin(&job);
            starts.push(start);
        }
        if self.starts_drawing(now) {
            self.begin(&Job::Draw);
            starts.push(Start::Draw);
        }
        starts.extend(self.start_asking(now));
        starts
    }

    /// Reports were answered, and what follows is stored.
    pub(in super::super) fn tell_answered(&mut self, name: &Name) {
        if let Some(key) = self.keys.get_mut(name) {
            key.unreachable_since = None;
            key.tell.failures = 0;
            key.ask.recover();
        }
        self.end(&Job::Tell(name.clone()));
    }

    /// Reports were not answered, or what follows could not be stored.
    pub(in super::super) fn tell_failed(
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
    pub(in super::super) fn admit_ended(&mut self, key: &Name, grant_id: &Name) {
        self.end(&Job::Admit(key.clone(), grant_id.clone()));
    }

    /// Handing items over failed.
    pub(in super::super) fn admit_failed(
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
    pub(in super::super) fn check_ended(&mut self, now: Timestamp) {
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
    pub(in super::super) fn forgotten(&mut self, next: Option<Timestamp>) {
        self.forget.failures = 0;
        self.forget_from(next);
    }

    pub(in super::super) fn forget_ended(&mut self) {
        self.end(&Job::Forget);
    }

    pub(in super::super) fn forget_failed(
        &mut self,
        now: Timestamp,
        delay: impl FnOnce(u32) -> Duration,
    ) {
        self.forget.fail(now, delay);
        self.end(&Job::Forget);
    }

    // Within.

    /// Brings what is to be done about a grant, and its key, up to date.
    pub(super) fn follow(&mut self, key: &Name, grant_id: &Name) {
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
            let is_confirmed = grant.claim == Claim::Confirmed || is_on(Bug::AdmitBeforeConfirmed);
            let wanted = to_admit && is_confirmed;
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
    pub(super) fn touch(&mut self, name: &Name) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let tells = !key.untold.is_empty() || !key.untold_leases.is_empty();
        let job = Job::Tell(name.clone());
        arm(&mut self.ready, &mut self.wakes, &mut key.tell, tells, job);
        let job = Job::Tend(name.clone());
        if !self.ready.contains(&job) {
            let first = key.lease_times.first().map(|(at, _)| *at);
            if key.tend.failures == 0 {
                key.tend.not_before = first;
            }
            let tends = first.is_some();
            arm(&mut self.ready, &mut self.wakes, &mut key.tend, tends, job);
        }
        let wish = key.wish();
        let job = Job::Ask(name.clone());
        arm(
            &mut self.ready,
            &mut self.wakes,
            &mut key.ask,
            wish != Wish::Nothing,
            job.clone(),
        );
        // Asking for permits also takes places, so it waits apart.
        self.ready_to_ask.remove(name);
        self.ready_to_close.remove(name);
        if self.ready.remove(&job) {
            match wish {
                Wish::Permits => self.ready_to_ask.insert(name.clone()),
                Wish::Closing | Wish::Nothing => self.ready_to_close.insert(name.clone()),
            };
        }
        if let Some(at) = key.idle_until.take() {
            self.idle.remove(&(at, name.clone()));
        }
        let in_use = wish != Wish::Nothing
            || !key.groups.is_empty()
            || !key.grants.is_empty()
            || !key.leases.is_empty()
            || !key.asking.is_closed()
            || key.ask.busy
            || key.tell.busy
            || key.tend.busy;
        if !in_use {
            let at = key.ask.not_before.unwrap_or(Timestamp::ZERO);
            key.idle_until = Some(at);
            self.idle.insert((at, name.clone()));
        }
    }

    pub(super) fn touch_check(&mut self) {
        let wanted = self.check.not_before.is_some();
        arm(
            &mut self.ready,
            &mut self.wakes,
            &mut self.check,
            wanted,
            Job::Check,
        );
    }

    /// Forgets keys that nothing is to be done about. Returns those whose request's row has to go
    /// first.
    fn forget_idle_keys(&mut self, now: Timestamp) -> Vec<Name> {
        let mut closing = Vec::new();
        while let Some((at, _)) = self.idle.first() {
            if *at > now {
                break;
            }
            let Some((_, name)) = self.idle.pop_first() else {
                break;
            };
            if self.request_id(&name).is_some() {
                if let Some(key) = self.keys.get_mut(&name) {
                    key.idle_until = None;
                }
                closing.push(name);
            } else {
                self.keys.remove(&name);
            }
        }
        closing
    }

    pub(super) fn expect_check(&mut self, admitted_at: Option<Timestamp>) {
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

    pub(super) fn forget_from(&mut self, settled_at: Option<Timestamp>) {
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
            Job::Tend(key) => Some(&mut self.keys.get_mut(key)?.tend),
            Job::Draw => Some(&mut self.draw),
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
            Job::Check | Job::Forget | Job::Tend(_) => {
                self.ready.insert(job.clone());
            }
            _ => self.refresh(job),
        }
    }

    pub(super) fn begin(&mut self, job: &Job) {
        if let Some(lane) = self.lane(job) {
            lane.busy = true;
            self.busy += 1;
        }
        self.refresh(job);
    }

    pub(super) fn end(&mut self, job: &Job) {
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
            Job::Tell(key) | Job::Ask(key) | Job::Tend(key) => self.touch(key),
            Job::Admit(key, grant) => self.follow(key, grant),
            Job::Check => self.touch_check(),
            // Whether it can be done now is seen when something starts.
            Job::Draw => {
                let failed = self.draw.not_before.is_some();
                arm(
                    &mut self.ready,
                    &mut self.wakes,
                    &mut self.draw,
                    failed,
                    Job::Draw,
                );
            }
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

    /// What a key's holder has yet to hear of grants.
    pub(super) fn grant_reports(&self, key: &Name) -> Vec<GrantReport> {
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
    pub(super) fn fail(&mut self, now: Timestamp, delay: impl FnOnce(u32) -> Duration) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + delay(self.failures));
    }

    /// Whatever made it fail is over.
    pub(super) fn recover(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            self.not_before = None;
        }
    }
}

pub(super) fn disarm(
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
