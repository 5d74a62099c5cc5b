//! The task that runs an instance: it polls everything that the object does, commits what waits when
//! all that is ready has had its turn, and watches the alarm and the object's idleness.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use durably::StorageError;
use durably::error::BoxError;
use durably::host::{Host, LocalFuture};
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, Sleep};

use super::{Asked, End, Instance, Why};
use crate::class::AnyObject;
use crate::error::{CallError, with_sources};
use crate::host::{NativeHost, Queued};
use crate::residency::Residence;
use crate::sqlite::{Database, Fatal, panic_text};
use crate::worker::Worker;

/// The wall clock may be set meanwhile, so no wait for an alarm is longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What a task of the driver has come to.
enum Done {
    Built(Result<Rc<dyn AnyObject>, BoxError>),
    Call,
    Task,
    Alarm(Result<(), BoxError>),
    Panicked(String),
}

enum Event {
    Commit,
    End(End),
}

pub(super) struct Driver {
    worker: Rc<Worker>,
    instance: Rc<Instance>,
    host: Rc<NativeHost>,
    residence: Residence,
    tasks: FuturesUnordered<LocalFuture<Done>>,
    object: Option<Rc<dyn AnyObject>>,
    calls_running: usize,
    alarm_running: bool,
    idle_since: Option<Instant>,
    checkpoint_wanted: bool,
    timer: Pin<Box<Sleep>>,
    /// When the timer goes off, if it is set.
    timer_at: Option<Instant>,
}

impl Driver {
    /// Opens the object's file and begins to build the object.
    pub(super) fn open(
        worker: &Rc<Worker>,
        instance: &Rc<Instance>,
        residence: Residence,
    ) -> Result<Self, End> {
        let key = &instance.key;
        let Some(class) = worker.class(key.class) else {
            return Err(End::Unopened(CallError::UnknownClass(key.class)));
        };
        let database = worker
            .open_database(key)
            .map_err(|error| End::Unopened(CallError::from_storage(error)))?;
        let journal = worker.journal().clone();
        let recorded = key.clone();
        database.before_first_write(move || journal.activate(&recorded));
        let host = NativeHost::new(
            key.clone(),
            worker.journal().folder_id(),
            database,
            worker.sleeper(),
        );
        let erased: Rc<dyn Host> = host.clone();
        let building = protect(async move { class.build(erased).await });
        let tasks = FuturesUnordered::new();
        let task: LocalFuture<Done> = Box::pin(building.map(|built| match built {
            Ok(outcome) => Done::Built(outcome),
            Err(text) => Done::Panicked(text),
        }));
        tasks.push(task);
        Ok(Driver {
            worker: worker.clone(),
            instance: instance.clone(),
            host,
            residence,
            tasks,
            object: None,
            calls_running: 0,
            alarm_running: false,
            idle_since: None,
            checkpoint_wanted: false,
            timer: Box::pin(tokio::time::sleep(LONGEST_WAIT)),
            timer_at: None,
        })
    }

    pub(super) async fn run(&mut self) -> End {
        let mut everybody_had_a_turn = false;
        loop {
            match poll_fn(|context| self.poll(context)).await {
                Event::End(end) => return end,
                Event::Commit if everybody_had_a_turn => {
                    everybody_had_a_turn = false;
                    if let Err(end) = self.commit() {
                        return end;
                    }
                }
                Event::Commit => {
                    // Calls that have reached the thread meanwhile get to queue their closures.
                    everybody_had_a_turn = true;
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Runs everything that is ready, then says what is next.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        self.instance.watch(context.waker());
        self.host.watch(context.waker());
        loop {
            let asked = self.instance.asked.get();
            if let Asked::End(why) = asked {
                return Poll::Ready(Event::End(End::Asked(why)));
            }
            self.begin_calls();
            self.adopt_tasks();
            if let Poll::Ready(Some(done)) = self.tasks.poll_next_unpin(context) {
                match self.done(done) {
                    Some(end) => return Poll::Ready(Event::End(end)),
                    None => continue,
                }
            }
            if self.host.has_spawned() {
                continue;
            }
            // Replies have gone out, so this keeps nobody waiting but the next commit.
            if self.checkpoint_wanted {
                self.checkpoint();
            }
            if self.host.has_queued() {
                self.touch();
                return Poll::Ready(Event::Commit);
            }
            if asked == Asked::Finish && self.calls_running == 0 && !self.alarm_running {
                return Poll::Ready(Event::End(End::Asked(Why::Stopping)));
            }
            match self.rest(context, asked) {
                Rest::Again => {}
                Rest::Pending => return Poll::Pending,
                Rest::Close => return Poll::Ready(Event::End(End::Idle)),
            }
        }
    }

    fn begin_calls(&mut self) {
        let Some(object) = &self.object else { return };
        let calls = self.instance.calls.take();
        if calls.is_empty() {
            return;
        }
        for call in calls {
            let Some(turn) = call.deliver(object.clone(), self.instance.fate.clone()) else {
                continue;
            };
            self.calls_running += 1;
            self.tasks.push(Box::pin(turn.map(|outcome| match outcome {
                Ok(()) => Done::Call,
                Err(text) => Done::Panicked(text),
            })));
        }
        self.touch();
    }

    fn adopt_tasks(&mut self) {
        if !self.host.has_spawned() {
            return;
        }
        for task in self.host.take_spawned() {
            self.tasks
                .push(Box::pin(protect(task).map(|outcome| match outcome {
                    Ok(()) => Done::Task,
                    Err(text) => Done::Panicked(text),
                })));
        }
        self.touch();
    }

    fn done(&mut self, done: Done) -> Option<End> {
        let key = &self.instance.key;
        match done {
            Done::Built(Ok(object)) => {
                self.object = Some(object);
                self.instance.built.set(true);
                self.worker.failures.opened(key);
                if self.instance.woken.get() {
                    self.worker.awake(key);
                }
            }
            Done::Built(Err(error)) => return Some(End::Unopened(CallError::from_building(error))),
            Done::Call => self.calls_running -= 1,
            Done::Task => {}
            Done::Alarm(outcome) => {
                self.alarm_running = false;
                match outcome {
                    Ok(()) => self.worker.failures.forget(key),
                    Err(error) => {
                        tracing::error!(
                            class = key.class,
                            object = key.name,
                            error = with_sources(&*error),
                            "durability.alarm.failed"
                        );
                        self.worker.failures.note(key, true);
                    }
                }
            }
            Done::Panicked(text) => {
                // If it was not the alarm, waiting before the alarm runs again does no harm.
                if self.alarm_running {
                    self.worker.failures.note(key, true);
                }
                return Some(End::Panicked(text));
            }
        }
        None
    }

    /// Commits what is queued. This is the only place where an object waits for the disk.
    fn commit(&mut self) -> Result<(), End> {
        let queued = self.host.take_queued(self.worker.max_batch());
        let (works, waiting): (Vec<_>, Vec<_>) = queued
            .into_iter()
            .map(|Queued { work, done }| (work, done))
            .unzip();
        let Some((committed, wants_checkpoint)) = self.host.with_database(|database| {
            let committed = database.commit(works);
            (committed, database.wants_checkpoint())
        }) else {
            return Err(End::Broken(StorageError::Ended(
                "it has no database".into(),
            )));
        };
        match committed.fatal {
            Some(Fatal::Panicked(text)) => return Err(End::Panicked(text)),
            Some(Fatal::Storage(error)) => return Err(End::Broken(error)),
            None => {}
        }
        self.checkpoint_wanted = wants_checkpoint;
        for (done, outcome) in waiting.into_iter().zip(committed.results) {
            // Whoever dropped the future does not want to know.
            let _ = done.send(outcome);
        }
        Ok(())
    }

    fn checkpoint(&mut self) {
        self.checkpoint_wanted = false;
        if let Some(Err(error)) = self.host.with_database(Database::checkpoint) {
            tracing::warn!(
                class = self.instance.key.class,
                object = self.instance.key.name,
                error = %error,
                "durability.object.checkpoint_failed"
            );
        }
    }

    /// Nothing is ready: starts the alarm if it is due, or waits for it and for the end of patience.
    fn rest(&mut self, context: &mut Context<'_>, asked: Asked) -> Rest {
        let now = Instant::now();
        let mut deadline = None;
        if let Some(wait) = self.until_alarm(asked) {
            if wait.is_zero() {
                self.begin_alarm();
                return Rest::Again;
            }
            deadline = Some(now + wait.min(LONGEST_WAIT));
        }
        if self.tasks.is_empty() {
            let since = match self.idle_since {
                Some(since) => since,
                None => {
                    self.idle_since = Some(now);
                    if self.residence.idle() {
                        return Rest::Close;
                    }
                    now
                }
            };
            let patience = since + self.worker.idle_timeout();
            if asked == Asked::MakeRoom || now >= patience {
                return Rest::Close;
            }
            deadline = Some(deadline.map_or(patience, |at: Instant| at.min(patience)));
        } else if asked == Asked::MakeRoom {
            // It has found something to do meanwhile; somebody else has to make room.
            self.instance.asked.set(Asked::Nothing);
            let worker = &self.worker;
            self.residence.stay(|idle| worker.ask_to_make_room(idle));
        }
        let Some(deadline) = deadline else {
            return Rest::Pending;
        };
        // Set only if it must go off sooner: a call now and then does not move it each time.
        if self.timer_at.is_none_or(|at| at > deadline) {
            self.timer.as_mut().reset(deadline);
            self.timer_at = Some(deadline);
        }
        match self.timer.as_mut().poll(context) {
            Poll::Ready(()) => {
                self.timer_at = None;
                Rest::Again
            }
            Poll::Pending => Rest::Pending,
        }
    }

    /// How long until the alarm is to be handled, if it is to be at all.
    fn until_alarm(&self, asked: Asked) -> Option<Duration> {
        if self.object.is_none() || self.alarm_running || asked == Asked::Finish {
            return None;
        }
        let alarm = self.host.with_database(Database::alarm)??;
        let not_before = self.worker.failures.not_before(&self.instance.key);
        let due = not_before.map_or(alarm, |time| alarm.max(time));
        Some(due.since(self.host.now()))
    }

    /// Runs the alarm's handler; once it has succeeded the alarm goes, unless it was set again.
    fn begin_alarm(&mut self) {
        let fired = self.host.with_database(Database::fire_alarm);
        let (Some(object), Some(fired)) = (self.object.clone(), fired) else {
            return;
        };
        self.alarm_running = true;
        self.touch();
        let host = self.host.clone();
        let handle = async move {
            object.alarm().await?;
            if let Some(settle) = host.with_database(|database| database.settle_alarm(fired)) {
                host.transact(settle).await?;
            }
            Ok(())
        };
        self.tasks
            .push(Box::pin(protect(handle).map(|outcome| match outcome {
                Ok(outcome) => Done::Alarm(outcome),
                Err(text) => Done::Panicked(text),
            })));
    }

    fn touch(&mut self) {
        if self.idle_since.take().is_some() {
            self.residence.busy();
        }
    }

    /// Drops all that the instance is, where it stands.
    pub(super) fn take_down(self) -> (Rc<NativeHost>, Residence, Option<Database>) {
        let Driver {
            host,
            residence,
            tasks,
            object,
            ..
        } = self;
        // Whatever is still queued or spawned may hold the object, and the other way round.
        let (database, waiting) = host.end();
        for dropped in [
            catch_unwind(AssertUnwindSafe(|| drop(waiting))),
            catch_unwind(AssertUnwindSafe(|| drop(tasks))),
            catch_unwind(AssertUnwindSafe(|| drop(object))),
        ] {
            if let Err(panic) = dropped {
                tracing::error!(
                    problem = panic_text(&*panic),
                    "durability.background_execution.failed"
                );
            }
        }
        (host, residence, database)
    }
}

enum Rest {
    Again,
    Pending,
    Close,
}

/// Runs a future of the application; if it panics, what the panic said.
async fn protect<T>(future: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(future)
        .catch_unwind()
        .await
        .map_err(|panic| panic_text(&*panic))
}
