//! What it takes until an object that is not in memory has answered, and how much memory it takes then.

use std::future::Future;
use std::time::{Duration, Instant};

use durably::error::BoxError;
use serde_json::Value as Json;

use super::super::report::{Goal, Value, thousands};
use super::super::{Bench, median_of};
use super::holding::{self, CLIENTS};
use super::server::{Counters, NO_LIMIT, Server};
use super::{ACCOUNTS, EMPTY};

/// Groups of the large holder, each with as many grants as the others.
const GROUPS: usize = 100;

/// An account that was never written to but for its schema, beside an empty class.
pub(super) async fn object_start(bench: &mut Bench, server: &Server) -> Result<(), BoxError> {
    // Making the schema is another matter.
    server.usage("new").await?;
    let repetitions = bench.amount(51, 11);
    let (mut empty, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        empty.push(after_eviction(server, EMPTY, "empty", touch(server)).await?);
        ours.push(after_eviction(server, ACCOUNTS, "new", usage(server, "new")).await?);
    }
    let (empty, ours) = (median_of(&empty)?, median_of(&ours)?);
    bench.report.line(
        "start of an empty class and its answer",
        Value::Time(empty),
        Goal::None,
    )?;
    bench.report.line(
        "start of an account without rows, usage: adds",
        Value::Time(ours.saturating_sub(empty)),
        Goal::AtMost(Value::Time(Duration::from_millis(10))),
    )?;
    Ok(())
}

/// A holder with 50,000 grants: its opening, its memory. Returns the server, which was started again.
pub(super) async fn large_holder(bench: &mut Bench, server: Server) -> Result<Server, BoxError> {
    let grants = bench.amount(50_000, 10_000);
    server.set_limit("large", NO_LIMIT).await?;
    for _ in 0..grants / (CLIENTS * GROUPS) {
        holding::fill(&server, "large", GROUPS).await?;
    }
    let out = server.usage("large").await?;
    if out != grants as u64 {
        return Err(format!("{out} permits are out instead of {grants}").into());
    }
    let after_loading = server.wasm_memory().await?;
    let repetitions = bench.amount(15, 5);
    let (mut empty, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        empty.push(after_eviction(&server, EMPTY, "empty", touch(&server)).await?);
        ours.push(after_eviction(&server, ACCOUNTS, "large", usage(&server, "large")).await?);
    }
    let opened: Counters = server.door(ACCOUNTS, "large", "counters").await?;
    let named = format!(
        "a holder with {} grants in 100 groups",
        thousands(grants as f64)
    );
    let report = &mut bench.report;
    report.line(
        &format!("opening {named}: adds"),
        Value::Time(median_of(&ours)?.saturating_sub(median_of(&empty)?)),
        Goal::AtMost(Value::Time(Duration::from_millis(100))),
    )?;
    report.line(
        "  rows read for that",
        Value::Count(opened.rows_read as f64),
        Goal::None,
    )?;
    // In a process that has done nothing else.
    let server = server.restart().await?;
    server.usage("new").await?;
    let without = server.resident_memory()?;
    server.usage("large").await?;
    let (wasm, resident) = (server.wasm_memory().await?, server.resident_memory()?);
    holding::round(&server, "large", 1).await?;
    let report = &mut bench.report;
    let most = Goal::AtMost(Value::Memory(64e6 / f64::from(1 << 20)));
    report.line(
        &format!("memory of {named}: wasm"),
        Value::Memory(wasm),
        most,
    )?;
    report.line(
        "  the whole process, SQLite's cache included: adds",
        Value::Memory(resident - without),
        most,
    )?;
    report.line(
        "  wasm, after a round of 100 clients",
        Value::Memory(server.wasm_memory().await?),
        most,
    )?;
    report.line(
        "  wasm, after all its grants were made and claimed, 10,000 in a round",
        Value::Memory(after_loading),
        Goal::None,
    )?;
    Ok(server)
}

async fn touch(server: &Server) -> Result<(), BoxError> {
    server.door::<Json>(EMPTY, "empty", "touch").await?;
    Ok(())
}

async fn usage(server: &Server, account: &str) -> Result<(), BoxError> {
    server.usage(account).await?;
    Ok(())
}

/// Evicts an object; says how long the first answer takes then.
async fn after_eviction(
    server: &Server,
    binding: &str,
    object: &str,
    answer: impl Future<Output = Result<(), BoxError>>,
) -> Result<Duration, BoxError> {
    server.door::<Json>(binding, object, "evict").await?;
    let start = Instant::now();
    answer.await?;
    Ok(start.elapsed())
}
