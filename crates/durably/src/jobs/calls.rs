//! Calls to a shard as data, so that they go to a shard wherever it is.

use std::future::Future;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    AccountJobs, CancelOutcome, JobError, JobShard, JobStatus, NewJob, OutdatedList, ShardList,
    SubmitOutcome,
};

/// A call to a [`JobShard`]: what is asked, and what is answered.
pub trait ShardCall: Serialize + DeserializeOwned + Send + 'static {
    /// Its name, for where calls and answers are texts.
    const NAME: &'static str;
    /// What is answered.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Has the shard answer it.
    fn run(self, shard: &JobShard) -> impl Future<Output = Result<Self::Answer, JobError>>;
}

/// [`JobShard::submit`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Submit {
    /// Whose jobs they are.
    pub account: String,
    /// The version of the list by which the shard was chosen.
    pub version: u64,
    /// The jobs, in order.
    pub jobs: Vec<NewJob>,
}

impl ShardCall for Submit {
    const NAME: &'static str = "submit";
    type Answer = Result<Vec<SubmitOutcome>, OutdatedList>;

    async fn run(self, shard: &JobShard) -> Result<Self::Answer, JobError> {
        shard.submit(&self.account, self.version, self.jobs).await
    }
}

/// [`JobShard::knows`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Knows {
    /// Whose jobs they are.
    pub account: String,
    /// The version of the list by which the shard is a former owner.
    pub version: u64,
    /// The jobs' ids.
    pub ids: Vec<String>,
}

impl ShardCall for Knows {
    const NAME: &'static str = "knows";
    type Answer = Result<Vec<bool>, OutdatedList>;

    async fn run(self, shard: &JobShard) -> Result<Self::Answer, JobError> {
        shard.knows(&self.account, self.version, &self.ids).await
    }
}

/// [`JobShard::is_drained`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IsDrained {
    /// Whose jobs are meant.
    pub account: String,
    /// The account's present list.
    pub current: ShardList,
}

impl ShardCall for IsDrained {
    const NAME: &'static str = "is-drained";
    type Answer = Result<bool, OutdatedList>;

    async fn run(self, shard: &JobShard) -> Result<Self::Answer, JobError> {
        shard.is_drained(&self.account, &self.current).await
    }
}

/// [`JobShard::status`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Whose job it is.
    pub account: String,
    /// The job's id.
    pub id: String,
}

impl ShardCall for Status {
    const NAME: &'static str = "status";
    type Answer = JobStatus;

    async fn run(self, shard: &JobShard) -> Result<Self::Answer, JobError> {
        shard.status(&self.account, &self.id).await
    }
}

/// [`JobShard::cancel`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cancel {
    /// Whose job it is.
    pub account: String,
    /// The job's id.
    pub id: String,
    /// Also if it runs.
    pub running: bool,
}

impl ShardCall for Cancel {
    const NAME: &'static str = "cancel";
    type Answer = CancelOutcome;

    async fn run(self, shard: &JobShard) -> Result<Self::Answer, JobError> {
        shard.cancel(&self.account, &self.id, self.running).await
    }
}

/// [`JobShard::account_jobs`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CountJobs {
    /// Whose jobs are counted.
    pub account: String,
}

impl ShardCall for CountJobs {
    const NAME: &'static str = "count-jobs";
    type Answer = AccountJobs;

    async fn run(self, shard: &JobShard) -> Result<Self::Answer, JobError> {
        Ok(shard.account_jobs(&self.account))
    }
}
