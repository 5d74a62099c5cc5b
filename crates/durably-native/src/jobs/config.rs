//! Settings of the application, and what they mean to its objects.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use durably::ConfigError;
use durably::SchedulerConfig;
use durably::host::Object;
use durably::jobs::{AccountConfig, JobShard, Recorder, ShardConfig, WRAPPER_BYTES};
use durably::operations::HandlerConfig;
use durably::semaphore::LeaseOptions;

use super::RemoteHolders;
use crate::SystemConfig;
use crate::key::class_folder;

/// How long a shard waits for a holder's answer beyond what a round may take.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);

/// Settings of [`Jobs`](super::Jobs).
#[derive(Clone, Debug)]
pub struct JobsConfig {
    /// Where everything is stored.
    pub data_dir: PathBuf,
    /// Threads, memory and files.
    pub system: SystemConfig,
    /// The alarm is never set sooner than this from now: 1 to 15 s.
    pub alarm_min_delay: Duration,
    /// The budgets of another server, which the shards of this one work within; by default this one
    /// keeps its own. With them the settings of budgets (`default_limit`, `default_group_limit`,
    /// `grant_timeout`) are that server's matter, and `round_wait` and `round_period` only say how
    /// long its answers may take, so they should be what they are there.
    pub holders: Option<Arc<dyn RemoteHolders>>,
    /// A folder for recordings of what this system's holders receive and answer; by default nothing
    /// is recorded.
    pub record: Option<PathBuf>,
    /// How many jobs of one shard run at once; 256 by default.
    pub job_concurrency: u64,
    /// How many shards a new account is spread over; 4 by default.
    pub shards_per_account: u32,
    /// The limit of an account that was given none; 10 by default.
    pub default_limit: u64,
    /// The ceiling of a group that was given none; none by default.
    pub default_group_limit: Option<u64>,
    /// How leases are given by an account that was not told; none by default.
    pub default_leases: Option<LeaseOptions>,
    /// How long a round waits for more requests; 1 s by default.
    pub round_wait: Duration,
    /// The least time between the starts of two rounds; 2 s by default.
    pub round_period: Duration,
    /// Permits that are not claimed for this long return; 10 s by default.
    pub grant_timeout: Duration,
    /// How a job is tried: 3 attempts by default.
    pub attempts: HandlerConfig,
    /// The largest body of a job, in bytes of JSON; 128 KiB by default.
    pub max_body_bytes: u64,
    /// The most jobs of one shard that wait; a million by default.
    pub max_queue_length: u64,
    /// How long an ended job is known; 7 days by default.
    pub retention: Duration,
}

impl JobsConfig {
    /// The defaults, on a data folder.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let mut attempts = HandlerConfig::default();
        attempts.max_attempts = 3;
        JobsConfig {
            data_dir: data_dir.into(),
            system: SystemConfig::default(),
            alarm_min_delay: Duration::from_secs(15),
            holders: None,
            record: None,
            job_concurrency: 256,
            shards_per_account: 4,
            default_limit: 10,
            default_group_limit: None,
            default_leases: None,
            round_wait: Duration::from_secs(1),
            round_period: Duration::from_secs(2),
            grant_timeout: Duration::from_secs(10),
            attempts,
            max_body_bytes: 128 * 1024,
            max_queue_length: 1_000_000,
            retention: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }

    /// Whether the data folder has shards, and with them jobs: those still to be run, or that have ended.
    pub fn has_shards(&self) -> bool {
        class_folder(&self.data_dir, JobShard::CLASS).exists()
    }

    /// What no object checks when it opens, or checks too late to be of help.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=1_000).contains(&self.shards_per_account) {
            return Err(ConfigError::new("shards_per_account", "must be 1 to 1000"));
        }
        let largest = u64::from(self.system.max_value_bytes).saturating_sub(WRAPPER_BYTES);
        if self.max_body_bytes > largest {
            return Err(ConfigError::new(
                "max_body_bytes",
                format!("must be at most {largest}, so that a job fits into a row"),
            ));
        }
        self.account(None).check()?;
        self.shard().check()
    }

    pub(super) fn account(&self, recorder: Option<Arc<dyn Recorder>>) -> AccountConfig {
        AccountConfig {
            recorder,
            scheduler: self.scheduler(),
            default_limit: self.default_limit,
            default_group_limit: self.default_group_limit,
            default_leases: self.default_leases.clone(),
            round_wait: self.round_wait,
            round_period: self.round_period,
            grant_timeout: self.grant_timeout,
        }
    }

    pub(super) fn shard(&self) -> ShardConfig {
        let mut scheduler = self.scheduler();
        scheduler.alarm_concurrency = self.job_concurrency;
        ShardConfig {
            scheduler,
            attempts: self.attempts.clone(),
            max_body_bytes: self.max_body_bytes,
            max_queue_length: self.max_queue_length,
            retention: self.retention,
        }
    }

    fn scheduler(&self) -> SchedulerConfig {
        let mut scheduler = SchedulerConfig::default();
        scheduler.alarm_min_delay = self.alarm_min_delay;
        scheduler
    }

    /// A round waits, starts a period after the last one at worst, and may take a while.
    pub(super) fn holder_timeout(&self) -> Duration {
        self.round_wait.max(self.round_period) + ANSWER_MARGIN
    }
}
