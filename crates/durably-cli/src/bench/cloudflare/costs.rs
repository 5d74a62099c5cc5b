//! What jobs are billed from their submission until they are forgotten: rows, requests and alarms of the
//! account and its shards, on the grant path and on the lease path.
//!
//! Two ways of submitting: by the hundred, where jobs share what can be shared, and each alone, when the one
//! before it is long forgotten, so that nothing is shared. Most traffic is between the two.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use durably::error::BoxError;
use durably::jobs::{NewJob, SubmitOutcome};
use durably_native::jobs::{Jobs, JobsConfig};
use reqwest::Method;
use serde_json::{Value as Json, json};
use tokio::sync::Notify;

use super::super::jobs::Counting;
use super::super::objects::settled;
use super::super::report::{Bill, Goal, Value};
use super::super::{Bench, clear};
use super::ACCOUNTS;
use super::endpoint::Endpoint;
use super::server::{Counters, Server};

const SHARDS: &str = "JOB_SHARD";

/// Jobs in one submission.
const BATCH: usize = 100;

/// More than ever run at once.
const LIMIT: u64 = 10_000;

/// Of one lease: no shard uses them up between two rounds.
const LEASE_PERMITS: u64 = 1_024;

/// Of finished jobs. A week of it would cost the same.
const RETENTION: Duration = Duration::from_secs(1);

const ROUND_WAIT: Duration = Duration::from_secs(1);
const ROUND_PERIOD: Duration = Duration::from_secs(2);
const ALARM_MIN_DELAY: Duration = Duration::from_secs(1);

/// Nothing may happen for this long before all is over: longer than any alarm waits. The platform keeps
/// objects, and so their counters, for some ten seconds.
const QUIET: Duration = Duration::from_millis(3_500);

/// What the worker is started with.
pub(super) fn settings(endpoint: &Endpoint) -> Vec<(&'static str, String)> {
    let millis = |duration: Duration| duration.as_millis().to_string();
    vec![
        ("DURABLY_JOB_URL", endpoint.url()),
        ("DURABLY_ROUND_WAIT_MS", millis(ROUND_WAIT)),
        ("DURABLY_ROUND_PERIOD_MS", millis(ROUND_PERIOD)),
        ("DURABLY_RETENTION_MS", millis(RETENTION)),
        ("DURABLY_ALARM_MIN_DELAY_MS", millis(ALARM_MIN_DELAY)),
    ]
}

pub(super) async fn jobs(
    bench: &mut Bench,
    server: &Server,
    endpoint: &Endpoint,
) -> Result<(), BoxError> {
    let many = bench.amount(1_000, 300);
    let alone = bench.amount(10, 3);
    let mut run = Run {
        server,
        endpoint,
        submitted: 0,
    };
    bench
        .report
        .bill_head("per 1,000 jobs, from submission until forgotten")?;
    let mut written = Written::default();
    for (path, leases) in [("grants", false), ("leases", true)] {
        let account = format!("by-{path}");
        run.begin(&account, leases).await?;
        let bill = run.bill(&account, many, BATCH).await?;
        bench
            .report
            .bill(&format!("{path}, jobs by the hundred"), bill)?;
        let mut bills = Vec::new();
        for _ in 0..alone {
            bills.push(run.bill(&account, 1, 1).await?);
        }
        let alone_bill = Bill::mean(&bills);
        bench
            .report
            .bill(&format!("{path}, each job alone"), alone_bill)?;
        if !leases {
            written = Written {
                by_hundreds: bill.rows_written / 1_000.0,
                alone: alone_bill.rows_written / 1_000.0,
            };
        }
    }
    let native = native(&bench.fresh("cloudflare-costs-native"), many).await?;
    bench.report.line(
        &format!(
            "rows written by a job alone, grants; natively {}",
            native.alone
        ),
        Value::Count(written.alone),
        Goal::AtMost(Value::Count(native.alone)),
    )?;
    bench.report.line(
        &format!("  by the hundred; natively {:.3}", native.by_hundreds),
        Value::Count(written.by_hundreds),
        // How many jobs share a grant hangs on the moment when they come.
        Goal::AtMost(Value::Count(native.by_hundreds * 1.05)),
    )?;
    Ok(())
}

/// Rows written by a job on the grant path.
#[derive(Default)]
struct Written {
    by_hundreds: f64,
    alone: f64,
}

struct Run<'a> {
    server: &'a Server,
    endpoint: &'a Endpoint,
    submitted: usize,
}

impl Run<'_> {
    /// Has the account's objects made, and leases given if there are to be any.
    async fn begin(&mut self, account: &str, leases: bool) -> Result<(), BoxError> {
        self.server.set_limit(account, LIMIT).await?;
        if leases {
            let path = format!("v1/accounts/{account}/leases");
            let leases = json!({"leases": {
                "provisioning": {"mode": "strict"}, "permitsPerLease": LEASE_PERMITS, "ttlMs": 1_800_000,
            }});
            self.server
                .ask::<Json>(Method::PUT, &path, Some(&leases))
                .await?;
        }
        self.bill(account, BATCH, BATCH).await?;
        Ok(())
    }

    /// So many jobs of one group, so many in a submission; what a thousand of them cost.
    async fn bill(&mut self, account: &str, jobs: usize, at_once: usize) -> Result<Bill, BoxError> {
        let objects = self.objects(account).await?;
        let before = self.counters(&objects).await?;
        for first in (0..jobs).step_by(at_once) {
            let batch: Vec<Json> = (first..(first + at_once).min(jobs))
                .map(|number| {
                    let id = format!("job-{:08}", self.submitted + number);
                    json!({"account": account, "id": id, "group": "group", "body": number})
                })
                .collect();
            let batch = Json::from(batch);
            let answer: Json = self
                .server
                .ask(Method::POST, "v1/jobs", Some(&batch))
                .await?;
            let mut results = answer["results"].as_array().into_iter().flatten();
            if !results.all(|result| result["outcome"] == "queued") {
                return Err(format!("not every job was taken: {answer}").into());
            }
        }
        self.submitted += jobs;
        self.endpoint.until(self.submitted).await?;
        let after = self.until_quiet(&objects).await?;
        let spent = after.since(before);
        let per_thousand = |count: u64| count as f64 * 1_000.0 / jobs as f64;
        Ok(Bill {
            rows_read: per_thousand(spent.rows_read),
            rows_written: per_thousand(spent.rows_written),
            requests: per_thousand(spent.requests),
            alarms: per_thousand(spent.alarms),
            alarms_set: per_thousand(spent.alarms_set),
        })
    }

    async fn objects(&self, account: &str) -> Result<Vec<(&'static str, String)>, BoxError> {
        let path = format!("v1/accounts/{account}/shards");
        let lists: Json = self.server.ask(Method::GET, &path, None).await?;
        let shards = lists["current"]["shards"].as_array().into_iter().flatten();
        let names = shards.filter_map(|name| Some((SHARDS, name.as_str()?.to_owned())));
        let mut objects = vec![(ACCOUNTS, account.to_owned())];
        objects.extend(names);
        Ok(objects)
    }

    async fn counters(&self, objects: &[(&'static str, String)]) -> Result<Counters, BoxError> {
        let mut sum = Counters::default();
        for (binding, name) in objects {
            let counters: Counters = self.server.door(binding, name, "counters").await?;
            sum = sum.and(counters);
        }
        Ok(sum)
    }

    async fn until_quiet(&self, objects: &[(&'static str, String)]) -> Result<Counters, BoxError> {
        let mut last = self.counters(objects).await?;
        loop {
            tokio::time::sleep(QUIET).await;
            let now = self.counters(objects).await?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
    }
}

/// The same application on this machine, with the same settings.
async fn native(folder: &Path, count: usize) -> Result<Written, BoxError> {
    let mut config = JobsConfig::new(folder);
    config.system.count_rows = true;
    config.default_limit = LIMIT;
    config.round_wait = ROUND_WAIT;
    config.round_period = ROUND_PERIOD;
    config.retention = RETENTION;
    config.alarm_min_delay = ALARM_MIN_DELAY;
    let runner = Arc::new(Counting {
        left: AtomicUsize::new(BATCH + count),
        all: Notify::new(),
    });
    let jobs = Jobs::open(config, runner.clone())?;
    let submit = async |first: usize, at_once: usize| {
        let batch = (first..first + at_once).map(|number| NewJob {
            account: "account".to_owned(),
            id: format!("job-{number:08}"),
            group: "group".to_owned(),
            body: number.into(),
        });
        let outcomes = jobs.submit(batch.collect()).await;
        let queued = |outcome: &SubmitOutcome| matches!(outcome, SubmitOutcome::Queued);
        match outcomes.iter().all(queued) {
            true => Ok(()),
            false => Err::<(), BoxError>("a job was not taken".into()),
        }
    };
    // The platform's alarm is no row of the application there.
    let written = || {
        let tables = jobs.rows_by_table();
        let ours = tables
            .iter()
            .filter(|(table, _)| *table != "durability_object");
        ours.map(|(_, rows)| rows.written).sum::<u64>()
    };
    submit(0, BATCH).await?;
    settled(|| jobs.counters(), QUIET).await;
    let before = written();
    for first in (BATCH..BATCH + count).step_by(BATCH) {
        submit(first, BATCH).await?;
    }
    let all = tokio::time::timeout(Duration::from_secs(300), runner.all.notified());
    all.await.map_err(|_| "not every job has run")?;
    settled(|| jobs.counters(), QUIET).await;
    let by_hundreds = (written() - before) as f64 / count as f64;
    let before = written();
    submit(BATCH + count, 1).await?;
    settled(|| jobs.counters(), QUIET).await;
    let alone = (written() - before) as f64;
    jobs.shutdown().await;
    drop(jobs);
    clear(folder)?;
    Ok(Written { by_hundreds, alone })
}
