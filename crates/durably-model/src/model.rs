//! The model: which steps a moment allows, where they lead, and what must hold everywhere.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use stateright::{Model, Property};

use crate::client::{Client, Moment};
use crate::coverage::{Coverage, Event};
use crate::holder::{Answered, Circumstances, Holder};
use crate::rules::Rule;
use crate::state::{Action, Body, Lane, Packet, State, rank};
use crate::world::World;

/// How many exchanges a world may take to come to rest once nothing goes wrong any more.
const PATIENCE: usize = 24;

/// A world to be explored.
pub struct Small {
    pub(crate) world: World,
    pub(crate) coverage: Arc<Coverage>,
    /// States that are known to come to rest.
    healed: Mutex<HashSet<u64>>,
}

impl Small {
    /// Prepares a world.
    pub fn new(world: World) -> Small {
        Small {
            world,
            coverage: Arc::default(),
            healed: Mutex::default(),
        }
    }

    /// What has happened in it so far.
    pub fn coverage(&self) -> Arc<Coverage> {
        self.coverage.clone()
    }

    fn circumstances(&self, state: &State) -> Circumstances<'_> {
        Circumstances {
            world: &self.world,
            coverage: &self.coverage,
            now: state.now,
            limit: state.limit,
            leases: self.world.leases.as_ref().filter(|_| state.leases_on),
        }
    }

    fn moment(&self, client: usize, now: u64) -> Moment<'_> {
        Moment {
            world: &self.world,
            coverage: &self.coverage,
            client,
            now,
        }
    }

    fn step(&self, state: &mut State, action: &Action) -> Result<(), Rule> {
        match action {
            Action::Enqueue(client) => {
                let at = self.moment(*client, state.now);
                self.client(state, *client).enqueue(&at);
            }
            Action::Finish(client, job) => self.client(state, *client).finish(*job),
            Action::Return(client, lease) => self.client(state, *client).give_back(lease),
            Action::Ask(client) => self.ask(state, *client),
            Action::GiveUp(client, lane) => self.give_up(state, *client, *lane),
            Action::Deliver(place) => {
                let packet = state.network.remove(*place);
                self.deliver(state, &packet)?;
            }
            Action::Lose(place) => {
                let packet = state.network.remove(*place);
                state.left.losses -= 1;
                if packet.wanted {
                    self.call_failed(state, packet.client, packet.lane());
                }
            }
            Action::LoseAnswer(place) => {
                let packet = state.network.remove(*place);
                state.left.losses -= 1;
                self.call_failed(state, packet.client, packet.lane());
                let unwanted = Packet {
                    wanted: false,
                    ..Packet::clone(&packet)
                };
                self.deliver(state, &unwanted)?;
            }
            Action::Copy(place) => {
                let packet = state.network.remove(*place);
                state.left.copies -= 1;
                state.send(Packet {
                    wanted: false,
                    ..Packet::clone(&packet)
                });
                self.deliver(state, &packet)?;
            }
            Action::Round => {
                let last = state.last_number();
                let at = self.circumstances(state);
                let answered = self.holder(state).round(last, &at)?;
                self.answer(state, answered);
            }
            Action::EndWaits => {
                let at = self.circumstances(state);
                let answered = self.holder(state).end_waits(&at);
                self.answer(state, answered);
            }
            Action::Alarm => self.alarm(state)?,
            Action::Tick => {
                state.now += 1;
                state.left.ticks -= 1;
            }
            Action::Limit(limit) => {
                state.limit = *limit;
                state.peak = state.peak.max(self.world.most(*limit));
                state.left.limits -= 1;
                Arc::make_mut(&mut state.holder).outdated = true;
            }
            Action::Leases(on) => {
                state.leases_on = *on;
                state.left.switches -= 1;
                Arc::make_mut(&mut state.holder).outdated = true;
            }
            Action::CrashClient(client, noted) => {
                state.left.client_crashes -= 1;
                for lane in [Lane::Ask, Lane::Tell] {
                    self.give_up(state, *client, lane);
                }
                // What it has sent before is then taken to be long gone.
                if self.world.sets_clocks_back {
                    state.network.retain(|packet| packet.client != *client);
                }
                let at = self.moment(*client, state.now);
                self.client(state, *client).crash(*noted, &at);
            }
            Action::CrashHolder => {
                state.left.holder_crashes -= 1;
                self.coverage.note(Event::Crashed);
                let failed = self.holder(state).crash();
                for client in failed {
                    self.call_failed(state, client, Lane::Ask);
                }
            }
        }
        Ok(())
    }

    fn client<'a>(&self, state: &'a mut State, client: usize) -> &'a mut Client {
        Arc::make_mut(&mut state.clients[client])
    }

    fn ask(&self, state: &mut State, client: usize) {
        let at = self.moment(client, state.now);
        let last = state.last_request(client, &self.world.name(client));
        let body = Body::Request(self.client(state, client).ask(last, &at));
        self.call(state, client, body);
    }

    fn tell(&self, state: &mut State, client: usize, all: bool) {
        let at = self.moment(client, state.now);
        let body = Body::Sync(self.client(state, client).tell(all, &at));
        self.call(state, client, body);
    }

    fn rank_numbers(&self, state: &mut State) {
        for client in 0..state.clients.len() {
            state.rank_numbers(client, &self.world.name(client));
        }
        state.network.sort_by_key(|packet| rank(packet));
    }

    /// What there is to report is sent at once, unless a report is out.
    fn tell_at_once(&self, state: &mut State) {
        for client in 0..state.clients.len() {
            let at = self.moment(client, state.now);
            let one = &state.clients[client];
            if !one.is_dead && one.telling.is_none() && one.has_to_tell(&at) {
                self.tell(state, client, false);
            }
        }
    }

    fn call(&self, state: &mut State, client: usize, body: Body) {
        state.send(Packet {
            client,
            wanted: true,
            body,
        });
    }

    fn call_failed(&self, state: &mut State, client: usize, lane: Lane) {
        let client = self.client(state, client);
        match lane {
            Lane::Ask => client.asking = None,
            Lane::Tell => client.telling = None,
        }
    }

    /// The client hears no answer any more, wherever its message is by now.
    fn give_up(&self, state: &mut State, client: usize, lane: Lane) {
        let of_call =
            |packet: &Packet| packet.client == client && packet.wanted && packet.lane() == lane;
        if let Some(place) = state.network.iter().position(|packet| of_call(packet)) {
            let packet = state.network.remove(place);
            if !packet.is_reply() {
                state.send(Packet {
                    wanted: false,
                    ..Packet::clone(&packet)
                });
            }
        } else if lane == Lane::Ask {
            let holder = Arc::make_mut(&mut state.holder);
            let parked = holder.parked.iter_mut().map(|(waiting, _)| waiting);
            for waiting in holder.waiting.iter_mut().chain(parked) {
                waiting.wanted &= waiting.client != client;
            }
        }
        self.call_failed(state, client, lane);
    }

    fn deliver(&self, state: &mut State, packet: &Packet) -> Result<(), Rule> {
        let client = packet.client;
        if !packet.wanted {
            self.coverage.note(Event::CopyTaken);
        }
        match &packet.body {
            Body::Request(request) => {
                let at = self.circumstances(state);
                let request = request.clone();
                let answered = self
                    .holder(state)
                    .request(client, packet.wanted, request, &at);
                self.answer(state, answered);
            }
            Body::Sync(sync) => {
                let at = self.circumstances(state);
                let reply = self.holder(state).sync(sync, &at)?;
                if packet.wanted && self.world.slow_answers {
                    self.call(state, client, Body::Synced(reply));
                } else if packet.wanted {
                    let at = self.moment(client, state.now);
                    self.client(state, client).take_synced(&reply, &at)?;
                }
            }
            Body::Granted(reply) => {
                let at = self.moment(client, state.now);
                let last = state.last_request(client, &self.world.name(client));
                self.client(state, client).take_granted(reply, last, &at)?;
            }
            Body::Synced(reply) => {
                let at = self.moment(client, state.now);
                self.client(state, client).take_synced(reply, &at)?;
            }
        }
        Ok(())
    }

    fn answer(&self, state: &mut State, answered: Vec<Answered>) {
        for (client, reply) in answered {
            self.call(state, client, Body::Granted(reply));
        }
    }

    fn alarm(&self, state: &mut State) -> Result<(), Rule> {
        let at = self.circumstances(state);
        let expired = self.holder(state).alarm(&at)?;
        for name in expired {
            if let Some(client) = self.world.client(&name) {
                self.client(state, client).is_expelled = true;
            }
        }
        Ok(())
    }

    fn holder<'a>(&self, state: &'a mut State) -> &'a mut Holder {
        Arc::make_mut(&mut state.holder)
    }

    /// Whether from here, if nothing goes wrong any more, all work is done and every permit comes
    /// back.
    fn comes_to_rest(&self, state: &State) -> bool {
        let mut state = state.clone();
        state.left = self.world.budget.none();
        state.limit = state.limit.max(self.world.limit);
        state.peak = u64::MAX;
        let mut seen = Vec::new();
        let mut rests = false;
        for _ in 0..PATIENCE {
            let mark = mark(&state);
            let known = self.healed.lock().unwrap_or_else(PoisonError::into_inner);
            if known.contains(&mark) || self.is_at_rest(&state) {
                rests = true;
                break;
            }
            drop(known);
            seen.push(mark);
            if self.go_on(&mut state).is_err() {
                break;
            }
        }
        if rests {
            let mut known = self.healed.lock().unwrap_or_else(PoisonError::into_inner);
            known.extend(seen);
        }
        rests
    }

    fn is_at_rest(&self, state: &State) -> bool {
        let holder = &state.holder;
        let rests = state.network.is_empty()
            && holder.waiting.is_empty()
            && holder.parked.is_empty()
            && holder.grants.is_empty()
            && holder.leases.is_empty()
            && holder.ledger.outstanding() + holder.ledger.footprint() == 0
            && state
                .clients
                .iter()
                .all(|client| client.is_dead || client.is_at_rest());
        if rests {
            self.coverage.note(Event::AllDone);
        }
        rests
    }

    /// Everybody does what is to be done, nothing is lost, and then time passes.
    fn go_on(&self, state: &mut State) -> Result<(), Rule> {
        // Claimed, confirmed and released before any claim runs out.
        for _ in 0..3 {
            self.exchange(state)?;
            for client in 0..state.clients.len() {
                if !state.clients[client].is_dead {
                    self.go_on_with(state, client);
                }
            }
        }
        self.exchange(state)?;
        self.alarm(state)?;
        self.rank_numbers(state);
        state.now += 1;
        Ok(())
    }

    fn go_on_with(&self, state: &mut State, client: usize) {
        let at = self.moment(client, state.now);
        let one = self.client(state, client);
        while one.enqueue(&at) {}
        while let Some(job) = one.to_finish().first() {
            one.finish(*job);
        }
        for lease in one.to_return(&at) {
            one.give_back(&lease);
        }
        let (tells, asks) = (one.has_anything(), one.wishes(&at));
        let is_free = (one.telling.is_none(), one.asking.is_none());
        if tells && is_free.0 {
            self.tell(state, client, true);
        }
        if asks && is_free.1 {
            self.ask(state, client);
        }
    }

    fn exchange(&self, state: &mut State) -> Result<(), Rule> {
        loop {
            while let Some(packet) = state.network.pop() {
                self.deliver(state, &packet)?;
            }
            if !state.holder.waiting.is_empty() {
                let last = state.last_number();
                let at = self.circumstances(state);
                let answered = self.holder(state).round(last, &at)?;
                self.answer(state, answered);
            } else if !state.holder.parked.is_empty() {
                let at = self.circumstances(state);
                let answered = self.holder(state).end_waits(&at);
                self.answer(state, answered);
            } else {
                return Ok(());
            }
        }
    }

    /// Whether each job that runs has its permit in the accounts.
    fn is_covered(&self, state: &State) -> bool {
        state.clients.iter().enumerate().all(|(place, client)| {
            let name = self.world.name(place);
            let mut running: BTreeMap<(&str, bool), u64> = BTreeMap::new();
            for source in client.running() {
                *running.entry(source).or_default() += 1;
            }
            running.into_iter().all(|((id, is_lease), running)| {
                let kept = match is_lease {
                    true => {
                        let row = state.holder.leases.get(id);
                        row.map(|row| (&row.client_id, row.permits - row.released))
                    }
                    false => {
                        let row = state.holder.grants.get(id);
                        row.map(|row| (&row.client_id, row.claimed - row.released))
                    }
                };
                match kept {
                    Some((client_id, kept)) => *client_id == name && running <= kept,
                    None => client.is_expelled,
                }
            })
        })
    }

    /// Whether no more runs than was ever allowed, work of clients that were silent for too long aside.
    fn is_within_the_limit(&self, state: &State) -> bool {
        let clients = state.clients.iter().filter(|client| !client.is_expelled);
        let running: usize = clients.map(|client| client.running().count()).sum();
        running as u64 <= state.peak
    }
}

fn mark(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Whether a rule holds of the step that led here.
fn keeps<const RULE: usize>(_: &Small, state: &State) -> bool {
    state.broken != Some(Rule::ALL[RULE])
}

impl Model for Small {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = self.world.clients.iter();
        vec![State {
            now: 0,
            limit: self.world.limit,
            peak: self.world.most(self.world.limit),
            leases_on: self.world.leases.is_some(),
            holder: Arc::default(),
            clients: clients
                .map(|plan| Arc::new(Client::new(plan.jobs.len(), plan.queued)))
                .collect(),
            network: Vec::new(),
            left: self.world.budget,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        let left = &state.left;
        for (place, client) in state.clients.iter().enumerate() {
            if client.is_dead {
                continue;
            }
            let at = self.moment(place, state.now);
            if client.stages.contains(&crate::client::Stage::Absent) {
                actions.push(Action::Enqueue(place));
            }
            let jobs = client.to_finish().into_iter();
            actions.extend(jobs.map(|job| Action::Finish(place, job)));
            let leases = client.to_return(&at).into_iter();
            actions.extend(leases.map(|lease| Action::Return(place, lease)));
            match client.asking {
                Some(_) if left.late > 0 => actions.push(Action::GiveUp(place, Lane::Ask)),
                None if client.wishes(&at) => actions.push(Action::Ask(place)),
                _ => {}
            }
            if client.telling.is_some() && left.late > 0 {
                actions.push(Action::GiveUp(place, Lane::Tell));
            }
            if left.client_crashes > 0 {
                actions.push(Action::CrashClient(place, true));
                actions.push(Action::CrashClient(place, false));
            }
        }
        for (place, packet) in state.network.iter().enumerate() {
            actions.push(Action::Deliver(place));
            if left.losses > 0 && packet.wanted {
                actions.push(Action::Lose(place));
                if matches!(packet.body, Body::Sync(_)) && !self.world.slow_answers {
                    actions.push(Action::LoseAnswer(place));
                }
            }
            if left.copies > 0 && !packet.is_reply() {
                actions.push(Action::Copy(place));
            }
        }
        let holder = &state.holder;
        if !holder.waiting.is_empty() || (!holder.parked.is_empty() && holder.outdated) {
            actions.push(Action::Round);
        }
        if !holder.parked.is_empty() {
            actions.push(Action::EndWaits);
        }
        if holder.is_alarm_due(state.now) {
            actions.push(Action::Alarm);
        }
        if left.ticks > 0 {
            actions.push(Action::Tick);
        }
        if left.limits > 0 {
            let limits = self
                .world
                .limits
                .iter()
                .filter(|limit| **limit != state.limit);
            actions.extend(limits.map(|limit| Action::Limit(*limit)));
        }
        if left.switches > 0 {
            actions.push(Action::Leases(!state.leases_on));
        }
        if left.holder_crashes > 0 {
            actions.push(Action::CrashHolder);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        if matches!(action, Action::GiveUp(..)) {
            next.left.late -= 1;
        }
        match self.step(&mut next, &action) {
            Ok(()) => {
                self.tell_at_once(&mut next);
                self.rank_numbers(&mut next);
            }
            Err(rule) => next.broken = Some(rule),
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Small>> {
        let always = Property::<Small>::always;
        vec![
            always(Rule::ALL[0].sentence(), keeps::<0>),
            always(Rule::ALL[1].sentence(), keeps::<1>),
            always(Rule::ALL[2].sentence(), keeps::<2>),
            always(Rule::ALL[3].sentence(), keeps::<3>),
            always(Rule::ALL[4].sentence(), keeps::<4>),
            always(Rule::ALL[5].sentence(), keeps::<5>),
            always(Rule::ALL[6].sentence(), keeps::<6>),
            always(Rule::ALL[7].sentence(), keeps::<7>),
            always(Rule::ALL[8].sentence(), keeps::<8>),
            always(
                "a job that runs has its permit in the accounts",
                Small::is_covered,
            ),
            always(
                "no more runs than was ever allowed",
                Small::is_within_the_limit,
            ),
            always(
                "once nothing goes wrong, all work is done and all permits come back",
                |model, state| state.broken.is_some() || model.comes_to_rest(state),
            ),
        ]
    }
}
