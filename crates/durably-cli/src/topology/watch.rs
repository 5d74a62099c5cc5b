//! Following a published group: server-sent events as lines of JSON. Once the server was there, it is
//! followed through its restarts.

use std::io::Write;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderName;
use serde_json::{Value, json};

use super::client::{Client, Request, unreachable};
use super::print;
use crate::exit::Failure;

/// More of one event is not gathered.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// How long a server that went away is left alone.
const PAUSE: Duration = Duration::from_secs(1);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

pub(super) async fn watch(client: &Client, group: String) -> Result<(), Failure> {
    let mut told = None;
    loop {
        let failure = match follow(client, &group, &mut told).await {
            Err(failure @ (Failure::Unreachable { .. } | Failure::Refused { .. }))
                if told.is_some() =>
            {
                failure
            }
            other => return other,
        };
        // Whoever cannot be told is not worse off.
        let _ = writeln!(std::io::stderr(), "{failure}; trying again");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Prints what becomes of the group after the event that was `told` last, until the server is gone.
async fn follow(client: &Client, group: &str, told: &mut Option<Value>) -> Result<(), Failure> {
    let path = ["published", group, "watch"].map(str::to_owned);
    let mut request = Request::new(Method::GET, path.to_vec());
    let last = told.as_ref().and_then(|event| event["id"].as_str());
    request
        .headers
        .extend(last.map(|id| (LAST_EVENT_ID, id.to_owned())));
    let mut response = client.send(request).await?;
    let mut events = Events::default();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        events.unread.extend_from_slice(&chunk);
        while let Some(event) = events.next() {
            // A server that was started again says what it finds.
            if told.as_ref() != Some(&event) {
                print(&event.to_string())?;
                *told = Some(event);
            }
        }
        if events.unread.len() > MAX_EVENT_BYTES {
            return Err(ended("an event is too long"));
        }
    }
    Err(ended("the server ended the stream: it stops"))
}

fn ended(problem: &str) -> Failure {
    Failure::Unreachable {
        problem: problem.to_owned(),
    }
}

#[derive(Default)]
struct Events {
    unread: Vec<u8>,
}

impl Events {
    /// The next event that is there whole, as JSON; comments are passed over.
    fn next(&mut self) -> Option<Value> {
        loop {
            let end = self.unread.windows(2).position(|pair| pair == b"\n\n")?;
            let rest = self.unread.split_off(end + 2);
            let event = std::mem::replace(&mut self.unread, rest);
            let event = String::from_utf8_lossy(&event);
            let (mut name, mut id, mut data) = (None, None, String::new());
            for line in event.lines() {
                let (field, value) = line.split_once(':').unwrap_or((line, ""));
                let value = value.strip_prefix(' ').unwrap_or(value);
                match field {
                    "event" => name = Some(value),
                    "id" => id = Some(value),
                    "data" => data.push_str(value),
                    _ => {}
                }
            }
            if let Some(name) = name {
                let data: Value = serde_json::from_str(&data).unwrap_or(Value::String(data));
                return Some(json!({ "event": name, "id": id, "data": data }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_they_come_in_pieces() {
        let text = ": \n\nevent: snapshot\nid: 1-2-x\ndata: {\"a\":\ndata: 1}\n\nevent: missing\ndata: {}\n\nevent: cut";
        let mut events = Events::default();
        let mut read = Vec::new();
        for byte in text.bytes() {
            events.unread.push(byte);
            read.extend(std::iter::from_fn(|| events.next()));
        }
        assert_eq!(
            read,
            [
                json!({"event": "snapshot", "id": "1-2-x", "data": {"a": 1}}),
                json!({"event": "missing", "id": null, "data": {}}),
            ]
        );
    }
}
