//! Job shards on the virtual host: when a job's permit returns, and by which list of shards jobs are
//! taken.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use durably::SchedulerConfig;
use durably::host::LocalFuture;
use durably::jobs::{
    AccountConfig, AccountLimit, JobRunner, JobShard, JobState, NewJob, OutdatedList, RunError,
    RunJob, ShardConfig, SubmitOutcome,
};
use durably::layers::HostTimer;
use durably::operations::HandlerConfig;
use durably::semaphore::client::{ClientError, SemaphoreClient, holder_fn};
use durably::topology::MemoryPublisher;
use durably_sim::{Alarms, VirtualObject, World};
use serde_json::{Value, json};

/// Runs jobs at once; the first attempt of one that is named `unlucky` fails, and every one of one that
/// is named `broken`.
#[derive(Default)]
struct Runner {
    ran: Mutex<Vec<(String, u64)>>,
}

impl Runner {
    fn ran(&self) -> Vec<(String, u64)> {
        let ran = self.ran.lock();
        ran.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl JobRunner for Runner {
    fn run(&self, job: RunJob) -> LocalFuture<Result<Value, RunError>> {
        let is_unlucky = job.id == "unlucky" && job.attempt == 1;
        let is_broken = job.id == "broken";
        let mut ran = self.ran.lock().unwrap_or_else(PoisonError::into_inner);
        ran.push((job.id, job.attempt));
        Box::pin(async move {
            match (is_unlucky, is_broken) {
                (true, _) => Err(RunError::Retry("the endpoint is away".into())),
                (_, true) => Err(RunError::Permanent("there is no such job".into())),
                _ => Ok(json!("done")),
            }
        })
    }
}

struct Application {
    world: World,
    shard: VirtualObject<JobShard>,
    runner: Arc<Runner>,
}

/// A shard, and an account of limit 1.
fn application() -> Application {
    let world = World::new(1_000_000);
    let account = world.object("acme", Alarms::Automatic, |host| {
        let config = AccountConfig {
            scheduler: SchedulerConfig::default(),
            default_limit: 1,
            default_group_limit: None,
            default_leases: None,
            round_wait: Duration::from_millis(10),
            round_period: Duration::from_millis(20),
            grant_timeout: Duration::from_secs(10),
            recorder: None,
        };
        let opening = AccountLimit::open(host, config, MemoryPublisher::default());
        async move { Ok(Rc::new(opening.await?)) }
    });
    let runner = Arc::new(Runner::default());
    let of_shard = runner.clone();
    let shard = world.object("shard", Alarms::Automatic, move |host| {
        let account = account.clone();
        let transport = holder_fn(move |call: durably::semaphore::client::HolderCall| {
            let answer = account.call(|account| async move { account.handle(call.message).await });
            async move { Ok(answer.await.map_err(ClientError::unreachable)??) }
        });
        let holder = SemaphoreClient::new(transport, HostTimer::new(host.clone()));
        let config = ShardConfig {
            scheduler: SchedulerConfig::default(),
            attempts: HandlerConfig::default(),
            max_body_bytes: 1_000,
            max_queue_length: 1_000,
            retention: Duration::from_secs(3_600),
        };
        let opening = JobShard::open(host, config, holder, of_shard.clone());
        async move { Ok(Rc::new(opening.await?)) }
    });
    Application {
        world,
        shard,
        runner,
    }
}

impl Application {
    fn submit(&self, version: u64, ids: &[&str]) -> Result<Vec<SubmitOutcome>, OutdatedList> {
        let jobs = ids.iter().map(|id| NewJob {
            account: "acme".to_owned(),
            id: (*id).to_owned(),
            group: "main".to_owned(),
            body: Value::Null,
        });
        let jobs = jobs.collect();
        let submitted = self
            .shard
            .call(move |shard| async move { shard.submit("acme", version, jobs).await });
        let submitted = self.world.block_on(submitted);
        submitted.expect("the shard lives").expect("it stores")
    }

    fn state(&self, id: &'static str) -> JobState {
        let status = self
            .shard
            .call(move |shard| async move { shard.status("acme", id).await });
        let status = self.world.block_on(status);
        status.expect("the shard lives").expect("it reads").state
    }
}

#[test]
fn a_job_keeps_its_permit_from_its_first_attempt_to_its_last() {
    let app = application();
    let queued = app.submit(1, &["unlucky", "next"]).expect("the first list");
    assert!(
        queued
            .iter()
            .all(|outcome| matches!(outcome, SubmitOutcome::Queued))
    );
    for _ in 0..600 {
        app.world.advance(Duration::from_millis(100));
        if app.state("next") == JobState::Completed {
            break;
        }
    }
    let of = |id: &str, attempt| (id.to_owned(), attempt);
    let expected = [of("unlucky", 1), of("unlucky", 2), of("next", 1)];
    assert_eq!(app.runner.ran(), expected);
    assert_eq!(app.state("unlucky"), JobState::Completed);
}

#[test]
fn a_failed_job_gives_its_permit_back_though_its_release_could_not_be_stored() {
    let app = application();
    app.world.block_on(app.shard.open()).expect("it opens");
    let script = |script: &'static str| {
        let storage = app.shard.storage();
        let done = storage.transaction(move |transaction| transaction.script(script));
        done.expect("storage works");
    };
    script(
        "CREATE TRIGGER refuse BEFORE UPDATE ON durability_semaphore_queue_items WHEN NEW.state = 3
         BEGIN SELECT RAISE(ABORT, 'no release is stored'); END",
    );
    app.submit(1, &["broken", "next"]).expect("the first list");
    app.world.advance(Duration::from_secs(5));
    assert_eq!(app.state("next"), JobState::Queued);
    script("DROP TRIGGER refuse");
    app.world.advance(Duration::from_secs(120));
    assert_eq!(app.state("broken"), JobState::Failed);
    assert_eq!(app.state("next"), JobState::Completed);
}

#[test]
fn a_shard_takes_jobs_by_the_newest_list_that_it_has_heard_of() {
    let app = application();
    assert!(app.submit(2, &["a"]).is_ok());
    assert_eq!(
        app.submit(1, &["b"]).err(),
        Some(OutdatedList { newest: 2 })
    );
    app.shard.crash();
    assert_eq!(
        app.submit(1, &["c"]).err(),
        Some(OutdatedList { newest: 2 })
    );
    assert!(app.submit(3, &["d"]).is_ok());
    app.world.advance(Duration::from_secs(60));
    let ran: BTreeSet<String> = app.runner.ran().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ran, BTreeSet::from(["a".to_owned(), "d".to_owned()]));
}

#[cfg(feature = "deliberate-bugs")]
#[test]
fn deliberate_bugs_are_found() {
    durably_sim::proof::by_own_tests("jobs");
}
