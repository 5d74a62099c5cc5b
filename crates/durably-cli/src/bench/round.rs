//! A round that makes 1,000 grants, among 1,000 stored grants and among 100,000 of them: it is to
//! cost what it changes, not what exists.
//!
//! Both holders get the same messages in turns. What is timed is the round itself, from inside the
//! object: reading the limit, deciding, storing, the commit on disk, the answers; not the wait that
//! lets requests share a round.

use std::time::Duration;

use durably::error::BoxError;
use durably_native::{ObjectHandle, System, SystemConfig};

use super::objects::{Holder, holders, report, request};
use super::report::{Goal, Value};
use super::{Bench, clear, median_of};

/// A round has this many requests, each for one permit in so many groups.
const CLIENTS: usize = 10;
const GROUPS: usize = 100;

/// Grants that a round makes.
pub(super) const GRANTS: usize = CLIENTS * GROUPS;

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    let few = 1_000;
    let many = bench.amount(100_000, 20_000);
    let repetitions = bench.amount(31, 7);
    bench.begin("round", "a round that makes 1,000 grants of one permit")?;
    let folder = bench.fresh("round");
    let system = holders(&folder, SystemConfig::default())?;
    let among_few = system.object::<Holder>("few");
    let among_many = system.object::<Holder>("many");
    fill(&among_few, few).await?;
    fill(&among_many, many).await?;
    let (mut with_few, mut with_many) = (Vec::new(), Vec::new());
    for repetition in 0..=repetitions {
        let (first, second) = (round(&among_few).await?, round(&among_many).await?);
        // The first one reads pages and prepares statements.
        if repetition > 0 {
            with_few.push(first);
            with_many.push(second);
        }
    }
    check(&among_few, few).await?;
    check(&among_many, many).await?;
    stop(system, &folder).await?;
    let (with_few, with_many) = (median_of(&with_few)?, median_of(&with_many)?);
    let report = &mut bench.report;
    report.line(
        "while 1,000 grants exist",
        Value::Time(with_few),
        Goal::None,
    )?;
    report.line(
        &format!("while {},000 grants exist", many / 1_000),
        Value::Time(with_many),
        Goal::None,
    )?;
    report.line(
        &format!("ratio, {},000 to 1,000", many / 1_000),
        Value::Ratio(with_many.as_secs_f64() / with_few.as_secs_f64()),
        Goal::AtMost(Value::Ratio(2.0)),
    )?;
    Ok(())
}

/// Has so many grants stored, by rounds, and claimed.
async fn fill(holder: &ObjectHandle<Holder>, grants: usize) -> Result<(), BoxError> {
    for _ in 0..grants / GRANTS {
        let (_, ids) = granted(holder).await?;
        settle(holder, ids, 0).await?;
    }
    Ok(())
}

/// Times one round, then gives back what it granted.
async fn round(holder: &ObjectHandle<Holder>) -> Result<Duration, BoxError> {
    let (took, ids) = granted(holder).await?;
    settle(holder, ids, 1).await?;
    Ok(took)
}

/// The names of grants, by client.
type Granted = Vec<(String, Vec<String>)>;

async fn granted(holder: &ObjectHandle<Holder>) -> Result<(Duration, Granted), BoxError> {
    let requests = (0..CLIENTS).map(|client| request(&client_id(client), GROUPS, 1));
    let requests = requests.collect();
    let (took, replies) = holder
        .call(move |holder| async move { holder.round(requests).await })
        .await??;
    let granted: Granted = replies
        .into_iter()
        .enumerate()
        .map(|(client, reply)| {
            let ids = reply.grants.into_iter().map(|grant| grant.grant_id);
            (client_id(client), ids.collect())
        })
        .collect();
    let count: usize = granted.iter().map(|(_, ids)| ids.len()).sum();
    if count != GRANTS {
        return Err(format!("a round made {count} grants instead of {GRANTS}").into());
    }
    Ok((took, granted))
}

/// Claims what was granted, and gives back `released` permits of each.
async fn settle(
    holder: &ObjectHandle<Holder>,
    granted: Granted,
    released: u64,
) -> Result<(), BoxError> {
    for (client, ids) in granted {
        let sync = report(&client, ids.iter().map(String::as_str), 1, released);
        holder
            .call(move |holder| async move { holder.sync(sync).await })
            .await??;
    }
    Ok(())
}

async fn check(holder: &ObjectHandle<Holder>, grants: usize) -> Result<(), BoxError> {
    let granted = holder
        .call(|holder| async move { holder.granted().await })
        .await??;
    if granted != grants as u64 {
        return Err(format!("{granted} permits are out instead of {grants}").into());
    }
    Ok(())
}

fn client_id(client: usize) -> String {
    format!("client-{client:02}")
}

async fn stop(system: System, folder: &std::path::Path) -> Result<(), BoxError> {
    system.shutdown().await;
    drop(system);
    clear(folder)
}
