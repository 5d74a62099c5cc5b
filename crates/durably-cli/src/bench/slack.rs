//! A limit that is never reached beside no limit at all: the same queue, in four shards under one key,
//! asks a holder with 100,000 permits, or a gate within the shard that says yes to everything and
//! writes nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably_native::SystemConfig;
use futures::future::try_join_all;

use super::objects::HolderConfig;
use super::queue::{Gate, Shard, ShardConfig, enqueue, open};
use super::report::{Goal, Value};
use super::{Bench, clear, median_of, per_second};

const SHARDS: usize = 4;
const LIMIT: u64 = 100_000;
const BATCH: usize = 500;

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin(
        "slack",
        "4 shards under one key: enqueue, admit nothing, release; limit 100,000, or none",
    )?;
    let count = bench.amount(10_000, 2_000);
    let repetitions = bench.amount(7, 3);
    let folder = bench.fresh("slack");
    let (mut limited, mut free) = (Vec::new(), Vec::new());
    for repetition in 0..=repetitions {
        let (with, without) = (
            run(&folder, Gate::Holder, count).await?,
            run(&folder, Gate::Yes, count).await?,
        );
        // The first repetition fills caches.
        if repetition > 0 {
            limited.push(with);
            free.push(without);
        }
    }
    let ratios: Vec<f64> = limited
        .iter()
        .zip(&free)
        .map(|(with, without)| with / without)
        .collect();
    let report = &mut bench.report;
    report.line(
        "ratio, a holder's limit of 100,000 to no limit",
        Value::Ratio(median_of(&ratios)?),
        Goal::AtLeast(Value::Ratio(0.8)),
    )?;
    report.line(
        "items a second, a holder's limit of 100,000",
        Value::Rate(median_of(&limited)?),
        Goal::None,
    )?;
    report.line(
        "items a second, a gate that says yes",
        Value::Rate(median_of(&free)?),
        Goal::None,
    )?;
    Ok(())
}

/// So many items in each shard, in batches one after the other: how many a second in all, from the
/// first batch until the last release is durable.
async fn run(folder: &Path, gate: Gate, count: usize) -> Result<f64, BoxError> {
    let shard = ShardConfig {
        gate,
        max_admitted: LIMIT,
        retention: Duration::from_secs(24 * 60 * 60),
        holds_admissions: false,
    };
    let holder = HolderConfig {
        limit: LIMIT,
        ..HolderConfig::default()
    };
    let (system, done) = open(folder, SystemConfig::default(), holder, shard)?;
    // Every object is open before the clock runs.
    for number in 0..SHARDS {
        let shard = system.object::<Shard>(&format!("shard-{number}"));
        enqueue(&shard, count, 1, |_| "group".to_owned()).await?;
    }
    done.released(SHARDS).await?;
    let start = Instant::now();
    let shards = (0..SHARDS).map(|number| {
        let shard = system.object::<Shard>(&format!("shard-{number}"));
        async move {
            for first in (0..count).step_by(BATCH) {
                enqueue(&shard, first, BATCH, |_| "group".to_owned()).await?;
            }
            Ok::<(), BoxError>(())
        }
    });
    try_join_all(shards).await?;
    done.released(SHARDS * (count + 1)).await?;
    let rate = per_second(SHARDS * count, start.elapsed());
    system.shutdown().await;
    drop(system);
    clear(folder)?;
    Ok(rate)
}
