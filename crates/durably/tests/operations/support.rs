//! An object with operations in a virtual world, and what its handlers and events did.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture};
use durably::operations::{
    AttemptOutcome, Backoff, Call, CancelOutcome, HandlerConfig, HandlerError, OperationError,
    OperationEvent, OperationEventKind, OperationResult, Operations, RunOutcome,
};
use durably::{OpenError, Scheduler, SchedulerConfig, Timestamp};
use durably_sim::{Alarms, VirtualObject, World};
use serde_json::{Value, json};

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn completed(result: Value) -> OperationResult {
    OperationResult::Completed { result }
}

/// A delay that tests can count on.
pub(crate) fn every(delay: Duration) -> HandlerConfig {
    let mut config = HandlerConfig::default();
    config.backoff = Backoff::Delay(Arc::new(move |_| delay));
    config
}

/// Handlers that several tests use.
pub(crate) mod behaviour {
    use super::*;

    /// Answers with its payload.
    pub(crate) async fn answer(call: Call) -> Result<Value, HandlerError> {
        Ok(call.payload)
    }

    #[derive(Debug, thiserror::Error)]
    #[error("it failed")]
    struct Failed(#[source] std::io::Error);

    /// Fails, with an error that has a source.
    pub(crate) async fn fail(_call: Call) -> Result<Value, HandlerError> {
        Err(Failed(std::io::Error::other("the reason")).into())
    }
}

type Run = Rc<dyn Fn(Call) -> LocalFuture<Result<Value, HandlerError>>>;

type Handler = (&'static str, HandlerConfig, Run);

/// What an instance is built from, and what it tells.
#[derive(Clone, Default)]
struct Parts {
    scheduler: Rc<RefCell<SchedulerConfig>>,
    handlers: Rc<RefCell<Vec<Handler>>>,
    events: Rc<RefCell<Vec<String>>>,
    hook_panics: Rc<Cell<bool>>,
}

/// The object of these tests.
pub(crate) struct Worker {
    pub(crate) scheduler: Scheduler,
    pub(crate) operations: Operations,
}

impl Worker {
    fn build(host: Rc<dyn Host>, parts: &Parts) -> Result<Rc<Worker>, OpenError> {
        let scheduler = Scheduler::new(host, parts.scheduler.borrow().clone())?;
        let mut builder = Operations::builder(&scheduler);
        for (name, config, run) in parts.handlers.borrow().iter() {
            let run = run.clone();
            builder = builder.handler(*name, config.clone(), move |call| run(call));
        }
        let events = parts.events.clone();
        let panics = parts.hook_panics.clone();
        let operations = builder
            .on_event(Rc::new(move |event| {
                assert!(!panics.get(), "a hook that fails");
                events.borrow_mut().push(told(event));
            }))
            .build()?;
        Ok(Rc::new(Worker {
            scheduler,
            operations,
        }))
    }
}

impl durably::host::Object for Worker {
    const CLASS: &'static str = "worker";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

fn told(event: &OperationEvent) -> String {
    let what = match event.kind {
        OperationEventKind::Registered => "registered",
        OperationEventKind::AttemptStarted => "started",
        OperationEventKind::AttemptSettled(AttemptOutcome::Completed) => "completed",
        OperationEventKind::AttemptSettled(AttemptOutcome::Retrying { .. }) => "retrying",
        OperationEventKind::AttemptSettled(AttemptOutcome::Failed) => "failed",
        OperationEventKind::Terminal(reason) => reason.code(),
        OperationEventKind::Purged => "purged",
        _ => "something new",
    };
    format!("{} {what} {}", event.id, event.attempt)
}

pub(crate) type Object = VirtualObject<Worker>;

pub(crate) struct Fixture {
    pub(crate) world: World,
    pub(crate) object: Object,
    /// Every run of a handler: the id and the attempt.
    pub(crate) runs: Rc<RefCell<Vec<(String, u64)>>>,
    pub(crate) most_running: Rc<Cell<u64>>,
    pub(crate) hook_panics: Rc<Cell<bool>>,
    running: Rc<Cell<u64>>,
    parts: Parts,
}

/// Counts a handler for as long as it runs.
struct Running(Rc<Cell<u64>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Fixture::with_seed(0)
    }

    pub(crate) fn with_seed(seed: u64) -> Self {
        let world = World::with_seed(1_700_000_000_000, seed);
        let parts = Parts::default();
        let building = parts.clone();
        let object = world.object("w", Alarms::Automatic, move |host| {
            let worker = Worker::build(host, &building);
            async move {
                let worker = worker?;
                worker.scheduler.open().await?;
                Ok(worker)
            }
        });
        Fixture {
            world,
            object,
            runs: Rc::default(),
            most_running: Rc::default(),
            hook_panics: parts.hook_panics.clone(),
            running: Rc::default(),
            parts,
        }
    }

    /// Settings of the next instance's scheduler.
    pub(crate) fn scheduler(&self, change: impl FnOnce(&mut SchedulerConfig)) {
        change(&mut self.parts.scheduler.borrow_mut());
    }

    /// Registers a handler with the next instance, and keeps a record of its runs.
    pub(crate) fn handle<F, Answer>(&self, name: &'static str, config: HandlerConfig, run: F)
    where
        F: Fn(Call) -> Answer + 'static,
        Answer: Future<Output = Result<Value, HandlerError>> + 'static,
    {
        let runs = self.runs.clone();
        let running = self.running.clone();
        let most = self.most_running.clone();
        let recorded: Run = Rc::new(move |call| {
            runs.borrow_mut().push((call.id.clone(), call.attempt));
            running.set(running.get() + 1);
            most.set(most.get().max(running.get()));
            let counted = Running(running.clone());
            let answer = run(call);
            Box::pin(async move {
                let _counted = counted;
                answer.await
            })
        });
        self.parts
            .handlers
            .borrow_mut()
            .push((name, config, recorded));
    }

    /// The next instance has no such handler.
    pub(crate) fn forget(&self, name: &str) {
        self.parts
            .handlers
            .borrow_mut()
            .retain(|(known, ..)| *known != name);
    }

    pub(crate) fn open(&self) {
        self.world
            .block_on(self.object.open())
            .expect("the object opens");
    }

    /// Why an instance with the present settings cannot be built.
    pub(crate) fn build_error(&self) -> OpenError {
        let (tell, told) = futures::channel::oneshot::channel();
        let parts = self.parts.clone();
        let tell = Cell::new(Some(tell));
        let object = self.world.object("refused", Alarms::Manual, move |host| {
            let error = Worker::build(host, &parts).err().expect("refused");
            if let Some(tell) = tell.take() {
                let _ = tell.send(error.clone());
            }
            async move { Err::<Rc<Worker>, BoxError>(error.into()) }
        });
        assert!(self.world.block_on(object.open()).is_err());
        self.world.block_on(told).expect("an error")
    }

    /// Runs a call in the object, which is there to answer.
    pub(crate) fn call<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        call: impl FnOnce(Rc<Worker>) -> F + 'static,
    ) -> T {
        self.world
            .block_on(self.object.call(call))
            .expect("the object answers")
    }

    pub(crate) fn run(
        &self,
        name: &str,
        id: &str,
        payload: Value,
    ) -> Result<RunOutcome, OperationError> {
        let (name, id) = (name.to_owned(), id.to_owned());
        self.call(|worker| async move { worker.operations.run(&name, &id, payload).await })
    }

    pub(crate) fn register(&self, name: &str, id: &str, payload: Value) {
        assert_eq!(self.run(name, id, payload), Ok(RunOutcome::Registered));
    }

    /// Registers calls whose payloads are their ids.
    pub(crate) fn run_all<Id: AsRef<str>>(&self, name: &str, ids: &[Id]) {
        let name = name.to_owned();
        let calls: Vec<_> = ids
            .iter()
            .map(|id| (id.as_ref().to_owned(), json!(id.as_ref())))
            .collect();
        let outcomes = self
            .call(|worker| async move { worker.operations.run_all(&name, calls).await })
            .expect("the calls are stored");
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == Ok(RunOutcome::Registered))
        );
    }

    pub(crate) fn result(&self, id: &str) -> OperationResult {
        self.results(&[id]).pop().expect("one answer")
    }

    pub(crate) fn results<Id: AsRef<str>>(&self, ids: &[Id]) -> Vec<OperationResult> {
        let ids: Vec<String> = ids.iter().map(|id| id.as_ref().to_owned()).collect();
        self.call(|worker| async move { worker.operations.results(&ids).await })
            .expect("storage answers")
    }

    pub(crate) fn cancel(&self, id: &str) -> CancelOutcome {
        let id = id.to_owned();
        self.call(|worker| async move { worker.operations.cancel(&id).await })
            .expect("storage answers")
    }

    pub(crate) fn purge_before(&self, before: Timestamp, limit: u64) -> u64 {
        self.call(move |worker| async move { worker.operations.purge_before(before, limit).await })
            .expect("storage answers")
    }

    pub(crate) fn purge_ended_before(&self, before: Timestamp, limit: u64) -> u64 {
        self.call(
            move |worker| async move { worker.operations.purge_ended_before(before, limit).await },
        )
        .expect("storage answers")
    }

    pub(crate) fn purge_ended(&self, ids: &[&str], before: Timestamp) -> Vec<String> {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        self.call(move |worker| async move { worker.operations.purge_ended(ids, before).await })
            .expect("storage answers")
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.parts.events.borrow().clone()
    }

    /// The attempts of a call that ran, in order.
    pub(crate) fn attempts(&self, id: &str) -> Vec<u64> {
        let runs = self.runs.borrow();
        runs.iter()
            .filter(|(ran, _)| ran == id)
            .map(|(_, attempt)| *attempt)
            .collect()
    }

    /// The ids of all runs, in order.
    pub(crate) fn order(&self) -> Vec<String> {
        self.runs
            .borrow()
            .iter()
            .map(|(id, _)| id.clone())
            .collect()
    }
}
