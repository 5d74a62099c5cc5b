//! One account's budget: a holder whose limits are stored and set at run time, and the list of
//! shards that its jobs are spread over, which it publishes: two capabilities in one object.
//!
//! Decided here: which limits hold. Who gets permits is the [`Semaphore`]'s matter, which lists of shards
//! there are that of [`lists`](super::lists), and how they get to readers the [`Topology`]'s.

mod store;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::JobError;
use super::address::{check_part, default_shards};
use super::lists::{ShardLists, check_shards};
use crate::error::{BoxError, ConfigError, OpenError, StorageError};
use crate::host::{Host, LocalFuture, Object, Sql};
use crate::migrations::Migration;
use crate::outbox::Outbox;
use crate::scheduler::{Participant, Scheduler, SchedulerConfig};
use crate::semaphore::protocol::{Message, Reply};
use crate::semaphore::recording::Recording;
use crate::semaphore::{
    ForceReleased, Holding, LeaseOptions, Semaphore, SemaphoreError, Standing, Usage,
};
use crate::time::{MAX_SAFE_INTEGER, Timestamp, check_duration};
use crate::topology::{Member, Publisher, PublisherConfig, Topology, TopologyError};

/// Settings of all accounts.
#[derive(Clone, Debug)]
pub struct AccountConfig {
    /// The scheduler's settings.
    pub scheduler: SchedulerConfig,
    /// The limit of an account that was given none.
    pub default_limit: u64,
    /// The ceiling of a group that was given none; `None` lets such groups share the account's limit.
    pub default_group_limit: Option<u64>,
    /// How leases are given by an account that was not told; `None` gives none.
    pub default_leases: Option<LeaseOptions>,
    /// How long a round waits for more requests.
    pub round_wait: Duration,
    /// The least time between the starts of two rounds.
    pub round_period: Duration,
    /// Permits that are not claimed for this long return.
    pub grant_timeout: Duration,
    /// Where what the holders receive and answer is written down, if it is.
    pub recorder: Option<Arc<dyn Recorder>>,
}

impl AccountConfig {
    /// Refuses settings that no account could be opened with.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the field.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.scheduler.check()?;
        for (field, limit) in [
            ("default_limit", Some(self.default_limit)),
            ("default_group_limit", self.default_group_limit),
        ] {
            if limit.is_some_and(|limit| limit > MAX_SAFE_INTEGER) {
                return Err(ConfigError::new(
                    field,
                    format!("must be at most {MAX_SAFE_INTEGER}"),
                ));
            }
        }
        if let Some(leases) = &self.default_leases {
            leases.check()?;
        }
        check_duration("round_wait", self.round_wait)?;
        check_duration("round_period", self.round_period)?;
        check_duration("grant_timeout", self.grant_timeout)
    }
}

/// Takes the lines of recordings; see [`Recording`].
pub trait Recorder: fmt::Debug + Send + Sync {
    /// Takes a line of the recording of the holder of `key`, without waiting for it to be written.
    /// `false` if it cannot: the rest of the recording is worth nothing then.
    fn line(&self, key: &str, line: String) -> bool;
}

/// The object that holds one account's budget; its name is the account.
pub struct AccountLimit {
    scheduler: Scheduler,
    semaphore: Semaphore,
    /// One group, named like the account: its shards.
    shards: Topology,
    settings: Rc<Settings>,
    default_leases: Option<LeaseOptions>,
}

impl Object for AccountLimit {
    const CLASS: &'static str = "account-limit";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// What is stored of an account, as it is in memory.
struct Settings {
    limits: RefCell<BTreeMap<String, u64>>,
    /// Its own setting, if it has one.
    leases: RefCell<Option<Option<LeaseOptions>>>,
}

impl Participant for Settings {
    fn name(&self) -> &'static str {
        "account"
    }

    fn migrations(&self) -> &'static [Migration] {
        store::MIGRATIONS
    }

    fn load(&self, sql: &dyn Sql, _now: Timestamp) -> Result<(), StorageError> {
        *self.limits.borrow_mut() = store::limits(sql)?;
        *self.leases.borrow_mut() = store::leases(sql)?;
        Ok(())
    }

    fn next_pending_at(&self, _sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        Ok(None)
    }

    fn next_wake_at(
        &self,
        _sql: &dyn Sql,
        _now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        Ok(None)
    }

    fn run_due(self: Rc<Self>, _now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async { Ok(()) })
    }
}

impl AccountLimit {
    /// Opens the object, which publishes its lists of shards by `publisher`: as a group that is named like
    /// the account, for [`ShardLists::of`].
    ///
    /// # Errors
    ///
    /// Wrong settings, and what storage answers.
    pub async fn open(
        host: Rc<dyn Host>,
        config: AccountConfig,
        publisher: impl Publisher,
    ) -> Result<Self, OpenError> {
        config.check()?;
        let scheduler = Scheduler::new(host, config.scheduler)?;
        let settings = Rc::new(Settings {
            limits: RefCell::default(),
            leases: RefCell::default(),
        });
        scheduler.attach(&settings)?;
        let shards = Topology::builder(&Outbox::new(&scheduler)?)
            .publish(publisher, PublisherConfig::default())
            .build()?;
        let (for_limit, for_groups) = (settings.clone(), settings.clone());
        let (default_limit, default_group_limit) =
            (config.default_limit, config.default_group_limit);
        let mut builder = Semaphore::builder(&scheduler);
        let recording = config.recorder.map(|recorder| {
            let key = scheduler.host().name().to_owned();
            Recording::new(Box::new(move |line| recorder.line(&key, line)))
        });
        if let Some(recording) = &recording {
            builder = builder.tap(recording.clone());
        }
        let semaphore = builder
            .limit_with(move || {
                let limit = for_limit
                    .limit(store::WHOLE_ACCOUNT)
                    .unwrap_or(default_limit);
                async move { Ok(limit) }
            })
            .group_limit(move |group| {
                let limit = for_groups.limit(&group).or(default_group_limit);
                async move { Ok(limit) }
            })
            .round_wait(config.round_wait)
            .round_period(config.round_period)
            .grant_timeout(config.grant_timeout)
            .build()?;
        scheduler.open().await?;
        let account = AccountLimit {
            scheduler,
            semaphore,
            shards,
            settings,
            default_leases: config.default_leases,
        };
        account.semaphore.set_leases(account.leases())?;
        if let Some(recording) = recording {
            let key = account.scheduler.host().name();
            if let Err(error) = recording.start(key, &account.semaphore).await {
                tracing::error!(error = %error, key, "durability.recording.failed");
            }
        }
        Ok(account)
    }

    /// The account's holder, for checks of its sums.
    #[cfg(feature = "testing")]
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// Answers a message of a client; see [`Semaphore::handle`].
    ///
    /// # Errors
    ///
    /// What the holder answers.
    pub async fn handle(&self, message: Message) -> Result<Reply, SemaphoreError> {
        self.semaphore.handle(message).await
    }

    /// What is granted at this moment, of what.
    ///
    /// # Errors
    ///
    /// [`JobError::Semaphore`].
    pub async fn usage(&self) -> Result<Usage, JobError> {
        self.semaphore.usage().await.map_err(JobError::Semaphore)
    }

    /// What a group of the account is measured against at this moment.
    ///
    /// # Errors
    ///
    /// [`JobError::Semaphore`].
    pub async fn standing(&self, group: &str) -> Result<Standing, JobError> {
        let standing = self.semaphore.standing(group).await;
        standing.map_err(JobError::Semaphore)
    }

    /// Who holds permits of the account; see [`Semaphore::holdings`].
    ///
    /// # Errors
    ///
    /// [`JobError::Semaphore`].
    pub async fn holdings(
        &self,
        after: Option<String>,
        limit: u64,
    ) -> Result<Vec<Holding>, JobError> {
        let holdings = self.semaphore.holdings(after, limit).await;
        holdings.map_err(JobError::Semaphore)
    }

    /// Takes permits from a client that will never give them back; see
    /// [`Semaphore::force_release`].
    ///
    /// # Errors
    ///
    /// [`JobError::Semaphore`].
    pub async fn force_release(
        &self,
        client_id: &str,
        group: Option<&str>,
        reason: &str,
    ) -> Result<ForceReleased, JobError> {
        let released = self.semaphore.force_release(client_id, group, reason).await;
        released.map_err(JobError::Semaphore)
    }

    /// How the account gives leases: by its own setting, or the default.
    pub fn leases(&self) -> Option<LeaseOptions> {
        let own = self.settings.leases.borrow().clone();
        own.unwrap_or_else(|| self.default_leases.clone())
    }

    /// Sets how the account gives leases, from the next round on: `Some(None)` gives none, `None`
    /// takes the setting back for the default.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] naming the field that is out of range, and what storage answers.
    pub async fn set_leases(&self, leases: Option<Option<LeaseOptions>>) -> Result<(), JobError> {
        if let Some(Some(options)) = &leases {
            let checked = options.check();
            checked.map_err(|error| JobError::invalid(error.field(), error.problem()))?;
        }
        let settings = self.settings.clone();
        self.scheduler
            .transaction(move |transaction| {
                store::set_leases(transaction.sql(), leases.as_ref())?;
                transaction.on_release(Box::new(move || {
                    settings.leases.replace(leases);
                }));
                Ok::<_, JobError>(())
            })
            .await?;
        let changed = self.semaphore.set_leases(self.leases());
        changed.map_err(|error| JobError::invalid(error.field(), error.problem()))
    }

    /// The account's own limit, if it was given one.
    pub fn limit(&self) -> Option<u64> {
        self.settings.limit(store::WHOLE_ACCOUNT)
    }

    /// Sets the account's limit, or takes it back for the default. It holds from the next round on;
    /// a lowered one stops no running job.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] for a number above 2^53 - 1, and what storage answers.
    pub async fn set_limit(&self, limit: Option<u64>) -> Result<(), JobError> {
        self.store_limit(store::WHOLE_ACCOUNT.to_owned(), limit)
            .await
    }

    /// A group's own ceiling, if it was given one.
    pub fn group_limit(&self, group: &str) -> Option<u64> {
        self.settings.limit(group)
    }

    /// Sets a group's ceiling, or takes it back for the default; see [`set_limit`](Self::set_limit).
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] for a bad name or number, and what storage answers.
    pub async fn set_group_limit(&self, group: String, limit: Option<u64>) -> Result<(), JobError> {
        check_part("group", &group)?;
        self.store_limit(group, limit).await
    }

    async fn store_limit(&self, group: String, limit: Option<u64>) -> Result<(), JobError> {
        if limit.is_some_and(|limit| limit > MAX_SAFE_INTEGER) {
            return Err(JobError::invalid(
                "limit",
                format!("must be a whole number up to {MAX_SAFE_INTEGER}"),
            ));
        }
        let settings = self.settings.clone();
        let semaphore = self.semaphore.clone();
        self.scheduler
            .transaction(move |transaction| {
                store::set_limit(transaction.sql(), &group, limit)?;
                transaction.on_release(Box::new(move || {
                    let mut limits = settings.limits.borrow_mut();
                    match limit {
                        Some(limit) => limits.insert(group, limit),
                        None => limits.remove(&group),
                    };
                    drop(limits);
                    semaphore.limits_changed();
                }));
                Ok(())
            })
            .await
    }

    /// The account's lists of shards; `None` if it never had a job. Who routes jobs reads what is published,
    /// which may be older.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn shards(&self) -> Result<Option<ShardLists>, JobError> {
        let snapshot = self.shards.snapshot(self.name()).await;
        let snapshot = snapshot.map_err(of_shards)?;
        stored_lists(&snapshot.map_or_else(Vec::new, |snapshot| snapshot.members))
    }

    /// The account's lists of shards. An account without one is given `count` shards, so that the
    /// setting may change without moving anybody's jobs.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn shards_or_default(&self, count: u32) -> Result<ShardLists, JobError> {
        if let Some(lists) = self.shards().await? {
            return Ok(lists);
        }
        let shards = default_shards(self.name(), count);
        self.change_shards(move |lists| Ok(lists.unwrap_or_else(|| ShardLists::first(shards))))
            .await
    }

    /// Replaces the list of shards. Jobs known to a former shard stay there; submissions and
    /// questions about them find it until it is drained.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] for a list that is empty, too long, has bad or doubled names, or comes
    /// when too many former lists are not drained yet; and what storage answers.
    pub async fn set_shards(&self, mut shards: Vec<String>) -> Result<ShardLists, JobError> {
        check_shards(&shards)?;
        shards.sort();
        self.change_shards(move |lists| match lists {
            Some(lists) => lists.replaced(shards),
            None => Ok(ShardLists::first(shards)),
        })
        .await
    }

    /// Forgets a former list: its shards were found to know no job any more.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn forget_former(&self, version: u64) -> Result<(), JobError> {
        if self.shards().await?.is_some() {
            self.change_shards(move |lists| match lists {
                Some(lists) => Ok(lists.without_former(version)),
                None => Err(no_list()),
            })
            .await?;
        }
        Ok(())
    }

    /// Stores the lists that `change` makes of the stored ones, and publishes them if they are others.
    async fn change_shards(
        &self,
        change: impl FnOnce(Option<ShardLists>) -> Result<ShardLists, JobError> + 'static,
    ) -> Result<ShardLists, JobError> {
        let refused = Rc::new(Cell::new(None));
        let refusing = refused.clone();
        let updated = self
            .shards
            .update(self.name(), move |current| {
                let changed = stored_lists(&current.members).and_then(change);
                let draft = changed.map(|lists: ShardLists| lists.draft());
                draft.map_err(|error| {
                    let told = TopologyError::Updater(error.to_string());
                    refusing.set(Some(error));
                    told
                })
            })
            .await;
        match updated {
            Ok(updated) => ShardLists::of(&updated.snapshot).ok_or_else(no_list),
            Err(error) => Err(refused.take().unwrap_or_else(|| of_shards(error))),
        }
    }

    fn name(&self) -> &str {
        self.scheduler.host().name()
    }
}

/// The lists of an account that has some. Others must not be made in the place of damaged ones: jobs would not be
/// found any more.
fn stored_lists(members: &[Member]) -> Result<Option<ShardLists>, JobError> {
    if members.is_empty() {
        return Ok(None);
    }
    let damaged = || StorageError::Damaged("the account's shards do not say their lists".into());
    let lists = ShardLists::of_members(members).ok_or_else(damaged)?;
    Ok(Some(lists))
}

fn no_list() -> JobError {
    JobError::Storage(StorageError::Failed(
        "the account has no list of shards".into(),
    ))
}

/// What an error about its shards means to who asked an account.
fn of_shards(error: TopologyError) -> JobError {
    match error {
        TopologyError::Storage(error) => JobError::Storage(error),
        other => JobError::Unavailable {
            code: other.code(),
            message: other.to_string(),
        },
    }
}

impl Settings {
    fn limit(&self, group: &str) -> Option<u64> {
        self.limits.borrow().get(group).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::MemberState;

    #[test]
    fn shards_that_do_not_say_their_lists_are_damaged_and_not_none() {
        assert!(matches!(stored_lists(&[]), Ok(None)));
        let mut shard = Member::new("acme-0", MemberState::Active, Timestamp::ZERO);
        shard.meta = Some(serde_json::json!({"lists": [1]}));
        assert!(matches!(
            stored_lists(std::slice::from_ref(&shard)),
            Ok(Some(_))
        ));
        for meta in [serde_json::json!({"lists": []}), serde_json::json!({})] {
            shard.meta = Some(meta);
            let lists = stored_lists(std::slice::from_ref(&shard));
            let code = lists.map_err(|error| error.code().to_owned());
            assert_eq!(code, Err("storage_damaged".to_owned()));
        }
    }
}
