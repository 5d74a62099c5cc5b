//! The endpoint that does the work of jobs, once for each `Idempotency-Key`, and the runner that sends
//! them there. It fails, takes too long, and says that it failed when it has not.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::jobs::{JobRunner, RunError, RunJob};
use futures::future::{Either, select};
use serde_json::Value;

use super::{Application, WeakApplication};
use crate::simulation::invariants::jobs::CANCELLED;
use crate::simulation::invariants::running::Runs;

thread_local! {
    // Runners must be `Send`; a run stays on its thread.
    static APPLICATION: RefCell<WeakApplication> = const { RefCell::new(Weak::new()) };
}

/// Has runners of this thread send their jobs to the endpoint of this run.
pub(super) fn serve(application: &Rc<Application>) {
    APPLICATION.with(|current| *current.borrow_mut() = Rc::downgrade(application));
}

/// What the endpoint works on and has done.
#[derive(Default)]
pub(super) struct Endpoint {
    working: RefCell<BTreeMap<String, Working>>,
    done: RefCell<BTreeSet<String>>,
    seen: RefCell<BTreeSet<String>>,
    has_worked: Cell<bool>,
}

/// A job that is worked on, by its key.
#[derive(Clone)]
struct Working {
    shard: String,
    account: String,
    group: String,
    requests: u64,
}

/// What is asked of the endpoint.
#[derive(Clone)]
struct Request {
    key: String,
    shard: String,
    account: String,
    group: String,
}

impl Endpoint {
    /// Whether the work of a job was done.
    pub(super) fn has_done(&self, key: &str) -> bool {
        self.done.borrow().contains(key)
    }

    /// Whether some work has begun or ended since the last question.
    pub(super) fn has_worked(&self) -> bool {
        self.has_worked.replace(false)
    }

    /// What runs with permits of an account, without the jobs that `is_exempt`.
    pub(super) fn running(&self, account: &str, is_exempt: impl Fn(&str, &str) -> bool) -> Runs {
        let mut runs = Runs::default();
        for (key, working) in self.working.borrow().iter() {
            if working.account == account && !is_exempt(&working.shard, key) {
                runs.started(&working.shard, &working.group);
            }
        }
        runs
    }

    fn begin(&self, application: &Application, request: &Request) {
        let run = &application.run;
        run.note(
            &request.key,
            format_args!("is worked on, for {}", request.shard),
        );
        if !self.seen.borrow_mut().insert(request.key.clone()) {
            run.cover("job sent to its endpoint again");
        }
        if application.must_not_run(&request.key) {
            let message = "it was cancelled before it ran, and runs".to_owned();
            run.fail(CANCELLED, &request.key, message);
        }
        let mut working = self.working.borrow_mut();
        let known = working.entry(request.key.clone()).or_insert(Working {
            shard: request.shard.clone(),
            account: request.account.clone(),
            group: request.group.clone(),
            requests: 0,
        });
        known.requests += 1;
        self.has_worked.set(true);
    }

    fn end(&self, key: &str) {
        let mut working = self.working.borrow_mut();
        if let Some(known) = working.get_mut(key) {
            known.requests -= 1;
            self.has_worked.set(true);
            if known.requests == 0 {
                working.remove(key);
            }
        }
    }
}

/// What the endpoint answers.
struct Answer(Result<Value, (String, bool)>);

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(value) => write!(formatter, "{value}"),
            Err((problem, true)) => write!(formatter, "{problem}, for good"),
            Err((problem, false)) => write!(formatter, "{problem}"),
        }
    }
}

async fn work(application: WeakApplication, request: Request) -> Answer {
    let Some(application) = application.upgrade() else {
        return Answer(Err(("the run is over".to_owned(), true)));
    };
    let run = application.run.clone();
    let key = &request.key;
    if application.endpoint.has_done(key) {
        return Answer(Ok(Value::from("done before")));
    }
    application.endpoint.begin(&application, &request);
    let mut takes = Duration::from_millis(application.dice.below(run.knob("work-ms") + 1));
    if application.dice.fails("hangs-percent") {
        takes += run.knob_ms("attempt-ms");
    }
    run.world.sleep(takes).await;
    application.endpoint.end(key);
    let fails = application.dice.fails("fails-percent");
    if !fails {
        application.endpoint.done.borrow_mut().insert(key.clone());
        run.note(key, format_args!("is done"));
    }
    match fails || application.dice.fails("lies-percent") {
        true => Answer(Err((
            "it did not work".to_owned(),
            application.dice.fails("hopeless-percent"),
        ))),
        false => Answer(Ok(Value::from("done"))),
    }
}

/// Sends the jobs of one shard to the endpoint.
pub(super) struct Runner {
    shard: String,
}

impl Runner {
    pub(super) fn new(shard: &str) -> Runner {
        Runner {
            shard: shard.to_owned(),
        }
    }
}

impl JobRunner for Runner {
    fn run(&self, job: RunJob) -> LocalFuture<Result<Value, RunError>> {
        let application = APPLICATION.with(|current| current.borrow().clone());
        let request = Request {
            key: job.idempotency_key.clone(),
            shard: self.shard.clone(),
            account: job.account.clone(),
            group: job.group.clone(),
        };
        Box::pin(async move {
            let gone = || RunError::Permanent("the run is over".into());
            let (run, from, to) = {
                let application = application.upgrade().ok_or_else(gone)?;
                let from = application.node_of(&request.shard);
                (application.run.clone(), from, application.nodes[3].clone())
            };
            let about = (
                request.key.clone(),
                format!("run {} attempt {}", request.key, job.attempt),
            );
            let deliver = Rc::new(move || -> LocalFuture<Answer> {
                Box::pin(work(application.clone(), request.clone()))
            });
            let sent = run.network.clone().send(run, from, to, about, deliver);
            let (sent, told) = (std::pin::pin!(sent), std::pin::pin!(job.token.cancelled()));
            match select(sent, told).await {
                Either::Left((Ok(Answer(Ok(value))), _)) => Ok(value),
                Either::Left((Ok(Answer(Err((problem, true)))), _)) => {
                    Err(RunError::Permanent(BoxError::from(problem)))
                }
                Either::Left((Ok(Answer(Err((problem, false)))), _)) => {
                    Err(RunError::Retry(BoxError::from(problem)))
                }
                Either::Left((Err(_), _)) => Err(RunError::Retry("the connection broke".into())),
                Either::Right(_) => Err(RunError::Retry("it was told to stop".into())),
            }
        })
    }
}
