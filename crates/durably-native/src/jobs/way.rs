//! The way from whoever takes jobs to the objects of this system.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use durably::jobs::{JobError, JobRouter, JobShard, Reach, ShardCall, ShardLists};
use durably::semaphore::Standing;
use durably::topology::UnavailableReason;
use futures::future::{BoxFuture, FutureExt};

use super::{Jobs, unavailable};
use crate::ObjectHandle;

/// How often the former shards of one account are looked through at most.
const LOOK_THROUGH_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct Way(pub(super) Jobs);

impl Way {
    fn shard(&self, shard: &str) -> ObjectHandle<JobShard> {
        self.0.0.system.object(shard)
    }

    /// Whether the account's former shards have not been looked through lately.
    fn looks_through(&self, account: &str) -> bool {
        let looked = self.0.0.looked_through.lock();
        let mut looked = looked.unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        looked.retain(|_, at| now.duration_since(*at) < LOOK_THROUGH_EVERY);
        if looked.contains_key(account) {
            return false;
        }
        looked.insert(account.to_owned(), now);
        true
    }
}

impl Reach for Way {
    type Answer<T: Send + 'static> = BoxFuture<'static, Result<T, JobError>>;

    fn check_account(&self, account: &str) -> Result<(), JobError> {
        self.0.check_account(account)
    }

    fn published_lists(&self, account: &str) -> Self::Answer<Option<ShardLists>> {
        let (jobs, account) = (self.0.clone(), account.to_owned());
        async move {
            match jobs.0.published.get(&account).await {
                Ok(reading) => Ok(ShardLists::of(&reading)),
                Err(error) if matches!(error.reason, UnavailableReason::Missing) => Ok(None),
                Err(error) => Err(JobError::Unavailable {
                    code: error.code(),
                    message: error.to_string(),
                }),
            }
        }
        .boxed()
    }

    fn lists(&self, account: &str) -> Self::Answer<Option<ShardLists>> {
        let known = self.0.known_account(account);
        async move {
            match known? {
                Some(object) => object
                    .call(|account| async move { account.shards().await })
                    .await
                    .map_err(unavailable)?,
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn lists_or_default(&self, account: &str) -> Self::Answer<ShardLists> {
        let (jobs, account) = (self.0.clone(), account.to_owned());
        async move { jobs.shards(&account).await }.boxed()
    }

    fn forget_former(&self, account: &str, version: u64) -> Self::Answer<()> {
        let object = self.0.account(account);
        async move {
            object
                .call(move |account| async move { account.forget_former(version).await })
                .await
                .map_err(unavailable)?
        }
        .boxed()
    }

    fn standing(&self, account: &str, group: &str) -> Self::Answer<Standing> {
        let (budgets, account) = (self.0.0.budgets.clone(), account.to_owned());
        let group = group.to_owned();
        async move { budgets.standing(&account, &group).await }.boxed()
    }

    fn ask<C: ShardCall>(&self, shard: &str, call: C) -> Self::Answer<C::Answer> {
        let shard = self.shard(shard);
        async move {
            shard
                .call(move |shard| async move { call.run(&shard).await })
                .await
                .map_err(unavailable)?
        }
        .boxed()
    }

    fn may_exist(&self, shard: &str) -> Result<bool, JobError> {
        self.shard(shard).exists().map_err(unavailable)
    }

    fn met_former_lists(&self, account: &str, lists: &ShardLists) {
        if !self.looks_through(account) {
            return;
        }
        let (way, account, lists) = (self.clone(), account.to_owned(), lists.clone());
        tokio::spawn(async move {
            // The next submission tries again.
            if let Err(error) = JobRouter::new(way).forget_drained(&account, &lists).await {
                tracing::debug!(%error, account, "shards not looked through");
            }
        });
    }
}
