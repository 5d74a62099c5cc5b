//! The account-concurrency application on this host: its classes of objects in one system, and the
//! door to them for everybody outside.
//!
//! Decided here: nothing about jobs, see [`durably::jobs`]; only how the objects reach each other
//! and which failures of a call mean what to a caller.

mod budgets;
mod config;
mod recorder;
mod way;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use durably::host::Host;
use durably::jobs::{
    AccountJobs, AccountLimit, CancelOutcome, JobError, JobRouter, JobRunner, JobShard, JobStatus,
    NewJob, ShardLists, SubmitOutcome, check_part,
};
use durably::layers::{HostTimer, TimeoutLayer};
use durably::semaphore::client::{SemaphoreClient, holder_fn};
use durably::semaphore::protocol::{Message, Reply};
use durably::semaphore::{ForceReleased, Holding, LeaseOptions, Standing, Usage};
use durably::topology::ReaderOptions;
use tower_layer::Layer;

pub use budgets::RemoteHolders;
use budgets::{Budgets, check_account};
pub use config::JobsConfig;
use recorder::RecordingThread;
use way::Way;

use crate::publishers::{FolderPublisher, FolderReader};
use crate::reading::{Reader, ReaderClock, ReaderRandom};
use crate::sqlite::{CountersSnapshot, TableRows};
use crate::{CallError, ObjectHandle, System, SystemBuilder, SystemError};

/// Jobs of many accounts, each within its limit. Clones share the system; the last one that goes
/// closes it abruptly, so call [`shutdown`](Self::shutdown) first.
#[derive(Clone)]
pub struct Jobs(Arc<Inner>);

struct Inner {
    system: System,
    budgets: Budgets,
    config: JobsConfig,
    /// Of what accounts publish: which shards their jobs are on.
    published: Reader<FolderReader>,
    /// Taken when the system has been shut down.
    recorder: Mutex<Option<RecordingThread>>,
    /// When the former shards of an account were last looked through.
    looked_through: Mutex<HashMap<String, Instant>>,
}

/// How long a published list of shards is gone by before it is read again. Jobs are not lost by an older one:
/// a shard that has heard of a newer list refuses them, and one that has not is asked by those who go by it.
const LIST_TTL: Duration = Duration::from_secs(5);

impl Jobs {
    /// Opens the application on its data folder. Jobs that were under way go on by themselves.
    /// Holders elsewhere need not be there: jobs wait until they are.
    ///
    /// # Errors
    ///
    /// See [`SystemError`]; for holders elsewhere there must be a tokio runtime around the call.
    pub fn open(
        config: JobsConfig,
        runner: Arc<dyn JobRunner + Send + Sync>,
    ) -> Result<Jobs, SystemError> {
        let builder = System::builder(&config.data_dir).config(config.system.clone());
        Jobs::open_in(builder, config, runner)
    }

    /// Opens the application in a system that is to have other classes too, whose `builder` was given
    /// `data_dir` and `system` of the configuration.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_in(
        builder: SystemBuilder,
        config: JobsConfig,
        runner: Arc<dyn JobRunner + Send + Sync>,
    ) -> Result<Jobs, SystemError> {
        config.check()?;
        let budgets = Budgets::new(&config, builder.system())?;
        let folder = config.data_dir.join("shards");
        let publisher = FolderPublisher::open(&folder).map_err(|error| SystemError::Folder {
            folder,
            source: std::io::Error::other(error),
        })?;
        let mut options = ReaderOptions::default();
        options.ttl = LIST_TTL;
        let published = Reader::new(options, publisher.reader(), ReaderClock, ReaderRandom)?;
        let asking = budgets.clone();
        let recorder = config.record.as_deref().map(RecordingThread::start);
        let recorder = recorder.transpose()?;
        let account = config.account(recorder.as_ref().map(RecordingThread::recorder));
        let shard = config.shard();
        let timeout = config.holder_timeout();
        let system = builder
            .class::<AccountLimit>(move |host: Rc<dyn Host>| {
                let opening = AccountLimit::open(host, account.clone(), publisher.clone());
                Box::pin(async move { Ok(Rc::new(opening.await?)) })
            })
            .class::<JobShard>(move |host: Rc<dyn Host>| {
                let (shard, runner) = (shard.clone(), runner.clone());
                let asking = asking.clone();
                Box::pin(async move {
                    let timer = HostTimer::new(host.clone());
                    let layer = TimeoutLayer::new(timer.clone(), timeout)?;
                    let transport = layer.layer(holder_fn(move |call| asking.clone().ask(call)));
                    let holder = SemaphoreClient::new(transport, timer);
                    let opening = JobShard::open(host, shard, holder, runner);
                    Ok(Rc::new(opening.await?))
                })
            })
            .open()?;
        Ok(Jobs(Arc::new(Inner {
            system,
            budgets,
            config,
            published,
            recorder: Mutex::new(recorder),
            looked_through: Mutex::default(),
        })))
    }

    /// Takes jobs, each stored before its outcome is told. The outcomes are in the order of the
    /// jobs; a job that is refused is refused by itself.
    pub async fn submit(&self, jobs: Vec<NewJob>) -> Vec<SubmitOutcome> {
        self.router().submit(jobs).await
    }

    /// Where a job stands.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn status(&self, account: &str, id: &str) -> Result<JobStatus, JobError> {
        self.router().status(account, id).await
    }

    /// The account's jobs, over all its shards of this system.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn account_jobs(&self, account: &str) -> Result<AccountJobs, JobError> {
        self.router().account_jobs(account).await
    }

    /// Cancels a job. One that runs is told to stop if `running` says so, and left alone otherwise.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn cancel(
        &self,
        account: &str,
        id: &str,
        running: bool,
    ) -> Result<CancelOutcome, JobError> {
        self.router().cancel(account, id, running).await
    }

    /// The account's limit: its own, or the default.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn limit(&self, account: &str) -> Result<u64, JobError> {
        self.check_account(account)?;
        let limit = self.0.budgets.limit(account, None).await?;
        Ok(limit.unwrap_or(self.0.config.default_limit))
    }

    /// Sets the account's own limit, or takes it back for the default. It holds from the next round
    /// on; a lowered one stops no running job.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn set_limit(&self, account: &str, limit: Option<u64>) -> Result<(), JobError> {
        self.check_account(account)?;
        self.0.budgets.set_limit(account, None, limit).await
    }

    /// A group's ceiling: its own, or the default; `None` if it has only the account's limit.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn group_limit(&self, account: &str, group: &str) -> Result<Option<u64>, JobError> {
        check_part("group", group)?;
        self.check_account(account)?;
        self.0.budgets.limit(account, Some(group)).await
    }

    /// Sets a group's own ceiling, or takes it back for the default.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn set_group_limit(
        &self,
        account: &str,
        group: &str,
        limit: Option<u64>,
    ) -> Result<(), JobError> {
        self.check_account(account)?;
        check_part("group", group)?;
        self.0.budgets.set_limit(account, Some(group), limit).await
    }

    /// What is granted at this moment, of what.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn usage(&self, account: &str) -> Result<Usage, JobError> {
        self.check_account(account)?;
        self.0.budgets.usage(account).await
    }

    /// What a group of an account is measured against at this moment.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn standing(&self, account: &str, group: &str) -> Result<Standing, JobError> {
        check_part("group", group)?;
        self.check_account(account)?;
        self.0.budgets.standing(account, group).await
    }

    /// How an account gives leases; `None` if it gives none.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn leases(&self, account: &str) -> Result<Option<LeaseOptions>, JobError> {
        self.check_account(account)?;
        self.0.budgets.leases(account).await
    }

    /// Sets how an account gives leases, from the next round on: `Some(None)` gives none, `None`
    /// goes back to the default.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn set_leases(
        &self,
        account: &str,
        leases: Option<Option<LeaseOptions>>,
    ) -> Result<(), JobError> {
        self.check_account(account)?;
        self.0.budgets.set_leases(account, leases).await
    }

    /// Who holds permits of an account, by client and group, after the client `after`; at most
    /// `limit` clients.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn holdings(
        &self,
        account: &str,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<Holding>, JobError> {
        self.check_account(account)?;
        self.0.budgets.holdings(account, after, limit).await
    }

    /// Takes all permits of an account, or those of one group, from a client that will never give
    /// them back.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn force_release(
        &self,
        account: &str,
        client_id: &str,
        group: Option<&str>,
        reason: &str,
    ) -> Result<ForceReleased, JobError> {
        check_part("client", client_id)?;
        self.check_account(account)?;
        let budgets = &self.0.budgets;
        budgets
            .force_release(account, client_id, group, reason)
            .await
    }

    /// The account's lists of shards; a new account is given the default one.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn shards(&self, account: &str) -> Result<ShardLists, JobError> {
        check_part("account", account)?;
        let count = self.0.config.shards_per_account;
        self.account(account)
            .call(move |account| async move { account.shards_or_default(count).await })
            .await
            .map_err(unavailable)?
    }

    /// Replaces the account's list of shards; see [`AccountLimit::set_shards`].
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn set_shards(
        &self,
        account: &str,
        shards: Vec<String>,
    ) -> Result<ShardLists, JobError> {
        check_part("account", account)?;
        self.account(account)
            .call(move |account| async move { account.set_shards(shards).await })
            .await
            .map_err(unavailable)?
    }

    /// Answers a semaphore message of a foreign client: JSON of protocol v1. A request is answered
    /// with its round; when the caller stops waiting, it waits for no further one.
    ///
    /// # Errors
    ///
    /// [`JobError::Semaphore`] for a message that is malformed, which reaches no object, or a round
    /// that failed.
    pub async fn message(&self, key: &str, json: &[u8]) -> Result<Reply, JobError> {
        check_part("key", key)?;
        let message =
            Message::from_json(json).map_err(|error| JobError::Semaphore(error.into()))?;
        self.0.budgets.message(key, message).await
    }

    /// Where the accounts' budgets are kept, if that is elsewhere.
    pub fn holders(&self) -> Option<&str> {
        let holders = self.0.config.holders.as_ref();
        holders.map(|holders| holders.address())
    }

    /// What the databases of all objects did since the start.
    pub fn counters(&self) -> CountersSnapshot {
        self.0.system.counters()
    }

    /// Rows written by table since the start, if [`SystemConfig::count_rows`](crate::SystemConfig)
    /// is on.
    pub fn rows_by_table(&self) -> BTreeMap<String, TableRows> {
        self.0.system.rows_by_table()
    }

    /// How many objects are open.
    pub fn open_objects(&self) -> usize {
        self.0.system.open_objects()
    }

    /// Stops taking calls, lets turns finish and closes all files.
    pub async fn shutdown(&self) {
        self.0.system.shutdown().await;
        // No object is left that records.
        let recorder = self.0.recorder.lock();
        let recorder = recorder.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(recorder) = recorder {
            recorder.finish();
        }
    }

    fn account(&self, account: &str) -> ObjectHandle<AccountLimit> {
        self.0.system.object(account)
    }

    /// Refuses an account that cannot be.
    fn check_account(&self, account: &str) -> Result<(), JobError> {
        check_account(&self.0.budgets, account)
    }

    /// The account's object if it exists; asking about an account does not make one.
    fn known_account(&self, account: &str) -> Result<Option<ObjectHandle<AccountLimit>>, JobError> {
        check_part("account", account)?;
        let object = self.account(account);
        Ok(object.exists().map_err(unavailable)?.then_some(object))
    }

    fn router(&self) -> JobRouter<Way> {
        JobRouter::new(Way(self.clone()))
    }
}

/// What it means to a caller that an object could not be called.
fn unavailable(error: CallError) -> JobError {
    match error {
        CallError::Storage(error) => JobError::Storage(error),
        CallError::Damaged(text) => JobError::Storage(durably::StorageError::Damaged(text)),
        other => JobError::Unavailable {
            code: other.code(),
            message: other.to_string(),
        },
    }
}
