//! What operations cost in flushes, closures, statements and rows: counted, not timed, so the same on
//! every machine.
//!
//! Rows are B-tree entries, index entries included. Flushes of the system's journal, one at most when
//! an object is opened and writes, are counted beside those of the objects.

use std::time::Duration;

use durably::error::BoxError;
use durably::jobs::JobShard;
use durably_native::sqlite::CountersSnapshot;
use durably_native::{ObjectHandle, System, SystemConfig};
use futures::future::try_join_all;

use super::enqueue::{BATCH, jobs, submit};
use super::objects::{Holder, holders, report, settled, shards};
use super::report::{Costs, Report};
use super::{Bench, clear, opening};

/// How long nothing may happen before an operation is over.
const QUIET: Duration = Duration::from_millis(100);

/// How often each operation is repeated.
const TIMES: usize = 20;

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin("counts", "exact costs, the same on every machine")?;
    bench.report.costs_head("per operation")?;
    let folder = bench.fresh("counts");
    let mut config = SystemConfig::default();
    config.count_rows = true;
    let system = shards(&folder.join("shards"), config.clone())?;
    enqueueing(&mut bench.report, &system).await?;
    system.shutdown().await;
    let system = holders(&folder.join("holders"), config)?;
    holding(&mut bench.report, &system).await?;
    opening_and_creating(&mut bench.report, &system).await?;
    system.shutdown().await;
    drop(system);
    clear(&folder)
}

async fn enqueueing(report: &mut Report, system: &System) -> Result<(), BoxError> {
    let shard = system.object::<JobShard>("shard");
    let mut next = 0;
    // The first submission opens the object and arranges what comes up once.
    submit(&shard, jobs(1, &mut next)).await?;
    let before = quiet(system).await;
    for _ in 0..TIMES {
        submit(&shard, jobs(1, &mut next)).await?;
    }
    report.costs("enqueue one job, alone", since(before, system, TIMES).await)?;
    let before = quiet(system).await;
    for _ in 0..TIMES {
        submit(&shard, jobs(BATCH, &mut next)).await?;
    }
    let costs = since(before, system, TIMES * BATCH).await;
    report.costs("enqueue one job, in batches of 500", costs)?;
    let before = quiet(system).await;
    for _ in 0..TIMES {
        let callers = (0..64).map(|_| submit(&shard, jobs(1, &mut next)));
        try_join_all(callers.collect::<Vec<_>>()).await?;
    }
    let costs = since(before, system, TIMES * 64).await;
    report.costs("enqueue one job, by 64 callers at once", costs)?;
    Ok(())
}

async fn holding(report: &mut Report, system: &System) -> Result<(), BoxError> {
    let holder = system.object::<Holder>("holder");
    opening::make(&holder, 1, 1).await?;
    let before = quiet(system).await;
    let mut grants = Vec::new();
    for _ in 0..TIMES {
        grants.extend(opening::make(&holder, 1, 1).await?);
    }
    report.costs(
        "a round that makes one grant",
        since(before, system, TIMES).await,
    )?;
    let before = quiet(system).await;
    opening::make(&holder, 1_000, 1).await?;
    report.costs(
        "a round that makes 1,000 grants",
        since(before, system, 1).await,
    )?;
    for (label, released) in [
        ("a sync that claims one grant", 0),
        ("a sync that releases one grant", 1),
        ("a sync that says nothing new", 1),
    ] {
        let before = quiet(system).await;
        for grant in &grants {
            tell(&holder, grant, released).await?;
        }
        report.costs(label, since(before, system, grants.len()).await)?;
    }
    let before = quiet(system).await;
    for _ in 0..TIMES {
        ask(&holder).await?;
    }
    report.costs("usage", since(before, system, TIMES).await)?;
    Ok(())
}

async fn opening_and_creating(report: &mut Report, system: &System) -> Result<(), BoxError> {
    let before = quiet(system).await;
    for object in 0..TIMES {
        ask(&system.object(&name(object))).await?;
    }
    let costs = since(before, system, TIMES).await;
    report.costs("creating an object that is only read", costs)?;
    for object in 0..TIMES {
        opening::make(&system.object(&name(object)), 3, 1).await?;
        system.evict::<Holder>(&name(object)).await?;
    }
    let before = quiet(system).await;
    for object in 0..TIMES {
        ask(&system.object(&name(object))).await?;
    }
    let costs = since(before, system, TIMES).await;
    report.costs("opening an object that is only read", costs)?;
    for object in 0..TIMES {
        system.evict::<Holder>(&name(object)).await?;
    }
    let before = quiet(system).await;
    for object in 0..TIMES {
        opening::make(&system.object(&name(object)), 1, 1).await?;
    }
    let costs = since(before, system, TIMES).await;
    report.costs("opening an object for a round that makes one grant", costs)?;
    Ok(())
}

async fn ask(holder: &ObjectHandle<Holder>) -> Result<(), BoxError> {
    holder
        .call(|holder| async move { holder.granted().await })
        .await??;
    Ok(())
}

async fn tell(holder: &ObjectHandle<Holder>, grant: &str, released: u64) -> Result<(), BoxError> {
    let sync = report("client", [grant], 1, released);
    holder
        .call(move |holder| async move { holder.sync(sync).await })
        .await??;
    Ok(())
}

fn name(object: usize) -> String {
    format!("object-{object:02}")
}

/// The counters of objects and journal once nothing happens any more.
async fn quiet(system: &System) -> (CountersSnapshot, CountersSnapshot) {
    (
        settled(|| system.counters(), QUIET).await,
        system.journal_counters(),
    )
}

/// What each of `times` operations has cost since `before`.
async fn since(
    before: (CountersSnapshot, CountersSnapshot),
    system: &System,
    times: usize,
) -> Costs {
    let now = quiet(system).await;
    let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / times as f64;
    Costs {
        flushes: each(
            now.0.flushes + now.1.flushes,
            before.0.flushes + before.1.flushes,
        ),
        transactions: each(now.0.transactions, before.0.transactions),
        statements: each(now.0.statements, before.0.statements),
        rows_written: each(now.0.rows_written, before.0.rows_written),
    }
}
