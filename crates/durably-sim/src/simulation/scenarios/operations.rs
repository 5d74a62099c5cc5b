//! Durable calls: handlers that fail, hang, and outlast their time, in objects that die.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::operations::{
    AttemptOutcome, Backoff, Call, CancelOutcome, HandlerConfig, HandlerError, OperationEvent,
    OperationEventKind, Operations,
};
use durably::{Scheduler, SchedulerConfig};
use futures::future::{Either, select};
use serde_json::Value;

use super::{Plan, Scenario};
use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::dice::Dice;
use crate::simulation::invariants::awake;
use crate::simulation::invariants::operations::{Calls, OVERLAP, SLOTS, Seen};
use crate::simulation::knobs::Knob;
use crate::simulation::run::Run;
use crate::simulation::troubles;

/// Durable calls.
pub(super) const OPERATIONS: Plan = Plan {
    name: "operations",
    about: "durable calls whose handlers fail, hang and outlast their time",
    knobs: &[
        Knob::scale("calls", 1, 60, "calls that are registered"),
        Knob::range("objects", 1, 3, "objects that run calls"),
        Knob::range("slots", 1, 6, "handlers of an object that run at once"),
        Knob::range("attempts", 1, 5, "attempts after which a call has failed"),
        Knob::scale(
            "attempt-ms",
            50,
            20_000,
            "how long an attempt may take, in ms",
        ),
        Knob::scale(
            "backoff-ms",
            1,
            10_000,
            "the first delay between attempts, in ms",
        ),
        Knob::scale(
            "handler-ms",
            1,
            10_000,
            "how long a handler takes at most, in ms",
        ),
        Knob::scale("handoff-s", 1, 900, "how long an alarm pass may take, in s"),
        Knob::range("cancels", 0, 10, "calls that are cancelled"),
        Knob::fault("fails-percent", 80, "of 100 attempts, how many fail"),
        Knob::fault(
            "hopeless-percent",
            20,
            "of 100 failures, how many are final",
        ),
        Knob::fault(
            "hangs-percent",
            40,
            "of 100 attempts, how many outlast their time",
        ),
        Knob::fault(
            "deaf-percent",
            60,
            "of 100 of those, how many go on although told to stop",
        ),
    ],
    expects: &[
        "object evicted",
        "process killed",
        "call completed",
        "call failed for good",
        "call hopeless",
        "attempt out of time",
        "attempt went on although told to stop",
        "attempt repeated after a death",
        "call cancelled while it waited",
        "call cancelled while it ran",
        "registered again",
        "commit failed",
        "clock stepped",
    ],
    short: &[
        ("duration-s", 5),
        ("shuffled-percent", 0),
        ("calls", 3),
        ("objects", 1),
        ("slots", 2),
        ("cancels", 1),
        ("fails-percent", 30),
        ("attempts", 2),
    ],
    start: Factory::start,
};

struct Worker {
    scheduler: Scheduler,
    operations: Operations,
}

impl Object for Worker {
    const CLASS: &'static str = "worker";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

struct Side {
    node: Node,
    object: VirtualObject<Worker>,
    calls: Calls,
    /// Handlers that run in its instance.
    running: Cell<u64>,
    attempts: RefCell<BTreeSet<(String, u64)>>,
}

/// Everything of the scenario.
struct Factory {
    run: Rc<Run>,
    nodes: Vec<Node>,
    sides: RefCell<Vec<Rc<Side>>>,
    /// Calls by id, with the place of their object.
    seen: RefCell<BTreeMap<String, (usize, Seen)>>,
    dice: Dice,
}

impl Factory {
    fn start(run: &Rc<Run>) -> Box<dyn Scenario> {
        let nodes: Vec<Node> = (0..2)
            .map(|index| run.world.node(&format!("node-{index}")))
            .collect();
        let factory = Rc::new(Factory {
            run: run.clone(),
            nodes,
            sides: RefCell::default(),
            seen: RefCell::default(),
            dice: Dice::new(run, "operations"),
        });
        for index in 0..run.knob("objects") {
            let side = open(&factory, index as usize);
            factory.sides.borrow_mut().push(side);
        }
        troubles::trouble(run, &factory.nodes);
        for number in 0..run.knob("calls") {
            let id = format!("call-{number:03}");
            let place = factory.dice.below(run.knob("objects")) as usize;
            let seen = (place, Seen::default());
            factory.seen.borrow_mut().insert(id.clone(), seen);
            factory
                .dice
                .sometime(&factory, move |factory| register(factory, place, id));
        }
        for _ in 0..run.knob("cancels") {
            let id = format!("call-{:03}", factory.dice.below(run.knob("calls")));
            factory
                .dice
                .sometime(&factory, move |factory| cancel(factory, id));
        }
        Box::new(Running(factory))
    }

    fn side(&self, place: usize) -> Option<Rc<Side>> {
        self.sides.borrow().get(place).cloned()
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Seen)) {
        if let Some((_, seen)) = self.seen.borrow_mut().get_mut(id) {
            change(seen);
        }
    }
}

fn open(factory: &Rc<Factory>, index: usize) -> Rc<Side> {
    let run = &factory.run;
    let name = format!("worker-{index}");
    let node = factory.nodes[index % factory.nodes.len()].clone();
    let weak = Rc::downgrade(factory);
    let object = run.world.object_in(&node, &name, move |host| {
        let weak = weak.clone();
        async move {
            let run = weak.upgrade().ok_or("the run is over")?.run.clone();
            let mut config = SchedulerConfig::default();
            config.alarm_concurrency = run.knob("slots");
            config.alarm_handoff = Duration::from_secs(run.knob("handoff-s"));
            let scheduler = Scheduler::new(host, config)?;
            let mut handler = HandlerConfig::default();
            handler.max_attempts = run.knob("attempts");
            handler.attempt_timeout = run.knob_ms("attempt-ms");
            handler.backoff = Backoff::Exponential {
                base: run.knob_ms("backoff-ms"),
                max: Duration::from_secs(30),
            };
            handler.max_interruptions = 100_000;
            let (working, hearing) = (weak.clone(), weak.clone());
            let operations = Operations::builder(&scheduler)
                .handler("work", handler, move |call| {
                    work(working.clone(), index, call)
                })
                .on_event(Rc::new(move |event: &OperationEvent| {
                    if let Some(factory) = hearing.upgrade() {
                        hear(&factory, event);
                    }
                }))
                .build()?;
            scheduler.open().await?;
            Ok(Rc::new(Worker {
                scheduler,
                operations,
            }))
        }
    });
    Rc::new(Side {
        node,
        object,
        calls: Calls::default(),
        running: Cell::new(0),
        attempts: RefCell::default(),
    })
}

/// An attempt that runs; it ends with this, also if its instance does.
struct Attempt {
    side: Rc<Side>,
    name: (String, u64),
}

impl Attempt {
    fn begin(factory: &Factory, side: Rc<Side>, call: &Call) -> Attempt {
        let run = &factory.run;
        let name = (call.id.clone(), call.generation);
        let running = side.running.get() + 1;
        side.running.set(running);
        if running > run.knob("slots") {
            let message = format!("{running} run, in {} slots", run.knob("slots"));
            run.fail(SLOTS, &call.id, message);
        }
        if !side.attempts.borrow_mut().insert(name.clone()) {
            let message = format!("attempt {} began before the last one ended", call.attempt);
            run.fail(OVERLAP, &call.id, message);
        }
        Attempt { side, name }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.side
            .running
            .set(self.side.running.get().saturating_sub(1));
        self.side.attempts.borrow_mut().remove(&self.name);
    }
}

async fn work(factory: Weak<Factory>, place: usize, call: Call) -> Result<Value, HandlerError> {
    let gone = || HandlerError::retry("the run is over");
    let factory = factory.upgrade().ok_or_else(gone)?;
    let run = factory.run.clone();
    let side = factory.side(place).ok_or_else(gone)?;
    let _attempt = Attempt::begin(&factory, side, &call);
    run.note(&call.id, format_args!("attempt {} runs", call.attempt));
    factory.change(&call.id, |seen| {
        if !seen.begun.insert(call.attempt) {
            run.cover("attempt repeated after a death");
        }
    });
    let takes = Duration::from_millis(factory.dice.below(run.knob("handler-ms") + 1));
    let hangs = factory.dice.fails("hangs-percent");
    let is_deaf = factory.dice.fails("deaf-percent");
    let stopped = {
        let patience = match hangs {
            true => run.knob_ms("attempt-ms") + takes,
            false => takes,
        };
        // Slow clocks: an attempt may be told to stop later than this one counts.
        let patience = if hangs { patience * 2 } else { patience };
        let token = call.token.clone();
        let told = std::pin::pin!(async move { token.cancelled().await });
        match select(run.world.sleep(patience), told).await {
            Either::Left(_) => false,
            Either::Right((_, rest)) => {
                run.cover("attempt out of time");
                factory.change(&call.id, |seen| {
                    seen.failed.insert(call.attempt);
                });
                if is_deaf {
                    run.cover("attempt went on although told to stop");
                    rest.await;
                }
                true
            }
        }
    };
    if stopped && !is_deaf {
        return Err(HandlerError::retry("it was told to stop"));
    }
    if factory.dice.fails("fails-percent") {
        let is_hopeless = factory.dice.fails("hopeless-percent");
        factory.change(&call.id, |seen| {
            seen.failed.insert(call.attempt);
            seen.hopeless |= is_hopeless;
        });
        return Err(match is_hopeless {
            true => HandlerError::non_retryable("no use"),
            false => HandlerError::retry("not this time"),
        });
    }
    let result = Value::from(format!("{} by attempt {}", call.id, call.attempt));
    factory.change(&call.id, |seen| {
        seen.results.insert(result.to_string());
    });
    Ok(result)
}

fn hear(factory: &Factory, event: &OperationEvent) {
    let run = &factory.run;
    run.note(
        &event.id,
        format_args!("{:?} {}", event.kind, event.attempt),
    );
    match event.kind {
        OperationEventKind::AttemptSettled(AttemptOutcome::Completed) => {
            run.cover("call completed")
        }
        OperationEventKind::Terminal(reason) => match reason.code() {
            "attempts_exhausted" => run.cover("call failed for good"),
            "non_retryable" => run.cover("call hopeless"),
            _ => {}
        },
        _ => {}
    }
}

/// Registers a call until that is answered.
async fn register(factory: Rc<Factory>, place: usize, id: String) {
    let mut tries = 0;
    loop {
        let Some(object) = factory.side(place).map(|side| side.object.clone()) else {
            return;
        };
        let name = id.clone();
        let registered = object
            .call(move |worker| async move {
                let payload = Value::from(name.as_str());
                worker.operations.run("work", &name, payload).await
            })
            .await;
        if let Ok(Ok(_)) = registered {
            factory.change(&id, |seen| seen.acknowledged = true);
            return;
        }
        tries += 1;
        if tries == 1 {
            factory.run.cover("registered again");
        }
        factory.dice.rest().await;
    }
}

async fn cancel(factory: Rc<Factory>, id: String) {
    let place = factory.seen.borrow().get(&id).map(|(place, _)| *place);
    let side = place.and_then(|place| factory.side(place));
    let Some(object) = side.map(|side| side.object.clone()) else {
        return;
    };
    factory.change(&id, |seen| seen.perhaps_cancelled = true);
    let name = id.clone();
    let cancelled = object
        .call(move |worker| async move { worker.operations.cancel(&name).await })
        .await;
    let Ok(Ok(outcome)) = cancelled else { return };
    factory
        .run
        .note(&id, format_args!("cancelling it: {outcome:?}"));
    match outcome {
        CancelOutcome::Cancelled => factory.run.cover("call cancelled while it waited"),
        CancelOutcome::Cancelling => factory.run.cover("call cancelled while it ran"),
        CancelOutcome::NotFound | CancelOutcome::AlreadyEnded => return,
    }
    factory.change(&id, |seen| seen.cancelled = true);
}

/// The scenario as the run sees it.
struct Running(Rc<Factory>);

impl Scenario for Running {
    fn check(&self) {
        let Running(factory) = self;
        let run = &factory.run;
        for side in factory.sides.borrow().iter() {
            let seen = |id: &str| {
                let seen = factory.seen.borrow();
                seen.get(id)
                    .map(|(_, seen)| seen.clone())
                    .unwrap_or_default()
            };
            let most = run.knob("attempts");
            side.calls.follow(run, side.object.storage(), most, seen);
        }
    }

    fn scan(&self) {
        let Running(factory) = self;
        for side in factory.sides.borrow().iter() {
            awake::check_operations(&factory.run, &side.node, side.object.storage());
        }
    }

    fn heal(&self) {
        troubles::mend(&self.0.nodes);
    }

    fn left_to_do(&self) -> Option<(String, String)> {
        let Running(factory) = self;
        let sides = factory.sides.borrow();
        let seen = factory.seen.borrow();
        seen.iter().find_map(|(id, (place, seen))| {
            let left = sides[*place].calls.left(id, seen)?;
            Some((id.clone(), left))
        })
    }

    fn finish(&self) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.sides.take();
    }
}
