//! A client, reduced to what a `SemaphoreQueue` promises. What an answer means is decided by the queue's
//! own code (`judge`, `Echo`, `fate`); what is kept of it, and in which order, follows the queue's
//! `giving` and `lanes` by hand: those speak SQL.
//!
//! Left out: priorities, limits on how much may run, cancelling. The application takes what it is
//! handed at once, and may have been noted as having done so or not when its client dies. Work goes on
//! while its client is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use durably::semaphore::protocol::{
    Demand, GrantReply, GrantReport, GrantResult, GrantStatus, LeaseGrant, LeaseReport,
    PermitRequest, PermitSync, SyncReply,
};
use durably::testing::deciders::{Claim, Clocks, Echo, Fate, Lease, Phase, Standing, fate, judge};

use crate::coverage::{Coverage, Event};
use crate::holder::{number, time};
use crate::rules::Rule;
use crate::world::{Kind, World};

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Nobody has asked for it yet.
    Absent,
    Queued,
    /// It stands for a claim of this grant.
    Claimed {
        grant: String,
        runs: bool,
    },
    /// It runs by a permit of this lease.
    Drawn {
        lease: String,
    },
    Done,
}

/// A grant that jobs are assigned to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    jobs: Vec<usize>,
    claim: Claim,
    told: u64,
    abandoned: bool,
}

/// A lease that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leased {
    group: String,
    permits: u64,
    drawn: u64,
    released: u64,
    phase: Phase,
    until: u64,
    lifetime: u64,
    told: u64,
    told_stop: bool,
}

/// A message whose answer is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    sent: u64,
    grants: Vec<GrantReport>,
    leases: Vec<LeaseReport>,
}

/// A client: its rows and its memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) stages: Vec<Stage>,
    grants: BTreeMap<String, Held>,
    leases: BTreeMap<String, Leased>,
    /// The number in the stored id of the request.
    request: Option<u64>,
    /// The number of its last request.
    pub(crate) last: u64,
    /// A request of this id may have been taken without its answer being stored.
    open: bool,
    pub(crate) asking: Option<Arc<Call>>,
    pub(crate) telling: Option<Arc<Call>>,
    /// A client without storage that is gone for good.
    pub(crate) is_dead: bool,
    /// It was silent for too long: it has lost what it had, whatever it still runs.
    pub(crate) is_expelled: bool,
}

/// The circumstances of a step.
pub(crate) struct Moment<'a> {
    pub(crate) world: &'a World,
    pub(crate) coverage: &'a Coverage,
    pub(crate) client: usize,
    pub(crate) now: u64,
}

impl Moment<'_> {
    fn group(&self, job: usize) -> &'static str {
        self.world.clients[self.client].jobs[job]
    }

    fn kind(&self) -> Kind {
        self.world.clients[self.client].kind
    }
}

impl Leased {
    /// The same as the queue keeps it, for its own code to decide.
    fn lease(&self) -> Lease {
        let lifetime = Duration::from_millis(self.lifetime);
        let group = self.group.as_str().into();
        let mut lease = Lease::new(group, self.permits, self.phase, time(self.until), lifetime);
        (lease.drawn, lease.released) = (self.drawn, self.released);
        lease
    }

    fn undrawn(&self) -> u64 {
        match self.phase {
            Phase::Live => self.permits.saturating_sub(self.drawn),
            _ => 0,
        }
    }

    fn report(&self, id: &str) -> LeaseReport {
        LeaseReport {
            lease_id: id.to_owned(),
            drawn: self.drawn,
            released: self.released,
            retired: self.phase != Phase::Live,
        }
    }

    fn is_untold(&self, now: u64) -> bool {
        match self.phase {
            Phase::Live => self.released > self.told || now + self.lifetime / 2 >= self.until,
            Phase::Stopped => self.released > self.told || !self.told_stop,
            Phase::Unknown => false,
        }
    }
}

impl Client {
    pub(crate) fn new(jobs: usize, queued: usize) -> Client {
        let stage = |job| match job < queued {
            true => Stage::Queued,
            false => Stage::Absent,
        };
        Client {
            stages: (0..jobs).map(stage).collect(),
            grants: BTreeMap::new(),
            leases: BTreeMap::new(),
            request: None,
            last: 0,
            open: false,
            asking: None,
            telling: None,
            is_dead: false,
            is_expelled: false,
        }
    }

    /// Jobs that run, by what they run from.
    pub(crate) fn running(&self) -> impl Iterator<Item = (&str, bool)> {
        self.stages.iter().filter_map(|stage| match stage {
            Stage::Claimed { grant, runs: true } => Some((grant.as_str(), false)),
            Stage::Drawn { lease } => Some((lease.as_str(), true)),
            _ => None,
        })
    }

    /// Whether all work is done and nothing is left to say.
    pub(crate) fn is_at_rest(&self) -> bool {
        let done = self.stages.iter().all(|stage| *stage == Stage::Done);
        done && self.grants.is_empty() && self.leases.is_empty() && !self.open
    }

    /// The number in the id of its request.
    pub(crate) fn request_number(&self) -> u64 {
        self.request.unwrap_or(0)
    }

    /// The highest number of a grant or lease that it knows of.
    pub(crate) fn last_number(&self) -> u64 {
        let rows = self.grants.keys().chain(self.leases.keys());
        let calls = self.asking.iter().chain(&self.telling);
        let calls = calls.flat_map(|call| {
            let grants = call.grants.iter().map(|report| &report.grant_id);
            grants.chain(call.leases.iter().map(|report| &report.lease_id))
        });
        rows.chain(calls).map(|id| number(id)).max().unwrap_or(0)
    }

    // What it does by itself.

    /// The next job comes, and draws at once if it can.
    pub(crate) fn enqueue(&mut self, at: &Moment<'_>) -> bool {
        let mut stages = self.stages.iter();
        let Some(job) = stages.position(|stage| *stage == Stage::Absent) else {
            return false;
        };
        self.stages[job] = Stage::Queued;
        self.draw(at);
        true
    }

    /// Jobs that may end now; of those that run from one source only the first, for they are alike.
    pub(crate) fn to_finish(&self) -> Vec<usize> {
        let mut sources = Vec::new();
        let mut jobs = Vec::new();
        for (job, stage) in self.stages.iter().enumerate() {
            let source = match stage {
                Stage::Claimed { grant, runs: true } => grant,
                Stage::Drawn { lease } => lease,
                _ => continue,
            };
            if !sources.contains(&source) {
                sources.push(source);
                jobs.push(job);
            }
        }
        jobs
    }

    pub(crate) fn finish(&mut self, job: usize) {
        if let Stage::Drawn { lease } = &self.stages[job]
            && let Some(lease) = self.leases.get_mut(lease)
        {
            lease.released += 1;
        }
        self.stages[job] = Stage::Done;
        self.forget_ended();
    }

    /// Leases that may be given back now: their time is over, or nothing runs from them and nothing
    /// waits for them.
    pub(crate) fn to_return(&self, at: &Moment<'_>) -> Vec<String> {
        let leases = self.leases.iter();
        let ended = leases.filter(|(_, lease)| {
            let is_idle = lease.released >= lease.drawn && !self.waits(&lease.group, at);
            lease.phase == Phase::Live && (at.now >= lease.until || is_idle)
        });
        ended.map(|(id, _)| id.clone()).collect()
    }

    pub(crate) fn give_back(&mut self, id: &str) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.phase = Phase::Stopped;
        }
    }

    /// Whether there is a reason to ask.
    pub(crate) fn wishes(&self, at: &Moment<'_>) -> bool {
        self.open || !self.demand(at).is_empty()
    }

    fn demand(&self, at: &Moment<'_>) -> Vec<Demand> {
        let groups = at.world.groups.iter().map(|(group, _)| *group);
        let demands = groups.filter_map(|group| {
            let leases = self.leases.values().filter(|lease| lease.group == group);
            let covered: u64 = leases.map(Leased::undrawn).sum();
            let count = self.queued(group, at).count() as u64;
            (count > covered).then(|| Demand {
                group: group.to_owned(),
                count: count - covered,
                oldest_at: time(0),
            })
        });
        demands.collect()
    }

    /// Asks, under the stored id if there is one. A new one comes after `last`.
    pub(crate) fn ask(&mut self, last: u64, at: &Moment<'_>) -> PermitRequest {
        let request = *self.request.get_or_insert(last + 1);
        self.open = true;
        self.last += 1;
        let grants = match self.telling {
            None => self.grant_reports(),
            Some(_) => Vec::new(),
        };
        let carried = self.leases.iter();
        let carried = carried
            .filter(|(_, lease)| lease.phase != Phase::Unknown || lease.released < lease.drawn);
        let leases: Vec<LeaseReport> = carried.map(|(id, lease)| lease.report(id)).collect();
        self.asking = Some(Arc::new(Call {
            sent: at.now,
            grants: grants.clone(),
            leases: leases.clone(),
        }));
        PermitRequest {
            client_id: at.world.name(at.client),
            demand: self.demand(at),
            grants,
            leases: at.world.uses_leases.then_some(leases),
            sent_at: Some(time(at.now)),
            request_id: Some(format!("r{request}")),
            request_number: Some(self.last),
            wait_ms: at.world.waits.then_some(1),
            client_ttl_ms: at.kind().ttl(),
        }
    }

    /// Whether there is something to report.
    pub(crate) fn has_to_tell(&self, at: &Moment<'_>) -> bool {
        let mut leases = self.leases.values();
        !self.grant_reports().is_empty() || leases.any(|lease| lease.is_untold(at.now))
    }

    /// Whether there is anything that may be reported: a stopped lease is, again and again.
    pub(crate) fn has_anything(&self) -> bool {
        let mut leases = self.leases.values();
        !self.grant_reports().is_empty() || leases.any(|lease| lease.phase != Phase::Unknown)
    }

    /// Reports what the holder has yet to hear; with `all`, also leases that it has heard of.
    pub(crate) fn tell(&mut self, all: bool, at: &Moment<'_>) -> PermitSync {
        let grants = self.grant_reports();
        let leases = self.leases.iter();
        let leases = leases
            .filter(|(_, lease)| lease.phase != Phase::Unknown && (all || lease.is_untold(at.now)));
        let leases: Vec<LeaseReport> = leases.map(|(id, lease)| lease.report(id)).collect();
        self.telling = Some(Arc::new(Call {
            sent: at.now,
            grants: grants.clone(),
            leases: leases.clone(),
        }));
        PermitSync {
            client_id: at.world.name(at.client),
            grants,
            leases: (!leases.is_empty()).then_some(leases),
            sent_at: Some(time(at.now)),
            client_ttl_ms: at.kind().ttl(),
        }
    }

    fn grant_reports(&self) -> Vec<GrantReport> {
        let grants = self.grants.iter();
        let untold = grants.filter_map(|(id, held)| {
            let (claimed, released) = (held.jobs.len() as u64, self.finished(id, held));
            let is_untold = match held.claim {
                Claim::Open | Claim::Inherited => true,
                Claim::Confirmed => {
                    released == claimed || (released > held.told && !held.abandoned)
                }
            };
            is_untold.then(|| GrantReport {
                grant_id: id.clone(),
                claimed,
                released,
            })
        });
        untold.collect()
    }

    /// Dies. One without storage is gone; any other comes back with its rows. `noted` says whether
    /// what was handed over was noted.
    pub(crate) fn crash(&mut self, noted: bool, at: &Moment<'_>) {
        at.coverage.note(Event::Crashed);
        (self.asking, self.telling) = (None, None);
        // Numbers follow the clock; what it has sent so far was lower, unless it is set back.
        if at.world.sets_clocks_back {
            self.last = 0;
        }
        if at.kind().ttl().is_some() {
            self.is_dead = true;
            self.stages.fill(Stage::Done);
            self.grants.clear();
            self.leases.clear();
            (self.request, self.open) = (None, false);
            return;
        }
        self.open = self.request.is_some();
        for held in self.grants.values_mut() {
            held.told = 0;
            held.abandoned = false;
            held.claim = match held.claim {
                Claim::Confirmed if noted => Claim::Confirmed,
                _ => Claim::Inherited,
            };
        }
        for lease in self.leases.values_mut() {
            (lease.told, lease.told_stop) = (0, false);
        }
    }

    // What it does about answers.

    pub(crate) fn take_synced(&mut self, reply: &SyncReply, at: &Moment<'_>) -> Result<(), Rule> {
        let Some(call) = self.telling.take() else {
            return Ok(());
        };
        let clocks = clocks(&call, reply.now, at);
        self.take_results(&call.grants, &reply.grant_results, at)?;
        let echoes = reply.leases.as_deref().unwrap_or_default();
        self.take_echoes(&call.leases, echoes, &clocks, at);
        self.return_idle(reply.contended, at);
        self.draw(at);
        Ok(())
    }

    /// Takes the answer of a request. A new id comes after `last`.
    pub(crate) fn take_granted(
        &mut self,
        reply: &GrantReply,
        last: u64,
        at: &Moment<'_>,
    ) -> Result<(), Rule> {
        let Some(call) = self.asking.take() else {
            return Ok(());
        };
        let clocks = clocks(&call, reply.now, at);
        self.last = self.last.max(reply.request_number.unwrap_or(0));
        self.take_results(&call.grants, &reply.grant_results, at)?;
        let told = reply.leases.as_deref().unwrap_or_default();
        let is_reported =
            |lease: &&LeaseGrant| call.leases.iter().any(|one| one.lease_id == lease.lease_id);
        let (echoes, others): (Vec<&LeaseGrant>, Vec<_>) = told.iter().partition(is_reported);
        let echoes: Vec<LeaseGrant> = echoes.into_iter().cloned().collect();
        self.take_echoes(&call.leases, &echoes, &clocks, at);
        let mut gave = !reply.grants.is_empty();
        for grant in &reply.grants {
            let jobs = self.queued(&grant.group, at);
            let jobs: Vec<usize> = jobs.take(grant.permits as usize).collect();
            if jobs.is_empty() || self.grants.contains_key(&grant.grant_id) {
                continue;
            }
            for job in &jobs {
                self.stages[*job] = Stage::Claimed {
                    grant: grant.grant_id.clone(),
                    runs: false,
                };
            }
            let held = Held {
                jobs,
                claim: Claim::Open,
                told: 0,
                abandoned: false,
            };
            self.grants.insert(grant.grant_id.clone(), held);
        }
        for lease in others {
            gave |= self.take_lease(lease, &clocks, at);
        }
        // Nothing that this request gave may be told again.
        if gave {
            let waits = self.stages.contains(&Stage::Queued);
            self.request = waits.then_some(last + 1);
        }
        self.open = false;
        self.return_idle(reply.contended, at);
        self.draw(at);
        Ok(())
    }

    fn take_results(
        &mut self,
        reports: &[GrantReport],
        results: &[GrantResult],
        at: &Moment<'_>,
    ) -> Result<(), Rule> {
        for (report, result) in reports.iter().zip(results) {
            let id = &report.grant_id;
            let Some(held) = self.grants.get(id) else {
                continue;
            };
            let standings: Vec<Standing> = held
                .jobs
                .iter()
                .map(|job| match self.stages[*job] == Stage::Done {
                    true => Standing::Finished,
                    false => Standing::Held,
                })
                .collect();
            let verdict = judge(&standings, held.claim, held.told, report, result);
            let jobs = held.jobs.clone();
            for position in &verdict.back {
                let stage = &mut self.stages[jobs[*position]];
                if matches!(stage, Stage::Claimed { runs: true, .. }) {
                    return Err(Rule::WorkKeepsItsPermit);
                }
                if result.status == GrantStatus::Expired {
                    at.coverage.note(Event::Requeued);
                }
                *stage = Stage::Queued;
            }
            if verdict.settled {
                self.grants.remove(id);
                continue;
            }
            let Some(held) = self.grants.get_mut(id) else {
                continue;
            };
            held.told = verdict.told;
            held.abandoned |= verdict.abandoned;
            if let Some(kept) = &verdict.kept {
                held.jobs = kept.iter().map(|position| jobs[*position]).collect();
            }
            if verdict.confirmed {
                held.claim = Claim::Confirmed;
            }
            if held.claim == Claim::Confirmed {
                for job in &held.jobs {
                    if let Stage::Claimed { runs, .. } = &mut self.stages[*job] {
                        *runs = true;
                    }
                }
            }
        }
        Ok(())
    }

    fn take_echoes(
        &mut self,
        reports: &[LeaseReport],
        echoes: &[LeaseGrant],
        clocks: &Clocks,
        at: &Moment<'_>,
    ) {
        for report in reports {
            let Some(lease) = self.leases.get_mut(&report.lease_id) else {
                continue;
            };
            let answer = echoes.iter().find(|one| one.lease_id == report.lease_id);
            let echo = Echo::of_reported(report, answer, clocks);
            if echo == Echo::Unknown {
                at.coverage.note(Event::UnknownLease);
            }
            match fate(&lease.lease(), &echo) {
                Fate::Stays => {}
                Fate::Stops(phase) => lease.phase = phase,
                Fate::Gone => {
                    self.leases.remove(&report.lease_id);
                    continue;
                }
            }
            lease.told = lease.told.max(report.released);
            lease.told_stop |= report.retired;
            if let Echo::Live { until, lifetime } = echo {
                lease.lifetime = lifetime.as_millis() as u64;
                lease.until = lease.until.max(until.as_millis());
            }
        }
    }

    /// Takes a lease that was not reported. `true` if it was stored.
    fn take_lease(&mut self, grant: &LeaseGrant, clocks: &Clocks, at: &Moment<'_>) -> bool {
        let Some(echo) = Echo::of_unreported(grant, clocks) else {
            return false;
        };
        if let Some(lease) = self.leases.get_mut(&grant.lease_id) {
            if let Fate::Stops(phase) = fate(&lease.lease(), &echo) {
                lease.phase = phase;
            }
            return false;
        }
        let (phase, until, lifetime) = match echo {
            Echo::Live { until, lifetime } if until > clocks.now => (Phase::Live, until, lifetime),
            Echo::Live { until, lifetime } => (Phase::Stopped, until, lifetime),
            _ => {
                at.coverage.note(Event::StrangeLeaseStopped);
                (Phase::Stopped, clocks.now, Duration::ZERO)
            }
        };
        let lease = Leased {
            group: grant.group.clone(),
            permits: grant.permits,
            drawn: 0,
            released: 0,
            phase,
            until: until.as_millis(),
            lifetime: lifetime.as_millis() as u64,
            told: 0,
            told_stop: false,
        };
        self.leases.insert(grant.lease_id.clone(), lease);
        self.draw(at);
        true
    }

    fn return_idle(&mut self, contended: bool, at: &Moment<'_>) {
        if !contended {
            return;
        }
        let leases = self.leases.iter();
        let idle = leases.filter(|(_, lease)| lease.undrawn() > 0 && !self.waits(&lease.group, at));
        let idle: Vec<String> = idle.map(|(id, _)| id.clone()).collect();
        idle.iter().for_each(|id| self.give_back(id));
    }

    // Within.

    fn queued<'a>(
        &'a self,
        group: &'a str,
        at: &'a Moment<'_>,
    ) -> impl Iterator<Item = usize> + 'a {
        let stages = self.stages.iter().enumerate();
        let queued =
            stages.filter(move |(job, stage)| **stage == Stage::Queued && at.group(*job) == group);
        queued.map(|(job, _)| job)
    }

    fn waits(&self, group: &str, at: &Moment<'_>) -> bool {
        self.queued(group, at).next().is_some()
    }

    fn finished(&self, grant: &str, held: &Held) -> u64 {
        let jobs = held.jobs.iter();
        let unfinished = jobs.filter(|job| match &self.stages[**job] {
            Stage::Claimed { grant: of, .. } => of == grant,
            _ => false,
        });
        (held.jobs.len() - unfinished.count()) as u64
    }

    /// Draws for whatever waits and may.
    fn draw(&mut self, at: &Moment<'_>) {
        let ids: Vec<String> = self.leases.keys().cloned().collect();
        for id in ids {
            let lease = &self.leases[&id];
            if at.now >= lease.until {
                continue;
            }
            let group = lease.group.clone();
            let jobs = self.queued(&group, at).take(lease.undrawn() as usize);
            let jobs: Vec<usize> = jobs.collect();
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.drawn += jobs.len() as u64;
            }
            for job in jobs {
                at.coverage.note(Event::Drawn);
                self.stages[job] = Stage::Drawn { lease: id.clone() };
            }
        }
    }

    /// A lease that nobody knows goes with its last job.
    fn forget_ended(&mut self) {
        self.leases
            .retain(|_, lease| lease.phase != Phase::Unknown || lease.released < lease.drawn);
    }
}

fn clocks(call: &Call, holder: Option<durably::Timestamp>, at: &Moment<'_>) -> Clocks {
    Clocks {
        sent: time(call.sent),
        now: time(at.now),
        holder,
    }
}
