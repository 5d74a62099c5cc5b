//! Doing the steps of a semaphore trace with a real holder, on a scheduler in manual mode.
//!
//! What a trace configures is handed to the builder; only what its types cannot say, such as a
//! negative limit, is refused here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::semaphore::{ClientRow, GrantRow, LeaseOptions, LeaseRow, NumberRow, Semaphore};
use durably::{ConfigError, OpenError, Scheduler, SchedulerConfig};
use futures::channel::oneshot;
use futures::future::{Either, select};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Subject;
use super::paced::Paced;
use super::stage::{Stage, Staged};
use super::trace::Step;

/// The object that a trace drives, in a world of its own.
#[derive(Default)]
pub(super) struct Holder {
    opened: Option<Opened>,
    /// Rows of a `load` that came before the first `open`.
    to_load: Option<Rows>,
}

/// The rows of a `load`.
struct Rows {
    grants: Vec<GrantRow>,
    leases: Vec<LeaseRow>,
    clients: Vec<ClientRow>,
    numbers: Vec<NumberRow>,
}

struct Opened {
    stage: Stage<HolderObject>,
    outside: Rc<Outside>,
}

/// What surrounds the holder: its configuration, what its callbacks answer, what it puts out.
#[derive(Default)]
struct Outside {
    config: RefCell<Step>,
    limit: RefCell<Value>,
    group_limits: RefCell<BTreeMap<String, Value>>,
    gates: RefCell<BTreeMap<String, Value>>,
    limit_delay: Cell<Duration>,
    /// In a recording, what decides when a wait of the holder ends.
    paced: RefCell<Option<Rc<Paced>>>,
    /// By id, what makes the caller of a message leave.
    callers: RefCell<BTreeMap<String, oneshot::Sender<()>>>,
    /// How the trace names the reason why the configuration was refused.
    refusal: RefCell<Option<&'static str>>,
    /// Ids of messages without an answer, by arrival.
    unanswered: RefCell<BTreeMap<u64, String>>,
    arrivals: Cell<u64>,
    outputs: RefCell<Vec<Output>>,
}

enum Output {
    Reply { arrival: u64, value: Value },
    Other(Value),
}

struct HolderObject {
    scheduler: Scheduler,
    semaphore: Semaphore,
}

impl Object for HolderObject {
    const CLASS: &'static str = "holder";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

impl Staged for HolderObject {
    fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}

impl Subject for Holder {
    fn step(&mut self, step: &Step) -> Result<Vec<Value>, String> {
        match (step.op.as_str(), &mut self.opened) {
            ("open", _) => self.open(step),
            ("load", None) => {
                self.to_load = Some(rows(step)?);
                Ok(Vec::new())
            }
            (_, None) => Err("nothing is open yet".into()),
            ("load", Some(opened)) => opened.load(rows(step)?).map(|()| Vec::new()),
            (_, Some(opened)) => opened.step(step),
        }
    }

    fn now(&self) -> Value {
        self.opened.as_ref().map_or(Value::Null, |opened| {
            opened.stage.world.now().as_millis().into()
        })
    }

    fn alarm(&mut self) -> Result<Value, String> {
        let opened = self.opened.as_ref();
        opened.map_or(Ok(Value::Null), |opened| opened.stage.alarm())
    }
}

impl Holder {
    fn open(&mut self, step: &Step) -> Result<Vec<Value>, String> {
        let now = step.count("now")?;
        let opened = match &mut self.opened {
            Some(opened) if opened.stage.world.now().as_millis() == now => opened,
            Some(_) => return Err("\"now\" is not what the clock shows".into()),
            none => none.insert(Opened::new(now)),
        };
        let mut outputs = opened.crash();
        opened.outside.configure(step)?;
        match opened.stage.reopen() {
            Ok(()) => {
                if let Some(rows) = self.to_load.take() {
                    opened.load(rows)?;
                }
            }
            Err(problem) => {
                let Some(code) = opened.outside.refusal.take() else {
                    return Err(problem);
                };
                opened.stage.refused = true;
                outputs.push(json!({"t": "open", "error": code}));
            }
        }
        Ok(outputs)
    }
}

impl Opened {
    fn new(now: u64) -> Opened {
        let outside = Rc::<Outside>::default();
        let around = outside.clone();
        Opened {
            stage: Stage::new(now, move |host| build(host, around.clone())),
            outside,
        }
    }

    fn step(&mut self, step: &Step) -> Result<Vec<Value>, String> {
        let outside = self.outside.clone();
        match step.op.as_str() {
            "advance" => return self.stage.advance(step.count("ms")?, || self.outputs()),
            // No instance means that the file breaks its own format.
            _ if self.stage.refused => return Err("the configuration was refused".into()),
            "limit" => *outside.limit.borrow_mut() = step.value("value")?.clone(),
            "groupLimit" | "canGrant" => {
                let answers = match step.op.as_str() {
                    "canGrant" => &outside.gates,
                    _ => &outside.group_limits,
                };
                let group = step.text("group")?.to_owned();
                answers
                    .borrow_mut()
                    .insert(group, step.value("value")?.clone());
            }
            "send" => self.send(step)?,
            "round" => self.paced()?.start_round()?,
            "waitEnded" => self.paced()?.end_wait(step.text("id")?)?,
            "callerLeft" => {
                // The sender is dropped.
                let caller = outside.callers.borrow_mut().remove(step.text("id")?);
                caller.ok_or("no such message was sent")?;
            }
            "leases" => {
                let options: Option<LeaseOptions> =
                    serde_json::from_value(step.value("value")?.clone())
                        .map_err(|error| error.to_string())?;
                let set = self
                    .stage
                    .ask(|holder| async move { holder.semaphore.set_leases(options) })?;
                set.map_err(|error| error.to_string())?;
            }
            "limitsChanged" => {
                self.stage
                    .ask(|holder| async move { holder.semaphore.limits_changed() })?;
            }
            "forceRelease" => {
                let client_id = step.text("clientId")?.to_owned();
                let group = step.value("group")?.as_str().map(str::to_owned);
                let reason = step.text("reason")?.to_owned();
                let released = self.stage.ask(|holder| async move {
                    let semaphore = &holder.semaphore;
                    let group = group.as_deref();
                    semaphore.force_release(&client_id, group, &reason).await
                })?;
                released.map_err(|error| error.to_string())?;
            }
            "usage" => self.stage.start(move |holder| async move {
                let output = match holder.semaphore.usage().await {
                    Ok(usage) => json!({"t": "usage", "value": usage}),
                    Err(error) => json!({"t": "usage", "error": error.code()}),
                };
                outside.put(output);
            }),
            "alarm" => self.stage.start_alarm(move |error| {
                outside.put(json!({"t": "alarm", "error": error}));
            }),
            "state" => self.stage.start(move |holder| async move {
                let semaphore = &holder.semaphore;
                let grants = semaphore.grants().await;
                outside.put(match (grants, semaphore.leases().await) {
                    (Ok(grants), Ok(leases)) => {
                        json!({"t": "state", "grants": grants, "leases": leases})
                    }
                    (Err(error), _) | (_, Err(error)) => {
                        json!({"t": "state", "error": error.code()})
                    }
                });
            }),
            "crash" => {
                let outputs = self.crash();
                self.stage.reopen()?;
                return Ok(outputs);
            }
            other => return Err(format!("no step {other:?}")),
        }
        self.stage.world.run_until_idle();
        self.outputs()
    }

    fn send(&self, step: &Step) -> Result<(), String> {
        let id = step.text("id")?.to_owned();
        let message = step.value("message")?.to_string();
        let arrival = self.outside.arrivals.get();
        self.outside.arrivals.set(arrival + 1);
        let unanswered = &self.outside.unanswered;
        unanswered.borrow_mut().insert(arrival, id.clone());
        let outside = self.outside.clone();
        let (stays, left) = oneshot::channel::<()>();
        let is_paced = self.outside.paced.borrow().is_some();
        if is_paced {
            self.outside.callers.borrow_mut().insert(id.clone(), stays);
        }
        self.stage.start(move |holder| async move {
            if let Some(paced) = &*outside.paced.borrow() {
                paced.takes(&id);
            }
            let handled = pin!(holder.semaphore.handle_json(message.as_bytes()));
            let answer = match is_paced {
                false => handled.await,
                true => match select(handled, left).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) => return,
                },
            };
            outside.callers.borrow_mut().remove(&id);
            outside.unanswered.borrow_mut().remove(&arrival);
            let value = match answer {
                Ok(reply) => json!({"t": "reply", "id": id, "value": reply}),
                Err(error) => json!({"t": "reply", "id": id, "error": error.code()}),
            };
            outside
                .outputs
                .borrow_mut()
                .push(Output::Reply { arrival, value });
        });
        Ok(())
    }

    fn crash(&self) -> Vec<Value> {
        self.stage.crash();
        self.outside.outputs.borrow_mut().clear();
        let unanswered = self.outside.unanswered.take();
        unanswered
            .into_values()
            .map(|id| json!({"t": "reply", "id": id, "error": "crash"}))
            .collect()
    }

    /// Puts rows into storage and has a new instance find them.
    fn load(&mut self, rows: Rows) -> Result<(), String> {
        let loaded = self.stage.ask(|holder| async move {
            let semaphore = &holder.semaphore;
            semaphore
                .load_rows(rows.grants, rows.leases, rows.clients, rows.numbers)
                .await
        })?;
        loaded.map_err(|error| error.to_string())?;
        self.stage.crash();
        self.stage.reopen()
    }

    /// What was put out since the last tick: replies by arrival, then the rest as it came.
    fn outputs(&self) -> Result<Vec<Value>, String> {
        self.stage.check()?;
        let mut replies = BTreeMap::new();
        let mut others = Vec::new();
        for output in self.outside.outputs.take() {
            match output {
                Output::Reply { arrival, value } => {
                    replies.insert(arrival, value);
                }
                Output::Other(value) => others.push(value),
            }
        }
        Ok(replies.into_values().chain(others).collect())
    }

    fn paced(&self) -> Result<Rc<Paced>, String> {
        let paced = self.outside.paced.borrow().clone();
        paced.ok_or_else(|| "only a recording says when things happen".to_owned())
    }
}

impl Outside {
    fn put(&self, output: Value) {
        self.outputs.borrow_mut().push(Output::Other(output));
    }

    /// Takes over the configuration of an `open`, and sets anew what its callbacks answer.
    fn configure(&self, step: &Step) -> Result<(), String> {
        let setting = |name| step.config(name).cloned().unwrap_or_default();
        *self.limit.borrow_mut() = setting("limit");
        *self.group_limits.borrow_mut() = match setting("groupLimits") {
            Value::Object(limits) => limits.into_iter().collect(),
            Value::Null => BTreeMap::new(),
            _ => return Err("\"groupLimits\" is no object".into()),
        };
        *self.gates.borrow_mut() = match setting("blockedGroups") {
            Value::Array(groups) => groups
                .iter()
                .filter_map(Value::as_str)
                .map(|group| (group.to_owned(), Value::Bool(false)))
                .collect(),
            Value::Null => BTreeMap::new(),
            _ => return Err("\"blockedGroups\" is no list".into()),
        };
        let delay = setting("limitDelayMs").as_u64().unwrap_or(0);
        self.limit_delay.set(Duration::from_millis(delay));
        let recorded = step.config("recorded").is_some_and(|it| *it == true);
        *self.paced.borrow_mut() = recorded.then(Rc::default);
        *self.config.borrow_mut() = step.clone();
        Ok(())
    }
}

/// Builds an instance as the trace has configured it.
async fn build(host: Rc<dyn Host>, outside: Rc<Outside>) -> Result<Rc<HolderObject>, BoxError> {
    let mut config = SchedulerConfig::default();
    config.manual = true;
    let scheduler = Scheduler::new(host.clone(), config)?;
    let semaphore = configured(&scheduler, host, &outside).inspect_err(|error| {
        if let OpenError::Config(_) = error {
            *outside.refusal.borrow_mut() = Some("config");
        }
    })?;
    scheduler.open().await?;
    Ok(Rc::new(HolderObject {
        scheduler,
        semaphore,
    }))
}

fn configured(
    scheduler: &Scheduler,
    host: Rc<dyn Host>,
    outside: &Rc<Outside>,
) -> Result<Semaphore, OpenError> {
    let step = outside.config.borrow();
    whole(step.config("limit"), "limit")?;
    let mut builder = Semaphore::builder(scheduler);
    if let Some(wait) = duration(&step, "roundWaitMs")? {
        builder = builder.round_wait(wait);
    }
    if let Some(period) = duration(&step, "roundPeriodMs")? {
        builder = builder.round_period(period);
    }
    if let Some(timeout) = duration(&step, "grantTimeoutMs")? {
        builder = builder.grant_timeout(timeout);
    }
    if let Some(options) = step.config("leases") {
        let options: LeaseOptions = serde_json::from_value(options.clone())
            .map_err(|error| ConfigError::new("leases", error.to_string()))?;
        builder = builder.leases(options);
    }
    let (limits, ceilings, gates, events) = (
        outside.clone(),
        outside.clone(),
        outside.clone(),
        outside.clone(),
    );
    if let Some(paced) = &*outside.paced.borrow() {
        builder = builder.tap(paced.clone());
    }
    builder
        .limit_with(move || {
            let (outside, host) = (limits.clone(), host.clone());
            async move {
                let delay = outside.limit_delay.get();
                if !delay.is_zero() {
                    host.sleep(delay).await;
                }
                let limit = outside.limit.borrow();
                as_count(&limit).ok_or_else(|| format!("the limit is {limit}").into())
            }
        })
        .group_limit(move |group| {
            let ceiling = ceilings.group_limits.borrow().get(&group).cloned();
            async move {
                match ceiling {
                    None | Some(Value::Null) => Ok(None),
                    Some(ceiling) => match as_count(&ceiling) {
                        Some(count) => Ok(Some(count)),
                        None => Err(format!("the ceiling of {group} is {ceiling}").into()),
                    },
                }
            }
        })
        .can_grant(move |group| {
            let gate = gates.gates.borrow().get(&group).cloned();
            async move {
                match gate {
                    None => Ok(true),
                    Some(Value::Bool(open)) => Ok(open),
                    Some(gate) => Err(format!("the gate of {group} is {gate}").into()),
                }
            }
        })
        .on_event(move |event| {
            // A recording has answers only.
            if events.paced.borrow().is_none() {
                events.put(json!({"t": "event", "event": event}));
            }
        })
        .build()
}

/// A whole number that is not negative, also if it is written as `5.0`.
fn as_count(value: &Value) -> Option<u64> {
    let from_fraction = || {
        let number = value.as_f64()?;
        let fits = number >= 0.0 && number < 2f64.powi(63) && number.fract() == 0.0;
        fits.then_some(number as u64)
    };
    value.as_u64().or_else(from_fraction)
}

/// A setting that the builder's types take only as a whole number.
pub(super) fn whole(value: Option<&Value>, field: &'static str) -> Result<u64, OpenError> {
    let count = value.and_then(as_count);
    count
        .filter(|count| *count <= durably::time::MAX_SAFE_INTEGER)
        .ok_or_else(|| ConfigError::new(field, "must be a count").into())
}

fn duration(step: &Step, field: &'static str) -> Result<Option<Duration>, OpenError> {
    let value = step.config(field);
    value
        .map(|value| whole(Some(value), field).map(Duration::from_millis))
        .transpose()
}

/// The rows of a `load`.
fn rows(step: &Step) -> Result<Rows, String> {
    Ok(Rows {
        grants: list(step, "grants")?,
        leases: list(step, "leases")?,
        clients: list(step, "clients")?,
        numbers: list(step, "numbers")?,
    })
}

fn list<Row: DeserializeOwned>(step: &Step, name: &str) -> Result<Vec<Row>, String> {
    match step.get(name) {
        None => Ok(Vec::new()),
        Some(rows) => {
            serde_json::from_value(rows.clone()).map_err(|error| format!("{name:?}: {error}"))
        }
    }
}
