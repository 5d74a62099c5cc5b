//! Enqueueing: jobs into one shard, in batches and singly. No holder answers, so the shard has
//! nothing to do but take them. Everything is durable before it is acknowledged.

use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably::jobs::{JobShard, NewJob, SubmitOutcome};
use durably_native::{ObjectHandle, System, SystemConfig};
use futures::future::try_join_all;

use super::objects::shards;
use super::report::{Goal, Value};
use super::{Bench, clear, median_of, per_second};

/// Jobs in a batch.
pub(super) const BATCH: usize = 500;

/// Callers at once.
const CALLERS: usize = 64;

/// The one account, whose list of shards has never changed.
const ACCOUNT: &str = "account";
const LIST_VERSION: u64 = 1;

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin("enqueue", "jobs into one shard, durable (FULL)")?;
    let batches = bench.amount(20, 5);
    let rounds = bench.amount(20, 5);
    let repetitions = bench.amount(9, 3);
    let folder = bench.fresh("enqueue");
    let sharing = shards(&folder.join("sharing"), SystemConfig::default())?;
    let mut alone = SystemConfig::default();
    alone.max_batch = 1;
    let alone = shards(&folder.join("alone"), alone)?;
    let mut next = 0;
    let (mut in_batches, mut by_four) = (Vec::new(), Vec::new());
    let (mut shared, mut single) = (Vec::new(), Vec::new());
    for repetition in 0..=repetitions {
        // Fresh objects, so that every repetition meets the same.
        let name = format!("shard-{repetition}");
        let together = sharing.object::<JobShard>(&name);
        let apart = alone.object::<JobShard>(&name);
        let one = callers(&together, 1, batches, BATCH, &mut next).await?;
        let four = callers(&together, 4, batches.div_ceil(4), BATCH, &mut next).await?;
        let with_others = callers(&together, CALLERS, rounds, 1, &mut next).await?;
        // As many jobs are in the way of these.
        callers(&apart, 1, batches, BATCH, &mut next).await?;
        callers(&apart, 4, batches.div_ceil(4), BATCH, &mut next).await?;
        let by_themselves = callers(&apart, CALLERS, rounds, 1, &mut next).await?;
        // The first repetition fills caches.
        if repetition > 0 {
            in_batches.push(one);
            by_four.push(four);
            shared.push(with_others);
            single.push(by_themselves);
        }
    }
    stop([sharing, alone]).await;
    clear(&folder)?;
    let (shared, single) = (median_of(&shared)?, median_of(&single)?);
    let report = &mut bench.report;
    report.line(
        "jobs in batches of 500, one caller",
        Value::Rate(median_of(&in_batches)?),
        Goal::AtLeast(Value::Rate(20_000.0)),
    )?;
    report.line(
        "jobs in batches of 500, four callers",
        Value::Rate(median_of(&by_four)?),
        Goal::None,
    )?;
    report.line(
        "single jobs, 64 callers, sharing commits",
        Value::Rate(shared),
        Goal::None,
    )?;
    report.line(
        "single jobs, 64 callers, max_batch = 1",
        Value::Rate(single),
        Goal::None,
    )?;
    report.line(
        "ratio, sharing commits to max_batch = 1",
        Value::Ratio(shared / single),
        Goal::AtLeast(Value::Ratio(5.0)),
    )?;
    Ok(())
}

/// Has `callers` callers submit `times` batches of `size` jobs each, one after the other, and says
/// how many jobs a second went in.
async fn callers(
    shard: &ObjectHandle<JobShard>,
    callers: usize,
    times: usize,
    size: usize,
    next: &mut usize,
) -> Result<f64, BoxError> {
    let prepared: Vec<Vec<Vec<NewJob>>> = (0..callers)
        .map(|_| (0..times).map(|_| jobs(size, next)).collect())
        .collect();
    let start = Instant::now();
    let running = prepared.into_iter().map(|batches| async move {
        for batch in batches {
            submit(shard, batch).await?;
        }
        Ok::<(), BoxError>(())
    });
    try_join_all(running).await?;
    Ok(per_second(callers * times * size, start.elapsed()))
}

/// So many jobs whose ids were never used.
pub(super) fn jobs(count: usize, next: &mut usize) -> Vec<NewJob> {
    let jobs = (0..count).map(|_| {
        *next += 1;
        NewJob {
            account: ACCOUNT.to_owned(),
            id: format!("job-{next:08}"),
            group: "default".to_owned(),
            body: serde_json::json!({"url": "https://example.org/report", "page": *next}),
        }
    });
    jobs.collect()
}

/// Submits jobs, all of which must be taken.
pub(super) async fn submit(
    shard: &ObjectHandle<JobShard>,
    jobs: Vec<NewJob>,
) -> Result<(), BoxError> {
    let outcomes = shard
        .call(move |shard| async move { shard.submit(ACCOUNT, LIST_VERSION, jobs).await })
        .await???;
    let all = outcomes
        .iter()
        .all(|outcome| matches!(outcome, SubmitOutcome::Queued));
    if !all {
        return Err("a job was not taken".into());
    }
    Ok(())
}

async fn stop(systems: [System; 2]) {
    for system in systems {
        // Nothing is left to be done but requests that nobody answers.
        let _ = tokio::time::timeout(Duration::from_secs(30), system.shutdown()).await;
    }
}
