//! A shard: queues jobs of accounts, and runs those that got a permit as durable operations.
//!
//! Decided here: what a job's id means to queue and operations, and when its permit returns. When a
//! job may run is the [`SemaphoreQueue`]'s matter, how often it is tried that of [`Operations`].

mod keeper;
mod store;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use self::keeper::Keeper;
use super::address::{item_id, item_ids_of, job_id, owner};
use super::{
    AccountJobs, Admission, CancelOutcome, JobError, JobRunner, JobState, JobStatus, NewJob,
    RunError, RunJob, ShardList, SubmitOutcome,
};
use crate::bugs::{Bug, is_on};
use crate::error::{BoxError, ConfigError, OpenError};
use crate::host::{Host, LocalFuture, Object};
use crate::operations::{
    self, AttemptOutcome, Call, HandlerConfig, HandlerError, OperationError, OperationEvent,
    OperationEventKind, OperationResult, Operations, RunOutcome, TerminalReason,
};
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::semaphore::queue::{
    self, AdmittedItem, HolderTransport, ItemStatus, NewItem, Outcome, QueueError, Refusal,
    SemaphoreQueue, Via,
};
use crate::time::{check_count, check_duration};

/// The one kind of operation that a shard runs.
const RUN: &str = "run";

/// How many items are looked at in one turn when a shard is looked through.
const LOOK_THROUGH_BATCH: u64 = 1_000;

/// What the queue and the operation keep around a job's body, at most.
pub const WRAPPER_BYTES: u64 = 8_192;

/// The most jobs of one submission; whoever takes submissions bounds them lower.
const MAX_SUBMITTED: u64 = 100_000;

/// Settings of all shards.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// The scheduler's settings; its `alarm_concurrency` is how many jobs of a shard run at once.
    pub scheduler: SchedulerConfig,
    /// How a job is tried: attempts, time for each, back-off.
    pub attempts: HandlerConfig,
    /// The largest body of a job, in bytes of JSON.
    pub max_body_bytes: u64,
    /// The most jobs of one shard that wait.
    pub max_queue_length: u64,
    /// How long an ended job is known.
    pub retention: Duration,
}

/// The list that a caller went by is not the account's newest: read it and call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("the account's list of shards has changed: its version is at least {newest}")]
pub struct OutdatedList {
    /// The newest version that the shard has heard of.
    pub newest: u64,
}

/// The object that queues and runs jobs.
pub struct JobShard {
    scheduler: Scheduler,
    keeper: Rc<Keeper>,
    parts: Rc<Parts>,
    max_body_bytes: u64,
}

/// What callbacks and participants reach back to. They hold it weakly, or an instance would never
/// be freed.
struct Parts {
    operations: Operations,
    queue: SemaphoreQueue,
}

impl Object for JobShard {
    const CLASS: &'static str = "job-shard";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// A job as its operation stores it.
#[derive(Serialize, Deserialize)]
struct Stored {
    account: String,
    id: String,
    group: String,
    admission: Admission,
    body: Value,
}

/// What the queue keeps of a job beside its key and group.
#[derive(Serialize, Deserialize)]
struct Queued {
    id: String,
    body: Box<RawValue>,
}

/// Filled once all parts are there; hooks that run earlier have nothing to do.
type Back = Rc<OnceCell<Weak<Parts>>>;

impl ShardConfig {
    /// Refuses settings that no shard could be opened with.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the field.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.scheduler.check()?;
        self.attempts.check()?;
        check_count("max_body_bytes", self.max_body_bytes)?;
        check_count("max_queue_length", self.max_queue_length)?;
        check_duration("retention", self.retention)
    }
}

impl JobShard {
    /// Opens the object. `holder` reaches the accounts' budgets, `runner` runs jobs.
    ///
    /// # Errors
    ///
    /// Wrong settings, and what storage answers.
    pub async fn open(
        host: Rc<dyn Host>,
        config: ShardConfig,
        holder: impl HolderTransport + 'static,
        runner: Arc<dyn JobRunner>,
    ) -> Result<Self, OpenError> {
        config.check()?;
        let scheduler = Scheduler::new(host, config.scheduler)?;
        let keeper = Keeper::new(scheduler.clone(), config.retention);
        scheduler.attach(&keeper)?;
        let back: Back = Rc::default();

        let (hook_back, hook_scheduler) = (back.clone(), scheduler.clone());
        let operations = Operations::builder(&scheduler)
            .handler(RUN, config.attempts, move |call| run(runner.clone(), call))
            .on_event(Rc::new(move |event: &OperationEvent| {
                let parts = hook_back.get().and_then(Weak::upgrade);
                if let (true, Some(parts)) = (has_ended(event), parts) {
                    release(&hook_scheduler, parts, event.id.clone());
                }
            }))
            .build()?;

        let (admitting, asking) = (operations.clone(), operations.clone());
        let queue = SemaphoreQueue::builder(&scheduler)
            .holder(holder)
            .admit(move |items| admit(admitting.clone(), items))
            .finished(move |ids| finished(asking.clone(), ids))
            .max_body_bytes(config.max_body_bytes + WRAPPER_BYTES)
            .max_queue_length(config.max_queue_length)
            .max_batch_items(MAX_SUBMITTED)
            .retention(config.retention)
            .build()?;
        let parts = Rc::new(Parts { operations, queue });
        keeper.watch(&parts);
        // Set once, here.
        let _ = back.set(Rc::downgrade(&parts));
        scheduler.open().await?;
        Ok(JobShard {
            scheduler,
            keeper,
            parts,
            max_body_bytes: config.max_body_bytes,
        })
    }

    /// The shard's queue, for checks of its sums.
    #[cfg(feature = "testing")]
    pub fn queue(&self) -> &SemaphoreQueue {
        &self.parts.queue
    }

    /// Takes jobs of one account, in order. `version` is that of the account's list by which the
    /// caller chose this shard.
    ///
    /// # Errors
    ///
    /// What storage answers; then nothing is stored. A job that is refused is told so in its place.
    pub async fn submit(
        &self,
        account: &str,
        version: u64,
        jobs: Vec<NewJob>,
    ) -> Result<Result<Vec<SubmitOutcome>, OutdatedList>, JobError> {
        // Before the list's version is looked at: between that and the queue nothing else may wait,
        // or a newer list could come in between.
        self.keeper.arrange_purge().await?;
        let mut outcomes = Vec::with_capacity(jobs.len());
        let mut items = Vec::with_capacity(jobs.len());
        for job in jobs {
            match item(job, self.max_body_bytes) {
                Ok(item) => {
                    outcomes.push(None);
                    items.push(item);
                }
                Err(error) => outcomes.push(Some(SubmitOutcome::Refused(error))),
            }
        }
        if let Err(outdated) = self.keeper.hear(account.to_owned(), version).await? {
            return Ok(Err(outdated));
        }
        let mut queued = self
            .parts
            .queue
            .enqueue(items)
            .await
            .map_err(queue_error)?
            .into_iter()
            .map(outcome);
        Ok(Ok(outcomes
            .into_iter()
            .map(|refused| {
                refused.or_else(|| queued.next()).unwrap_or_else(|| {
                    SubmitOutcome::Refused(JobError::Unavailable {
                        code: "no_outcome",
                        message: "the queue did not say what became of the job".to_owned(),
                    })
                })
            })
            .collect()))
    }

    /// Says which of `ids` this shard knows as jobs of the account, as a former owner of them. From
    /// then on, submissions by lists older than `version` are refused, so that none slips in after
    /// the answer.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn knows(
        &self,
        account: &str,
        version: u64,
        ids: &[String],
    ) -> Result<Result<Vec<bool>, OutdatedList>, JobError> {
        if let Err(outdated) = self.keeper.hear(account.to_owned(), version).await? {
            return Ok(Err(outdated));
        }
        let items = ids.iter().map(|id| item_id(account, id)).collect();
        let statuses = self.parts.queue.statuses(items).await;
        Ok(Ok(statuses
            .map_err(queue_error)?
            .into_iter()
            .map(|status| status != ItemStatus::Unknown)
            .collect()))
    }

    /// Whether this shard holds no job of the account that belongs to another shard by `current`,
    /// and takes no such job any more.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn is_drained(
        &self,
        account: &str,
        current: &ShardList,
    ) -> Result<Result<bool, OutdatedList>, JobError> {
        let heard = self.keeper.hear(account.to_owned(), current.version);
        if let Err(outdated) = heard.await? {
            return Ok(Err(outdated));
        }
        let me = self.scheduler.host().name();
        let (mut after, end) = item_ids_of(account);
        loop {
            let items = self
                .parts
                .queue
                .ids_between(after.clone(), end.clone(), LOOK_THROUGH_BATCH)
                .await
                .map_err(queue_error)?;
            let strange = items.iter().any(|item| {
                let id = job_id(item);
                id.is_none_or(|id| owner(&current.shards, &id) != Some(me))
            });
            match items.into_iter().next_back() {
                _ if strange => return Ok(Ok(false)),
                None => return Ok(Ok(true)),
                Some(last) => after = last,
            }
        }
    }

    /// What the shard has of an account at this moment.
    pub fn account_jobs(&self, account: &str) -> AccountJobs {
        let usage = self.parts.queue.usage(account);
        AccountJobs {
            waiting: usage.waiting,
            running: usage.held,
            undrawn: usage.undrawn,
        }
    }

    /// Where a job stands.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn status(&self, account: &str, id: &str) -> Result<JobStatus, JobError> {
        let item = item_id(account, id);
        let queue = self.parts.queue.status(&item);
        let operation = self.parts.operations.result(&item);
        let queued = queue.await.map_err(queue_error)?;
        let operation = operation.await.map_err(operation_error)?;
        let mut status = JobStatus::unknown(account, id);
        describe_item(&mut status, queued);
        describe_operation(&mut status, operation);
        Ok(status)
    }

    /// Cancels a job: one that waits will not run. One that runs is told to stop if `running` says
    /// so, and left alone otherwise.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn cancel(
        &self,
        account: &str,
        id: &str,
        running: bool,
    ) -> Result<CancelOutcome, JobError> {
        let item = item_id(account, id);
        let cancelled = self.parts.queue.cancel(&item).await;
        match cancelled.map_err(queue_error)? {
            queue::CancelOutcome::Cancelled | queue::CancelOutcome::Releasing => {
                Ok(CancelOutcome::Cancelled)
            }
            queue::CancelOutcome::Finished => Ok(CancelOutcome::Ended),
            queue::CancelOutcome::Unknown => Ok(CancelOutcome::Unknown),
            queue::CancelOutcome::Admitted if !running => Ok(CancelOutcome::Running),
            queue::CancelOutcome::Admitted => {
                let stopped = self.parts.operations.cancel(&item).await;
                Ok(match stopped.map_err(operation_error)? {
                    operations::CancelOutcome::Cancelled
                    | operations::CancelOutcome::Cancelling => CancelOutcome::Stopping,
                    operations::CancelOutcome::AlreadyEnded => CancelOutcome::Ended,
                    // It is about to be registered.
                    operations::CancelOutcome::NotFound => CancelOutcome::Running,
                })
            }
        }
    }
}

/// Whether the event is the end of a call, so that its permit returns.
fn has_ended(event: &OperationEvent) -> bool {
    matches!(
        event.kind,
        OperationEventKind::AttemptSettled(AttemptOutcome::Completed)
            | OperationEventKind::Terminal(_)
    ) || (is_on(Bug::RetryReturnsPermit)
        && matches!(event.kind, OperationEventKind::AttemptSettled(_)))
}

/// Gives a job's permit back. Should this get lost, the queue asks whether the job has ended.
fn release(scheduler: &Scheduler, parts: Rc<Parts>, id: String) {
    scheduler.host().spawn(Box::pin(async move {
        if let Err(error) = parts.queue.release(&id).await {
            tracing::error!(error = %error, "durability.background_execution.failed");
        }
    }));
}

fn item(job: NewJob, max_body_bytes: u64) -> Result<NewItem, JobError> {
    job.check()?;
    let invalid = |error: serde_json::Error| JobError::invalid("body", error.to_string());
    let body = serde_json::value::to_raw_value(&job.body).map_err(invalid)?;
    let found = body.get().len() as u64;
    if found > max_body_bytes {
        return Err(JobError::BodyTooLarge {
            found,
            limit: max_body_bytes,
        });
    }
    let id = item_id(&job.account, &job.id);
    let queued = Queued { id: job.id, body };
    NewItem::new(id, job.account, job.group, &queued).map_err(invalid)
}

fn outcome(outcome: Outcome) -> SubmitOutcome {
    match outcome {
        Outcome::Queued => SubmitOutcome::Queued,
        Outcome::Duplicate => SubmitOutcome::Duplicate,
        Outcome::Refused { reason } => SubmitOutcome::Refused(match reason {
            Refusal::InvalidField { field, problem } => JobError::invalid(field, problem),
            Refusal::BodyTooLarge { bytes, max_bytes } => JobError::BodyTooLarge {
                found: bytes,
                limit: max_bytes,
            },
            Refusal::QueueFull { max_items } => JobError::QueueFull { limit: max_items },
        }),
    }
}

/// Registers admitted jobs as operations, in one transaction. An operation of an earlier job with
/// the same id, whose shard has forgotten the job but not the operation yet, makes way.
async fn admit(operations: Operations, items: Vec<AdmittedItem>) -> Result<(), BoxError> {
    let mut calls = Vec::with_capacity(items.len());
    let mut queued_at = BTreeMap::new();
    for item in items {
        let Queued { id, body } = item.read()?;
        let stored = Stored {
            account: item.key,
            id,
            group: item.group,
            admission: match item.via {
                Via::Grant { .. } => Admission::Grant,
                Via::Lease { at_once: false, .. } => Admission::Lease,
                Via::Lease { at_once: true, .. } => Admission::LeaseAtOnce,
            },
            body: serde_json::from_str(body.get())?,
        };
        queued_at.insert(item.id.clone(), item.queued_at);
        calls.push((item.id, serde_json::to_value(stored)?));
    }
    let outcomes = operations.run_all(RUN, calls.clone()).await?;
    let mut again = Vec::new();
    for (outcome, call) in outcomes.into_iter().zip(calls) {
        if outcome? == RunOutcome::Duplicate
            && let Some(at) = queued_at.get(&call.0)
            && !operations
                .purge_ended(vec![call.0.clone()], *at)
                .await?
                .is_empty()
        {
            again.push(call);
        }
    }
    if !again.is_empty() {
        for outcome in operations.run_all(RUN, again).await? {
            outcome?;
        }
    }
    Ok(())
}

/// Which of `ids` have ended, as far as their operations know.
async fn finished(operations: Operations, ids: Vec<String>) -> Result<Vec<String>, BoxError> {
    let results = operations.results(&ids).await?;
    Ok(ids
        .into_iter()
        .zip(results)
        .filter(|(_, result)| match is_on(Bug::FailedKeepsPermit) {
            true => matches!(result, OperationResult::Completed { .. }),
            false => !matches!(result, OperationResult::Pending { .. }),
        })
        .map(|(id, _)| id)
        .collect())
}

async fn run(runner: Arc<dyn JobRunner>, call: Call) -> Result<Value, HandlerError> {
    let stored: Stored =
        serde_json::from_value(call.payload).map_err(HandlerError::non_retryable)?;
    let job = RunJob {
        idempotency_key: call.id,
        account: stored.account,
        id: stored.id,
        group: stored.group,
        admission: stored.admission,
        body: stored.body,
        attempt: call.attempt,
        token: call.token,
    };
    runner.run(job).await.map_err(|error| match error {
        RunError::Retry(error) => HandlerError::Retry(error),
        RunError::Permanent(error) => HandlerError::NonRetryable(error),
    })
}

fn describe_item(status: &mut JobStatus, item: ItemStatus) {
    match item {
        ItemStatus::Unknown => {}
        ItemStatus::Queued {
            group,
            place,
            queued_at,
            waiting,
        } => {
            status.state = JobState::Queued;
            status.group = Some(group);
            status.place = Some(place);
            status.since = Some(waiting.map_or(queued_at, |waiting| waiting.since));
            status.blocked_reason = waiting.map(|waiting| waiting.reason.as_str().to_owned());
        }
        ItemStatus::Claiming { group } => {
            status.state = JobState::Claiming;
            status.group = Some(group);
        }
        ItemStatus::Admitted { group } => {
            status.state = JobState::Running;
            status.group = Some(group);
        }
        // The operation knows how; without one it was cancelled before it ran.
        ItemStatus::Finished { group, at } => {
            status.state = JobState::Cancelled;
            status.group = Some(group);
            status.since = Some(at);
        }
    }
}

fn describe_operation(status: &mut JobStatus, operation: OperationResult) {
    // What is left of an earlier job with the same id is none of this one's.
    if !matches!(status.state, JobState::Running | JobState::Cancelled) {
        return;
    }
    match operation {
        OperationResult::NotFound => {}
        OperationResult::Pending {
            attempt,
            next_attempt_at,
            last_error,
        } => {
            status.state = JobState::Running;
            status.attempt = Some(attempt);
            status.next_attempt_at = Some(next_attempt_at);
            status.last_error = last_error;
        }
        OperationResult::Failed {
            attempt,
            reason,
            error,
        } => {
            status.state = match reason {
                TerminalReason::Cancelled => JobState::Cancelled,
                _ => JobState::Failed,
            };
            status.attempt = Some(attempt);
            status.last_error = Some(error);
        }
        OperationResult::Completed { result } => {
            status.state = JobState::Completed;
            status.result = Some(result);
        }
    }
}

fn queue_error(error: QueueError) -> JobError {
    match error {
        QueueError::Storage(error) => JobError::Storage(error),
        other => JobError::Unavailable {
            code: other.code(),
            message: other.to_string(),
        },
    }
}

fn operation_error(error: OperationError) -> JobError {
    match error {
        OperationError::Storage(error) => JobError::Storage(error),
        other => JobError::Unavailable {
            code: other.code(),
            message: other.to_string(),
        },
    }
}
