//! The ready-made worker in a real workerd, from outside: clocks stand still inside. A time is what an
//! object of ours adds to the same message to another one, an empty class or an empty holder, both in
//! turns within one run.

mod costs;
mod endpoint;
mod holding;
mod opening;
mod server;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use durably::error::BoxError;

use self::endpoint::Endpoint;
use self::server::Server;
use super::report::{Goal, Value};
use super::{Bench, clear};
use crate::workerd::Worker;

/// The bindings of the bench worker.
const ACCOUNTS: &str = "ACCOUNT_LIMIT";
const EMPTY: &str = "EMPTY";

/// Requests have this long to come together in one round; no round follows another more closely. Long
/// enough for a hundred clients on a slow machine.
const ROUND_MS: u64 = 100;

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.report.begin_apart_from_disk(
        "cloudflare",
        "the ready-made worker in workerd, beside an empty class or holder",
    )?;
    let Some(ready) = find(bench, "durably")? else {
        return Ok(());
    };
    let Some(worker) = find(bench, "bench")? else {
        return Ok(());
    };
    bench.report.line(
        "size of the worker, gzipped",
        Value::Memory(gzipped(ready.folder())? as f64 / f64::from(1 << 20)),
        Goal::AtMost(Value::Memory(1e6 / f64::from(1 << 20))),
    )?;
    let folder = bench.fresh("cloudflare");
    let settings = vec![
        ("DURABLY_ROUND_WAIT_MS", ROUND_MS.to_string()),
        ("DURABLY_ROUND_PERIOD_MS", ROUND_MS.to_string()),
    ];
    let server = Server::start(&worker, &folder.join("objects"), settings).await?;
    opening::object_start(bench, &server).await?;
    let server = opening::large_holder(bench, server).await?;
    holding::rounds(bench, &server).await?;
    holding::rows(bench, &server).await?;
    server.stop().await?;
    clear(&folder)
}

/// What jobs are billed.
pub(super) async fn measure_costs(bench: &mut Bench) -> Result<(), BoxError> {
    let what = "what jobs are billed in workerd, by the platform's own counters";
    bench
        .report
        .begin_apart_from_disk("cloudflare-costs", what)?;
    let Some(worker) = find(bench, "bench")? else {
        return Ok(());
    };
    let endpoint = Endpoint::start().await?;
    let folder = bench.fresh("cloudflare-costs");
    let settings = costs::settings(&endpoint);
    let server = Server::start(&worker, &folder.join("objects"), settings).await?;
    costs::jobs(bench, &server, &endpoint).await?;
    server.stop().await?;
    clear(&folder)
}

/// A built worker; without it the section is left out.
fn find(bench: &mut Bench, name: &str) -> Result<Option<Worker>, BoxError> {
    match bench.workerd.worker(name) {
        Ok(worker) => Ok(Some(worker)),
        Err(why) => {
            bench.report.skipped("all of it", &why.to_string())?;
            Ok(None)
        }
    }
}

/// The size of a worker's modules as they are uploaded.
fn gzipped(folder: &Path) -> Result<usize, BoxError> {
    let mut gzip = Command::new("gzip")
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|ext| ext == "js" || ext == "wasm")
        {
            files.push(path);
        }
    }
    files.sort();
    let mut input = gzip.stdin.take().ok_or("gzip takes no input")?;
    let writing = std::thread::spawn(move || {
        for file in files {
            input.write_all(&std::fs::read(file)?)?;
        }
        std::io::Result::Ok(())
    });
    let output = gzip.wait_with_output()?;
    match writing.join() {
        Ok(written) => written?,
        Err(_) => return Err("the modules could not be read".into()),
    }
    if !output.status.success() {
        return Err("gzip has failed".into());
    }
    Ok(output.stdout.len())
}
