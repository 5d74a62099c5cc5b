//! A tenant's orders are spread over shards whose number changes while orders come in, and none is
//! lost. `cargo run --release --example shard-topology` says what happens and ends with an error if
//! anything is not as it should be.
//!
//! - `Tenant` is the coordinator: it has the group of shards, publishes it, and tells the shards how
//!   many orders a second each may work off.
//! - `Shard` takes orders, each stored before it is acknowledged, and works them off. One that nobody told
//!   the coordinator of joins the group with its first order.
//! - `Router` picks the shard of an order from a reader's copy, which may be old: a shard that was
//!   closed refuses, and the router looks again.

#![allow(clippy::print_stdout, reason = "it is there to be read")]

mod shard;
mod tenant;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use durably::SchedulerConfig;
use durably::topology::{
    Audience, Draft, MemberState, MemoryPublisher, NewMember, ReaderOptions, Snapshot,
    TopologyReader,
};
use durably_native::http::TokioTimer;
use durably_native::{System, SystemRef};
use serde_json::json;

use crate::shard::{Shard, Taken};
use crate::tenant::Tenant;

const TENANT: &str = "acme";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Alarms as soon as a host allows.
fn quick() -> SchedulerConfig {
    let mut config = SchedulerConfig::default();
    config.alarm_min_delay = Duration::from_secs(1);
    config
}

type Reader = TopologyReader<MemoryPublisher, TokioTimer, fn() -> u64>;

#[derive(Clone)]
struct Router {
    reader: Reader,
    system: SystemRef,
    refused: Arc<AtomicU64>,
}

impl Router {
    /// The shard that takes an order, by the reader's copy.
    async fn shard(&self, order: &str) -> Result<String, Failure> {
        let group = self.reader.get(TENANT).await?;
        let shard = group.shard_for(order).ok_or("the tenant has no shard")?;
        Ok(shard.id.clone())
    }

    /// Brings an order to the shard that it belongs to.
    async fn send(&self, order: &str) -> Result<(), Failure> {
        loop {
            let shard = self.system.object::<Shard>(&self.shard(order).await?);
            let id = order.to_owned();
            match shard.call(|shard| shard.take(id)).await?? {
                Taken::Stored => return Ok(()),
                Taken::Closed => {
                    // The copy is old. It is looked at again within its time to live.
                    self.refused.fetch_add(1, SeqCst);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

/// Sends orders until told to stop; says which were acknowledged.
async fn traffic(
    router: Router,
    sender: usize,
    stop: Arc<AtomicBool>,
) -> Result<Vec<String>, Failure> {
    let mut acknowledged = Vec::new();
    while !stop.load(SeqCst) {
        let order = format!("{sender}-{:06}", acknowledged.len());
        router.send(&order).await?;
        acknowledged.push(order);
        tokio::time::sleep(Duration::from_millis(12)).await;
    }
    Ok(acknowledged)
}

fn check(holds: bool, what: &str) -> Result<(), Failure> {
    match holds {
        true => Ok(()),
        false => Err(format!("this should hold, and does not: {what}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let store = MemoryPublisher::default();
    let builder = System::builder(folder.path());
    let (for_tenants, for_shards, published) = (builder.system(), builder.system(), store.clone());
    let system = builder
        .class::<Tenant>(move |host| {
            let (store, system) = (published.clone(), for_tenants.clone());
            Box::pin(async move { Ok(Rc::new(Tenant::open(host, store, system).await?)) })
        })
        .class::<Shard>(move |host| {
            let system = for_shards.clone();
            Box::pin(async move { Ok(Rc::new(Shard::open(host, system).await?)) })
        })
        .open()?;
    let outcome = tokio::time::timeout(Duration::from_secs(60), play(&system, store)).await;
    system.shutdown().await;
    outcome.map_err(|_| "it takes too long")?
}

async fn play(system: &System, store: MemoryPublisher) -> Result<(), Failure> {
    let tenant = system.object::<Tenant>(TENANT);
    let mut options = ReaderOptions::default();
    // Long, so that the router's copy is often old.
    options.ttl = Duration::from_millis(1_000);
    options.negative_ttl = Duration::from_millis(50);
    let random: fn() -> u64 = || 1 << 31;
    let router = Router {
        reader: TopologyReader::new(options, store, TokioTimer, random)?,
        system: system.reference(),
        refused: Arc::default(),
    };

    println!(
        "The coordinator makes a group of three shards, and tells each to work off 100 orders a second."
    );
    let version = tenant
        .call(|tenant| async move {
            let shards = (0..3).map(|number| NewMember::active(format!("{TENANT}-{number}")));
            let draft = Draft::members(shards).state("limits", json!({"perSecond": 100}));
            tenant.change(|_| draft).await
        })
        .await??;
    reached(system, version).await?;

    println!("Four senders send orders; the router picks each one's shard from its reader's copy.");
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..4)
        .map(|sender| tokio::spawn(traffic(router.clone(), sender, stop.clone())))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;

    println!("A fourth shard is made by its first order, and joins the group with it.");
    let first = "on-demand-000000".to_owned();
    let on_demand = system.object::<Shard>("acme-on-demand");
    let order = first.clone();
    let taken = on_demand.call(|shard| shard.take(order)).await??;
    check(taken == Taken::Stored, "it takes its first order")?;
    until(&router, "readers find it", |group| {
        group.writable().any(|member| member.id == "acme-on-demand")
    })
    .await?;

    println!(
        "The coordinator is ended without warning, and all shards are told to work off 400 orders a second."
    );
    system.evict::<Tenant>(TENANT).await?;
    let version = tenant
        .call(|tenant| async move {
            tenant
                .change(|_| Draft::default().state("limits", json!({"perSecond": 400})))
                .await
        })
        .await??;
    reached(system, version).await?;
    for shard in ["acme-0", "acme-1", "acme-2", "acme-on-demand"] {
        let rate = system
            .object::<Shard>(shard)
            .call(|shard| async move { shard.rate.get() })
            .await?;
        check(rate == 400, "every shard has the newest limit")?;
    }

    println!(
        "acme-0 drains: it gets no new orders, works off what it has, and is removed when it is empty."
    );
    let old_copy = router.reader.get(TENANT).await?;
    tenant
        .call(|tenant| async move { tenant.drain("acme-0".to_owned()).await })
        .await??;
    until(&router, "acme-0 is gone", |group| {
        group.members.iter().all(|member| member.id != "acme-0")
    })
    .await?;
    println!("An order that comes to acme-0 by an old copy is refused, and goes elsewhere.");
    let late = (0..)
        .map(|number| format!("late-{number:06}"))
        .find(|order| {
            old_copy
                .shard_for(order)
                .is_some_and(|shard| shard.id == "acme-0")
        })
        .ok_or("no order belongs to acme-0")?;
    let order = late.clone();
    let closed = system.object::<Shard>("acme-0");
    let taken = closed.call(|shard| shard.take(order)).await??;
    check(taken == Taken::Closed, "a closed shard takes no order")?;
    router.send(&late).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;

    println!("The senders stop, and the shards work off what is left.");
    stop.store(true, SeqCst);
    let mut acknowledged = vec![first, late];
    for sender in senders {
        acknowledged.extend(sender.await??);
    }
    let shards = ["acme-0", "acme-1", "acme-2", "acme-on-demand"];
    let done = loop {
        let mut done: BTreeMap<String, u64> = BTreeMap::new();
        let mut shares = Vec::new();
        for shard in shards {
            let orders = system
                .object::<Shard>(shard)
                .call(|shard| async move { shard.orders().await })
                .await??;
            shares.push(format!("{shard} {}", orders.len()));
            for (order, times) in orders {
                *done.entry(order).or_default() += times;
            }
        }
        if done.values().all(|times| *times > 0) {
            println!("Orders by shard: {}.", shares.join(", "));
            break done;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    check(
        done.values().all(|times| *times == 1),
        "no order was done twice",
    )?;
    let lost = acknowledged
        .iter()
        .filter(|order| !done.contains_key(*order))
        .count();
    check(lost == 0, "no acknowledged order was lost")?;
    let group = router.reader.get(TENANT).await?;
    check(
        group
            .members
            .iter()
            .all(|member| member.state == MemberState::Active)
            && group.members.len() == 3,
        "three active shards are left",
    )?;
    println!(
        "{} orders were acknowledged, and each was done once. Of those of the senders the closed shard refused {}.",
        acknowledged.len(),
        router.refused.load(SeqCst),
    );
    Ok(())
}

/// Waits until all shards have what they were told by this version.
async fn reached(system: &System, version: u64) -> Result<(), Failure> {
    let tenant = system.object::<Tenant>(TENANT);
    let convergence = tenant
        .call(move |tenant| async move {
            let topology = &tenant.topology;
            topology
                .wait_until(TENANT, version, Audience::All, Duration::from_secs(20))
                .await
        })
        .await??;
    check(
        convergence.reached(version, Audience::All),
        &format!("all shards have been told: {convergence:?}"),
    )
}

/// Waits until the router's copy of the group is as it should be.
async fn until(
    router: &Router,
    what: &str,
    holds: impl Fn(&Snapshot) -> bool,
) -> Result<(), Failure> {
    for _ in 0..400 {
        let group = router.reader.get(TENANT).await?.snapshot().clone();
        if holds(&group) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    check(false, what)
}
