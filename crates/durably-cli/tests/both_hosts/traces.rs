//! The conformance traces of the semaphore, as far as they can be sent from outside: each to an account of its
//! own, until a step comes that needs a clock of ours, and what time decides left out of the comparison.
//!
//! A request is sent when the trace has its round, together with those that share it: arrival
//! decides only between requests of one client, and a trace ends here where those come.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::host::{Host, Place, Settings};

on_both_hosts!(the_replies_are_those_of_the_traces);

/// Fewer would say that the traces are not looked at as they should be.
const REPLIES: usize = 440;

/// Nothing that a trace is compared with is over before this.
const LONG_MS: u64 = 600_000;

async fn the_replies_are_those_of_the_traces(place: Place) {
    let host = Host::start(
        place,
        &Settings {
            // All requests of a round must arrive within it.
            round_wait: Duration::from_millis(400),
            grant_timeout: Duration::from_millis(LONG_MS),
            ..Settings::default()
        },
    )
    .await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/semaphore");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let host = &host;
    let played = futures::stream::iter(files.iter().map(|file| play(host, file)));
    let replies: Vec<usize> = played.buffer_unordered(16).collect().await;
    let compared: usize = replies.iter().sum();
    assert!(compared >= REPLIES, "only {compared} replies were compared");
}

/// Plays a trace as far as it goes; how many replies were compared.
async fn play(host: &Host, file: &Path) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    let steps: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let name = file.file_stem().unwrap().to_string_lossy().into_owned();
    let mut player = Player {
        host,
        account: name.clone(),
        end: 0,
        waiting: Vec::new(),
        names: BTreeMap::new(),
        compared: 0,
    };
    for (number, step) in steps.iter().enumerate() {
        let place = format!("{name}, step {}", number + 1);
        if player.step(step, &place).await.is_none() {
            break;
        }
    }
    player.compared
}

struct Player<'a> {
    host: &'a Host,
    account: String,
    /// In the trace's time, when something is over that is not over here.
    end: u64,
    /// Requests without an answer: id and message.
    waiting: Vec<(String, Value)>,
    /// Ids of ours by those of the trace.
    names: BTreeMap<String, String>,
    compared: usize,
}

impl Player<'_> {
    /// None if the step cannot be done from outside.
    async fn step(&mut self, step: &Value, place: &str) -> Option<()> {
        let op = step["op"].as_str().unwrap();
        if op == "note" {
            return Some(());
        }
        let now = step["now"].as_u64()?;
        match op {
            "open" if self.end == 0 => self.open(step, now).await,
            "open" => None,
            _ if now >= self.end => None,
            "limit" => self.set("limit", step["value"].as_u64()?).await,
            "groupLimit" => {
                let group = step["group"].as_str()?;
                let path = format!("groups/{group}/limit");
                self.set(&path, step["value"].as_u64()?).await
            }
            "send" => self.send(step, place).await,
            "advance" => self.advance(step, place).await,
            "usage" => {
                let path = format!("accounts/{}/usage", self.account);
                let usage = self.host.get(&path).await.ok();
                assert_eq!(usage, *output(step, 0).get("value")?, "{place}");
                Some(())
            }
            // Only looks.
            "state" => Some(()),
            _ => None,
        }
    }

    async fn open(&mut self, step: &Value, now: u64) -> Option<()> {
        let config = step["config"].as_object()?;
        let known = [
            "limit",
            "groupLimits",
            "leases",
            "roundWaitMs",
            "roundPeriodMs",
            "grantTimeoutMs",
        ];
        if !config.keys().all(|name| known.contains(&&**name)) || step["out"] != json!([]) {
            return None;
        }
        self.set("limit", config.get("limit")?.as_u64()?).await?;
        if let Some(limits) = config.get("groupLimits") {
            for (group, limit) in limits.as_object()? {
                let path = format!("groups/{group}/limit");
                self.set(&path, limit.as_u64()?).await?;
            }
        }
        let time = |value: Option<&Value>, default| value.map_or(Some(default), Value::as_u64);
        let mut shortest = time(config.get("grantTimeoutMs"), 10_000)?;
        if let Some(leases) = config.get("leases").filter(|leases| !leases.is_null()) {
            shortest = shortest.min(time(leases.get("ttlMs"), LONG_MS)?);
            let mut leases = leases.clone();
            leases["ttlMs"] = LONG_MS.into();
            let path = format!("accounts/{}/leases", self.account);
            let set = self.host.put(&path, json!({ "leases": leases })).await;
            set.ok();
        }
        self.end = now + shortest;
        Some(())
    }

    async fn set(&self, path: &str, limit: u64) -> Option<()> {
        let path = format!("accounts/{}/{path}", self.account);
        self.host.put(&path, json!({ "limit": limit })).await.ok();
        Some(())
    }

    async fn send(&mut self, step: &Value, place: &str) -> Option<()> {
        let id = step["id"].as_str()?.to_owned();
        let message = step["message"].clone();
        let outputs = step["out"].as_array()?;
        if outputs.is_empty() {
            let client = &message["clientId"];
            if self
                .waiting
                .iter()
                .any(|(_, other)| other["clientId"] == *client)
            {
                return None;
            }
            self.waiting.push((id, message));
            return Some(());
        }
        let [output] = outputs.as_slice() else {
            return None;
        };
        let expected = output.clone();
        if expected["id"] != id {
            return None;
        }
        let now = step["now"].as_u64()?;
        let answered = ask(self.host, &self.account, &self.inward(&message)).await;
        self.compare(&expected, answered, now, place)
    }

    async fn advance(&mut self, step: &Value, place: &str) -> Option<()> {
        let outputs = step["out"].as_array()?;
        let replies: Vec<&Value> = outputs
            .iter()
            .filter(|output| output["t"] == "reply")
            .collect();
        let over = ["grant_reclaimed", "limit_resolution_failed", "round_failed"];
        let is_over = |output: &Value| {
            let kind = output["event"]["type"].as_str();
            kind.is_some_and(|kind| over.contains(&kind))
        };
        if outputs.iter().any(is_over) {
            return None;
        }
        if replies.is_empty() {
            return Some(());
        }
        // All of one round, and all that wait.
        let round = |reply: &Value| reply["value"]["nextRequestAt"].as_u64();
        let first = round(replies[0])?;
        if replies.len() != self.waiting.len()
            || replies.iter().any(|reply| round(reply) != Some(first))
        {
            return None;
        }
        // When the trace has the round, as its events say.
        let event = outputs
            .iter()
            .find(|output| output["event"]["type"] == "round")?;
        let now = event["event"]["timestamp"].as_u64()?;
        let waiting = std::mem::take(&mut self.waiting);
        let (host, account) = (self.host, &self.account);
        let answers = join_all(waiting.iter().map(|(id, message)| {
            let message = self.inward(message);
            async move { (id, ask(host, account, &message).await) }
        }))
        .await;
        for (id, answered) in answers {
            let expected = replies.iter().find(|reply| reply["id"] == **id)?;
            self.compare(expected, answered, now, place)?;
        }
        Some(())
    }

    /// A message with the ids that we were given.
    fn inward(&self, message: &Value) -> Value {
        renamed(message, &self.names)
    }

    fn compare(
        &mut self,
        expected: &Value,
        answered: (u16, Value),
        now: u64,
        place: &str,
    ) -> Option<()> {
        let (status, answer) = answered;
        if let Some(code) = expected.get("error") {
            assert!((400..500).contains(&status), "{place}: {answer}");
            assert_eq!(answer["error"]["code"], *code, "{place}");
            self.compared += 1;
            return Some(());
        }
        assert_eq!(status, 200, "{place}: {answer}");
        let expected = without_times(&expected["value"], now);
        let answer = without_times(
            &answer,
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .ok()?
                .as_millis() as u64,
        );
        for (list, id) in [("grants", "grantId"), ("leases", "leaseId")] {
            let (expected, answer) = (expected[list].as_array(), answer[list].as_array());
            for (expected, answer) in expected
                .into_iter()
                .flatten()
                .zip(answer.into_iter().flatten())
            {
                let (name, ours) = (expected[id].as_str()?, answer[id].as_str()?);
                self.names
                    .entry(name.to_owned())
                    .or_insert_with(|| ours.to_owned());
            }
        }
        assert_eq!(answer, self.inward(&expected), "{place}");
        self.compared += 1;
        Some(())
    }
}

fn output(step: &Value, index: usize) -> &Value {
    &step["out"][index]
}

async fn ask(host: &Host, account: &str, message: &Value) -> (u16, Value) {
    let answer = host
        .post(&format!("holders/{account}/messages"), message.clone())
        .await;
    (answer.status, answer.body)
}

/// With other texts in place of those that have a name.
fn renamed(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => json!(names.get(text).unwrap_or(text)),
        Value::Array(list) => list.iter().map(|value| renamed(value, names)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), renamed(value, names)))
            .collect(),
        other => other.clone(),
    }
}

/// Without times, but with whether a lease is over.
fn without_times(reply: &Value, now: u64) -> Value {
    let mut reply = reply.clone();
    if let Some(fields) = reply.as_object_mut() {
        fields.remove("nextRequestAt");
    }
    for lease in reply["leases"].as_array_mut().into_iter().flatten() {
        let is_over = lease["expiresAt"].as_u64().is_some_and(|time| time <= now);
        lease["expiresAt"] = is_over.into();
    }
    reply
}
