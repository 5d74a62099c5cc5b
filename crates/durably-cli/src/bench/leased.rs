//! Admissions through leases: one shard with leases for 100 groups admits what it is given at once,
//! without a round trip; the holder hears of it in reports.

use std::path::Path;
use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably::semaphore::LeaseOptions;
use durably_native::SystemConfig;
use futures::future::try_join_all;

use super::objects::{HolderConfig, settled};
use super::queue::{Gate, Shard, ShardConfig, enqueue, open};
use super::report::{Goal, Value};
use super::{Bench, clear, median_of, per_second};

const GROUPS: usize = 100;
const BATCH: usize = 500;
const PERMITS: u64 = 4_096;
const ROUND: Duration = Duration::from_millis(10);

/// Nothing may happen for this long before what came before is over.
const QUIET: Duration = Duration::from_millis(100);

pub(super) fn lease_options() -> LeaseOptions {
    LeaseOptions {
        permits_per_lease: PERMITS,
        ..LeaseOptions::default()
    }
}

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin(
        "leased",
        "one shard, 100 groups, permits_per_lease 4,096, rounds every 10 ms, batches of 500",
    )?;
    let count = bench.amount(40_000, 5_000);
    let repetitions = bench.amount(7, 3);
    let folder = bench.fresh("leased");
    let (mut one, mut four, mut trips) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..=repetitions {
        let (with_one, asked) = run(&folder, 1, count).await?;
        let (with_four, _) = run(&folder, 4, count).await?;
        // The first repetition fills caches.
        if repetition > 0 {
            one.push(with_one);
            four.push(with_four);
            trips.push(asked);
        }
    }
    let flushes = flushes_of_a_draw(&folder).await?;
    let report = &mut bench.report;
    report.line(
        "admissions, releases included, one caller",
        Value::Rate(median_of(&one)?),
        Goal::AtLeast(Value::Rate(20_000.0)),
    )?;
    report.line(
        "admissions, releases included, four callers",
        Value::Rate(median_of(&four)?),
        Goal::None,
    )?;
    report.line(
        "  of them by a grant, per thousand",
        Value::Count(median_of(&trips)?),
        Goal::None,
    )?;
    report.line(
        "flushes of a batch of 500 that draws, until it is answered",
        Value::Count(flushes as f64),
        Goal::AtMost(Value::Count(1.0)),
    )?;
    Ok(())
}

fn group(number: usize) -> String {
    format!("group-{:03}", number % GROUPS)
}

fn shard() -> ShardConfig {
    ShardConfig {
        gate: Gate::Holder,
        max_admitted: 1_000_000,
        retention: Duration::from_secs(24 * 60 * 60),
        holds_admissions: false,
    }
}

fn holder() -> HolderConfig {
    HolderConfig {
        round: ROUND,
        leases: Some(lease_options()),
        ..HolderConfig::default()
    }
}

/// So many items, by so many callers, each giving one batch after the other. Returns how many a second
/// were admitted and durably released, and how many of a thousand needed a grant.
async fn run(folder: &Path, callers: usize, count: usize) -> Result<(f64, f64), BoxError> {
    let (system, done) = open(folder, SystemConfig::default(), holder(), shard())?;
    let shard = system.object::<Shard>("shard");
    // The first items are granted, and leases come along.
    enqueue(&shard, 0, GROUPS, group).await?;
    done.released(GROUPS).await?;
    settled(|| system.counters(), QUIET).await;
    let granted = done.granted();
    let start = Instant::now();
    let each = (count / callers).next_multiple_of(BATCH);
    let running = (0..callers).map(|caller| {
        let shard = shard.clone();
        async move {
            for first in (0..each).step_by(BATCH) {
                enqueue(&shard, GROUPS + caller * each + first, BATCH, group).await?;
            }
            Ok::<(), BoxError>(())
        }
    });
    try_join_all(running).await?;
    let all = callers * each;
    done.released(GROUPS + all).await?;
    let rate = per_second(all, start.elapsed());
    let by_grant = 1_000.0 * (done.granted() - granted) as f64 / all as f64;
    system.shutdown().await;
    drop(system);
    clear(folder)?;
    Ok((rate, by_grant))
}

/// Commits from the moment a batch is given, which draws all its permits, until it is answered; nothing
/// of it is admitted, so that nothing follows.
async fn flushes_of_a_draw(folder: &Path) -> Result<u64, BoxError> {
    let config = ShardConfig {
        holds_admissions: true,
        ..shard()
    };
    let (system, _) = open(folder, SystemConfig::default(), holder(), config)?;
    let shard = system.object::<Shard>("shard");
    enqueue(&shard, 0, GROUPS, group).await?;
    let mut flushes = Vec::new();
    for batch in 0..5 {
        let before = settled(|| system.counters(), QUIET).await.flushes;
        enqueue(&shard, GROUPS + batch * BATCH, BATCH, group).await?;
        flushes.push(system.counters().flushes - before);
        let waiting = shard.call(|shard| async move { shard.queue.len() }).await?;
        if waiting > 0 {
            return Err(format!("{waiting} items found no lease to draw from").into());
        }
    }
    system.shutdown().await;
    drop(system);
    clear(folder)?;
    median_of(&flushes)
}
