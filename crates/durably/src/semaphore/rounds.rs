//! When a round takes place, who is in it, and how its answers leave.
//!
//! Rounds never overlap: who arrives during one waits for the next, which is scheduled when it
//! ends. A round is dated by its start, also if the application takes its time to say the limit.
//! Not decided here: who gets what ([`round`](super::round)).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures::channel::oneshot;
use futures::future::join_all;

use super::builder::Settings;
use super::error::SemaphoreError;
use super::event::TARGET;
use super::holder::{Inner, named};
use super::protocol::{GrantReply, PermitRequest, Reply};
use super::round::{self, Policy, RoundInput, RoundOutcome};
use super::store;
use crate::error::StorageError;
use crate::time::Timestamp;

/// The requests that wait, and the round that they wait for.
#[derive(Default)]
pub(super) struct Rounds {
    waiting: RefCell<Vec<Waiting>>,
    /// Demands and reports of the waiting requests.
    entries: Cell<u64>,
    /// A round is scheduled or running, and takes care of the next one when it ends.
    coming: Cell<bool>,
    last_start: Cell<Option<Timestamp>>,
}

/// A request that waits for its round.
struct Waiting {
    request: PermitRequest,
    answer: oneshot::Sender<Result<Reply, SemaphoreError>>,
}

impl Inner {
    pub(super) fn request(
        self: Rc<Self>,
        mut request: PermitRequest,
    ) -> Result<oneshot::Receiver<Result<Reply, SemaphoreError>>, SemaphoreError> {
        let (answer, receiver) = oneshot::channel();
        let entries = entries(&request);
        {
            let mut waiting = self.rounds.waiting.borrow_mut();
            let settings = &self.settings;
            // The first one is always taken, however long its lists are.
            let too_much = !waiting.is_empty()
                && self.rounds.entries.get() + entries > settings.max_waiting_entries;
            let already = waiting.len() as u64;
            if already >= settings.max_waiting || too_much {
                return Err(SemaphoreError::Overloaded { waiting: already });
            }
            round::accept(&mut request, self.scheduler.now());
            waiting.push(Waiting { request, answer });
        }
        self.rounds.entries.set(self.rounds.entries.get() + entries);
        self.schedule_round();
        Ok(receiver)
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
        let inner = self.clone();
        // A task of the host: an object with waiting requests stays in memory.
        self.scheduler.spawn(async move {
            sleep.await;
            inner.hold_round().await;
            inner.rounds.coming.set(false);
            if !inner.rounds.waiting.borrow().is_empty() {
                inner.schedule_round();
            }
        });
    }

    async fn hold_round(self: &Rc<Self>) {
        let start = self.scheduler.now();
        self.rounds.last_start.set(Some(start));
        self.rounds.entries.set(0);
        let waiting = self.rounds.waiting.take();
        let mut requests = Vec::with_capacity(waiting.len());
        let mut answers = Vec::with_capacity(waiting.len());
        for Waiting { request, answer } in waiting {
            answers.push((answer, request.sent_at.is_some()));
            requests.push(request);
        }
        match self.run_round(start, requests).await {
            Ok(mut outcome) => {
                let now = self.scheduler.now();
                let replies = std::mem::take(&mut outcome.replies);
                for ((answer, wants_now), reply) in answers.into_iter().zip(replies) {
                    let reply = GrantReply {
                        now: wants_now.then_some(now),
                        ..reply
                    };
                    // The grants of whoever gave up go back at their claim deadline.
                    let _ = answer.send(Ok(Reply::Grant(reply)));
                }
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
                for (answer, _) in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }

    async fn run_round(
        self: &Rc<Self>,
        start: Timestamp,
        requests: Vec<PermitRequest>,
    ) -> Result<RoundOutcome, SemaphoreError> {
        let limit = self.limits.limit(&**self.scheduler.host()).await?;
        let demanded: BTreeSet<String> = requests
            .iter()
            .flat_map(|request| request.demand.iter().map(|demand| demand.group.clone()))
            .collect();
        let policies = self.policies(demanded).await;
        let inner = self.clone();
        let outcome = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            let mut rows = store::due(sql, start)?;
            for request in &requests {
                rows.extend(named(sql, &request.grants)?);
            }
            let input = RoundInput {
                now: start,
                limit,
                policies,
                requests,
                rows,
                grant_timeout: inner.settings.grant_timeout,
                round_period: inner.settings.round_period,
                with_usage: inner.is_heard(),
            };
            let mut next_id = || inner.scheduler.next_id();
            let mut outcome = round::decide(input, &inner.ledger.borrow(), &mut next_id);
            let delta = std::mem::take(&mut outcome.delta);
            inner.apply(transaction, &outcome.changes, delta)?;
            Ok::<_, StorageError>(outcome)
        });
        Ok(outcome.await?)
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

/// How much of the memory for waiting requests one takes.
fn entries(request: &PermitRequest) -> u64 {
    let leases = request.leases.as_ref().map_or(0, Vec::len);
    (request.demand.len() + request.grants.len() + leases) as u64
}
