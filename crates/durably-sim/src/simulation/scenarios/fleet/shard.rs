//! A shard of the fleet: a queue that asks holders over the network, and whose callbacks fail.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::layers::{Backoff, HostTimer};
use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
use durably::semaphore::protocol::{Message, Reply};
use durably::semaphore::queue::{
    AdmittedItem, CancelOutcome, LeaseStop, NewItem, Outcome, QueueEvent, SemaphoreQueue, Via,
};
use durably::{Scheduler, SchedulerConfig};

use super::super::wire;
use super::{Fleet, WeakFleet};
use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::invariants::jobs;
use crate::simulation::invariants::order::Order;

pub(super) struct Shard {
    pub(super) scheduler: Scheduler,
    pub(super) queue: SemaphoreQueue,
}

impl Object for Shard {
    const CLASS: &'static str = "shard";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// A shard, and what is known of it outside.
pub(super) struct ShardSide {
    pub(super) name: String,
    pub(super) node: Node,
    pub(super) object: VirtualObject<Shard>,
    /// Its newest instance.
    pub(super) open: RefCell<Weak<Shard>>,
    pub(super) order: Order,
    /// Requests that were sent, by their ids.
    asked: RefCell<BTreeSet<String>>,
}

/// A shard on one of the nodes.
pub(super) fn open_shard(fleet: &Rc<Fleet>, index: u64) -> Rc<ShardSide> {
    let name = format!("shard-{index}");
    let others = fleet.nodes.len().saturating_sub(1).max(1) as u64;
    let place = (1 + index % others) as usize % fleet.nodes.len();
    let node = fleet.nodes[place].clone();
    let weak = Rc::downgrade(fleet);
    let object = fleet.run.world.object_in(&node, &name, move |host| {
        let weak = weak.clone();
        async move {
            let name = host.name().to_owned();
            let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
            let queue = build(&scheduler, &name, &weak)?;
            scheduler.open().await?;
            let shard = Rc::new(Shard { scheduler, queue });
            if let Some(side) = weak.upgrade().and_then(|fleet| fleet.shard(&name)) {
                *side.open.borrow_mut() = Rc::downgrade(&shard);
            }
            Ok(shard)
        }
    });
    Rc::new(ShardSide {
        name,
        node,
        object,
        open: RefCell::default(),
        order: Order::default(),
        asked: RefCell::default(),
    })
}

fn build(scheduler: &Scheduler, name: &str, fleet: &WeakFleet) -> Result<SemaphoreQueue, BoxError> {
    let run = fleet.upgrade().ok_or("the run is over")?.run.clone();
    let (asking, admitting, finishing) = (fleet.clone(), fleet.clone(), fleet.clone());
    let (from, of, at) = (name.to_owned(), name.to_owned(), name.to_owned());
    let transport = holder_fn(move |call: HolderCall| {
        let (fleet, from) = (asking.clone(), from.clone());
        async move {
            match fleet.upgrade() {
                Some(fleet) => ask(fleet, from, call).await,
                None => Err(ClientError::unreachable("the run is over")),
            }
        }
    });
    let timer = HostTimer::new(scheduler.host().clone());
    let wait = run.knob_ms("request-wait-ms");
    let queue = SemaphoreQueue::builder(scheduler)
        .holder(SemaphoreClient::new(transport, timer))
        .admit(move |items| {
            let (fleet, shard) = (admitting.clone(), of.clone());
            async move {
                match fleet.upgrade() {
                    Some(fleet) => admit(fleet, shard, items).await,
                    None => Err("the run is over".into()),
                }
            }
        })
        .finished(move |ids| {
            let fleet = finishing.clone();
            async move {
                let fleet = fleet.upgrade().ok_or("the run is over")?;
                if fleet.dice.fails("finished-fails-percent") {
                    return Err("nobody knows what has ended".into());
                }
                let lie = fleet.dice.fails("finished-lies-percent").then(|| {
                    let stranger = fleet.dice.below(fleet.run.knob("jobs") + 10);
                    format!("job-{stranger:03}")
                });
                // Of what it was asked about, the application tells the truth: it alone knows.
                let lie = lie.filter(|stranger| !ids.contains(stranger));
                let mut done = fleet.work.done(ids);
                done.extend(lie);
                Ok(done)
            }
        })
        .max_admitted(run.knob("max-admitted"))
        .request_wait(wait)
        .answer_timeout(wait + Duration::from_secs(5))
        .finished_after(Duration::from_secs(10))
        .retention(Duration::from_secs(60))
        .backoff(Backoff {
            first: Duration::from_millis(200),
            longest: Duration::from_secs(5),
        });
    let heard = fleet.clone();
    let queue = queue.on_event(move |event| {
        if let Some(fleet) = heard.upgrade() {
            hear(&fleet, &at, event);
        }
    });
    Ok(queue.build()?)
}

/// The id under which a shard is known to holders.
pub(super) fn client_id(shard: &str) -> String {
    format!("{}/{shard}", Shard::CLASS)
}

/// Carries a message to its holder as over a wire: what cannot be written and read is not said.
async fn ask(fleet: Rc<Fleet>, from: String, call: HolderCall) -> Result<Reply, ClientError> {
    let unreachable = || ClientError::unreachable("there is no such object");
    let holder = fleet.holder(&call.key).ok_or_else(unreachable)?;
    let shard = fleet.shard(&from).ok_or_else(unreachable)?;
    let json = serde_json::to_vec(&call.message).map_err(ClientError::unreachable)?;
    if let Message::Request(request) = &call.message {
        let id = request.request_id.clone().unwrap_or_default();
        if !shard.asked.borrow_mut().insert(id) {
            fleet.run.cover("request repeated");
        }
        if request.wait_ms.is_some_and(|wait| wait > 0) {
            fleet.run.cover("request waited");
        }
    }
    let (run, books) = (fleet.run.clone(), fleet.books.clone());
    let (from, to) = (shard.node.clone(), holder.address());
    drop(fleet);
    wire::send(run, books, from, to, json).await
}

/// The application takes items; their work starts, once.
async fn admit(fleet: Rc<Fleet>, shard: String, items: Vec<AdmittedItem>) -> Result<(), BoxError> {
    fleet.dice.linger("admit-ms").await;
    if fleet.dice.fails("admit-fails-percent") {
        return Err("the application is not ready".into());
    }
    for item in items {
        fleet.work.start(&fleet, &shard, &item);
    }
    if fleet.dice.fails("admit-fails-percent") {
        return Err("the application forgot what it did".into());
    }
    Ok(())
}

fn hear(fleet: &Rc<Fleet>, shard: &str, event: &QueueEvent) {
    let run = &fleet.run;
    let told = serde_json::to_string(event).unwrap_or_default();
    run.note(shard, format_args!("{told}"));
    match event {
        QueueEvent::Admitted { via, .. } => match via {
            Via::Lease { at_once: true, .. } => run.cover("job drawn at once"),
            Via::Lease { .. } => run.cover("job drawn from a lease that came"),
            _ => {}
        },
        QueueEvent::Requeued { .. } => run.cover("grant claimed too late"),
        QueueEvent::LeaseStopped { reason, .. } => match reason {
            LeaseStop::Expired => run.cover("lease expired at the client"),
            LeaseStop::Idle => run.cover("lease given back idle"),
            _ => {}
        },
        _ => {}
    }
}

/// Hands jobs to a shard until it has taken them.
pub(super) async fn submit(
    fleet: Rc<Fleet>,
    shard: String,
    key: String,
    group: String,
    ids: Vec<String>,
) {
    loop {
        let Some(side) = fleet.shard(&shard) else {
            return;
        };
        let items: Result<Vec<NewItem>, _> = ids
            .iter()
            .map(|id| NewItem::new(id.clone(), key.clone(), group.clone(), id))
            .collect();
        let Ok(items) = items else { return };
        let object = side.object.clone();
        drop(side);
        let taken = object
            .call(move |shard| async move { shard.queue.enqueue(items).await })
            .await;
        if let Ok(Ok(outcomes)) = taken {
            for (id, outcome) in ids.iter().zip(outcomes) {
                match outcome {
                    Outcome::Queued | Outcome::Duplicate => fleet.work.acknowledged(id),
                    Outcome::Refused { reason } => {
                        fleet
                            .run
                            .fail(jobs::LOST, id, format!("it was refused: {reason:?}"))
                    }
                }
            }
            return;
        }
        fleet.dice.rest().await;
    }
}

/// Cancels a job, if it can be.
pub(super) async fn cancel(fleet: Rc<Fleet>, id: String) {
    let Some(side) = fleet.work.shard_of(&id).and_then(|name| fleet.shard(&name)) else {
        return;
    };
    let object = side.object.clone();
    let of = id.clone();
    let cancelled = object
        .call(move |shard| async move { shard.queue.cancel(&of).await })
        .await;
    match cancelled {
        Ok(Ok(CancelOutcome::Cancelled)) => {
            fleet.run.cover("job cancelled in the queue");
            fleet.work.cancelled(&fleet, &id);
        }
        Ok(Ok(CancelOutcome::Releasing)) => {
            fleet.run.cover("job cancelled while claiming");
            fleet.work.cancelled(&fleet, &id);
        }
        Ok(_) => {}
        // It may have been cancelled, or not.
        Err(_) => fleet.work.perhaps_cancelled(&id),
    }
}
