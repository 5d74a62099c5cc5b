//! The holder: its rows in memory, driven by the real deciders in the order in which the real holder
//! drives them. What is decided is `durably`'s; what is loaded for a decision, how a plan is written
//! and when a request is parked follow `durably`'s `store`, `rounds`, `holder` and `ephemeral`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use durably::Timestamp;
use durably::semaphore::book::Book;
use durably::semaphore::leases::Leasing;
use durably::semaphore::ledger::{Delta, Ledger};
use durably::semaphore::protocol::{GrantReply, PermitRequest, PermitSync, SyncReply};
use durably::semaphore::round::{self, RoundInput};
use durably::semaphore::{Changes, GrantRow, LeaseOptions, LeaseRow};
use durably::testing::deciders;

use crate::coverage::{Coverage, Event};
use crate::rules::Rule;
use crate::world::{GRANT_TIMEOUT, World};

/// A request that waits at the holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiting {
    /// Which client sent it.
    pub(crate) client: usize,
    /// Whether that client still waits for the answer.
    pub(crate) wanted: bool,
    pub(crate) request: Arc<PermitRequest>,
}

/// What the holder has stored and what it has in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) grants: BTreeMap<String, GrantRow>,
    pub(crate) leases: BTreeMap<String, LeaseRow>,
    /// Clients without storage: how long they may be silent, and until when.
    pub(crate) clients: BTreeMap<String, (u64, u64)>,
    pub(crate) ledger: Ledger,
    /// The highest request numbers, as they are known in memory.
    pub(crate) numbers: BTreeMap<String, u64>,
    /// The same, as they are stored.
    pub(crate) stored_numbers: BTreeMap<String, u64>,
    pub(crate) waiting: Vec<Waiting>,
    /// With what each is answered if nothing comes.
    pub(crate) parked: Vec<(Waiting, GrantReply)>,
    /// Permits came back, or limits changed, since the last round.
    pub(crate) outdated: bool,
    contended: bool,
}

/// The circumstances of a step.
pub(crate) struct Circumstances<'a> {
    pub(crate) world: &'a World,
    pub(crate) coverage: &'a Coverage,
    pub(crate) now: u64,
    pub(crate) limit: u64,
    pub(crate) leases: Option<&'a LeaseOptions>,
}

/// An answer, and whom it goes to.
pub(crate) type Answered = (usize, GrantReply);

impl Holder {
    /// Takes a request up; what it takes the place of is answered.
    pub(crate) fn request(
        &mut self,
        client: usize,
        wanted: bool,
        mut request: PermitRequest,
        at: &Circumstances<'_>,
    ) -> Vec<Answered> {
        let now = time(at.now);
        round::accept(&mut request, now);
        let is_repeated = |waiting: &Waiting| {
            request.request_id.is_some()
                && waiting.request.client_id == request.client_id
                && waiting.request.request_id == request.request_id
                && waiting.request.request_number <= request.request_number
        };
        for waiting in self.waiting.iter_mut().filter(|one| is_repeated(one)) {
            let older = Arc::make_mut(&mut waiting.request);
            older.demand.clear();
            older.wait_ms = None;
        }
        let parked = std::mem::take(&mut self.parked);
        let (repeated, others) = parked.into_iter().partition(|(one, _)| is_repeated(one));
        self.parked = others;
        self.waiting.push(Waiting {
            client,
            wanted,
            request: Arc::new(request),
        });
        let repeated: Vec<(Waiting, GrantReply)> = repeated;
        let wanted = repeated.into_iter().filter(|(one, _)| one.wanted);
        wanted
            .map(|(one, reply)| (one.client, dated(&one, reply, now)))
            .collect()
    }

    /// Applies reports at once.
    pub(crate) fn sync(
        &mut self,
        sync: &PermitSync,
        at: &Circumstances<'_>,
    ) -> Result<SyncReply, Rule> {
        let now = time(at.now);
        self.renew(&sync.client_id, sync.client_ttl_ms, at.now);
        let leasing = self.leasing(at);
        let reported = sync.leases.as_ref().filter(|_| leasing.is_active());
        let named = sync.grants.iter();
        let grants = named.filter_map(|report| self.grants.get(&report.grant_id).cloned());
        let named = reported.into_iter().flatten();
        let leases = named.filter_map(|report| self.leases.get(&report.lease_id).cloned());
        let mut book = Book::new(grants, leases);
        let client = sync.client_id.as_str();
        let results = sync.grants.iter();
        let grant_results = results
            .map(|report| book.report(client, report, now))
            .collect();
        let echoes = reported.map(|leases| {
            let echoes = leases.iter();
            echoes
                .map(|report| book.report_lease(client, report, &leasing, now).lease)
                .collect::<Vec<_>>()
        });
        let (changes, delta) = book.close();
        self.write(&changes, &delta)?;
        Ok(SyncReply {
            grant_results,
            contended: echoes.is_some() && self.contended,
            leases: echoes,
            now: sync.sent_at.map(|_| now),
        })
    }

    /// Holds a round for all that wait. New ids come after `last`.
    pub(crate) fn round(
        &mut self,
        last: u64,
        at: &Circumstances<'_>,
    ) -> Result<Vec<Answered>, Rule> {
        let now = time(at.now);
        // Whoever hung up does not wait for a later round any more.
        self.parked.retain(|(one, _)| one.wanted);
        let mut all: Vec<(Waiting, Option<GrantReply>)> = std::mem::take(&mut self.parked)
            .into_iter()
            .map(|(waiting, reply)| (waiting, Some(reply)))
            .collect();
        let parked = all.len();
        let first = std::mem::take(&mut self.waiting);
        all.extend(first.into_iter().map(|waiting| (waiting, None)));
        for (waiting, _) in &all {
            let request = &waiting.request;
            self.renew(&request.client_id, request.client_ttl_ms, at.now);
        }
        let leasing = self.leasing(at);
        let input = RoundInput {
            now,
            limit: at.limit,
            policies: self.policies(&all, &leasing, at.world),
            requests: all.iter().map(|(one, _)| one.request.clone()).collect(),
            parked,
            grants: self.due(at.now),
            leases: Vec::new(),
            numbers: self.numbers.clone(),
            grant_timeout: Duration::from_millis(GRANT_TIMEOUT),
            round_period: Duration::from_millis(1),
            with_usage: false,
            leasing,
        };
        let input = self.load(input);
        let mut made = last;
        let mut next_id = || {
            made += 1;
            format!("{made:02}")
        };
        let is_strict = at.world.keeps_the_limit();
        let outcome = round::decide(input, &self.ledger, &mut next_id);
        let before = self.ledger.clone();
        at.coverage.round(&outcome);
        self.write(&outcome.changes, &outcome.delta)?;
        self.outdated = false;
        self.contended = outcome.contended;
        self.numbers.extend(outcome.numbers);
        self.check_growth(&before, at, is_strict)?;

        let mut answered = Vec::new();
        for (((waiting, before), reply), matters) in
            all.into_iter().zip(outcome.replies).zip(outcome.matters)
        {
            let reply = match before {
                Some(before) => deciders::merged(before, reply),
                None => reply,
            };
            if !matters && waiting.request.wait_ms.is_some() {
                at.coverage.note(Event::Parked);
                self.parked.push((waiting, reply));
            } else if waiting.wanted {
                answered.push((waiting.client, dated(&waiting, reply, now)));
            }
        }
        Ok(answered)
    }

    /// Ends the wait of all that are parked.
    pub(crate) fn end_waits(&mut self, at: &Circumstances<'_>) -> Vec<Answered> {
        let parked = std::mem::take(&mut self.parked).into_iter();
        let wanted = parked.filter(|(waiting, _)| waiting.wanted);
        wanted
            .map(|(waiting, reply)| {
                let reply = dated(&waiting, reply, time(at.now));
                (waiting.client, reply)
            })
            .collect()
    }

    /// Whether an alarm would find something to do.
    pub(crate) fn is_alarm_due(&self, now: u64) -> bool {
        let time = time(now);
        self.grants.values().any(|row| row.is_due(time))
            || self.clients.values().any(|(_, until)| *until <= now)
    }

    /// The alarm: takes back what was not claimed in time, and what silent clients hold. Returns the
    /// clients that were silent for too long.
    pub(crate) fn alarm(&mut self, at: &Circumstances<'_>) -> Result<Vec<String>, Rule> {
        let mut book = Book::new(self.due(at.now), []);
        if !book.clean_up(time(at.now)).is_empty() {
            at.coverage.note(Event::ClaimExpired);
        }
        let (changes, delta) = book.close();
        self.write(&changes, &delta)?;
        let clients = self.clients.iter();
        let silent: Vec<String> = clients
            .filter(|(_, (_, until))| *until <= at.now)
            .map(|(client, _)| client.clone())
            .collect();
        let mut expired = Vec::new();
        for client in silent {
            let parked = self.parked.iter().map(|(waiting, _)| waiting);
            let mut waiting = self.waiting.iter().chain(parked);
            if waiting.any(|one| one.request.client_id == client) {
                self.renew(&client, None, at.now);
                continue;
            }
            let grants = self.grants.values().filter(|row| row.client_id == client);
            let leases = self.leases.values().filter(|row| row.client_id == client);
            let mut book = Book::new(grants.cloned(), leases.cloned());
            let released = deciders::take_away(&mut book);
            if released.granted + released.leased > 0 {
                at.coverage.note(Event::ClientExpired);
            }
            let (changes, delta) = book.close();
            self.clients.remove(&client);
            self.stored_numbers.remove(&client);
            self.write(&changes, &delta)?;
            expired.push(client);
        }
        Ok(expired)
    }

    /// Dies and comes back: what was in memory is gone, the sums are made from the rows. Returns the
    /// clients that waited in vain.
    pub(crate) fn crash(&mut self) -> Vec<usize> {
        let parked = std::mem::take(&mut self.parked).into_iter();
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let all = waiting.chain(parked.map(|(waiting, _)| waiting));
        let failed = all.filter(|one| one.wanted).map(|one| one.client).collect();
        self.ledger = self.recount();
        self.numbers = self.stored_numbers.clone();
        self.contended = false;
        self.outdated = false;
        failed
    }

    fn renew(&mut self, client: &str, ttl: Option<u64>, now: u64) {
        match (ttl, self.clients.get_mut(client)) {
            (Some(ttl), _) => {
                self.clients.insert(client.to_owned(), (ttl, now + ttl));
            }
            (None, Some((ttl, until))) => *until = now + *ttl,
            (None, None) => {}
        }
    }

    fn leasing(&self, at: &Circumstances<'_>) -> Leasing {
        Leasing::new(at.leases.cloned(), self.ledger.footprint())
    }

    fn policies(
        &self,
        all: &[(Waiting, Option<GrantReply>)],
        leasing: &Leasing,
        world: &World,
    ) -> BTreeMap<String, round::Policy> {
        let requests = all.iter().map(|(waiting, _)| &waiting.request);
        let mut groups: BTreeSet<String> = requests
            .flat_map(|request| request.demand.iter().map(|demand| demand.group.clone()))
            .collect();
        if let Leasing::On(_) = leasing {
            let leased = self.ledger.groups().filter(|(_, sum)| sum.leases > 0);
            groups.extend(leased.map(|(group, _)| group.to_owned()));
        }
        let policy = |group: String| {
            let ceiling = world.ceiling(&group);
            (group, round::Policy::Open { ceiling })
        };
        groups.into_iter().map(policy).collect()
    }

    fn due(&self, now: u64) -> Vec<GrantRow> {
        let due = self.grants.values();
        due.filter(|row| row.is_due(time(now))).cloned().collect()
    }

    /// Loads the rows that a round may change.
    fn load(&self, mut input: RoundInput) -> RoundInput {
        let is_active = input.leasing.is_active();
        for (place, request) in input.requests.iter().enumerate() {
            if place >= input.parked {
                let named = request.grants.iter();
                let named = named.filter_map(|report| self.grants.get(&report.grant_id));
                input.grants.extend(named.cloned());
            }
            let client = request.client_id.as_str();
            if request.request_id.is_some() {
                let made = self
                    .grants
                    .values()
                    .filter(|row| row.client_id == client && row.request_id == request.request_id);
                input.grants.extend(made.cloned());
            }
            let Some(reports) = request.leases.as_ref().filter(|_| is_active) else {
                continue;
            };
            match request.request_id {
                Some(_) => {
                    let of_client = self.leases.values().filter(|row| row.client_id == client);
                    input.leases.extend(of_client.cloned());
                }
                None if place >= input.parked => {
                    let named = reports.iter();
                    let named = named.filter_map(|report| self.leases.get(&report.lease_id));
                    input.leases.extend(named.cloned());
                }
                None => {}
            }
        }
        if is_active {
            let live = self.leases.values().filter(|row| !row.retired);
            let ended = live.filter(|row| {
                row.is_expired(input.now)
                    || !input.leasing.is_eligible(input.policies.get(&row.group))
            });
            input.leases.extend(ended.cloned());
        }
        input
    }

    /// Writes a plan as the tables would take it, and follows it with the sums.
    fn write(&mut self, changes: &Changes, delta: &Delta) -> Result<(), Rule> {
        for row in &changes.grants_inserted {
            if self
                .grants
                .insert(row.grant_id.clone(), row.clone())
                .is_some()
            {
                return Err(Rule::IdsAreNew);
            }
        }
        for row in changes
            .grants_updated
            .iter()
            .chain(&changes.grants_released)
        {
            let Some(stored) = self.grants.get_mut(&row.grant_id) else {
                return Err(Rule::PlansFitTheRows);
            };
            let mut after = stored.clone();
            after.released = row.released;
            if changes.grants_updated.contains(row) {
                (after.permits, after.claimed) = (row.permits, row.claimed);
            }
            if after != *row {
                return Err(Rule::PlansFitTheRows);
            }
            if (after.claimed, after.released) < (stored.claimed, stored.released)
                || after.released < stored.released
                || after.permits > stored.permits
            {
                return Err(Rule::MarksOnlyRise);
            }
            *stored = after;
        }
        for grant_id in &changes.grants_removed {
            if self.grants.remove(grant_id).is_none() {
                return Err(Rule::PlansFitTheRows);
            }
        }
        self.write_leases(changes)?;
        for (client, number) in &changes.numbers {
            let stored = self.stored_numbers.entry(client.clone()).or_default();
            *stored = (*stored).max(*number);
        }
        let before = self.ledger.clone();
        self.ledger.apply(delta);
        self.outdated |= delta.frees();
        if self.ledger != self.recount() {
            return Err(Rule::SumsAreARecount);
        }
        let grants = self.grants.values();
        let mut leases = self.leases.values();
        let mut sane = grants.map(|row| {
            row.released <= row.claimed && row.claimed <= row.permits && row.outstanding() > 0
        });
        if !sane.all(|sane| sane) || !leases.all(|row| row.released < row.permits) {
            return Err(Rule::RowsAreSane);
        }
        let grew = self.ledger.outstanding() + self.ledger.footprint()
            > before.outstanding() + before.footprint();
        if grew && changes.grants_inserted.is_empty() && changes.leases_inserted.is_empty() {
            return Err(Rule::OnlyGivingGrows);
        }
        Ok(())
    }

    fn write_leases(&mut self, changes: &Changes) -> Result<(), Rule> {
        for row in &changes.leases_inserted {
            if self
                .leases
                .insert(row.lease_id.clone(), row.clone())
                .is_some()
            {
                return Err(Rule::IdsAreNew);
            }
        }
        let kinds = [
            (&changes.leases_heard, true, false),
            (&changes.leases_retired, true, true),
            (&changes.leases_shrunk, false, false),
        ];
        for (rows, with_expiry, retires) in kinds {
            for row in rows {
                let Some(stored) = self.leases.get_mut(&row.lease_id) else {
                    return Err(Rule::PlansFitTheRows);
                };
                let mut after = stored.clone();
                (after.permits, after.released) = (row.permits, row.released);
                if with_expiry {
                    after.expires_at = row.expires_at;
                }
                after.retired |= retires;
                if after != *row {
                    return Err(Rule::PlansFitTheRows);
                }
                if after.released < stored.released
                    || after.permits > stored.permits
                    || after.expires_at < stored.expires_at
                {
                    return Err(Rule::MarksOnlyRise);
                }
                *stored = after;
            }
        }
        for lease_id in &changes.leases_removed {
            if self.leases.remove(lease_id).is_none() {
                return Err(Rule::PlansFitTheRows);
            }
        }
        Ok(())
    }

    /// What a round gives stays within what was in force in it.
    fn check_growth(
        &self,
        before: &Ledger,
        at: &Circumstances<'_>,
        is_strict: bool,
    ) -> Result<(), Rule> {
        let after = &self.ledger;
        let (granted, leased) = (after.outstanding(), after.footprint());
        let granted_more = granted > before.outstanding();
        let leased_more = leased > before.footprint();
        let extra = at.world.extra(at.limit);
        let held = match is_strict {
            true => !(granted_more || leased_more) || granted + leased <= at.limit,
            false => (!granted_more || granted <= at.limit) && (!leased_more || leased <= extra),
        };
        if !held {
            return Err(Rule::GivesWithinTheLimit);
        }
        for (group, sum) in after.groups() {
            let was = before.group(group);
            let more = sum.outstanding > was.outstanding || sum.footprint > was.footprint;
            let ceiling = at.world.ceiling(group);
            if more && ceiling.is_some_and(|ceiling| sum.outstanding + sum.footprint > ceiling) {
                return Err(Rule::GivesWithinTheCeiling);
            }
        }
        Ok(())
    }

    /// The highest number of a grant or lease that the holder knows of.
    pub(crate) fn last_number(&self) -> u64 {
        let rows = self.grants.keys().chain(self.leases.keys());
        let rows = rows.map(|id| number(id));
        let parked = self.parked.iter();
        let requests = parked
            .clone()
            .map(|(waiting, _)| waiting)
            .chain(&self.waiting);
        let reported = requests.map(|waiting| last_reported(&waiting.request));
        let told = parked.map(|(_, reply)| last_told(reply));
        rows.chain(reported).chain(told).max().unwrap_or(0)
    }

    fn recount(&self) -> Ledger {
        let mut delta = Delta::default();
        self.grants.values().for_each(|row| delta.add_grant(row));
        self.leases.values().for_each(|row| delta.add_lease(row));
        let mut ledger = Ledger::default();
        ledger.apply(&delta);
        ledger
    }
}

/// The highest number that a request names.
pub(crate) fn last_reported(request: &PermitRequest) -> u64 {
    let grants = request.grants.iter().map(|report| number(&report.grant_id));
    let leases = request.leases.iter().flatten();
    let leases = leases.map(|report| number(&report.lease_id));
    grants.chain(leases).max().unwrap_or(0)
}

/// The highest number that an answer names.
pub(crate) fn last_told(reply: &GrantReply) -> u64 {
    let grants = reply.grants.iter().map(|grant| number(&grant.grant_id));
    let results = reply.grant_results.iter();
    let results = results.map(|result| number(&result.grant_id));
    let leases = reply.leases.iter().flatten();
    let leases = leases.map(|lease| number(&lease.lease_id));
    grants.chain(results).chain(leases).max().unwrap_or(0)
}

/// The number of a grant or lease.
pub(crate) fn number(id: &str) -> u64 {
    id.parse().unwrap_or(0)
}

/// A moment of the world's clock.
pub(crate) fn time(now: u64) -> Timestamp {
    Timestamp::from_millis(now)
}

fn dated(waiting: &Waiting, reply: GrantReply, now: Timestamp) -> GrantReply {
    GrantReply {
        now: waiting.request.sent_at.map(|_| now),
        ..reply
    }
}
