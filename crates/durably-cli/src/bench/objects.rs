//! The objects that are measured: a holder with the library's own [`Semaphore`] in it, and a shard of
//! the job application whose holders never answer.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::jobs::{JobRunner, JobShard, RunError, RunJob, ShardConfig};
use durably::layers::HostTimer;
use durably::operations::HandlerConfig;
use durably::semaphore::LeaseOptions;
use durably::semaphore::client::{ClientError, SemaphoreClient, holder_fn};
use durably::semaphore::protocol::{
    Demand, GrantReply, GrantReport, Message, PermitRequest, PermitSync, Reply, SyncReply,
};
use durably::semaphore::{Semaphore, SemaphoreError};
use durably::time::MAX_SAFE_INTEGER;
use durably::{OpenError, Scheduler, SchedulerConfig};
use durably_native::sqlite::CountersSnapshot;
use durably_native::{System, SystemConfig};
use futures::future::join_all;

/// No grant's claim deadline passes while something is measured.
const GRANT_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The shortest that there is: only what a round does is of interest, not what it waits for.
const ROUND: Duration = Duration::from_millis(1);

/// A holder whose rounds can be timed from inside.
pub(super) struct Holder {
    scheduler: Scheduler,
    semaphore: Semaphore,
    /// When the last round began: the limit is the first thing that it asks for.
    began: Rc<Cell<Option<Instant>>>,
}

impl Object for Holder {
    const CLASS: &'static str = "bench-holder";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// How a holder is set up.
#[derive(Clone, Debug)]
pub(super) struct HolderConfig {
    pub(super) limit: u64,
    pub(super) leases: Option<LeaseOptions>,
    /// The wait of a round and its period.
    pub(super) round: Duration,
}

impl Default for HolderConfig {
    fn default() -> Self {
        HolderConfig {
            limit: MAX_SAFE_INTEGER,
            leases: None,
            round: ROUND,
        }
    }
}

impl Holder {
    pub(super) async fn open(
        host: Rc<dyn Host>,
        config: HolderConfig,
    ) -> Result<Holder, OpenError> {
        let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
        let began: Rc<Cell<Option<Instant>>> = Rc::default();
        let begins = began.clone();
        let mut builder = Semaphore::builder(&scheduler);
        if let Some(leases) = config.leases {
            builder = builder.leases(leases);
        }
        let semaphore = builder
            .limit_with(move || {
                begins.set(Some(Instant::now()));
                async move { Ok(config.limit) }
            })
            .round_wait(config.round)
            .round_period(config.round)
            .grant_timeout(GRANT_TIMEOUT)
            .build()?;
        scheduler.open().await?;
        Ok(Holder {
            scheduler,
            semaphore,
            began,
        })
    }

    /// Holds one round for all `requests`; says how long it took from its start to the last answer,
    /// its commit included, its wait for more requests not.
    pub(super) async fn round(
        &self,
        requests: Vec<PermitRequest>,
    ) -> Result<(Duration, Vec<GrantReply>), SemaphoreError> {
        let answers: Vec<_> = requests
            .into_iter()
            .map(|request| self.semaphore.handle(Message::Request(request)))
            .collect();
        let mut replies = Vec::with_capacity(answers.len());
        for answer in join_all(answers).await {
            if let Reply::Grant(reply) = answer? {
                replies.push(reply);
            }
        }
        let took = self.began.get().map_or(Duration::ZERO, |at| at.elapsed());
        Ok((took, replies))
    }

    /// Takes a message.
    pub(super) async fn handle(&self, message: Message) -> Result<Reply, SemaphoreError> {
        self.semaphore.handle(message).await
    }

    /// Takes a sync.
    pub(super) async fn sync(&self, sync: PermitSync) -> Result<SyncReply, BoxError> {
        match self.semaphore.handle(Message::Sync(sync)).await? {
            Reply::Synced(reply) => Ok(reply),
            Reply::Grant(_) => Err("a sync was answered with grants".into()),
        }
    }

    /// What is outstanding.
    pub(super) async fn granted(&self) -> Result<u64, SemaphoreError> {
        Ok(self.semaphore.usage().await?.granted)
    }
}

/// A request of `client` for one permit in each of so many groups, or `count` permits.
pub(super) fn request(client: &str, groups: usize, count: u64) -> PermitRequest {
    let now = now();
    let demand = (0..groups).map(|group| Demand {
        group: format!("group-{group:04}"),
        count,
        oldest_at: now,
    });
    PermitRequest {
        client_id: client.to_owned(),
        demand: demand.collect(),
        grants: Vec::new(),
        leases: None,
        sent_at: Some(now),
        request_id: None,
        request_number: None,
        wait_ms: None,
        client_ttl_ms: None,
    }
}

/// A report of `client` about grants, each with so many permits claimed and released.
pub(super) fn report<'a>(
    client: &str,
    grants: impl IntoIterator<Item = &'a str>,
    claimed: u64,
    released: u64,
) -> PermitSync {
    let reports = grants.into_iter().map(|grant| GrantReport {
        grant_id: grant.to_owned(),
        claimed,
        released,
    });
    PermitSync {
        client_id: client.to_owned(),
        grants: reports.collect(),
        leases: None,
        sent_at: Some(now()),
        client_ttl_ms: None,
    }
}

pub(super) fn now() -> durably::Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    durably::Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or_default())
}

/// A system of holders without a limit to speak of.
pub(super) fn holders(folder: &Path, config: SystemConfig) -> Result<System, BoxError> {
    holders_with(folder, config, HolderConfig::default())
}

/// A system of holders.
pub(super) fn holders_with(
    folder: &Path,
    config: SystemConfig,
    holder: HolderConfig,
) -> Result<System, BoxError> {
    Ok(System::builder(folder)
        .config(config)
        .class::<Holder>(move |host| {
            let opening = Holder::open(host, holder.clone());
            Box::pin(async move { Ok(Rc::new(opening.await?)) })
        })
        .open()?)
}

/// A system of shards whose jobs stay queued, since no holder ever answers.
pub(super) fn shards(folder: &Path, config: SystemConfig) -> Result<System, BoxError> {
    let mut scheduler = SchedulerConfig::default();
    scheduler.alarm_concurrency = 256;
    let shard = ShardConfig {
        scheduler,
        attempts: HandlerConfig::default(),
        max_body_bytes: 128 * 1_024,
        max_queue_length: 1_000_000,
        retention: Duration::from_secs(7 * 24 * 60 * 60),
    };
    Ok(System::builder(folder)
        .config(config)
        .class::<JobShard>(move |host| {
            let shard = shard.clone();
            Box::pin(async move {
                let silent = holder_fn(|_| std::future::pending::<Result<Reply, ClientError>>());
                let holder = SemaphoreClient::new(silent, HostTimer::new(host.clone()));
                let opening = JobShard::open(host, shard, holder, Arc::new(NoJobs));
                Ok(Rc::new(opening.await?))
            })
        })
        .open()?)
}

struct NoJobs;

impl JobRunner for NoJobs {
    fn run(&self, _job: RunJob) -> LocalFuture<Result<serde_json::Value, RunError>> {
        Box::pin(async { Err(RunError::Permanent("no job is run here".into())) })
    }
}

/// Resolves when no object has done anything for `quiet`.
pub(super) async fn settled(
    counters: impl Fn() -> CountersSnapshot,
    quiet: Duration,
) -> CountersSnapshot {
    let mut last = counters();
    loop {
        tokio::time::sleep(quiet).await;
        let now = counters();
        if now == last {
            return now;
        }
        last = now;
    }
}
