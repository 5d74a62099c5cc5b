//! Reading a trace: one JSON object a line, each a step with what is expected of it.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A trace as it stands in its file.
pub(super) struct Trace {
    pub(super) kind: Kind,
    /// A recording: see `docs/recording.md`.
    pub(super) recorded: bool,
    /// All steps but the notes. A recording may have several parts, each to be replayed by itself;
    /// other traces have one.
    pub(super) parts: Vec<Vec<Step>>,
}

/// What a trace drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Semaphore,
    Topology,
}

/// What every kind of trace may do, then what only one kind does, with the members that such a step
/// must have.
const COMMON: &[(&str, &[&str])] = &[
    ("open", &["now", "config"]),
    ("load", &[]),
    ("advance", &["ms"]),
    ("alarm", &[]),
    ("crash", &[]),
    ("state", &[]),
];
const SEMAPHORE: &[(&str, &[&str])] = &[
    ("limit", &["value"]),
    ("groupLimit", &["group", "value"]),
    ("canGrant", &["group", "value"]),
    ("send", &["id", "message"]),
    ("usage", &[]),
];
/// What only a recording does: it says when what waits for a time happens.
const RECORDED: &[(&str, &[&str])] = &[
    ("round", &[]),
    ("waitEnded", &["id"]),
    ("callerLeft", &["id"]),
    ("leases", &["value"]),
    ("limitsChanged", &[]),
    ("forceRelease", &["clientId", "group", "reason"]),
];
const TOPOLOGY: &[(&str, &[&str])] = &[
    ("script", &[]),
    ("update", &["id", "group", "draft"]),
    ("delete", &["id", "group"]),
    ("snapshot", &["group"]),
];

/// What a step is compared with; the rest of its members says what to do. A recording knows no
/// alarms.
const EXPECTED: [&str; 3] = ["now", "out", "alarm"];

/// One step.
#[derive(Clone, Default)]
pub(super) struct Step {
    /// Its place in the file, from 1, notes included.
    pub(super) number: usize,
    pub(super) op: String,
    /// The names of the configured channels, as they stand in the file.
    pub(super) channels: Vec<String>,
    members: Map<String, Value>,
}

impl Trace {
    /// Reads a trace. The problem names the line.
    pub(super) fn parse(text: &str) -> Result<Trace, String> {
        let recorded = is_recorded(text);
        let mut steps: Vec<Step> = Vec::new();
        let mut lines = text.lines().enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let number = index + 1;
            // Whoever recorded may have been killed while writing.
            let is_torn = recorded && lines.peek().is_none() && !text.ends_with('\n');
            if line.trim().is_empty() || is_torn {
                continue;
            }
            let step = Step::parse(number, line, recorded);
            let step = step.map_err(|it| format!("line {number}: {it}"))?;
            if step.op != "note" {
                steps.push(step);
            }
        }
        let opened = steps.iter().find(|step| step.op == "open");
        let Some(opened) = opened else {
            return Err("there is no step \"open\"".into());
        };
        if let Some(early) = steps
            .first()
            .filter(|step| !["open", "load"].contains(&&*step.op))
        {
            return Err(format!("line {}: nothing is open yet", early.number));
        }
        let is_topology = opened.config("channels").is_some();
        let (kind, own) = if is_topology {
            (Kind::Topology, TOPOLOGY)
        } else {
            (Kind::Semaphore, SEMAPHORE)
        };
        let recording = if recorded { RECORDED } else { &[] };
        for step in &steps {
            let mut known = COMMON.iter().chain(own).chain(recording);
            let Some((_, members)) = known.find(|(op, _)| *op == step.op) else {
                let number = step.number;
                return Err(format!("line {number}: no step {:?} in this kind", step.op));
            };
            for member in *members {
                if !step.members.contains_key(*member) {
                    return Err(format!("line {}: no member {member:?}", step.number));
                }
            }
        }
        let mut parts: Vec<Vec<Step>> = Vec::new();
        for step in steps {
            match parts.last_mut() {
                Some(part) if !(recorded && step.op == "open") => part.push(step),
                _ => parts.push(vec![step]),
            }
        }
        Ok(Trace {
            kind,
            recorded,
            parts,
        })
    }
}

/// Whether the first step says that the trace is a recording.
fn is_recorded(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    let first = first.and_then(|line| serde_json::from_str::<Value>(line).ok());
    first.is_some_and(|step| step["config"]["recorded"] == true)
}

/// What of a step has an order that its members do not keep.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Ordered {
    config: OrderedConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OrderedConfig {
    channels: Names,
}

/// The names of an object's members, in their order.
#[derive(Default)]
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Names;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, IgnoredAny)) = map.next_entry()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }

        deserializer.deserialize_map(Read)
    }
}

impl Step {
    fn parse(number: usize, line: &str, recorded: bool) -> Result<Step, String> {
        let members: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| error.to_string())?;
        let op = members.get("op").and_then(Value::as_str);
        let op = op.ok_or("no member \"op\"")?.to_owned();
        // What a step does not say cannot be compared, so a damaged trace would pass.
        let must_say: &[&str] = match op.as_str() {
            "note" | "load" => &[],
            _ if recorded => &EXPECTED[..2],
            _ => &EXPECTED,
        };
        if let Some(missing) = must_say.iter().find(|name| !members.contains_key(**name)) {
            return Err(format!("no member {missing:?}"));
        }
        if members.get("out").is_some_and(|out| !out.is_array()) {
            return Err("\"out\" is no list".into());
        }
        Ok(Step {
            number,
            op,
            channels: serde_json::from_str::<Ordered>(line)
                .map_or_else(|_| Vec::new(), |ordered| ordered.config.channels.0),
            members,
        })
    }

    pub(super) fn get(&self, member: &str) -> Option<&Value> {
        self.members.get(member)
    }

    /// A setting of the configuration, if the step has one.
    pub(super) fn config(&self, setting: &str) -> Option<&Value> {
        self.get("config").and_then(|config| config.get(setting))
    }

    pub(super) fn get_mut(&mut self, member: &str) -> Option<&mut Value> {
        self.members.get_mut(member)
    }

    /// A member that the step must have as text.
    pub(super) fn text(&self, member: &str) -> Result<&str, String> {
        let text = self.get(member).and_then(Value::as_str);
        text.ok_or_else(|| format!("{member:?} is no text"))
    }

    /// A member that the step must have as a count.
    pub(super) fn count(&self, member: &str) -> Result<u64, String> {
        let count = self.get(member).and_then(Value::as_u64);
        count.ok_or_else(|| format!("{member:?} is no count"))
    }

    /// A member that the step must have.
    pub(super) fn value(&self, member: &str) -> Result<&Value, String> {
        self.get(member).ok_or_else(|| format!("no {member:?}"))
    }

    /// What the trace expects, if it says so.
    pub(super) fn expected(&self, member: &str) -> Option<&Value> {
        self.get(member)
    }

    /// The step without what is expected of it.
    pub(super) fn operation(&self) -> Value {
        let mut members = self.members.clone();
        if self.op != "open" {
            members.remove("now");
        }
        members.remove("alarm");
        members.remove("out");
        Value::Object(members)
    }
}
