//! A moment of a world, and the steps that lead out of it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use durably::semaphore::protocol::{GrantReply, PermitRequest, PermitSync, SyncReply};

use crate::client::Client;
use crate::holder::{Holder, last_reported, last_told, number};
use crate::rules::Rule;
use crate::world::Budget;

/// What a packet carries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Request(PermitRequest),
    Sync(PermitSync),
    Granted(GrantReply),
    Synced(SyncReply),
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Packet {
    /// The client that sent it, or that it goes to.
    pub(crate) client: usize,
    /// Whether the client waits for the answer. A copy, or a message whose client has given up, may
    /// arrive all the same.
    pub(crate) wanted: bool,
    pub(crate) body: Body,
}

impl Packet {
    pub(crate) fn is_reply(&self) -> bool {
        matches!(self.body, Body::Granted(_) | Body::Synced(_))
    }

    pub(crate) fn lane(&self) -> Lane {
        match self.body {
            Body::Request(_) | Body::Granted(_) => Lane::Ask,
            Body::Sync(_) | Body::Synced(_) => Lane::Tell,
        }
    }
}

/// Which of a client's two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// A request.
    Ask,
    /// A report.
    Tell,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) now: u64,
    pub(crate) limit: u64,
    /// The most that was ever allowed to run.
    pub(crate) peak: u64,
    pub(crate) leases_on: bool,
    pub(crate) holder: Arc<Holder>,
    pub(crate) clients: Vec<Arc<Client>>,
    /// In an order that says nothing, so that the same packets make the same state.
    pub(crate) network: Vec<Arc<Packet>>,
    /// What may still go wrong.
    pub(crate) left: Budget,
    pub(crate) broken: Option<Rule>,
}

impl State {
    pub(crate) fn send(&mut self, packet: Packet) {
        let rank = rank(&packet);
        let place = self.network.iter();
        let place = place.take_while(|one| self::rank(one) < rank).count();
        self.network.insert(place, Arc::new(packet));
    }
}

impl State {
    /// Puts the ranks of request numbers in their place, client by client: only their order matters, and
    /// so there are not more states than orders.
    pub(crate) fn rank_numbers(&mut self, client: usize, name: &str) {
        let found = self.numbers(client, name);
        let ranks: BTreeMap<u64, u64> = found.into_iter().zip(0..).collect();
        if ranks.iter().all(|(number, rank)| number == rank) {
            return;
        }
        self.each_number(client, name, &mut |number| *number = ranks[number]);
    }

    /// All request numbers of a client, wherever they are, and zero, which stands for none.
    fn numbers(&self, client: usize, name: &str) -> BTreeSet<u64> {
        let packets = self.network.iter().filter(|packet| packet.client == client);
        let packets = packets.filter_map(|packet| match &packet.body {
            Body::Request(request) => request.request_number,
            Body::Granted(reply) => reply.request_number,
            Body::Sync(_) | Body::Synced(_) => None,
        });
        let holder = &self.holder;
        let known = [&holder.numbers, &holder.stored_numbers];
        let known = known
            .into_iter()
            .filter_map(|numbers| numbers.get(name).copied());
        let parked = holder.parked.iter().filter(|(one, _)| one.client == client);
        let replies = parked.clone().filter_map(|(_, reply)| reply.request_number);
        let waiting = holder.waiting.iter().filter(|one| one.client == client);
        let waiting = waiting.chain(parked.map(|(one, _)| one));
        let waiting = waiting.filter_map(|one| one.request.request_number);
        let own = [0, self.clients[client].last].into_iter();
        own.chain(packets)
            .chain(known)
            .chain(replies)
            .chain(waiting)
            .collect()
    }

    /// Visits the same, to change them.
    fn each_number(&mut self, client: usize, name: &str, visit: &mut dyn FnMut(&mut u64)) {
        visit(&mut Arc::make_mut(&mut self.clients[client]).last);
        for packet in &mut self.network {
            if packet.client != client {
                continue;
            }
            match &mut Arc::make_mut(packet).body {
                Body::Request(request) => request.request_number.iter_mut().for_each(&mut *visit),
                Body::Granted(reply) => reply.request_number.iter_mut().for_each(&mut *visit),
                Body::Sync(_) | Body::Synced(_) => {}
            }
        }
        let holder = Arc::make_mut(&mut self.holder);
        for numbers in [&mut holder.numbers, &mut holder.stored_numbers] {
            numbers.get_mut(name).into_iter().for_each(&mut *visit);
        }
        for (_, reply) in holder
            .parked
            .iter_mut()
            .filter(|(one, _)| one.client == client)
        {
            reply.request_number.iter_mut().for_each(&mut *visit);
        }
        let parked = holder.parked.iter_mut().map(|(waiting, _)| waiting);
        for waiting in holder.waiting.iter_mut().chain(parked) {
            if waiting.client == client {
                let request = Arc::make_mut(&mut waiting.request);
                request.request_number.iter_mut().for_each(&mut *visit);
            }
        }
    }

    /// The highest number of a grant or lease that is known anywhere: ids that nobody knows any more
    /// may be used again, which keeps states alike that differ only in them.
    pub(crate) fn last_number(&self) -> u64 {
        let clients = self.clients.iter().map(|client| client.last_number());
        let packets = self.network.iter().map(|packet| match &packet.body {
            Body::Request(request) => last_reported(request),
            Body::Granted(reply) => last_told(reply),
            Body::Sync(sync) => {
                let grants = sync.grants.iter().map(|report| &report.grant_id);
                let leases = sync.leases.iter().flatten().map(|report| &report.lease_id);
                grants.chain(leases).map(|id| number(id)).max().unwrap_or(0)
            }
            Body::Synced(reply) => {
                let grants = reply.grant_results.iter().map(|result| &result.grant_id);
                let leases = reply.leases.iter().flatten().map(|lease| &lease.lease_id);
                grants.chain(leases).map(|id| number(id)).max().unwrap_or(0)
            }
        });
        let held = self.holder.last_number();
        clients.chain(packets).max().unwrap_or(0).max(held)
    }

    /// The highest number in an id of a client's requests that is known anywhere.
    pub(crate) fn last_request(&self, client: usize, name: &str) -> u64 {
        let holder = &self.holder;
        let grants = holder.grants.values();
        let grants = grants.filter(|row| row.client_id == name);
        let leases = holder.leases.values();
        let leases = leases.filter(|row| row.client_id == name);
        let made = grants
            .map(|row| &row.request_id)
            .chain(leases.map(|row| &row.request_id));
        let packets = self.network.iter().filter_map(|packet| match &packet.body {
            Body::Request(request) if packet.client == client => Some(&request.request_id),
            _ => None,
        });
        let parked = holder.parked.iter().map(|(waiting, _)| waiting);
        let waiting = parked.chain(&holder.waiting);
        let waiting = waiting
            .filter(|waiting| waiting.client == client)
            .map(|waiting| &waiting.request.request_id);
        let known = made.chain(packets).chain(waiting).flatten();
        let known = known.filter_map(|id| id.strip_prefix('r')?.parse().ok());
        known
            .max()
            .unwrap_or(0)
            .max(self.clients[client].request_number())
    }
}

/// A place for a packet in an order that says nothing.
pub(crate) fn rank(packet: &Packet) -> u64 {
    let mut hasher = DefaultHasher::new();
    packet.hash(&mut hasher);
    hasher.finish()
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client's next job comes.
    Enqueue(usize),
    /// A job's work ends.
    Finish(usize, usize),
    /// A client gives a lease back.
    Return(usize, String),
    /// A client asks.
    Ask(usize),
    /// A client stops waiting for an answer; its message may arrive all the same.
    GiveUp(usize, Lane),
    /// A packet arrives.
    Deliver(usize),
    /// A packet is lost.
    Lose(usize),
    /// A report arrives, and its answer is lost.
    LoseAnswer(usize),
    /// A packet arrives, and a copy of it stays under way.
    Copy(usize),
    /// The holder holds a round.
    Round,
    /// The waits of parked requests end.
    EndWaits,
    /// The holder's alarm.
    Alarm,
    /// Time passes.
    Tick,
    /// The limit changes.
    Limit(u64),
    /// Leases are switched on or off.
    Leases(bool),
    /// A client dies; what it was handed may have been noted or not.
    CrashClient(usize, bool),
    /// The holder dies.
    CrashHolder,
}
