//! Rounds of a hundred clients, and what one grant writes, in workerd and natively.

use std::path::Path;
use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably::semaphore::protocol::{GrantReply, Message, Reply};
use durably_native::SystemConfig;
use futures::future::try_join_all;

use super::super::objects::{self, Holder, holders, settled};
use super::super::report::{Goal, Value};
use super::super::{Bench, clear, median_of};
use super::server::{Counters, NO_LIMIT, Server};
use super::{ACCOUNTS, ROUND_MS};

pub(super) const CLIENTS: usize = 100;

/// Groups that each client asks for in the round that is timed.
const ASKED: usize = 10;

/// Grants that each client has in the holder that is not empty.
const LIVE: usize = 100;

/// Longer than a round's period, so that the next one starts afresh.
const PAUSE: Duration = Duration::from_millis(3 * ROUND_MS);

/// Rounds among 10,000 live grants, beside rounds of the same clients among none.
pub(super) async fn rounds(bench: &mut Bench, server: &Server) -> Result<(), BoxError> {
    for account in ["none", "live"] {
        server.set_limit(account, NO_LIMIT).await?;
    }
    fill(server, "live", LIVE).await?;
    let repetitions = bench.amount(30, 6);
    let (mut none, mut live) = (Vec::new(), Vec::new());
    for repetition in 0..=repetitions {
        // In turns, so that what one round leaves to be done does not always fall on the same other one.
        let (first, second) = if repetition % 2 == 0 {
            let first = round(server, "none", ASKED).await?;
            (first, round(server, "live", ASKED).await?)
        } else {
            let second = round(server, "live", ASKED).await?;
            (round(server, "none", ASKED).await?, second)
        };
        // The first one reads pages and prepares statements.
        if repetition > 0 {
            none.push(first);
            live.push(second);
        }
    }
    let took =
        |rounds: &[Round]| -> Vec<Duration> { rounds.iter().map(|round| round.took).collect() };
    let read = |rounds: &[Round]| {
        let read: Vec<u64> = rounds.iter().map(|round| round.rows_read).collect();
        median_of(&read)
    };
    let (without, with) = (median_of(&took(&none))?, median_of(&took(&live))?);
    let (read_without, read_with) = (read(&none)? as f64, read(&live)? as f64);
    let report = &mut bench.report;
    report.line(
        "a round of 100 clients, 1,000 grants, no grants live, its wait included",
        Value::Time(without),
        Goal::None,
    )?;
    report.line(
        "  while 10,000 grants are live: adds",
        Value::Time(with.saturating_sub(without)),
        Goal::AtMost(Value::Time(Duration::from_millis(50))),
    )?;
    report.line(
        "  rows read by a round, no grants live",
        Value::Count(read_without),
        Goal::None,
    )?;
    report.line(
        "  rows read by a round, 10,000 live: ratio to that",
        Value::Ratio(read_with / read_without.max(1.0)),
        Goal::AtMost(Value::Ratio(1.05)),
    )?;
    Ok(())
}

#[derive(Clone, Copy)]
pub(super) struct Round {
    took: Duration,
    rows_read: u64,
}

/// Times one round, then gives back what it granted.
pub(super) async fn round(server: &Server, key: &str, groups: usize) -> Result<Round, BoxError> {
    let before: Counters = server.door(ACCOUNTS, key, "counters").await?;
    let start = Instant::now();
    let replies = ask(server, key, CLIENTS, groups).await?;
    let took = start.elapsed();
    let after: Counters = server.door(ACCOUNTS, key, "counters").await?;
    tell(server, key, &replies, 1).await?;
    tokio::time::sleep(PAUSE).await;
    Ok(Round {
        took,
        rows_read: after.since(before).rows_read,
    })
}

/// Has each client given and claim a grant in so many groups.
pub(super) async fn fill(server: &Server, key: &str, groups: usize) -> Result<(), BoxError> {
    let replies = ask(server, key, CLIENTS, groups).await?;
    tell(server, key, &replies, 0).await
}

/// Requests of so many clients at once.
async fn ask(
    server: &Server,
    key: &str,
    clients: usize,
    groups: usize,
) -> Result<Vec<GrantReply>, BoxError> {
    let messages: Vec<Message> = (0..clients)
        .map(|client| Message::Request(objects::request(&client_id(client), groups, 1)))
        .collect();
    let replies = try_join_all(messages.iter().map(|message| server.message(key, message))).await?;
    let replies: Vec<GrantReply> = replies.into_iter().filter_map(granted).collect();
    let grants: usize = replies.iter().map(|reply| reply.grants.len()).sum();
    if grants != clients * groups {
        return Err(format!("{grants} grants were made instead of {}", clients * groups).into());
    }
    Ok(replies)
}

fn granted(reply: Reply) -> Option<GrantReply> {
    match reply {
        Reply::Grant(reply) => Some(reply),
        Reply::Synced(_) => None,
    }
}

/// Each client claims what it was granted, and gives back `released` permits of each.
async fn tell(
    server: &Server,
    key: &str,
    replies: &[GrantReply],
    released: u64,
) -> Result<(), BoxError> {
    let messages: Vec<Message> = replies
        .iter()
        .enumerate()
        .map(|(client, reply)| {
            let ids = reply.grants.iter().map(|grant| grant.grant_id.as_str());
            Message::Sync(objects::report(&client_id(client), ids, 1, released))
        })
        .collect();
    try_join_all(messages.iter().map(|message| server.message(key, message))).await?;
    Ok(())
}

fn client_id(client: usize) -> String {
    format!("client-{client:03}")
}

/// A grant from the request to the end, one client, 100 groups: rows written in workerd and natively.
pub(super) async fn rows(bench: &mut Bench, server: &Server) -> Result<(), BoxError> {
    server.set_limit("rows", NO_LIMIT).await?;
    let mut life = Life::default();
    // The first one is the first of the object.
    for _ in 0..2 {
        let begun = rows_written(server).await?;
        let replies = ask(server, "rows", 1, LIVE).await?;
        let granted = rows_written(server).await?;
        tell(server, "rows", &replies, 0).await?;
        let claimed = rows_written(server).await?;
        tell(server, "rows", &replies, 1).await?;
        let released = rows_written(server).await?;
        life = Life {
            granted: granted - begun,
            claimed: claimed - granted,
            released: released - claimed,
        };
        tokio::time::sleep(PAUSE).await;
    }
    let native = native(&bench.fresh("cloudflare-native")).await?;
    for (label, here, there) in [
        (
            "rows written by a grant, as it is made",
            life.granted,
            native.granted,
        ),
        ("  as it is claimed", life.claimed, native.claimed),
        ("  as it is released", life.released, native.released),
    ] {
        bench.report.line(
            &format!("{label}; natively {}", there as f64 / LIVE as f64),
            Value::Count(here as f64 / LIVE as f64),
            Goal::AtMost(Value::Count(there as f64 / LIVE as f64)),
        )?;
    }
    Ok(())
}

/// Rows written by 100 grants in each step of their life.
#[derive(Default)]
struct Life {
    granted: u64,
    claimed: u64,
    released: u64,
}

async fn rows_written(server: &Server) -> Result<u64, BoxError> {
    let counters: Counters = server.door(ACCOUNTS, "rows", "counters").await?;
    Ok(counters.rows_written)
}

async fn native(folder: &Path) -> Result<Life, BoxError> {
    let mut config = SystemConfig::default();
    config.count_rows = true;
    let system = holders(folder, config)?;
    let holder = system.object::<Holder>("rows");
    let mut life = Life::default();
    for _ in 0..2 {
        // Its alarm is a row of the native host's, and a counter of its own there.
        let written = || async {
            settled(|| system.counters(), PAUSE).await;
            let tables = system.rows_by_table();
            let ours = tables
                .iter()
                .filter(|(table, _)| table.starts_with("durability_semaphore_"));
            ours.map(|(_, rows)| rows.written).sum::<u64>()
        };
        let begun = written().await;
        let grants = super::super::opening::make(&holder, LIVE, 1).await?;
        let granted = written().await;
        let mut marks = Vec::new();
        for released in [0, 1] {
            let ids = grants.iter().map(String::as_str);
            let sync = objects::report("client", ids, 1, released);
            holder
                .call(move |holder| async move { holder.sync(sync).await })
                .await??;
            marks.push(written().await);
        }
        life = Life {
            granted: granted - begun,
            claimed: marks[0] - granted,
            released: marks[1] - marks[0],
        };
    }
    system.shutdown().await;
    drop(system);
    clear(folder)?;
    Ok(life)
}
