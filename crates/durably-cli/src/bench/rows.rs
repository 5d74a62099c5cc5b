//! Rows written per job: what its life costs in the tables of queue and holder, beside the least that
//! the schema allows. Operations, the alarm and what the application itself stores are printed apart.
//!
//! Rows are counted exactly, as Cloudflare bills them; see `durably_native::sqlite`. A job's life ends
//! when it is forgotten, so that is waited for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use durably::error::BoxError;
use durably::jobs::{NewJob, SubmitOutcome};
use durably_native::SystemConfig;
use durably_native::jobs::{Jobs, JobsConfig};
use durably_native::sqlite::TableRows;
use tokio::sync::Notify;

use super::jobs::Counting;
use super::objects::{HolderConfig, settled};
use super::queue::{Gate, Shard, ShardConfig, enqueue, open};
use super::report::{Goal, Value, thousands};
use super::{Bench, clear};

/// Items in a batch.
const BATCH: usize = 100;

/// The most that hold permits at once: grants are as large as what is free, ten at least.
const ADMITTED: u64 = 200;

/// What an item cannot do without on the grant path: the item and its entry among the waiting ones, its
/// assignment, its end, its removal.
const LEAST_OF_ITEM: f64 = 5.0;

/// And a grant: at the holder the grant, its entries among the unclaimed and those of its client, the
/// claim, its removal; in the queue the request's id, the grant, that it is admitted, its removal, and
/// the list of the items to forget, written and removed.
const LEAST_OF_GRANT: f64 = 5.0 + 6.0;

/// On the lease path an item is drawn as it is stored, and has its end and its removal.
const LEAST_OF_DRAWN_ITEM: f64 = 3.0;

/// And a draw, here one for each batch: itself, that it is admitted, its removal, the lease's mark, and
/// the list of the items to forget, written and removed. What a lease costs by itself is shared by
/// thousands.
const LEAST_OF_DRAW: f64 = 6.0;

/// Nothing may happen for this long before everything is forgotten: longer than any alarm waits.
const QUIET: Duration = Duration::from_millis(2_500);

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin(
        "rows",
        "rows written per job, exact; one group, batches of 100",
    )?;
    let count = bench.amount(10_000, 1_000);
    let folder = bench.fresh("rows");
    let jobs = thousands(count as f64);
    let (rows, permits) = queue(&folder, count, HolderConfig::default()).await?;
    let line = "grant path: permits of a grant, on average";
    let goal = Goal::AtLeast(Value::Count(10.0));
    bench.report.line(line, Value::Count(permits), goal)?;
    let least = LEAST_OF_ITEM + LEAST_OF_GRANT / permits;
    print_path(bench, "grant path", &jobs, least, &Sums::of(&rows, count))?;
    let leases = HolderConfig {
        leases: Some(super::leased::lease_options()),
        ..HolderConfig::default()
    };
    let (rows, _) = queue(&folder, count, leases).await?;
    let least = LEAST_OF_DRAWN_ITEM + LEAST_OF_DRAW / BATCH as f64;
    print_path(bench, "lease path", &jobs, least, &Sums::of(&rows, count))?;
    let rows = application(&folder, count).await?;
    let sums = Sums::of(&rows, count);
    bench.report.line(
        &format!("whole application: queue and holder, {jobs} jobs, per job"),
        Value::Count(sums.queue + sums.holder),
        Goal::None,
    )?;
    sums.print(bench)
}

fn print_path(
    bench: &mut Bench,
    path: &str,
    jobs: &str,
    least: f64,
    sums: &Sums,
) -> Result<(), BoxError> {
    bench.report.line(
        &format!("{path}: the least possible, per job"),
        Value::Count(least),
        Goal::None,
    )?;
    bench.report.line(
        &format!("{path}: queue and holder, {jobs} jobs, per job"),
        Value::Count(sums.queue + sums.holder),
        Goal::AtMost(Value::Count(least + 1.0)),
    )?;
    sums.print(bench)
}

type Rows = BTreeMap<String, TableRows>;

/// Has so many items enqueued, granted or drawn, admitted, released and forgotten. Returns the rows by
/// table, and the permits of a grant on average.
async fn queue(folder: &Path, count: usize, holder: HolderConfig) -> Result<(Rows, f64), BoxError> {
    let mut system = SystemConfig::default();
    system.count_rows = true;
    let shard = ShardConfig {
        gate: Gate::Holder,
        max_admitted: ADMITTED,
        retention: Duration::from_millis(100),
        holds_admissions: false,
    };
    let (system, done) = open(folder, system, holder, shard)?;
    let shard = system.object::<Shard>("shard");
    // The first batch makes the objects, and brings a lease if there are any.
    enqueue(&shard, count, BATCH, |_| "group".to_owned()).await?;
    done.released(BATCH).await?;
    settled(|| system.counters(), QUIET).await;
    let before = system.rows_by_table();
    for first in (0..count).step_by(BATCH) {
        enqueue(&shard, first, BATCH, |_| "group".to_owned()).await?;
    }
    done.released(BATCH + count).await?;
    settled(|| system.counters(), QUIET).await;
    let left = shard
        .call(|shard| async move { shard.queue.knows_any().await })
        .await??;
    if left {
        return Err("not every item was forgotten".into());
    }
    let mut rows = system.rows_by_table();
    for (table, before) in before {
        if let Some(rows) = rows.get_mut(&table) {
            rows.written -= before.written;
            rows.index_entries_removed -= before.index_entries_removed;
        }
    }
    system.shutdown().await;
    drop(system);
    clear(folder)?;
    Ok((rows, done.permits_per_grant()))
}

/// The same through the whole application, which runs each job as a durable operation.
async fn application(folder: &Path, count: usize) -> Result<Rows, BoxError> {
    let mut config = JobsConfig::new(folder);
    config.system.count_rows = true;
    config.shards_per_account = 1;
    config.default_limit = 1_000;
    config.round_wait = Duration::from_millis(1);
    config.round_period = Duration::from_millis(5);
    config.retention = Duration::from_secs(1);
    config.alarm_min_delay = Duration::from_secs(1);
    let runner = Arc::new(Counting {
        left: AtomicUsize::new(count),
        all: Notify::new(),
    });
    let jobs = Jobs::open(config, runner.clone())?;
    for first in (0..count).step_by(BATCH) {
        let batch = (first..first + BATCH).map(|number| NewJob {
            account: "account".to_owned(),
            id: format!("job-{number:08}"),
            group: "group".to_owned(),
            body: number.into(),
        });
        for outcome in jobs.submit(batch.collect()).await {
            if !matches!(outcome, SubmitOutcome::Queued) {
                return Err("a job was not taken".into());
            }
        }
    }
    let all = tokio::time::timeout(Duration::from_secs(300), runner.all.notified());
    all.await.map_err(|_| "not every job has run")?;
    settled(|| jobs.counters(), QUIET).await;
    let rows = jobs.rows_by_table();
    jobs.shutdown().await;
    drop(jobs);
    clear(folder)?;
    Ok(rows)
}

/// Rows per job, by whose tables they are in.
#[derive(Default)]
struct Sums {
    queue: f64,
    holder: f64,
    operations: f64,
    alarm: f64,
    others: f64,
    /// Entries that left indexes, of queue and holder.
    removed: f64,
}

impl Sums {
    fn of(rows: &Rows, jobs: usize) -> Sums {
        let mut sums = Sums::default();
        for (table, rows) in rows {
            let written = rows.written as f64 / jobs as f64;
            let removed = rows.index_entries_removed as f64 / jobs as f64;
            if table.starts_with("durability_semaphore_queue_") {
                sums.queue += written;
                sums.removed += removed;
            } else if table.starts_with("durability_semaphore_") {
                sums.holder += written;
                sums.removed += removed;
            } else if table.starts_with("durability_operations") {
                sums.operations += written;
            } else if table == "durability_object" {
                sums.alarm += written;
            } else {
                sums.others += written;
            }
        }
        sums
    }

    fn print(&self, bench: &mut Bench) -> Result<(), BoxError> {
        for (label, value) in [
            ("  in the queue's tables", self.queue),
            ("  in the holder's tables", self.holder),
            (
                "  beside: index entries removed there, not billed",
                self.removed,
            ),
            ("  beside: operations", self.operations),
            ("  beside: alarms", self.alarm),
            ("  beside: schema and application", self.others),
        ] {
            bench.report.line(label, Value::Count(value), Goal::None)?;
        }
        Ok(())
    }
}
