//! The account-concurrency application: jobs of many accounts, each account's running jobs within
//! its limit, on shards that queue and run them.
//!
//! Two classes of objects: an [`AccountLimit`] holds one account's budget with limits that are set
//! at run time and stored, and publishes which shards its jobs are on; a [`JobShard`] queues jobs and runs admitted ones as durable operations.
//! A [`JobRouter`] takes jobs to their shards. How objects reach each other and how a job is run is the
//! embedding's matter: it gives a transport, a [`JobRunner`] and a [`Reach`].

mod account;
mod address;
mod calls;
mod error;
mod lists;
mod routing;
mod shard;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use account::{AccountConfig, AccountLimit, Recorder};
pub use address::{DEFAULT_GROUP, Route, check_part, route};
pub use calls::{Cancel, CountJobs, IsDrained, Knows, ShardCall, Status, Submit};
pub use error::JobError;
pub use lists::{ShardList, ShardLists};
pub use routing::{JobRouter, Reach};
pub use shard::{JobShard, OutdatedList, ShardConfig, WRAPPER_BYTES};

use crate::error::BoxError;
use crate::host::LocalFuture;
use crate::operations::CancellationToken;
use crate::semaphore::Standing;
use crate::time::Timestamp;

/// A job to be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewJob {
    /// Whose job it is; the key of the budget that it needs a permit of.
    pub account: String,
    /// Its id, unique within the account.
    pub id: String,
    /// The group within the account, which may have a ceiling of its own.
    #[serde(default = "default_group")]
    pub group: String,
    /// What the job endpoint gets.
    #[serde(default)]
    pub body: Value,
}

impl NewJob {
    /// Refuses a job whose account, id or group is empty or longer than 256 bytes.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] naming the field.
    pub fn check(&self) -> Result<(), JobError> {
        check_part("account", &self.account)?;
        check_part("id", &self.id)?;
        check_part("group", &self.group)
    }
}

fn default_group() -> String {
    DEFAULT_GROUP.to_owned()
}

/// What became of one submitted job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubmitOutcome {
    /// It waits for a permit.
    Queued,
    /// A job of this account and id is known already; nothing has changed.
    Duplicate,
    /// It was refused; nothing has changed.
    Refused(JobError),
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Not known: never submitted, cancelled while it waited, or ended longer ago than jobs are kept.
    Unknown,
    /// Waits for a permit.
    Queued,
    /// Has a permit whose claim is not confirmed yet.
    Claiming,
    /// Runs, or waits between two attempts; its permit is in use.
    Running,
    /// Ended well.
    Completed,
    /// Ended with an error.
    Failed,
    /// Was cancelled while it ran.
    Cancelled,
}

/// The status of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// Its account.
    pub account: String,
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub state: JobState,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// While it waits: its place among those of its group in its shard, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
    /// While it waits: why its group got no permit when last asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_reason: Option<String>,
    /// While it waits: what its group is measured against at this moment, if its holder answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Standing>,
    /// Since when it has been in this state, or blocked for this reason, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Attempts begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// When the next attempt is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Timestamp>,
    /// What the last attempt failed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// What the job endpoint answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

impl JobStatus {
    /// The status of a job that nobody knows.
    pub fn unknown(account: &str, id: &str) -> Self {
        JobStatus {
            account: account.to_owned(),
            id: id.to_owned(),
            state: JobState::Unknown,
            group: None,
            place: None,
            blocked_reason: None,
            usage: None,
            since: None,
            attempt: None,
            next_attempt_at: None,
            last_error: None,
            result: None,
        }
    }

    /// Whether there is such a job.
    pub fn is_known(&self) -> bool {
        self.state != JobState::Unknown
    }
}

/// The jobs of an account at a moment, over the shards of one system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountJobs {
    /// Jobs that wait for a permit.
    pub waiting: u64,
    /// Jobs that hold a permit, or are about to.
    pub running: u64,
    /// Permits that shards have leased and not drawn yet.
    pub undrawn: u64,
}

/// What became of a wish to cancel a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelOutcome {
    /// It waited; it will not run.
    Cancelled,
    /// Its token is cancelled; the permit returns when the runner has given up the run. A job
    /// endpoint that goes on after its connection was closed runs on uncounted.
    Stopping,
    /// It runs, and cancelling a running job was not asked for.
    Running,
    /// It has ended already.
    Ended,
    /// It is not known.
    Unknown,
}

/// How a job came to its permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// The account was asked for a permit, and the claim was confirmed.
    Grant,
    /// It waited, and was drawn from a lease that came.
    Lease,
    /// It was drawn from a lease as it was submitted: nobody was asked.
    LeaseAtOnce,
}

impl Admission {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Admission::Grant => "grant",
            Admission::Lease => "lease",
            Admission::LeaseAtOnce => "lease-at-once",
        }
    }
}

/// One run of a job.
pub struct RunJob {
    /// Its account.
    pub account: String,
    /// Its id.
    pub id: String,
    /// Its group.
    pub group: String,
    /// How it came to its permit.
    pub admission: Admission,
    /// What was submitted.
    pub body: Value,
    /// Which attempt this is, from 1. An attempt that a crash cut off is repeated under its number.
    pub attempt: u64,
    /// The same for all runs of this job and of no other that is known at the same time, in visible
    /// ASCII.
    pub idempotency_key: String,
    /// Tells when the run should stop: its time is up, or it was cancelled.
    pub token: CancellationToken,
}

impl fmt::Debug for RunJob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RunJob")
            .field("account", &self.account)
            .field("id", &self.id)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another attempt may do better.
    #[error("{0}")]
    Retry(#[source] BoxError),
    /// No attempt will.
    #[error("{0}")]
    Permanent(#[source] BoxError),
}

/// Runs jobs. A job may be run again after a crash, so runs must be idempotent by
/// [`RunJob::idempotency_key`].
pub trait JobRunner {
    /// Runs one job to its end.
    fn run(&self, job: RunJob) -> LocalFuture<Result<Value, RunError>>;
}
