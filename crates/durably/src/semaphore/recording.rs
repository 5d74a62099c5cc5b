//! Writing down what a holder received and answered, as a trace that `durably-sim replay` repeats.
//!
//! Decided here: what the lines say, and when a recording is no longer worth anything. Where the
//! lines go is the embedding's matter. The format is described in `docs/recording.md`.
//!
//! A line is given away when everything that came of its step is known, so a step that waits for
//! storage holds back those after it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::SemaphoreError;
use super::holder::Semaphore;
use super::protocol::{BlockedReason, Reply};
use super::round::Policy;
use super::store;
use super::tap::{Act, Reading, Tap};
use crate::time::Timestamp;

/// The most rows in a line of their own.
const ROWS_A_LINE: usize = 1_000;

/// The most steps that wait for one before them.
const MAX_WAITING: usize = 10_000;

/// The most groups whose answers are remembered, so that only changes are written.
const MAX_GROUPS: usize = 10_000;

/// Takes a line, without its end; `false` if no more are wanted.
pub type Sink = Box<dyn Fn(String) -> bool>;

/// Records one instance of a holder: give it to
/// [`SemaphoreBuilder::tap`](super::SemaphoreBuilder::tap) and [start](Self::start) it when the
/// object is open.
pub struct Recording {
    sink: Sink,
    state: RefCell<State>,
}

struct State {
    phase: Phase,
    /// What the clock of the trace shows after the last line.
    clock: Timestamp,
    /// When the last step began, written or not.
    last: Timestamp,
    steps: VecDeque<Step>,
    limit: Value,
    groups: BTreeMap<String, (Value, Value)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// What happens is in the rows that the recording will begin with.
    Before,
    /// The rows are being read; what happens comes after them.
    Reading,
    Writing,
    Over,
}

/// A step that is not written yet.
struct Step {
    act: u64,
    at: Timestamp,
    does: Map<String, Value>,
    /// Steps of their own that say what this one read.
    reads: Vec<Value>,
    out: Vec<(u64, Value)>,
    ended: bool,
}

impl Recording {
    /// A recording that gives its lines to `sink`.
    pub fn new(sink: Sink) -> Rc<Recording> {
        Rc::new(Recording {
            sink,
            state: RefCell::new(State {
                phase: Phase::Before,
                clock: Timestamp::ZERO,
                last: Timestamp::ZERO,
                steps: VecDeque::new(),
                limit: Value::Null,
                groups: BTreeMap::new(),
            }),
        })
    }

    /// Begins the trace of the holder of `key` with its configuration and its rows. What happened
    /// before is not in the trace, and nothing after is missing.
    ///
    /// # Errors
    ///
    /// Those of reading the limit and the rows; then nothing is recorded.
    pub async fn start(&self, key: &str, semaphore: &Semaphore) -> Result<(), SemaphoreError> {
        let inner = semaphore.inner();
        let limit = inner.limits.limit(&**inner.scheduler.host()).await?;
        let now = inner.scheduler.now();
        let leases = inner.leasing_options();
        // What begins from here on takes effect after these rows are read.
        self.state.borrow_mut().phase = Phase::Reading;
        self.state.borrow_mut().last = now;
        let rows = inner.scheduler.transaction(|transaction| {
            let sql = transaction.sql();
            let (grants, leases) = (store::all_grants(sql)?, store::all_leases(sql)?);
            let clients = (store::all_clients(sql)?, store::all_numbers(sql)?);
            Ok::<_, SemaphoreError>((grants, leases, clients))
        });
        let (grants, given, (clients, numbers)) = rows.await.inspect_err(|_| self.give_up(None))?;
        let settings = &inner.settings;
        let mut config = json!({
            "limit": limit,
            "groupLimits": {},
            "roundWaitMs": millis(settings.round_wait),
            "roundPeriodMs": millis(settings.round_period),
            "grantTimeoutMs": millis(settings.grant_timeout),
            "recorded": true,
        });
        if let Some(leases) = leases {
            config["leases"] = json!(leases);
        }
        self.write(&json!({
            "op": "open", "key": key, "version": env!("CARGO_PKG_VERSION"),
            "config": config, "now": now, "out": [],
        }));
        self.load("grants", &grants);
        self.load("leases", &given);
        self.load("clients", &clients);
        self.load("numbers", &numbers);
        {
            let mut state = self.state.borrow_mut();
            state.clock = now;
            state.limit = limit.into();
            if state.phase == Phase::Reading {
                state.phase = Phase::Writing;
            }
        }
        self.write_what_is_known();
        Ok(())
    }

    fn load<Row: Serialize>(&self, kind: &str, rows: &[Row]) {
        for rows in rows.chunks(ROWS_A_LINE) {
            self.write(&json!({"op": "load", kind: rows}));
        }
    }

    fn write(&self, line: &Value) {
        if self.state.borrow().phase != Phase::Over && !(self.sink)(line.to_string()) {
            self.give_up(None);
        }
    }

    /// Ends the recording, with a note for whoever reads it.
    fn give_up(&self, why: Option<&str>) {
        if let Some(why) = why {
            self.write(&json!({"op": "note", "text": format!("the recording ends: {why}")}));
        }
        let mut state = self.state.borrow_mut();
        state.phase = Phase::Over;
        state.steps.clear();
        state.groups.clear();
    }

    /// Writes the steps that have ended and wait for none before them.
    fn write_what_is_known(&self) {
        loop {
            let (step, clock) = {
                let mut state = self.state.borrow_mut();
                let known = state.steps.front().is_some_and(|step| step.ended);
                if state.phase != Phase::Writing || !known {
                    return;
                }
                let Some(step) = state.steps.pop_front() else {
                    return;
                };
                let clock = std::mem::replace(&mut state.clock, step.at);
                (step, clock)
            };
            self.write_step(step, clock);
        }
    }

    fn write_step(&self, mut step: Step, clock: Timestamp) {
        let now = step.at;
        if now > clock {
            let ms = millis(now.since(clock));
            self.write(&json!({"op": "advance", "ms": ms, "now": now, "out": []}));
        }
        for mut read in step.reads {
            read["now"] = json!(now);
            read["out"] = json!([]);
            self.write(&read);
        }
        // Replies of one tick are in the order in which their messages came.
        step.out.sort_by_key(|(message, _)| *message);
        let out = step.out.into_iter().map(|(_, output)| output).collect();
        step.does.insert("now".to_owned(), json!(now));
        step.does.insert("out".to_owned(), Value::Array(out));
        self.write(&Value::Object(step.does));
    }
}

impl Tap for Recording {
    fn begun(&self, act: u64, at: Timestamp, what: Act<'_>) {
        let problem = {
            let mut state = self.state.borrow_mut();
            if matches!(state.phase, Phase::Before | Phase::Over) {
                return;
            }
            if at < state.last {
                Some("the clock was set back")
            } else if state.steps.len() >= MAX_WAITING {
                Some("too much waits for storage")
            } else {
                state.last = at;
                state.steps.push_back(Step {
                    act,
                    at,
                    does: described(act, what),
                    reads: Vec::new(),
                    out: Vec::new(),
                    ended: false,
                });
                None
            }
        };
        if problem.is_some() {
            self.give_up(problem);
        }
    }

    fn read(&self, act: u64, reading: Reading<'_>) {
        let mut state = self.state.borrow_mut();
        let State {
            steps,
            limit,
            groups,
            ..
        } = &mut *state;
        let Some(step) = steps.iter_mut().find(|step| step.act == act) else {
            return;
        };
        match reading {
            Reading::Limit(read) => {
                let value = read.map_or_else(|| json!("error"), |limit| json!(limit));
                if *limit != value {
                    step.reads.push(json!({"op": "limit", "value": value}));
                    *limit = value;
                }
            }
            Reading::Group(group, policy) => {
                let (gate, ceiling) = answers(policy);
                if groups.len() >= MAX_GROUPS && !groups.contains_key(group) {
                    groups.clear();
                }
                let known = groups
                    .entry(group.to_owned())
                    .or_insert((json!(true), Value::Null));
                if known.0 != gate {
                    let read = json!({"op": "canGrant", "group": group, "value": gate});
                    step.reads.push(read);
                    known.0 = gate;
                }
                if known.1 != ceiling {
                    let read = json!({"op": "groupLimit", "group": group, "value": ceiling});
                    step.reads.push(read);
                    known.1 = ceiling;
                }
            }
        }
    }

    fn answered(&self, act: u64, message: u64, answer: Result<&Reply, &SemaphoreError>) {
        let mut state = self.state.borrow_mut();
        let Some(step) = state.steps.iter_mut().find(|step| step.act == act) else {
            return;
        };
        let id = name(message);
        let output = match answer {
            Ok(reply) => json!({"t": "reply", "id": id, "value": reply}),
            Err(error) => json!({"t": "reply", "id": id, "error": error.code()}),
        };
        step.out.push((message, output));
    }

    fn ended(&self, act: u64, failed: bool) {
        {
            let mut state = self.state.borrow_mut();
            let step = state.steps.iter_mut().find(|step| step.act == act);
            let Some(step) = step else { return };
            step.ended = true;
        }
        if failed {
            // Whether it took effect hangs on the disk, which no replay has.
            self.give_up(Some("storage failed"));
        }
        self.write_what_is_known();
    }
}

/// How the trace calls the message that an act took.
fn name(message: u64) -> String {
    format!("m{message}")
}

fn described(act: u64, what: Act<'_>) -> Map<String, Value> {
    let step = match what {
        Act::Message(message) => json!({"op": "send", "id": name(act), "message": message}),
        Act::Round => json!({"op": "round"}),
        Act::WaitEnded(message) => json!({"op": "waitEnded", "id": name(message)}),
        Act::CallerLeft(message) => json!({"op": "callerLeft", "id": name(message)}),
        Act::CleanUp => json!({"op": "alarm"}),
        Act::Leases(options) => json!({"op": "leases", "value": options}),
        Act::LimitsChanged => json!({"op": "limitsChanged"}),
        Act::ForceRelease {
            client_id,
            group,
            reason,
        } => json!({
            "op": "forceRelease", "clientId": client_id, "group": group, "reason": reason,
        }),
    };
    match step {
        Value::Object(step) => step,
        _ => Map::new(),
    }
}

/// What gate and ceiling of a group must have answered for this policy.
fn answers(policy: Policy) -> (Value, Value) {
    match policy {
        Policy::Open { ceiling } => (json!(true), json!(ceiling)),
        Policy::Closed(BlockedReason::NotPermitted) => (json!(false), Value::Null),
        Policy::Closed(_) => (json!(true), json!("error")),
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
