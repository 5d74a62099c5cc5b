//! `durably bench`: what the objects of this machine cost, beside the numbers that were set as
//! targets.
//!
//! Decided here: what is measured, in which order. A target that is missed is printed, never a
//! failure: times depend on the machine, and only what breaks ends the program with an error. Ratios
//! are measured side by side, in turns, and every figure is a median of several repetitions.

mod clients;
mod cloudflare;
mod counts;
mod crowd;
mod disk;
mod enqueue;
mod handover;
mod idle;
mod jobs;
mod leased;
mod objects;
mod opening;
mod peers;
mod queue;
mod reader;
mod report;
mod round;
mod rows;
mod slack;
mod topology;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use durably::error::BoxError;

use crate::workerd::WorkerdArgs;
use report::Report;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Only these measurements; all of them by default.
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Name>,
    /// Fewer repetitions and smaller amounts: to see that it works, not to quote.
    #[arg(long)]
    quick: bool,
    /// Print one JSON document at the end instead of text.
    #[arg(long)]
    json: bool,
    /// Measure on the disk of this folder; a folder is made in it and removed at the end.
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    data_dir: PathBuf,
    #[command(flatten)]
    workerd: WorkerdArgs,
    /// What this process is to do for the one that started it.
    #[arg(long, value_enum, hide = true)]
    child: Option<idle::Child>,
    /// How many objects that concerns.
    #[arg(long, hide = true, default_value_t = 0)]
    objects: usize,
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// A flush of 4 KiB.
    Disk,
    /// Rounds among few rows and many.
    Round,
    /// Rounds of many clients among few grants and leases and many.
    Crowd,
    /// Enqueueing in batches and singly.
    Enqueue,
    /// Thousands of idle objects after a restart.
    Idle,
    /// Opening a hibernated object.
    Opening,
    /// Jobs from their submission to their end.
    Jobs,
    /// Admissions through leases.
    Leased,
    /// A slack limit beside no limit at all.
    Slack,
    /// From one client to the next, over HTTP.
    Handover,
    /// Groups of many members, and many groups.
    Topology,
    /// Durable acquire and release beside Redis and Postgres.
    Peers,
    /// Cached reads of a topology.
    Reader,
    /// Flushes, statements and rows of each operation.
    Counts,
    /// Rows of each job, beside the least possible.
    Rows,
    /// The same objects in workerd: sizes, times, memory, rows.
    Cloudflare,
    /// What jobs are billed there.
    CloudflareCosts,
}

/// What measurements are given.
struct Bench {
    /// Where they keep their data, each in a folder of its own.
    folder: PathBuf,
    quick: bool,
    workerd: WorkerdArgs,
    report: Report,
}

impl Bench {
    /// `full`, or `quick` if it is to be quick.
    fn amount(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// A fresh folder for one measurement.
    fn fresh(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Begins a measurement: measures the disk first, by which absolute targets are scaled.
    fn begin(&mut self, name: &str, what: &str) -> Result<(), BoxError> {
        let flush = disk::flush(&self.folder, self.amount(500, 100))?;
        self.report.begin(name, what, flush)?;
        Ok(())
    }
}

/// Measures, or does what a measurement asked its child process to do.
pub(crate) fn run(args: BenchArgs) -> Result<(), BoxError> {
    if let Some(child) = args.child {
        return on_runtime(idle::child(child, &args.data_dir, args.objects));
    }
    std::fs::create_dir_all(&args.data_dir)?;
    let folder = tempfile::Builder::new()
        .prefix("durably-bench-")
        .tempdir_in(&args.data_dir)?;
    let mut bench = Bench {
        folder: folder.path().to_owned(),
        quick: args.quick,
        workerd: args.workerd,
        report: Report::new(args.json),
    };
    for name in Name::value_variants() {
        if args.only.is_empty() || args.only.contains(name) {
            measure(*name, &mut bench)?;
        }
    }
    bench.report.end()?;
    Ok(())
}

fn measure(name: Name, bench: &mut Bench) -> Result<(), BoxError> {
    match name {
        Name::Disk => disk::measure(bench),
        Name::Round => on_runtime(round::measure(bench)),
        Name::Crowd => on_runtime(crowd::measure(bench)),
        Name::Enqueue => on_runtime(enqueue::measure(bench)),
        Name::Idle => idle::measure(bench),
        Name::Opening => on_runtime(opening::measure(bench)),
        Name::Jobs => on_runtime(jobs::measure(bench)),
        Name::Leased => on_runtime(leased::measure(bench)),
        Name::Slack => on_runtime(slack::measure(bench)),
        Name::Handover => on_runtime(handover::measure(bench)),
        Name::Topology => on_runtime(topology::measure(bench)),
        Name::Peers => on_runtime(peers::measure(bench)),
        Name::Reader => on_runtime(reader::measure(bench)),
        Name::Counts => on_runtime(counts::measure(bench)),
        Name::Rows => on_runtime(rows::measure(bench)),
        Name::Cloudflare => on_runtime(cloudflare::measure(bench)),
        Name::CloudflareCosts => on_runtime(cloudflare::measure_costs(bench)),
    }
}

/// Callers are on one thread: what they cost beside the objects' threads is the least possible.
fn on_runtime<T>(work: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

/// The value in the middle; of two, the higher.
fn median<T: PartialOrd + Copy>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|left, right| left.partial_cmp(right).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
}

/// The median of what must have been measured.
fn median_of<T: PartialOrd + Copy>(values: &[T]) -> Result<T, BoxError> {
    median(values).ok_or_else(|| "nothing was measured".into())
}

fn per_second(items: usize, time: Duration) -> f64 {
    items as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// Removes the data of a measurement that is over.
fn clear(folder: &Path) -> Result<(), BoxError> {
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
