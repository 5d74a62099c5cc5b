//! Clients that nobody should trust: they ask for anything, report what they like about their own and
//! about others' permits, and fall silent. Some say that they have no storage.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use durably::semaphore::client::ClientError;
use durably::semaphore::protocol::Reply;
use futures::future::{Either, select};
use serde_json::{Map, Value, json};

use super::super::wire;
use super::Fleet;
use super::holder::HolderSide;
use crate::executor::World;
use crate::random::Random;

/// A client of one holder, and what it has heard of.
struct Liar {
    id: String,
    random: Random,
    /// In ms; none for one that claims to have storage.
    ttl: Option<u64>,
    heard: BTreeSet<String>,
    requests: u64,
}

/// Has a liar talk to a holder until the faults end; then what it holds is taken away.
pub(super) async fn lie(fleet: Rc<Fleet>, index: u64) {
    let run = fleet.run.clone();
    let mut random = run.random(&format!("liar {index}"));
    let key = format!("key-{}", random.below(run.knob("keys")));
    let Some(holder) = fleet.holder(&key) else {
        return;
    };
    let ttl = (random.below(2) == 0).then(|| 1_000 + random.below(20_000));
    let mut liar = Liar {
        id: format!("liar-{index}"),
        random,
        ttl,
        heard: BTreeSet::new(),
        requests: 0,
    };
    let world = run.world.clone();
    let fleet = {
        let weak = Rc::downgrade(&fleet);
        drop(fleet);
        weak
    };
    while !run.is_healed() {
        world
            .sleep(Duration::from_millis(1 + liar.random.below(2_000)))
            .await;
        let Some(fleet) = fleet.upgrade() else { return };
        if liar.random.below(20) == 0 {
            // It is gone for a while.
            drop(fleet);
            let silence = Duration::from_millis(liar.random.below(30_000));
            world.sleep(silence).await;
            continue;
        }
        let message = liar.message(&fleet, &holder);
        let answer = send(&fleet, &holder, &message);
        drop(fleet);
        let patience = std::pin::pin!(world.sleep(Duration::from_secs(5)));
        let answer = std::pin::pin!(answer);
        if let Either::Left((Ok(reply), _)) = select(answer, patience).await {
            liar.hear(&reply);
        }
    }
    if liar.ttl.is_none() {
        take_away(&run.world, &holder, liar.id).await;
    }
}

/// What an operator does about a client that will never give anything back.
async fn take_away(world: &World, holder: &HolderSide, liar: String) {
    loop {
        // What it has sent may still be on its way.
        world.sleep(Duration::from_secs(200)).await;
        let id = liar.clone();
        let taken = holder.object.call(move |holder| async move {
            holder.semaphore.force_release(&id, None, "it lies").await
        });
        if let Ok(Ok(_)) = taken.await {
            return;
        }
    }
}

fn send(
    fleet: &Fleet,
    holder: &HolderSide,
    message: &Value,
) -> impl Future<Output = Result<Reply, ClientError>> + use<> {
    let from = fleet.nodes[fleet.nodes.len() - 1].clone();
    let (run, books) = (fleet.run.clone(), fleet.books.clone());
    let json = message.to_string().into_bytes();
    wire::send(run, books, from, holder.address(), json)
}

impl Liar {
    fn message(&mut self, fleet: &Fleet, holder: &HolderSide) -> Value {
        let mut message = Map::new();
        let is_request = self.random.below(3) > 0;
        message.insert("v".into(), json!(1));
        message.insert("clientId".into(), json!(self.id));
        message.insert(
            "type".into(),
            json!(if is_request { "request" } else { "sync" }),
        );
        let now = fleet.run.world.now().as_millis();
        if self.random.below(2) == 0 {
            message.insert("sentAt".into(), json!(self.about(now)));
        }
        if let Some(ttl) = self.ttl {
            message.insert("clientTtlMs".into(), json!(ttl));
        }
        let grants: Vec<Value> = (0..self.random.below(4))
            .map(|_| {
                let id = self.any_id(fleet, holder);
                json!({"grantId": id, "claimed": self.mark(), "released": self.mark()})
            })
            .collect();
        message.insert("grants".into(), Value::from(grants));
        if self.random.below(2) == 0 {
            let leases: Vec<Value> = (0..self.random.below(4))
                .map(|_| {
                    let id = self.any_id(fleet, holder);
                    let retired = self.random.below(3) == 0;
                    json!({"leaseId": id, "drawn": self.mark(), "released": self.mark(),
                           "retired": retired})
                })
                .collect();
            message.insert("leases".into(), Value::from(leases));
        }
        if is_request {
            let demand: Vec<Value> = (0..self.random.below(3))
                .map(|_| {
                    let group = format!("group-{}", self.random.below(4));
                    let count = 1 + self.mark();
                    json!({"group": group, "count": count, "oldestAt": self.about(now)})
                })
                .collect();
            message.insert("demand".into(), Value::from(demand));
            if self.random.below(2) == 0 {
                // Some name two different requests alike.
                self.requests += self.random.below(2);
                let id = format!("request-{}", self.requests);
                message.insert("requestId".into(), json!(id));
                if self.random.below(3) == 0 {
                    message.insert("waitMs".into(), json!(self.random.below(10_000)));
                }
            }
        }
        Value::Object(message)
    }

    fn hear(&mut self, reply: &Reply) {
        if let Reply::Grant(reply) = reply {
            let grants = reply.grants.iter().map(|grant| grant.grant_id.clone());
            self.heard.extend(grants);
            let leases = reply.leases.iter().flatten();
            self.heard
                .extend(leases.map(|lease| lease.lease_id.clone()));
        }
    }

    /// Something of its own, something of anybody, or something that nobody has heard of.
    fn any_id(&mut self, fleet: &Fleet, holder: &HolderSide) -> String {
        let own = self.random.below(self.heard.len() as u64 + 1) as usize;
        match (self.random.below(4), self.heard.iter().nth(own)) {
            (0, _) => format!("nothing-{}", self.random.below(3)),
            (1, _) => {
                let place = self.random.below(64) as usize;
                fleet
                    .books
                    .any_id(&holder.key, place)
                    .unwrap_or_else(|| "nobody's".to_owned())
            }
            (_, Some(own)) => own.clone(),
            (_, None) => "not-yet".to_owned(),
        }
    }

    fn mark(&mut self) -> u64 {
        match self.random.below(8) {
            0 => 9_007_199_254_740_991,
            1 => self.random.below(1_000),
            _ => self.random.below(6),
        }
    }

    fn about(&mut self, now: u64) -> u64 {
        match self.random.below(6) {
            0 => 0,
            1 => 9_007_199_254_740_991,
            _ => (now + self.random.below(20_000)).saturating_sub(10_000),
        }
    }
}
