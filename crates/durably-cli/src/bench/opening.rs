//! Opening a hibernated object, and the answer to the message that woke it.

use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably_native::{ObjectHandle, System, SystemConfig};

use super::objects::{Holder, holders, report, request, settled};
use super::report::{Goal, Value};
use super::{Bench, clear, median_of};

const TARGET: Duration = Duration::from_millis(3);

/// How long the journal must be quiet.
const QUIET: Duration = Duration::from_millis(100);

/// Rows of each object.
const ROWS: usize = 10;

/// Permits of each of its grants, so that every message has one to claim.
const PERMITS: u64 = 1_000_000;

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin("opening", "a hibernated object and its first answer")?;
    let objects = bench.amount(20, 5);
    let repetitions = bench.amount(10, 3);
    let folder = bench.fresh("opening");
    let system = holders(&folder, SystemConfig::default())?;
    let mut grants = Vec::new();
    for object in 0..objects {
        grants.push(make(&system.object(&name(object)), ROWS, PERMITS).await?);
    }
    let (mut reading, mut writing, mut awake) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 1..=repetitions as u64 {
        hibernate(&system, objects).await?;
        for object in 0..objects {
            reading.push(read(&system.object(&name(object))).await?);
        }
        hibernate(&system, objects).await?;
        for (object, ids) in grants.iter().enumerate() {
            let holder = system.object::<Holder>(&name(object));
            writing.push(claim(&holder, ids, 2 * repetition).await?);
            awake.push(claim(&holder, ids, 2 * repetition + 1).await?);
        }
    }
    system.shutdown().await;
    drop(system);
    clear(&folder)?;
    let report = &mut bench.report;
    report.line(
        "opening, then usage (reads only)",
        Value::Time(median_of(&reading)?),
        Goal::AtMost(Value::Time(TARGET)),
    )?;
    report.line(
        "opening, then a sync that claims (journal and object on disk)",
        Value::Time(median_of(&writing)?),
        Goal::AtMost(Value::Time(TARGET)),
    )?;
    report.line(
        "the same sync while the object is open",
        Value::Time(median_of(&awake)?),
        Goal::None,
    )?;
    Ok(())
}

/// Closes all objects, and waits until the journal has taken note of it.
async fn hibernate(system: &System, objects: usize) -> Result<(), BoxError> {
    for object in 0..objects {
        system.evict::<Holder>(&name(object)).await?;
    }
    settled(|| system.journal_counters(), QUIET).await;
    Ok(())
}

/// Has `rows` grants stored, and returns their names.
pub(super) async fn make(
    holder: &ObjectHandle<Holder>,
    rows: usize,
    permits: u64,
) -> Result<Vec<String>, BoxError> {
    let asked = vec![request("client", rows, permits)];
    let (_, replies) = holder
        .call(move |holder| async move { holder.round(asked).await })
        .await??;
    let grants = replies.into_iter().flat_map(|reply| reply.grants);
    Ok(grants.map(|grant| grant.grant_id).collect())
}

async fn read(holder: &ObjectHandle<Holder>) -> Result<Duration, BoxError> {
    let start = Instant::now();
    holder
        .call(|holder| async move { holder.granted().await })
        .await??;
    Ok(start.elapsed())
}

async fn claim(
    holder: &ObjectHandle<Holder>,
    grants: &[String],
    claimed: u64,
) -> Result<Duration, BoxError> {
    let first = grants.iter().take(1).map(String::as_str);
    let sync = report("client", first, claimed, 0);
    let start = Instant::now();
    holder
        .call(move |holder| async move { holder.sync(sync).await })
        .await??;
    Ok(start.elapsed())
}

fn name(object: usize) -> String {
    format!("holder-{object:05}")
}
