//! Doing the steps of a topology trace with a real coordinator, on a scheduler in manual mode.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object, Sql};
use durably::outbox::{Backoff, Outbox, Overlap};
use durably::topology::{
    Draft, Landing, Member, Publication, Publisher, PublisherConfig, Role, StateChannelConfig,
    StateUpdate, Topology, TopologyError,
};
use durably::{ConfigError, OpenError, Scheduler, SchedulerConfig, StorageError};
use serde_json::{Map, Value, json};

use super::Subject;
use super::semaphore::whole;
use super::stage::{Stage, Staged};
use super::trace::Step;

/// The object that a trace drives, in a world of its own.
#[derive(Default)]
pub(super) struct Coordinator {
    opened: Option<Opened>,
}

struct Opened {
    stage: Stage<CoordinatorObject>,
    outside: Rc<Outside>,
}

/// What surrounds the coordinator: its configuration, what its store and its members do, what comes
/// out.
#[derive(Default)]
struct Outside {
    config: RefCell<Step>,
    scripts: RefCell<BTreeMap<Target, VecDeque<Act>>>,
    /// How the trace names the reason why the configuration was refused.
    refusal: RefCell<Option<&'static str>>,
    /// Ids of calls without an answer, by the order in which they were made.
    unanswered: RefCell<BTreeMap<u64, String>>,
    calls: Cell<u64>,
    outputs: RefCell<Vec<Output>>,
}

/// Who is called.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Publisher { group: String },
    Member { channel: String, id: String },
}

/// What the next call does.
#[derive(Clone)]
enum Act {
    Ok,
    Reject,
    Hang,
    After(Duration, Box<Act>),
}

/// An output, with what it is sorted by within its tick.
struct Output {
    order: Order,
    value: Value,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Current,
    Publish(String),
    Deliver(usize, String, String),
    Result(u64),
    Other,
}

struct CoordinatorObject {
    scheduler: Scheduler,
    topology: Topology,
}

impl Object for CoordinatorObject {
    const CLASS: &'static str = "coordinator";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

impl Staged for CoordinatorObject {
    fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}

impl Subject for Coordinator {
    fn step(&mut self, step: &Step) -> Result<Vec<Value>, String> {
        match (step.op.as_str(), &mut self.opened) {
            ("open", _) => self.open(step),
            (_, None) => Err("nothing is open yet".into()),
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

impl Coordinator {
    fn open(&mut self, step: &Step) -> Result<Vec<Value>, String> {
        let now = step.count("now")?;
        let opened = match &mut self.opened {
            Some(opened) if opened.stage.world.now().as_millis() == now => opened,
            Some(_) => return Err("\"now\" is not what the clock shows".into()),
            none => {
                let outside = Rc::<Outside>::default();
                let around = outside.clone();
                none.insert(Opened {
                    stage: Stage::new(now, move |host| build(host, around.clone())),
                    outside,
                })
            }
        };
        let mut outputs = opened.crash();
        *opened.outside.config.borrow_mut() = step.clone();
        if let Err(problem) = opened.stage.reopen() {
            let Some(code) = opened.outside.refusal.take() else {
                return Err(problem);
            };
            opened.stage.refused = true;
            outputs.push(json!({"t": "open", "error": code}));
        }
        Ok(outputs)
    }
}

impl Opened {
    fn step(&mut self, step: &Step) -> Result<Vec<Value>, String> {
        let outside = self.outside.clone();
        match step.op.as_str() {
            "advance" => {
                return self.stage.advance(step.count("ms")?, || self.outputs());
            }
            // No instance means that the file breaks its own format.
            _ if self.stage.refused => return Err("the configuration was refused".into()),
            "script" => outside.script(step)?,
            "update" => self.update(step)?,
            "delete" => {
                let group = step.text("group")?.to_owned();
                self.call(step, move |topology| async move {
                    let deleted = topology.delete(&group, None).await?;
                    Ok(json!({"published": deleted.published}))
                })?;
            }
            "snapshot" => {
                let group = step.text("group")?.to_owned();
                self.stage.start(move |coordinator| async move {
                    outside.put(
                        Order::Other,
                        match coordinator.topology.snapshot(&group).await {
                            Ok(snapshot) => json!({"t": "snapshot", "value": snapshot}),
                            Err(error) => json!({"t": "snapshot", "error": code(&error)}),
                        },
                    );
                });
            }
            "alarm" => self.stage.start_alarm(move |error| {
                outside.put(Order::Other, json!({"t": "alarm", "error": error}));
            }),
            "state" => self.stage.start(move |coordinator| async move {
                let host = coordinator.scheduler.host();
                let read = host.transaction(|transaction| state(transaction.sql()));
                outside.put(
                    Order::Other,
                    match read.await {
                        Ok(state) => state,
                        Err(error) => json!({"t": "state", "error": error.code()}),
                    },
                );
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

    fn update(&self, step: &Step) -> Result<(), String> {
        let (id, group) = (step.text("id")?.to_owned(), step.text("group")?.to_owned());
        let draft = step.value("draft")?.clone();
        let outside = self.outside.clone();
        self.call(step, move |topology| async move {
            let updated = topology.update(&group, move |current| {
                outside.put(
                    Order::Current,
                    json!({"t": "current", "id": id, "value": {
                        "members": current.members,
                        "states": current.states,
                    }}),
                );
                match draft == "throw" {
                    true => Err(TopologyError::Updater("the trace says so".into())),
                    false => Draft::from_json(draft),
                }
            });
            let updated = updated.await?;
            Ok(json!({"snapshot": updated.snapshot, "published": updated.published}))
        })
    }

    /// Makes a call whose answer is put out as the result of the step's id.
    fn call<F>(&self, step: &Step, call: impl FnOnce(Topology) -> F + 'static) -> Result<(), String>
    where
        F: Future<Output = Result<Value, TopologyError>> + 'static,
    {
        let id = step.text("id")?.to_owned();
        let number = self.outside.calls.get();
        self.outside.calls.set(number + 1);
        self.outside
            .unanswered
            .borrow_mut()
            .insert(number, id.clone());
        let outside = self.outside.clone();
        self.stage.start(move |coordinator| async move {
            let answer = call(coordinator.topology.clone()).await;
            outside.unanswered.borrow_mut().remove(&number);
            outside.put(
                Order::Result(number),
                match answer {
                    Ok(value) => json!({"t": "result", "id": id, "value": value}),
                    Err(error) => json!({"t": "result", "id": id, "error": code(&error)}),
                },
            );
        });
        Ok(())
    }

    fn crash(&self) -> Vec<Value> {
        self.stage.crash();
        self.outside.outputs.borrow_mut().clear();
        let unanswered = self.outside.unanswered.take();
        unanswered
            .into_values()
            .map(|id| json!({"t": "result", "id": id, "error": "crash"}))
            .collect()
    }

    /// What was put out since the last tick, in the order in which a trace lists it.
    fn outputs(&self) -> Result<Vec<Value>, String> {
        self.stage.check()?;
        let mut outputs = self.outside.outputs.take();
        outputs.sort_by(|one, other| one.order.cmp(&other.order));
        Ok(outputs.into_iter().map(|output| output.value).collect())
    }
}

/// How a trace names an error.
fn code(error: &TopologyError) -> &'static str {
    match error {
        TopologyError::Updater(_) => "updater",
        _ => "topology",
    }
}

impl Outside {
    fn put(&self, order: Order, value: Value) {
        self.outputs.borrow_mut().push(Output { order, value });
    }

    /// Takes note of what next calls will do.
    fn script(&self, step: &Step) -> Result<(), String> {
        let object = |value: Option<&Value>| match value {
            None => Ok(Map::new()),
            Some(Value::Object(members)) => Ok(members.clone()),
            Some(other) => Err(format!("{other} is no object")),
        };
        for (group, acts) in object(step.get("publish"))? {
            self.append(Target::Publisher { group }, &acts)?;
        }
        for (channel, members) in object(step.get("deliver"))? {
            for (id, acts) in object(Some(&members))? {
                let channel = channel.clone();
                self.append(Target::Member { channel, id }, &acts)?;
            }
        }
        Ok(())
    }

    fn append(&self, target: Target, acts: &Value) -> Result<(), String> {
        let acts = acts.as_array().ok_or("outcomes are a list")?;
        let acts: Result<Vec<Act>, String> = acts.iter().map(act).collect();
        let mut scripts = self.scripts.borrow_mut();
        scripts.entry(target).or_default().extend(acts?);
        Ok(())
    }

    /// What the next call to a target does.
    fn next_act(&self, target: &Target) -> Act {
        let mut scripts = self.scripts.borrow_mut();
        let next = scripts.get_mut(target).and_then(VecDeque::pop_front);
        next.unwrap_or(Act::Ok)
    }
}

fn act(value: &Value) -> Result<Act, String> {
    match value.as_str() {
        Some("ok") => Ok(Act::Ok),
        Some("reject") => Ok(Act::Reject),
        Some("hang") => Ok(Act::Hang),
        _ => {
            let after = value["after"].as_u64();
            let after = after.ok_or_else(|| format!("no outcome {value}"))?;
            let then = act(&value["then"])?;
            Ok(Act::After(Duration::from_millis(after), Box::new(then)))
        }
    }
}

/// Does what a script says.
async fn perform(host: Rc<dyn Host>, act: Act) -> Result<(), BoxError> {
    let mut act = act;
    loop {
        match act {
            Act::Ok => return Ok(()),
            Act::Reject => return Err("the trace says so".into()),
            Act::Hang => pending::<()>().await,
            Act::After(delay, then) => {
                host.sleep(delay).await;
                act = *then;
            }
        }
    }
}

/// A store that does what the trace says; not version-aware.
struct ScriptedPublisher {
    host: Rc<dyn Host>,
    outside: Rc<Outside>,
}

impl Publisher for ScriptedPublisher {
    fn is_version_aware(&self) -> bool {
        false
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let (host, outside) = (self.host.clone(), self.outside.clone());
        Box::pin(async move {
            let group = publication.group().to_owned();
            let value = match &*publication {
                Publication::Write { snapshot, .. } => {
                    let mut value = json!(snapshot);
                    value["t"] = "publish".into();
                    value["call"] = "write".into();
                    value
                }
                Publication::Deletion { edition, .. } => json!({
                    "t": "publish",
                    "call": "delete",
                    "group": group,
                    "version": edition.version,
                }),
            };
            outside.put(Order::Publish(group.clone()), value);
            let act = outside.next_act(&Target::Publisher { group });
            perform(host, act).await?;
            Ok(Landing::Stored)
        })
    }
}

/// Builds an instance as the trace has configured it.
async fn build(
    host: Rc<dyn Host>,
    outside: Rc<Outside>,
) -> Result<Rc<CoordinatorObject>, BoxError> {
    let mut config = SchedulerConfig::default();
    config.manual = true;
    let scheduler = Scheduler::new(host.clone(), config)?;
    let topology = configured(&scheduler, host, &outside).inspect_err(|error| {
        if let OpenError::Config(error) = error {
            *outside.refusal.borrow_mut() = Some(match error.field() {
                "coordinator" => "topology",
                _ => "config",
            });
        }
    })?;
    scheduler.open().await?;
    Ok(Rc::new(CoordinatorObject {
        scheduler,
        topology,
    }))
}

fn configured(
    scheduler: &Scheduler,
    host: Rc<dyn Host>,
    outside: &Rc<Outside>,
) -> Result<Topology, OpenError> {
    let step = outside.config.borrow();
    let setting = |name: &str| step.config(name).cloned().unwrap_or_default();
    let common = setting("attemptTimeoutMs");
    let timeout = |of: &Value| -> Result<Duration, OpenError> {
        let own = of.get("attemptTimeoutMs").filter(|own| !own.is_null());
        match own.or(Some(&common).filter(|common| !common.is_null())) {
            Some(millis) => Ok(Duration::from_millis(whole(
                Some(millis),
                "attempt_timeout",
            )?)),
            None => Ok(Duration::from_secs(30)),
        }
    };
    let delays: Vec<u64> = serde_json::from_value(setting("retryDelays"))
        .map_err(|error| ConfigError::new("retryDelays", error.to_string()))?;
    let backoff = Backoff::Delay(Arc::new(move |attempt| {
        let place = usize::try_from(attempt - 1).unwrap_or(usize::MAX);
        let delay = delays.get(place.min(delays.len().saturating_sub(1)));
        Duration::from_millis(delay.copied().unwrap_or(0))
    }));
    let outbox = Outbox::new(scheduler)?;
    let coordinator = setting("coordinator")
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut builder = Topology::builder(&outbox).coordinator(coordinator);
    let publish = setting("publish");
    if publish != false {
        let mut config = PublisherConfig::default();
        config.calls.attempt_timeout = timeout(&publish)?;
        config.calls.backoff = backoff.clone();
        config.calls.overlap = Overlap::Never;
        let publisher = ScriptedPublisher {
            host: host.clone(),
            outside: outside.clone(),
        };
        builder = builder.publish(publisher, config);
    }
    let channels = setting("channels");
    for (place, name) in step.channels.iter().enumerate() {
        let mut config = StateChannelConfig::default();
        config.calls.attempt_timeout = timeout(&channels[name])?;
        config.calls.backoff = backoff.clone();
        config.calls.overlap = Overlap::Never;
        config.members = match channels[name]["members"].as_str() {
            Some("read") => Role::Read,
            _ => Role::Write,
        };
        let (host, outside, channel) = (host.clone(), outside.clone(), name.clone());
        let deliver = move |member: Member, update: StateUpdate| {
            let target = Target::Member {
                channel: channel.clone(),
                id: member.id.clone(),
            };
            outside.put(
                Order::Deliver(place, update.group.clone(), member.id.clone()),
                json!({
                    "t": "deliver",
                    "channel": update.channel,
                    "member": member,
                    "group": update.group,
                    "version": update.version,
                    "topologyVersion": update.topology_version,
                    "value": update.value,
                }),
            );
            perform(host.clone(), outside.next_act(&target))
        };
        builder = builder.channel(name, config, deliver);
    }
    builder.build()
}

/// All that is stored, as a trace shows it.
fn state(sql: &dyn Sql) -> Result<Value, StorageError> {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let mut groups = sql.all(
        "SELECT group_id, version, deleted FROM durability_topology_groups ORDER BY group_id",
        &[],
        |row| {
            Ok(json!({
                "group": row.text(0)?,
                "version": row.count(1)?,
                "deleted": row.integer(2)? != 0,
            }))
        },
    )?;
    for group in &mut groups {
        let name = group["group"].as_str().unwrap_or_default().to_owned();
        let members = sql.all(
            "SELECT member_id, state, location_hint, meta, joined_at
             FROM durability_topology_members WHERE group_id = ? ORDER BY member_id",
            &[(&name).into()],
            |row| {
                let mut member = json!({
                    "id": row.text(0)?,
                    "state": row.text(1)?,
                    "joinedAt": row.count(4)?,
                });
                if let Some(hint) = row.optional_string(2)? {
                    member["locationHint"] = hint.into();
                }
                if let Some(meta) = row.optional_string(3)? {
                    member["meta"] = json(&meta);
                }
                Ok(member)
            },
        )?;
        group["members"] = members.into();
    }
    let states = sql.all(
        "SELECT group_id, channel, value FROM durability_topology_states
         ORDER BY group_id, channel",
        &[],
        |row| {
            Ok(json!({
                "group": row.text(0)?,
                "channel": row.text(1)?,
                "value": json(row.text(2)?),
            }))
        },
    )?;
    let writes = sql.all(
        "SELECT group_id, land_by FROM durability_topology_writes ORDER BY group_id, land_by",
        &[],
        |row| Ok(json!({"group": row.text(0)?, "landBy": row.count(1)?})),
    )?;
    let pending = sql.all(
        "SELECT channel, key, version, due_at FROM durability_outbox
         WHERE due_at IS NOT NULL ORDER BY channel, key",
        &[],
        |row| {
            Ok(json!({
                "channel": row.text(0)?,
                "key": row.text(1)?,
                "version": row.count(2)?,
                "nextAttemptAt": row.count(3)?,
            }))
        },
    )?;
    Ok(json!({
        "t": "state",
        "groups": groups,
        "states": states,
        "writes": writes,
        "pending": pending,
    }))
}
