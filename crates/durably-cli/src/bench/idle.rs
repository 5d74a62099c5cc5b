//! Ten thousand idle objects after a restart, each process measured from outside: until it has
//! answered its first message, and the memory that it then holds.
//!
//! A child process makes the objects and ends; another opens their folder. Then one writes to some of
//! them and is killed, so that the next has to open those by itself. Half of the objects have an alarm
//! an hour away.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use durably::error::BoxError;
use durably_native::{System, SystemConfig};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::objects::{Holder, holders, report};
use super::report::{Goal, Value};
use super::{Bench, clear, median_of, opening};

/// What a child process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Child {
    /// Makes idle objects.
    Make,
    /// Writes to some objects, says so, and waits to be killed.
    Touch,
    /// Opens the system, answers a message, waits until it has opened so many objects by itself and
    /// says after each step how much memory it holds.
    Serve,
}

const READY: Duration = Duration::from_secs(1);
const MEMORY_MIB: f64 = 100.0;

/// Objects that are written to at once.
const AT_ONCE: usize = 64;

/// How long left objects may take to be opened before something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// What was seen of one process.
#[derive(Clone, Copy)]
struct Seen {
    ready: Duration,
    memory: f64,
    all_open: Duration,
    memory_then: f64,
}

pub(super) fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    let objects = bench.amount(10_000, 1_000);
    let active = objects / 20;
    let repetitions = bench.amount(5, 3);
    bench.begin("idle", "a system of idle objects after a restart")?;
    let folder = bench.fresh("idle");
    let (mut make, _) = start(Child::Make, &folder, objects)?;
    let start_of_making = Instant::now();
    if !make.wait()?.success() {
        return Err("the objects could not be made".into());
    }
    let making = start_of_making.elapsed();
    let (mut clean, mut killed) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        clean.push(serve(&folder, 0)?);
        let (mut touch, mut lines) = start(Child::Touch, &folder, active)?;
        next(&mut lines)?;
        touch.kill()?;
        touch.wait()?;
        killed.push(serve(&folder, active)?);
    }
    clear(&folder)?;
    let report = &mut bench.report;
    let named = super::report::thousands(objects as f64);
    report.line(
        &format!("making {named} objects with three rows each, 64 at once: each"),
        Value::Time(making / u32::try_from(objects)?),
        Goal::None,
    )?;
    report.line(
        &format!("{named} objects, clean restart: until the first answer"),
        Value::Time(middle(&clean, |seen| seen.ready)?),
        Goal::AtMost(Value::Time(READY)),
    )?;
    report.line(
        "  resident memory then",
        Value::Memory(middle(&clean, |seen| seen.memory)?),
        Goal::AtMost(Value::Memory(MEMORY_MIB)),
    )?;
    report.line(
        &format!("{named} objects, killed with {active} active: until the first answer"),
        Value::Time(middle(&killed, |seen| seen.ready)?),
        Goal::AtMost(Value::Time(READY)),
    )?;
    report.line(
        "  resident memory then",
        Value::Memory(middle(&killed, |seen| seen.memory)?),
        Goal::AtMost(Value::Memory(MEMORY_MIB)),
    )?;
    report.line(
        &format!("  until all {active} are open again"),
        Value::Time(middle(&killed, |seen| seen.all_open)?),
        Goal::None,
    )?;
    report.line(
        &format!("  resident memory then, {active} of them open"),
        Value::Memory(middle(&killed, |seen| seen.memory_then)?),
        Goal::None,
    )?;
    Ok(())
}

fn middle<T: PartialOrd + Copy>(seen: &[Seen], of: impl Fn(&Seen) -> T) -> Result<T, BoxError> {
    median_of(&seen.iter().map(of).collect::<Vec<_>>())
}

/// Has a process open the folder, in which `active` objects were left active.
fn serve(folder: &Path, active: usize) -> Result<Seen, BoxError> {
    let began = Instant::now();
    let (mut process, mut lines) = start(Child::Serve, folder, active)?;
    let memory = next(&mut lines)?;
    let ready = began.elapsed();
    let memory_then = next(&mut lines)?;
    let all_open = began.elapsed();
    if !process.wait()?.success() {
        return Err("the process that served idle objects failed".into());
    }
    Ok(Seen {
        ready,
        memory,
        all_open,
        memory_then,
    })
}

type Output = Lines<BufReader<ChildStdout>>;

fn start(child: Child, folder: &Path, objects: usize) -> Result<(Process, Output), BoxError> {
    let name = child
        .to_possible_value()
        .ok_or("a child process without a name")?;
    let mut process = Command::new(std::env::current_exe()?)
        .args(["bench", "--child", name.get_name(), "--objects"])
        .arg(objects.to_string())
        .arg("--data-dir")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = process.stdout.take().ok_or("a child process is mute")?;
    Ok((process, BufReader::new(output).lines()))
}

/// The number on the next line of a child process.
fn next(lines: &mut Output) -> Result<f64, BoxError> {
    let line = lines.next().ok_or("a child process ended too soon")??;
    Ok(line.parse()?)
}

/// The part of a child process.
pub(super) async fn child(child: Child, folder: &Path, objects: usize) -> Result<(), BoxError> {
    let system = holders(folder, SystemConfig::default())?;
    match child {
        Child::Make => {
            make(&system, objects).await?;
            system.shutdown().await;
        }
        Child::Touch => {
            touch(&system, objects).await?;
            say_memory()?;
            std::future::pending::<()>().await;
        }
        Child::Serve => {
            let last = system.object::<Holder>(&name(usize::MAX));
            last.call(|holder| async move { holder.granted().await })
                .await??;
            say_memory()?;
            wait_until_open(&system, objects).await?;
            say_memory()?;
            system.shutdown().await;
        }
    }
    Ok(())
}

/// Makes objects with three grants each. Those of every other one are claimed, so that nothing is
/// pending; the others have an alarm at the deadline.
async fn make(system: &System, objects: usize) -> Result<(), BoxError> {
    let names = (0..objects).map(Some).chain([None]);
    stream::iter(names)
        .map(|number| async move {
            let holder = system.object::<Holder>(&name(number.unwrap_or(usize::MAX)));
            let grants = opening::make(&holder, 3, 1_000_000).await?;
            if number.is_some_and(|number| number % 2 == 0) {
                let ids = grants.iter().map(String::as_str);
                let sync = report("client", ids, 1_000_000, 0);
                holder
                    .call(move |holder| async move { holder.sync(sync).await })
                    .await??;
            }
            Ok::<(), BoxError>(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Makes a round in so many objects.
async fn touch(system: &System, objects: usize) -> Result<(), BoxError> {
    stream::iter(0..objects)
        .map(|number| async move {
            let holder = system.object::<Holder>(&name(number));
            opening::make(&holder, 1, 1).await?;
            Ok::<(), BoxError>(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Waits until so many objects are open, beside the one that was asked.
async fn wait_until_open(system: &System, objects: usize) -> Result<(), BoxError> {
    let began = Instant::now();
    while system.open_objects() <= objects {
        if began.elapsed() > PATIENCE {
            return Err("objects that were left active were not opened".into());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

fn name(number: usize) -> String {
    format!("holder-{number:05}")
}

/// Writes to standard output how much memory this process holds, in MiB.
fn say_memory() -> Result<(), BoxError> {
    let memory = resident_mib(&std::fs::read_to_string("/proc/self/status")?)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{memory}")?;
    out.flush()?;
    Ok(())
}

/// The resident memory that a process's `status` tells of, in MiB.
pub(super) fn resident_mib(status: &str) -> Result<f64, BoxError> {
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or("the system does not tell how much memory is resident")?
        .parse()?;
    Ok(kib / 1_024.0)
}
