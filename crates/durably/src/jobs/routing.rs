//! Jobs on their way to the shards that own them, also while the list of shards changes.
//!
//! Decided here: which shards are asked, in which order, and by which list. How they are reached is
//! the matter of [`Reach`], and what they answer theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use futures::future::join_all;

use super::calls::{Cancel, CountJobs, IsDrained, Knows, ShardCall, Status, Submit};
use super::{
    AccountJobs, CancelOutcome, JobError, JobState, JobStatus, NewJob, OutdatedList, ShardList,
    ShardLists, SubmitOutcome, check_part, route,
};
use crate::semaphore::Standing;

/// How often a submission starts over because the list has changed under it.
const MAX_TRIES: usize = 5;

/// The way to the application's objects, for whoever takes jobs: clones go the same way.
pub trait Reach: Clone {
    /// What an object answers, in time.
    type Answer<T: Send + 'static>: Future<Output = Result<T, JobError>>;

    /// Refuses an account whose objects cannot be reached this way.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`].
    fn check_account(&self, account: &str) -> Result<(), JobError> {
        check_part("account", account)
    }

    /// The account's lists as they are published; `None` if none can be read. They may be older than
    /// the account's own.
    fn published_lists(&self, account: &str) -> Self::Answer<Option<ShardLists>>;

    /// The account's own lists; `None` if it never had a job.
    fn lists(&self, account: &str) -> Self::Answer<Option<ShardLists>>;

    /// The same; a new account is given the default ones.
    fn lists_or_default(&self, account: &str) -> Self::Answer<ShardLists>;

    /// Has the account forget a former list; see
    /// [`AccountLimit::forget_former`](super::AccountLimit::forget_former).
    fn forget_former(&self, account: &str, version: u64) -> Self::Answer<()>;

    /// What a group of the account is measured against at this moment.
    fn standing(&self, account: &str, group: &str) -> Self::Answer<Standing>;

    /// Has a shard answer a call.
    fn ask<C: ShardCall>(&self, shard: &str, call: C) -> Self::Answer<C::Answer>;

    /// Whether there may be such a shard. One that is not there knows no jobs, and is not to come to be
    /// by being asked for their number.
    ///
    /// # Errors
    ///
    /// [`JobError`] if that cannot be found out.
    fn may_exist(&self, shard: &str) -> Result<bool, JobError>;

    /// Called when jobs were routed past former lists. Whoever can do something in the background has them
    /// looked through by [`JobRouter::forget_drained`], not too often for one account.
    fn met_former_lists(&self, account: &str, lists: &ShardLists);
}

/// Takes jobs to the shards that own them, and asks after them there.
#[derive(Clone, Debug)]
pub struct JobRouter<R> {
    reach: R,
}

/// A job and its place in the submission.
type Placed = (usize, NewJob);

/// What became of the job at a place.
type Settled = (usize, SubmitOutcome);

/// What a call to a shard leaves: what became of jobs, and those to be tried by a newer list.
#[derive(Default)]
struct Batch {
    settled: Vec<Settled>,
    again: Vec<Placed>,
}

/// Where lists of shards are from. That nobody knows a job is true by the account's own lists only.
#[derive(Clone, Copy)]
enum Lists {
    Published,
    Stored,
}

impl<R: Reach> JobRouter<R> {
    /// A router over this way.
    pub fn new(reach: R) -> Self {
        JobRouter { reach }
    }

    /// Takes jobs, each stored before its outcome is told. The outcomes are in the order of the
    /// jobs; a job that is refused is refused by itself.
    pub async fn submit(&self, jobs: Vec<NewJob>) -> Vec<SubmitOutcome> {
        let mut outcomes: Vec<Option<SubmitOutcome>> = Vec::new();
        outcomes.resize_with(jobs.len(), || None);
        let mut accounts: BTreeMap<String, Vec<Placed>> = BTreeMap::new();
        for (place, job) in jobs.into_iter().enumerate() {
            let checked = job.check();
            match checked.and_then(|()| self.reach.check_account(&job.account)) {
                Ok(()) => accounts
                    .entry(job.account.clone())
                    .or_default()
                    .push((place, job)),
                Err(error) => outcomes[place] = Some(SubmitOutcome::Refused(error)),
            }
        }
        let submissions = accounts
            .into_iter()
            .map(|(account, jobs)| self.submit_to_account(account, jobs));
        for (place, outcome) in join_all(submissions).await.into_iter().flatten() {
            outcomes[place] = Some(outcome);
        }
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|| SubmitOutcome::Refused(unsettled())))
            .collect()
    }

    async fn submit_to_account(&self, account: String, jobs: Vec<Placed>) -> Vec<Settled> {
        let mut settled = Vec::with_capacity(jobs.len());
        let mut open = jobs;
        let mut published = self.published_lists(&account).await;
        for _ in 0..MAX_TRIES {
            // The account is asked if it has published nothing, and if that is outdated.
            let lists = match published.take() {
                Some(lists) => Ok(lists),
                None => self.reach.lists_or_default(&account).await,
            };
            let lists = match lists {
                Ok(lists) => lists,
                Err(error) => {
                    settled.extend(refused(open, &error));
                    return settled;
                }
            };
            let mut asked = self.ask_former(&account, &lists, open).await;
            settled.append(&mut asked.settled);
            open = asked.again;
            let mut by_owner: BTreeMap<&str, Vec<Placed>> = BTreeMap::new();
            for (place, job) in std::mem::take(&mut asked.fresh) {
                if let Some(route) = route(&lists, &job.id) {
                    by_owner.entry(route.owner).or_default().push((place, job));
                }
            }
            let version = lists.current.version;
            let calls = by_owner
                .into_iter()
                .map(|(shard, jobs)| self.submit_to_shard(&account, version, shard, jobs));
            for mut batch in join_all(calls).await {
                settled.append(&mut batch.settled);
                open.append(&mut batch.again);
            }
            if !lists.former.is_empty() {
                self.reach.met_former_lists(&account, &lists);
            }
            if open.is_empty() {
                return settled;
            }
        }
        settled.extend(refused(open, &unsettled()));
        settled
    }

    /// Asks the former owners of jobs, if there are any, whether they know them.
    async fn ask_former(&self, account: &str, lists: &ShardLists, jobs: Vec<Placed>) -> Asked {
        let mut by_former: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, (_, job)) in jobs.iter().enumerate() {
            for former in route(lists, &job.id)
                .into_iter()
                .flat_map(|route| route.former)
            {
                by_former.entry(former.to_owned()).or_default().push(index);
            }
        }
        let questions = by_former.into_iter().map(|(shard, indices)| {
            let ids = indices.iter().map(|index| jobs[*index].1.id.clone());
            let answer = self.reach.ask(
                &shard,
                Knows {
                    account: account.to_owned(),
                    version: lists.current.version,
                    ids: ids.collect(),
                },
            );
            async move { (indices, answer.await) }
        });
        let mut verdicts: BTreeMap<usize, Verdict> = BTreeMap::new();
        for (indices, answer) in join_all(questions).await {
            match answer {
                Ok(Ok(known)) => {
                    for (index, known) in indices.into_iter().zip(known) {
                        if known {
                            verdicts.insert(index, Verdict::Known);
                        }
                    }
                }
                Ok(Err(OutdatedList { .. })) => {
                    for index in indices {
                        verdicts.entry(index).or_insert(Verdict::Again);
                    }
                }
                Err(error) => {
                    for index in indices {
                        verdicts
                            .entry(index)
                            .or_insert_with(|| Verdict::Failed(error.clone()));
                    }
                }
            }
        }
        let mut asked = Asked::default();
        for (index, (place, job)) in jobs.into_iter().enumerate() {
            match verdicts.remove(&index) {
                None => asked.fresh.push((place, job)),
                Some(Verdict::Known) => asked.settled.push((place, SubmitOutcome::Duplicate)),
                Some(Verdict::Again) => asked.again.push((place, job)),
                Some(Verdict::Failed(error)) => {
                    asked.settled.push((place, SubmitOutcome::Refused(error)));
                }
            }
        }
        asked
    }

    async fn submit_to_shard(
        &self,
        account: &str,
        version: u64,
        shard: &str,
        jobs: Vec<Placed>,
    ) -> Batch {
        let sent = jobs.iter().map(|(_, job)| job.clone());
        let call = Submit {
            account: account.to_owned(),
            version,
            jobs: sent.collect(),
        };
        let mut batch = Batch::default();
        match self.reach.ask(shard, call).await {
            Ok(Ok(outcomes)) => {
                let places = jobs.into_iter().map(|(place, _)| place);
                batch.settled.extend(places.zip(outcomes));
            }
            Ok(Err(OutdatedList { .. })) => batch.again = jobs,
            Err(error) => batch.settled.extend(refused(jobs, &error)),
        }
        batch
    }

    /// Has the account forget those of its former lists whose shards hold no job of another's any more.
    ///
    /// # Errors
    ///
    /// [`JobError`]; the next call tries again.
    pub async fn forget_drained(&self, account: &str, lists: &ShardLists) -> Result<(), JobError> {
        for list in &lists.former {
            if self.is_drained(account, list, &lists.current).await? {
                self.reach.forget_former(account, list.version).await?;
            }
        }
        Ok(())
    }

    /// Whether no shard of a former list holds a job that belongs to another shard now.
    async fn is_drained(
        &self,
        account: &str,
        former: &ShardList,
        current: &ShardList,
    ) -> Result<bool, JobError> {
        for shard in &former.shards {
            let call = IsDrained {
                account: account.to_owned(),
                current: current.clone(),
            };
            if self.reach.ask(shard, call).await? != Ok(true) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where a job stands.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn status(&self, account: &str, id: &str) -> Result<JobStatus, JobError> {
        check_part("account", account)?;
        check_part("id", id)?;
        let mut latest = JobStatus::unknown(account, id);
        let mut asked = BTreeSet::new();
        'lists: for origin in [Lists::Published, Lists::Stored] {
            for shard in self.owners(account, id, origin, &mut asked).await? {
                let (account, id) = (account.to_owned(), id.to_owned());
                latest = self.reach.ask(&shard, Status { account, id }).await?;
                if latest.is_known() {
                    break 'lists;
                }
            }
        }
        if latest.state == JobState::Queued
            && let Some(group) = &latest.group
        {
            // The rest is true all the same.
            latest.usage = self.reach.standing(account, group).await.ok();
        }
        Ok(latest)
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
        check_part("account", account)?;
        check_part("id", id)?;
        let mut asked = BTreeSet::new();
        for origin in [Lists::Published, Lists::Stored] {
            for shard in self.owners(account, id, origin, &mut asked).await? {
                let call = Cancel {
                    account: account.to_owned(),
                    id: id.to_owned(),
                    running,
                };
                let outcome = self.reach.ask(&shard, call).await?;
                if outcome != CancelOutcome::Unknown {
                    return Ok(outcome);
                }
            }
        }
        Ok(CancelOutcome::Unknown)
    }

    /// The account's jobs, over all its shards of this system.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub async fn account_jobs(&self, account: &str) -> Result<AccountJobs, JobError> {
        check_part("account", account)?;
        let mut all = AccountJobs::default();
        let Some(lists) = self.reach.lists(account).await? else {
            return Ok(all);
        };
        let lists = std::iter::once(&lists.current).chain(&lists.former);
        let shards: BTreeSet<&String> = lists.flat_map(|list| &list.shards).collect();
        for shard in shards {
            if !self.reach.may_exist(shard)? {
                continue;
            }
            let account = account.to_owned();
            let jobs = self.reach.ask(shard, CountJobs { account }).await?;
            all.waiting += jobs.waiting;
            all.running += jobs.running;
            all.undrawn += jobs.undrawn;
        }
        Ok(all)
    }

    async fn published_lists(&self, account: &str) -> Option<ShardLists> {
        match self.reach.published_lists(account).await {
            Ok(lists) => lists,
            Err(error) => {
                tracing::warn!(%error, account, "published shards not read: the account is asked");
                None
            }
        }
    }

    /// The owner of a job by such lists and its former ones, but those who were asked before.
    async fn owners(
        &self,
        account: &str,
        id: &str,
        origin: Lists,
        asked: &mut BTreeSet<String>,
    ) -> Result<Vec<String>, JobError> {
        let lists = match origin {
            Lists::Published => self.published_lists(account).await,
            Lists::Stored => self.reach.lists(account).await?,
        };
        let route = lists.as_ref().and_then(|lists| route(lists, id));
        let owners = route
            .into_iter()
            .flat_map(|route| std::iter::once(route.owner).chain(route.former))
            .filter(|shard| asked.insert((*shard).to_owned()))
            .map(str::to_owned);
        Ok(owners.collect())
    }
}

/// What the former owners left of a submission.
#[derive(Default)]
struct Asked {
    /// Known to none of them.
    fresh: Vec<Placed>,
    again: Vec<Placed>,
    settled: Vec<Settled>,
}

enum Verdict {
    Known,
    Again,
    Failed(JobError),
}

fn refused(jobs: Vec<Placed>, error: &JobError) -> impl Iterator<Item = Settled> {
    jobs.into_iter()
        .map(|(place, _)| (place, SubmitOutcome::Refused(error.clone())))
}

fn unsettled() -> JobError {
    JobError::Unavailable {
        code: "shards_changing",
        message: "the account's shards kept changing: submit the job again".to_owned(),
    }
}
