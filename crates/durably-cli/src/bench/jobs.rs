//! Jobs from their submission to their end through the whole application, on the grant path, with a
//! runner that does nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::jobs::{JobRunner, NewJob, RunError, RunJob, SubmitOutcome};
use durably_native::jobs::{Jobs, JobsConfig};
use tokio::sync::Notify;

use super::enqueue::BATCH;
use super::objects::settled;
use super::report::{Costs, Goal, Value};
use super::{Bench, clear, median_of, per_second};

/// Permits of an account.
const LIMIT: u64 = 1_000;

/// How long nothing may happen before everything is over.
const QUIET: Duration = Duration::from_millis(300);

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin(
        "jobs",
        "submit, grant, claim, admit, run nothing, release; rounds every 5 ms",
    )?;
    let count = bench.amount(10_000, 1_000);
    let repetitions = bench.amount(5, 3);
    let folder = bench.fresh("jobs");
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        one.push(run(&folder, count, 1, false).await?.0);
        many.push(run(&folder, count, 16, false).await?.0);
    }
    let costs_of_one = run(&folder, count, 1, true).await?.1;
    let costs_of_many = run(&folder, count, 16, true).await?.1;
    let report = &mut bench.report;
    let jobs = super::report::thousands(count as f64);
    report.line(
        &format!("{jobs} jobs of one account on 4 shards"),
        Value::Rate(median_of(&one)?),
        Goal::None,
    )?;
    report.line(
        &format!("{jobs} jobs of 16 accounts on 64 shards"),
        Value::Rate(median_of(&many)?),
        Goal::None,
    )?;
    report.costs_head("counted, per job, opening of objects included")?;
    report.costs("one account", costs_of_one)?;
    report.costs("16 accounts", costs_of_many)?;
    Ok(())
}

/// Runs so many jobs in a fresh folder. Returns how many a second ran, from the first submission to
/// the last run, and what each cost when all was quiet again.
async fn run(
    folder: &Path,
    count: usize,
    accounts: usize,
    count_rows: bool,
) -> Result<(f64, Costs), BoxError> {
    let mut config = JobsConfig::new(folder);
    config.system.count_rows = count_rows;
    config.default_limit = LIMIT;
    config.round_wait = Duration::from_millis(1);
    config.round_period = Duration::from_millis(5);
    let runner = Arc::new(Counting {
        left: AtomicUsize::new(count),
        all: Notify::new(),
    });
    let jobs = Jobs::open(config, runner.clone())?;
    let start = Instant::now();
    for first in (0..count).step_by(BATCH) {
        let batch = (first..count.min(first + BATCH)).map(|number| NewJob {
            account: format!("account-{:02}", number % accounts),
            id: format!("job-{number:08}"),
            group: "default".to_owned(),
            body: serde_json::json!({"url": "https://example.org/report", "page": number}),
        });
        for outcome in jobs.submit(batch.collect()).await {
            if !matches!(outcome, SubmitOutcome::Queued) {
                return Err("a job was not taken".into());
            }
        }
    }
    let all = tokio::time::timeout(Duration::from_secs(300), runner.all.notified());
    all.await.map_err(|_| "not every job has run")?;
    let rate = per_second(count, start.elapsed());
    let done = settled(|| jobs.counters(), QUIET).await;
    jobs.shutdown().await;
    drop(jobs);
    clear(folder)?;
    let per_job = |total: u64| total as f64 / count as f64;
    let costs = Costs {
        flushes: per_job(done.flushes),
        transactions: per_job(done.transactions),
        statements: per_job(done.statements),
        rows_written: per_job(done.rows_written),
    };
    Ok((rate, costs))
}

/// Does nothing, and says when it has done so often enough.
pub(super) struct Counting {
    pub(super) left: AtomicUsize,
    pub(super) all: Notify,
}

impl JobRunner for Counting {
    fn run(&self, _job: RunJob) -> LocalFuture<Result<serde_json::Value, RunError>> {
        if self.left.fetch_sub(1, SeqCst) == 1 {
            self.all.notify_one();
        }
        Box::pin(async { Ok(serde_json::Value::Null) })
    }
}
