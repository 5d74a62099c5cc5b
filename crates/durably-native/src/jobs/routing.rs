//! Submissions on their way to the shards that own them, also while the list of shards changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use durably::jobs::{JobError, NewJob, OutdatedList, ShardList, ShardLists, SubmitOutcome, route};
use futures::future::join_all;

use super::{Jobs, unavailable};

/// How often a submission starts over because the list has changed under it.
const MAX_TRIES: usize = 5;

/// How often the former shards of one account are looked through at most.
const LOOK_THROUGH_EVERY: Duration = Duration::from_secs(60);

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

impl Jobs {
    /// Takes jobs, each stored before its outcome is told. The outcomes are in the order of the
    /// jobs; a job that is refused is refused by itself.
    pub async fn submit(&self, jobs: Vec<NewJob>) -> Vec<SubmitOutcome> {
        let mut outcomes: Vec<Option<SubmitOutcome>> = Vec::new();
        outcomes.resize_with(jobs.len(), || None);
        let mut accounts: BTreeMap<String, Vec<Placed>> = BTreeMap::new();
        for (place, job) in jobs.into_iter().enumerate() {
            let checked = job.check().and_then(|()| self.check_account(&job.account));
            match checked {
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
                None => self.shards(&account).await,
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
                self.look_through_former(&account, lists);
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
        let version = lists.current.version;
        let questions = by_former.into_iter().map(|(shard, indices)| {
            let ids: Vec<String> = indices
                .iter()
                .map(|index| jobs[*index].1.id.clone())
                .collect();
            let account = account.to_owned();
            let shard = self.shard(&shard);
            async move {
                let answer = shard
                    .call(move |shard| async move { shard.knows(&account, version, &ids).await })
                    .await;
                (
                    indices,
                    answer.map_err(unavailable).and_then(|answer| answer),
                )
            }
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
        let (account, places, jobs): (String, Vec<usize>, Vec<NewJob>) = {
            let (places, jobs) = jobs.into_iter().unzip();
            (account.to_owned(), places, jobs)
        };
        let answer = self
            .shard(shard)
            .call(move |shard| async move {
                let answer = shard.submit(&account, version, jobs.clone()).await;
                // Only who has to start over needs the jobs again.
                match answer {
                    Ok(Err(OutdatedList { .. })) => Ok(Err(jobs)),
                    Ok(Ok(outcomes)) => Ok(Ok(outcomes)),
                    Err(error) => Err(error),
                }
            })
            .await
            .map_err(unavailable)
            .and_then(|answer| answer);
        let mut batch = Batch::default();
        match answer {
            Ok(Ok(outcomes)) => batch.settled.extend(places.into_iter().zip(outcomes)),
            Ok(Err(jobs)) => batch.again.extend(places.into_iter().zip(jobs)),
            Err(error) => batch.settled.extend(
                places
                    .into_iter()
                    .map(|place| (place, SubmitOutcome::Refused(error.clone()))),
            ),
        }
        batch
    }

    /// Has former lists whose shards hold no job of another's any more forgotten, in the background
    /// and not too often.
    fn look_through_former(&self, account: &str, lists: ShardLists) {
        {
            let mut looked = match self.0.looked_through.lock() {
                Ok(looked) => looked,
                Err(poisoned) => poisoned.into_inner(),
            };
            let now = Instant::now();
            looked.retain(|_, at| now.duration_since(*at) < LOOK_THROUGH_EVERY);
            if looked.contains_key(account) {
                return;
            }
            looked.insert(account.to_owned(), now);
        }
        let (jobs, account) = (self.clone(), account.to_owned());
        tokio::spawn(async move {
            for list in &lists.former {
                match jobs.is_drained(&account, list, &lists.current).await {
                    Ok(true) => {
                        let version = list.version;
                        let forgotten = jobs
                            .account(&account)
                            .call(
                                move |account| async move { account.forget_former(version).await },
                            )
                            .await;
                        if let Ok(Err(error)) = forgotten {
                            tracing::error!(
                                %error, account, "durability.background_execution.failed"
                            );
                        }
                    }
                    Ok(false) => {}
                    // The next submission tries again.
                    Err(error) => tracing::debug!(%error, account, "shards not looked through"),
                }
            }
        });
    }

    /// Whether no shard of a former list holds a job that belongs to another shard now.
    async fn is_drained(
        &self,
        account: &str,
        former: &ShardList,
        current: &ShardList,
    ) -> Result<bool, JobError> {
        for name in &former.shards {
            let (account, current) = (account.to_owned(), current.clone());
            let drained = self
                .shard(name)
                .call(move |shard| async move { shard.is_drained(&account, &current).await })
                .await
                .map_err(unavailable)??;
            if drained != Ok(true) {
                return Ok(false);
            }
        }
        Ok(true)
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
