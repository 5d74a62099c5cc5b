//! When a round takes place, who is in it, and how its answers leave.
//!
//! Rounds never overlap: who arrives during one waits for the next, which is scheduled when it
//! ends. A round is dated by its start, also if the application takes its time to say the limit.
//!
//! A request that is given nothing may be *parked*, if it says so: it takes part in later rounds, as
//! demand only, and is answered by the first that has something for it or when its wait ends. Whatever
//! frees or adds capacity has a round held for those that are parked.
//!
//! Not decided here: who gets what ([`round`](super::round)).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{join_all, select};

use super::builder::Settings;
use super::error::SemaphoreError;
use super::event::TARGET;
use super::holder::{Inner, named, named_leases};
use super::leases::Leasing;
use super::protocol::{GrantReply, PermitRequest, Reply};
use super::round::{self, Policy, RoundInput, RoundOutcome};
use super::store;
use super::tap::{Act, Reading, Wait};
use crate::bugs::{Bug, is_on};
use crate::error::StorageError;
use crate::host::Sql;
use crate::time::Timestamp;

/// Of how many clients the highest request number is kept in memory.
const MAX_NUMBERS: usize = 10_000;

/// The requests that wait, and the round that they wait for.
#[derive(Default)]
pub(super) struct Rounds {
    /// For their first round.
    waiting: RefCell<Vec<Waiting>>,
    /// For capacity. Empty while a round is held: then they are in it.
    parked: RefCell<Vec<Parked>>,
    /// In the round that is held.
    in_round: RefCell<Vec<Arc<PermitRequest>>>,
    /// Which of them name themselves.
    named: RefCell<BTreeSet<Name>>,
    /// By which act, and when, each name came first since the last round started.
    came: RefCell<BTreeMap<Name, (u64, Timestamp)>>,
    /// Demands and reports of the waiting requests.
    entries: Cell<u64>,
    /// A round is scheduled or running, and takes care of the next one when it ends.
    coming: Cell<bool>,
    /// Permits came back that no round has seen.
    freed: Cell<bool>,
    /// Limits may be other than those that the last round has read.
    limits_changed: Cell<bool>,
    /// The highest request number that was seen, by client; what is not here may be stored.
    numbers: RefCell<BTreeMap<String, u64>>,
    last_start: Cell<Option<Timestamp>>,
    /// What the last round said about leases that nobody needs.
    pub(super) contended: Cell<bool>,
    parked_ever: Cell<u64>,
}

/// A client and its name for a request.
type Name = (String, String);

type Answer = oneshot::Sender<Result<Reply, SemaphoreError>>;

/// A request that waits for a round.
struct Waiting {
    request: Arc<PermitRequest>,
    /// The act that took it.
    message: u64,
    answer: Answer,
    /// Until when it may be parked.
    until: Timestamp,
}

/// A request that was in a round and waits for capacity.
struct Parked {
    waiting: Waiting,
    /// What it is answered if nothing comes.
    reply: GrantReply,
    serial: u64,
    /// Ends the task that ends the wait.
    _timer: oneshot::Sender<()>,
}

impl Rounds {
    /// Whether a request of a client waits.
    pub(super) fn is_waited_by(&self, client_id: &str) -> bool {
        let is_of = |request: &PermitRequest| request.client_id == client_id;
        let parked = self.parked.borrow();
        self.in_round.borrow().iter().any(|request| is_of(request))
            || self.waiting.borrow().iter().any(|one| is_of(&one.request))
            || parked.iter().any(|one| is_of(&one.waiting.request))
    }
}

impl Rounds {
    /// Notes the highest request numbers that were seen.
    fn remember(&self, seen: BTreeMap<String, u64>) {
        let mut numbers = self.numbers.borrow_mut();
        // Strangers who come and go must not fill the memory. What protects leases is stored.
        if numbers.len() + seen.len() > MAX_NUMBERS {
            numbers.clear();
        }
        numbers.extend(seen);
    }

    /// Whether those who were given nothing might be given something now.
    fn is_outdated(&self) -> bool {
        (self.freed.get() && !is_on(Bug::FreedDuringRound)) || self.limits_changed.get()
    }
}

impl Inner {
    pub(super) fn request(
        self: Rc<Self>,
        mut request: PermitRequest,
        act: u64,
        now: Timestamp,
    ) -> Result<oneshot::Receiver<Result<Reply, SemaphoreError>>, SemaphoreError> {
        let (answer, receiver) = oneshot::channel();
        let entries = entries(&request);
        self.take_place_of(&request, act, now);
        {
            let mut waiting = self.rounds.waiting.borrow_mut();
            let settings = &self.settings;
            let already = (waiting.len() + self.rounds.parked.borrow().len()) as u64;
            // The first one is always taken, however long its lists are.
            let too_much =
                already > 0 && self.rounds.entries.get() + entries > settings.max_waiting_entries;
            if already >= settings.max_waiting || too_much {
                return Err(SemaphoreError::Overloaded { waiting: already });
            }
            round::accept(&mut request, now);
            let until = now + self.longest_wait(&request);
            if let Some(name) = name(&request) {
                let mut came = self.rounds.came.borrow_mut();
                came.entry(name.clone()).or_insert((act, now));
                self.rounds.named.borrow_mut().insert(name);
            }
            waiting.push(Waiting {
                request: Arc::new(request),
                message: act,
                answer,
                until,
            });
        }
        self.rounds.entries.set(self.rounds.entries.get() + entries);
        self.schedule_round();
        Ok(receiver)
    }

    /// How long a request may be parked. Its client counts the lifetime of a lease from when it sent
    /// the request, so most of that must be left in the end.
    fn longest_wait(&self, request: &PermitRequest) -> Duration {
        let asked = Duration::from_millis(request.wait_ms.unwrap_or(0));
        let wait = asked.min(self.settings.max_wait);
        match self.leasing().ttl() {
            Some(ttl) if request.leases.is_some() => wait.min(ttl / 4),
            _ => wait,
        }
    }

    /// A request that is repeated while it waits asks for nothing any more, in favour of `newer`. One that
    /// arrives behind its own successor takes nobody's place.
    fn take_place_of(&self, newer: &PermitRequest, act: u64, now: Timestamp) {
        let number = newer.request_number;
        let Some(newer) = name(newer) else { return };
        if !self.rounds.named.borrow_mut().remove(&newer) {
            return;
        }
        let is_repeated = |waiting: &Waiting| {
            name(&waiting.request).as_ref() == Some(&newer)
                && waiting.request.request_number <= number
        };
        for waiting in self.rounds.waiting.borrow_mut().iter_mut() {
            if is_repeated(waiting) {
                Arc::make_mut(&mut waiting.request).demand.clear();
                waiting.until = Timestamp::ZERO;
            }
        }
        let parked = self.rounds.parked.take();
        let (repeated, others): (Vec<_>, Vec<_>) = parked
            .into_iter()
            .partition(|parked| is_repeated(&parked.waiting));
        self.rounds.parked.replace(others);
        for parked in repeated {
            self.answer_parked(parked, act, now);
        }
    }

    fn answer_parked(&self, parked: Parked, act: u64, now: Timestamp) {
        let entries = self.rounds.entries.get();
        let freed = self::entries(&parked.waiting.request);
        self.rounds.entries.set(entries.saturating_sub(freed));
        self.answer(parked.waiting, parked.reply, act, now);
    }

    /// Answers a request as was decided at `now` by an act. The grants of whoever gave up go back at
    /// their claim deadline.
    fn answer(&self, waiting: Waiting, reply: GrantReply, act: u64, now: Timestamp) {
        let now = waiting.request.sent_at.map(|_| now);
        let reply = Reply::Grant(GrantReply { now, ..reply });
        self.told.answered(act, waiting.message, Ok(&reply));
        let _ = waiting.answer.send(Ok(reply));
    }

    /// Has a round held for those that wait for capacity, for permits came back.
    pub(super) fn freed(self: Rc<Self>) {
        self.rounds.freed.set(true);
        self.see_to_parked();
    }

    /// Has a round held for those that wait for capacity, for limits may be other than they were.
    pub(super) fn limits_changed(self: Rc<Self>) {
        self.rounds.limits_changed.set(true);
        self.see_to_parked();
    }

    fn see_to_parked(self: Rc<Self>) {
        if !self.rounds.parked.borrow().is_empty() {
            self.schedule_round();
        }
    }

    /// Has a round held for whoever waits, unless one is coming that will.
    fn schedule_round(self: &Rc<Self>) {
        if self.rounds.coming.replace(true) {
            return;
        }
        let now = self.scheduler.now();
        let Settings {
            round_wait,
            round_period,
            ..
        } = self.settings;
        // If the clock stepped back since the last round, a period from now is enough.
        let earliest = self
            .rounds
            .last_start
            .get()
            .map_or(now, |start| (start + round_period).min(now + round_period));
        let delay = earliest.max(now + round_wait).since(now);
        let sleep = self.scheduler.host().sleep(delay);
        let sleep = self.told.wait(Wait::Round, sleep);
        let inner = self.clone();
        // A task of the host: an object with waiting requests stays in memory.
        self.scheduler.spawn(async move {
            sleep.await;
            inner.hold_round().await;
            inner.rounds.coming.set(false);
            let any_parked = !inner.rounds.parked.borrow().is_empty();
            if !inner.rounds.waiting.borrow().is_empty()
                || (any_parked && inner.rounds.is_outdated())
            {
                inner.schedule_round();
            }
        });
    }

    async fn hold_round(self: &Rc<Self>) {
        let start = self.scheduler.now();
        let rounds = &self.rounds;
        rounds.last_start.set(Some(start));
        rounds.limits_changed.set(false);
        rounds.entries.set(0);
        rounds.named.take();
        rounds.came.take();
        // Whoever hung up does not wait any more.
        let mut parked = rounds.parked.take();
        parked.retain(|parked| {
            let left = parked.waiting.answer.is_canceled();
            if left {
                let message = parked.waiting.message;
                self.told.act(start, Act::CallerLeft(message));
            }
            !left
        });
        let act = self.told.begin(start, Act::Round);
        let waiting = rounds.waiting.take();
        let requests = parked
            .iter()
            .map(|parked| &parked.waiting)
            .chain(&waiting)
            .map(|waiting| waiting.request.clone())
            .collect::<Vec<_>>();
        rounds.in_round.replace(requests.clone());
        let held = self.run_round(act, start, requests, parked.len()).await;
        rounds.in_round.take();
        match held {
            Ok(mut outcome) => {
                let now = self.scheduler.now();
                let replies = std::mem::take(&mut outcome.replies);
                let matters = std::mem::take(&mut outcome.matters);
                let before = parked
                    .into_iter()
                    .map(|parked| (parked.waiting, Some(parked.reply)));
                let all = before.chain(waiting.into_iter().map(|waiting| (waiting, None)));
                for (((waiting, before), reply), matters) in all.zip(replies).zip(matters) {
                    let reply = match before {
                        Some(before) => round::merged(before, reply),
                        None => reply,
                    };
                    let name = name(&waiting.request);
                    let newer = name.and_then(|name| rounds.came.borrow().get(&name).copied());
                    match newer {
                        _ if matters || start >= waiting.until => {
                            self.answer(waiting, reply, act, start);
                        }
                        // As if it had been parked before that came.
                        Some((newer, at)) => self.answer(waiting, reply, newer, at),
                        None => self.park(waiting, reply, now),
                    }
                }
                self.told.end(act, false);
                for event in outcome.events(now) {
                    self.tell(&event);
                }
            }
            Err(error) => {
                tracing::error!(
                    target: TARGET,
                    error = %error,
                    "durability.semaphore.round_failed"
                );
                let parked = parked.into_iter().map(|parked| parked.waiting);
                for waiting in parked.chain(waiting) {
                    self.told.answered(act, waiting.message, Err(&error));
                    let _ = waiting.answer.send(Err(error.clone()));
                }
                self.told
                    .end(act, !matches!(error, SemaphoreError::Limit(_)));
            }
        }
    }

    /// Keeps a request for later rounds, at most until its wait ends.
    fn park(self: &Rc<Self>, waiting: Waiting, reply: GrantReply, now: Timestamp) {
        let rounds = &self.rounds;
        let serial = rounds.parked_ever.get();
        rounds.parked_ever.set(serial + 1);
        rounds
            .entries
            .set(rounds.entries.get() + entries(&waiting.request));
        rounds.named.borrow_mut().extend(name(&waiting.request));
        let sleep = self.scheduler.host().sleep(waiting.until.since(now));
        let message = waiting.message;
        let sleep = self.told.wait(Wait::Parked(message), sleep);
        let (timer, ended) = oneshot::channel();
        let inner = self.clone();
        self.scheduler.spawn(async move {
            select(sleep, ended).await;
            let over = {
                let mut parked = inner.rounds.parked.borrow_mut();
                let place = parked.iter().position(|parked| parked.serial == serial);
                place.map(|place| parked.remove(place))
            };
            if let Some(parked) = over {
                if let Some(name) = name(&parked.waiting.request) {
                    inner.rounds.named.borrow_mut().remove(&name);
                }
                let now = inner.scheduler.now();
                let act = inner.told.begin(now, Act::WaitEnded(message));
                inner.answer_parked(parked, act, now);
                inner.told.end(act, false);
            }
        });
        rounds.parked.borrow_mut().push(Parked {
            waiting,
            reply,
            serial,
            _timer: timer,
        });
    }

    async fn run_round(
        self: &Rc<Self>,
        act: u64,
        start: Timestamp,
        requests: Vec<Arc<PermitRequest>>,
        parked: usize,
    ) -> Result<RoundOutcome, SemaphoreError> {
        let limit = self.limits.limit(&**self.scheduler.host()).await;
        let read = limit.as_ref().ok().copied();
        self.told.read(act, Reading::Limit(read));
        let limit = limit?;
        let leasing = self.leasing();
        let mut groups: BTreeSet<String> = requests
            .iter()
            .flat_map(|request| request.demand.iter().map(|demand| demand.group.clone()))
            .collect();
        if let Leasing::On(_) = leasing {
            let ledger = self.ledger.borrow();
            let leased = ledger.groups().filter(|(_, sum)| sum.leases > 0);
            groups.extend(leased.map(|(group, _)| group.to_owned()));
        }
        let policies = self.policies(groups).await;
        for (group, policy) in &policies {
            self.told.read(act, Reading::Group(group, *policy));
        }
        let inner = self.clone();
        let outcome = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            let mut input = RoundInput {
                now: start,
                limit,
                policies,
                leasing,
                requests,
                parked,
                grants: store::due(sql, start)?,
                leases: Vec::new(),
                numbers: BTreeMap::new(),
                grant_timeout: inner.settings.grant_timeout,
                round_period: inner.settings.round_period,
                with_usage: inner.is_heard(),
            };
            // Whoever is parked is alive, too.
            for request in &input.requests {
                inner.renew(sql, &request.client_id, request.client_ttl_ms, start)?;
            }
            inner.load(sql, &mut input)?;
            let mut next_id = || inner.scheduler.next_id();
            let mut outcome = round::decide(input, &inner.ledger.borrow(), &mut next_id);
            let delta = std::mem::take(&mut outcome.delta);
            inner.apply(transaction, &outcome.changes, delta)?;
            let (contended, inner) = (outcome.contended, inner.clone());
            let numbers = std::mem::take(&mut outcome.numbers);
            // What came back before this, and by the round's own reports, it has seen; nor is any
            // report taken yet that comes after it.
            transaction.on_release(Box::new(move || {
                inner.rounds.freed.set(false);
                inner.rounds.contended.set(contended);
                inner.rounds.remember(numbers);
            }));
            Ok::<_, StorageError>(outcome)
        });
        Ok(outcome.await?)
    }

    /// Loads the rows that a round may change.
    fn load(&self, sql: &dyn Sql, input: &mut RoundInput) -> Result<(), StorageError> {
        let leasing = input.leasing.is_active();
        for (place, request) in input.requests.iter().enumerate() {
            if place >= input.parked {
                input.grants.extend(named(sql, &request.grants)?);
            }
            let client = &request.client_id;
            if request.request_number.is_some() && !input.numbers.contains_key(client) {
                let known = self.rounds.numbers.borrow().get(client).copied();
                let known = match known {
                    Some(number) => Some(number),
                    None => store::request_number(sql, client)?,
                };
                input
                    .numbers
                    .extend(known.map(|number| (client.clone(), number)));
            }
            if let Some(request_id) = &request.request_id {
                let made = store::grants_of_request(sql, &request.client_id, request_id)?;
                input.grants.extend(made);
            }
            let Some(reports) = request.leases.as_ref().filter(|_| leasing) else {
                continue;
            };
            match &request.request_id {
                Some(_) => {
                    let of_client = store::leases_of_client(sql, &request.client_id)?;
                    input.leases.extend(of_client);
                }
                None if place >= input.parked => {
                    input.leases.extend(named_leases(sql, reports)?);
                }
                None => {}
            }
        }
        if leasing {
            input.leases.extend(store::expired_leases(sql, input.now)?);
            let ledger = self.ledger.borrow();
            for (group, sum) in ledger.groups() {
                let policy = input.policies.get(group);
                if sum.live_leases > 0 && !input.leasing.is_eligible(policy) {
                    input.leases.extend(store::leases_of_group(sql, group)?);
                }
            }
        }
        Ok(())
    }

    /// Asks for the policies of all `groups` at once, each once.
    pub(super) async fn policies(
        &self,
        groups: impl IntoIterator<Item = String>,
    ) -> BTreeMap<String, Policy> {
        let host = &**self.scheduler.host();
        let asked = groups.into_iter().map(|group| async move {
            let policy = self.limits.policy(host, &group).await;
            (group, policy)
        });
        join_all(asked).await.into_iter().collect()
    }
}

fn name(request: &PermitRequest) -> Option<Name> {
    let request_id = request.request_id.clone()?;
    Some((request.client_id.clone(), request_id))
}

/// How much of the memory for waiting requests one takes.
fn entries(request: &PermitRequest) -> u64 {
    let leases = request.leases.as_ref().map_or(0, Vec::len);
    (request.demand.len() + request.grants.len() + leases) as u64
}
