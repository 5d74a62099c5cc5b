//! The account-concurrency application on real files: jobs in, the limit kept, nothing lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use durably::host::LocalFuture;
use durably::jobs::{
    CancelOutcome, JobError, JobRunner, JobState, JobStatus, NewJob, RunError, RunJob, ShardLists,
    SubmitOutcome,
};
use durably::topology::ReaderOptions;
use durably_native::jobs::{Jobs, JobsConfig};
use durably_native::publishers::FolderReader;
use durably_native::reading::{Reader, ReaderClock, ReaderRandom};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// A job endpoint in memory: counts what runs, and lets jobs wait until they are let go.
#[derive(Default)]
struct Endpoint {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    running: BTreeMap<(String, String), BTreeSet<String>>,
    most: BTreeMap<(String, String), usize>,
    most_of_account: BTreeMap<String, usize>,
    runs: BTreeMap<String, u64>,
    held: BTreeSet<String>,
    failing: BTreeMap<String, RunKind>,
}

#[derive(Clone, Copy)]
enum RunKind {
    FailsOnce,
    FailsForGood,
}

impl Endpoint {
    fn hold(&self, ids: impl IntoIterator<Item = String>) {
        self.lock().held.extend(ids);
    }

    fn let_go(&self, id: &str) {
        self.lock().held.remove(id);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no test panics while it holds the state")
    }

    fn begin(&self, job: &RunJob) {
        let mut state = self.lock();
        *state.runs.entry(job.id.clone()).or_default() += 1;
        let place = (job.account.clone(), job.group.clone());
        let running = state.running.entry(place.clone()).or_default();
        running.insert(job.idempotency_key.clone());
        let now = running.len();
        let most = state.most.entry(place).or_default();
        *most = (*most).max(now);
        let all = state
            .running
            .iter()
            .filter(|((account, _), _)| *account == job.account)
            .map(|(_, keys)| keys.len())
            .sum();
        let most = state
            .most_of_account
            .entry(job.account.clone())
            .or_default();
        *most = (*most).max(all);
    }

    fn end(&self, job: &RunJob) {
        let place = (job.account.clone(), job.group.clone());
        if let Some(running) = self.lock().running.get_mut(&place) {
            running.remove(&job.idempotency_key);
        }
        self.changed.notify_waiters();
    }
}

struct Runner(Arc<Endpoint>);

impl JobRunner for Runner {
    fn run(&self, job: RunJob) -> LocalFuture<Result<Value, RunError>> {
        let endpoint = self.0.clone();
        Box::pin(async move {
            endpoint.begin(&job);
            loop {
                let changed = endpoint.changed.notified();
                if !endpoint.lock().held.contains(&job.id) || job.token.is_cancelled() {
                    break;
                }
                tokio::select! {
                    () = changed => {}
                    () = job.token.cancelled() => {}
                }
            }
            endpoint.end(&job);
            let failing = endpoint.lock().failing.get(&job.id).copied();
            match failing {
                Some(RunKind::FailsOnce) if job.attempt == 1 => {
                    Err(RunError::Retry("try again".into()))
                }
                Some(RunKind::FailsForGood) => Err(RunError::Permanent("no such report".into())),
                _ => Ok(json!({"done": job.id})),
            }
        })
    }
}

fn job(account: &str, id: impl Into<String>, group: &str) -> NewJob {
    NewJob {
        account: account.to_owned(),
        id: id.into(),
        group: group.to_owned(),
        body: json!({"n": 1}),
    }
}

fn config(folder: &std::path::Path) -> JobsConfig {
    let mut config = JobsConfig::new(folder);
    config.round_wait = Duration::from_millis(2);
    config.round_period = Duration::from_millis(5);
    config.alarm_min_delay = Duration::from_secs(1);
    config.grant_timeout = Duration::from_secs(1);
    config
}

/// Asks for a job's status until it is in `state`.
async fn until(jobs: &Jobs, account: &str, id: &str, state: JobState) -> JobStatus {
    let asking = async {
        loop {
            let status = jobs.status(account, id).await.expect("a status");
            if status.state == state {
                return status;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking)
        .await
        .unwrap_or_else(|_| panic!("{account}/{id} never became {state:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_runs_once_and_no_limit_is_passed() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Arc::new(Endpoint::default());
    let jobs = Jobs::open(config(folder.path()), Arc::new(Runner(endpoint.clone()))).unwrap();
    jobs.set_limit("acme", Some(5)).await.unwrap();
    jobs.set_group_limit("acme", "nightly", Some(2))
        .await
        .unwrap();
    let all: Vec<NewJob> = (0..120)
        .map(|index| {
            let group = if index % 2 == 0 { "nightly" } else { "hourly" };
            job("acme", format!("job-{index}"), group)
        })
        .collect();
    for outcome in jobs.submit(all.clone()).await {
        assert!(matches!(outcome, SubmitOutcome::Queued), "{outcome:?}");
    }
    for outcome in jobs.submit(all.clone()).await {
        assert!(matches!(outcome, SubmitOutcome::Duplicate), "{outcome:?}");
    }
    for job in &all {
        let status = until(&jobs, "acme", &job.id, JobState::Completed).await;
        assert_eq!(status.result, Some(json!({"done": job.id})));
    }
    {
        let state = endpoint.lock();
        assert_eq!(state.runs.len(), 120);
        assert!(state.runs.values().all(|runs| *runs == 1));
        assert!(state.most_of_account["acme"] <= 5);
        assert!(state.most[&("acme".into(), "nightly".into())] <= 2);
    }
    let usage = async {
        while jobs.usage("acme").await.unwrap().granted > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), usage)
        .await
        .expect("all permits return");
    jobs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_waits_says_why_and_can_be_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Arc::new(Endpoint::default());
    endpoint.hold(["first".to_owned()]);
    let mut config = config(folder.path());
    config.shards_per_account = 1;
    let jobs = Jobs::open(config, Arc::new(Runner(endpoint.clone()))).unwrap();
    jobs.set_limit("acme", Some(1)).await.unwrap();
    jobs.submit(vec![job("acme", "first", "default")]).await;
    until(&jobs, "acme", "first", JobState::Running).await;
    jobs.submit(vec![
        job("acme", "second", "default"),
        job("acme", "third", "default"),
    ])
    .await;
    let waiting = async {
        loop {
            let status = jobs.status("acme", "third").await.unwrap();
            if status.blocked_reason.is_some() {
                return status;
            }
            tokio::task::yield_now().await;
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap();
    assert_eq!(status.state, JobState::Queued);
    assert_eq!(status.blocked_reason.as_deref(), Some("limit"));
    assert_eq!(status.place, Some(2));
    assert_eq!(
        jobs.cancel("acme", "second", false).await.unwrap(),
        CancelOutcome::Cancelled
    );
    assert_eq!(
        jobs.cancel("acme", "first", false).await.unwrap(),
        CancelOutcome::Running
    );
    endpoint.let_go("first");
    until(&jobs, "acme", "third", JobState::Completed).await;
    until(&jobs, "acme", "first", JobState::Completed).await;
    assert_eq!(
        jobs.status("acme", "second").await.unwrap().state,
        JobState::Unknown
    );
    assert!(!endpoint.lock().runs.contains_key("second"));
    jobs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_permits_do_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.system.shutdown_timeout = Duration::from_secs(60);
    let jobs = Jobs::open(config, Arc::new(Runner(Arc::new(Endpoint::default())))).unwrap();
    jobs.set_limit("acme", Some(0)).await.unwrap();
    jobs.submit(vec![job("acme", "stuck", "default")]).await;
    let waiting = async {
        let mut status = jobs.status("acme", "stuck").await.unwrap();
        while status.blocked_reason.is_none() {
            status = jobs.status("acme", "stuck").await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap();
    // The next request is on its way by now, and waits at the holder for 20 s.
    tokio::time::timeout(Duration::from_secs(10), jobs.shutdown())
        .await
        .expect("nothing is left to finish");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_is_cancelled_only_when_asked_and_failures_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Arc::new(Endpoint::default());
    endpoint.hold(["long".to_owned()]);
    {
        let mut state = endpoint.lock();
        state.failing.insert("flaky".into(), RunKind::FailsOnce);
        state.failing.insert("broken".into(), RunKind::FailsForGood);
    }
    let jobs = Jobs::open(config(folder.path()), Arc::new(Runner(endpoint.clone()))).unwrap();
    jobs.submit(
        ["long", "flaky", "broken"]
            .map(|id| job("acme", id, "default"))
            .to_vec(),
    )
    .await;
    let broken = until(&jobs, "acme", "broken", JobState::Failed).await;
    assert_eq!(broken.last_error.as_deref(), Some("no such report"));
    until(&jobs, "acme", "flaky", JobState::Completed).await;
    until(&jobs, "acme", "long", JobState::Running).await;
    assert_eq!(
        jobs.cancel("acme", "long", true).await.unwrap(),
        CancelOutcome::Stopping
    );
    until(&jobs, "acme", "long", JobState::Cancelled).await;
    assert_eq!(
        jobs.cancel("acme", "long", true).await.unwrap(),
        CancelOutcome::Ended
    );
    jobs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_known_to_the_end_of_a_changed_list_of_shards() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Arc::new(Endpoint::default());
    let ids: Vec<String> = (0..40).map(|index| format!("job-{index}")).collect();
    endpoint.hold(ids.clone());
    let jobs = Jobs::open(config(folder.path()), Arc::new(Runner(endpoint.clone()))).unwrap();
    jobs.set_limit("acme", Some(100)).await.unwrap();
    let all: Vec<NewJob> = ids.iter().map(|id| job("acme", id, "default")).collect();
    jobs.submit(all.clone()).await;
    let lists = jobs
        .set_shards("acme", vec!["acme-0".into(), "acme-new".into()])
        .await
        .unwrap();
    assert_eq!(lists.former.len(), 1);
    for outcome in jobs.submit(all).await {
        assert!(matches!(outcome, SubmitOutcome::Duplicate), "{outcome:?}");
    }
    for id in &ids {
        until(&jobs, "acme", id, JobState::Running).await;
        endpoint.let_go(id);
        until(&jobs, "acme", id, JobState::Completed).await;
    }
    assert!(endpoint.lock().runs.values().all(|runs| *runs == 1));
    jobs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accounts_shards_are_published_and_jobs_find_them_there() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Arc::new(Endpoint::default());
    let jobs = Jobs::open(config(folder.path()), Arc::new(Runner(endpoint.clone()))).unwrap();
    let made = jobs.shards("acme").await.unwrap();
    let published = FolderReader::new(folder.path().join("shards"));
    let reader = Reader::new(
        ReaderOptions::default(),
        published,
        ReaderClock,
        ReaderRandom,
    );
    let reading = reader.unwrap().get("acme").await.unwrap();
    assert_eq!(ShardLists::of(&reading), Some(made));

    // Its account cannot tell any more, and the shards are found all the same.
    jobs.submit(vec![job("acme", "first", "default")]).await;
    until(&jobs, "acme", "first", JobState::Completed).await;
    jobs.shutdown().await;
    let accounts = folder.path().join("objects").join("account-limit");
    for file in files_below(&accounts) {
        std::fs::write(&file, b"this is no database").unwrap();
    }
    let jobs = Jobs::open(config(folder.path()), Arc::new(Runner(endpoint))).unwrap();
    let status = jobs.status("acme", "first").await.unwrap();
    assert_eq!(status.state, JobState::Completed);
    let outcomes = jobs.submit(vec![job("acme", "second", "default")]).await;
    assert!(
        matches!(outcomes[..], [SubmitOutcome::Queued]),
        "{outcomes:?}"
    );
    // That there is no such job, only the account can tell.
    assert!(jobs.status("acme", "never").await.is_err());
    jobs.shutdown().await;
}

fn files_below(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let below = paths.flat_map(|path| match path.is_dir() {
        true => files_below(&path),
        false => vec![path],
    });
    below.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_batch_of_one_account_goes_in_whole() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Arc::new(Endpoint::default());
    let mut config = config(folder.path());
    config.shards_per_account = 1;
    config.default_limit = 0;
    let jobs = Jobs::open(config, Arc::new(Runner(endpoint))).unwrap();
    let all: Vec<NewJob> = (0..5_000)
        .map(|index| job("acme", format!("{index}"), "default"))
        .collect();
    let outcomes = jobs.submit(all).await;
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, SubmitOutcome::Queued))
    );
    jobs.shutdown().await;
}

#[test]
fn a_body_that_fits_into_no_row_is_refused_as_a_setting() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.max_body_bytes = u64::from(config.system.max_value_bytes);
    let error = Jobs::open(config, Arc::new(Runner(Arc::default()))).err();
    let error = error.expect("refused").to_string();
    assert!(error.contains("max_body_bytes"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_jobs_are_refused_by_themselves_and_questions_make_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Arc::new(Endpoint::default());
    let mut config = config(folder.path());
    config.max_body_bytes = 100;
    let jobs = Jobs::open(config, Arc::new(Runner(endpoint))).unwrap();
    let mut large = job("acme", "large", "default");
    large.body = json!("x".repeat(99));
    let outcomes = jobs
        .submit(vec![
            job("", "a", "default"),
            job("acme", "", "default"),
            job("acme", "x".repeat(257), "default"),
            large,
            job("acme", "good", "default"),
        ])
        .await;
    let fields: Vec<Option<&str>> = outcomes
        .iter()
        .map(|outcome| match outcome {
            SubmitOutcome::Refused(error) => error.field(),
            _ => None,
        })
        .collect();
    assert_eq!(
        fields,
        [Some("account"), Some("id"), Some("id"), Some("body"), None]
    );
    assert!(matches!(outcomes[4], SubmitOutcome::Queued));
    let error = jobs.set_limit("acme", Some(u64::MAX)).await.unwrap_err();
    assert!(matches!(error, JobError::Invalid { .. }), "{error}");
    let open = jobs.open_objects();
    assert_eq!(jobs.limit("nobody").await.unwrap(), 10);
    assert_eq!(jobs.usage("nobody").await.unwrap().granted, 0);
    assert_eq!(
        jobs.status("nobody", "nothing").await.unwrap().state,
        JobState::Unknown
    );
    assert_eq!(jobs.open_objects(), open);
    jobs.shutdown().await;
}
