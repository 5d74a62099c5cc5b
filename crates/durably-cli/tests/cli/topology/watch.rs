//! A watched group is told whenever it is published, until somebody goes.

use std::time::Duration;

use futures::StreamExt;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::{send, setup};
use crate::support::{PATIENCE, Server};

/// What an event says: its name, its id and its data.
struct Event {
    name: String,
    id: String,
    data: Value,
}

struct Events {
    chunks: std::pin::Pin<Box<dyn futures::Stream<Item = reqwest::Result<bytes::Bytes>>>>,
    text: String,
}

async fn watch(server: &Server, last: Option<&str>) -> Events {
    let request = server.request(Method::GET, "topologies/main/published/t1/watch");
    let request = match last {
        Some(id) => request.header("last-event-id", id),
        None => request,
    };
    let response: Response = request.send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    Events {
        chunks: Box::pin(response.bytes_stream()),
        text: String::new(),
    }
}

impl Events {
    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = event.lines();
                    let value = lines.find_map(|line| line.strip_prefix(name));
                    value.unwrap_or_default().trim_start().to_owned()
                };
                let event = Event {
                    name: field("event:"),
                    id: field("id:"),
                    data: serde_json::from_str(&field("data:")).unwrap_or_default(),
                };
                self.text = rest.to_owned();
                return Some(event);
            }
            let chunk = tokio::time::timeout(PATIENCE, self.chunks.next()).await;
            match chunk.expect("nothing is told") {
                Some(Ok(chunk)) => self.text.push_str(std::str::from_utf8(&chunk).unwrap()),
                _ => return None,
            }
        }
    }
}

fn draft(count: usize) -> Value {
    let members = (0..count).map(|index| json!({"id": format!("m{index}"), "state": "active"}));
    json!({"members": members.collect::<Vec<_>>()})
}

#[tokio::test]
async fn each_edition_is_told_and_the_end_of_the_group_and_that_of_the_server() {
    let setup = setup();
    let server = setup.start().await;
    let mut events = watch(&server, None).await;
    assert_eq!(events.next().await.unwrap().name, "missing");
    let path = "main/groups/t1";
    let mut tag = String::new();
    for count in 1..4 {
        send(&server, Method::PUT, path, None, Some(&draft(count))).await;
        let event = events.next().await.unwrap();
        assert_eq!(event.name, "snapshot");
        assert_eq!(event.data["content"]["version"], count);
        tag = event.id;
    }
    let published = send(&server, Method::GET, "main/published/t1", None, None).await;
    assert_eq!(published.tag(), format!("\"{tag}\""));
    // Who knows it is told the next one only.
    let mut informed = watch(&server, Some(&tag)).await;
    send(&server, Method::DELETE, path, None, None).await;
    for events in [&mut events, &mut informed] {
        let event = events.next().await.unwrap();
        assert_eq!(
            (event.name.as_str(), &event.data),
            ("deleted", &json!({"version": 4}))
        );
    }
    let begun = std::time::Instant::now();
    server.signal("TERM");
    assert!(events.next().await.is_none() && informed.next().await.is_none());
    assert!(server.ended().await.success());
    assert!(
        begun.elapsed() < Duration::from_secs(9),
        "the watch held up the end"
    );
}

#[tokio::test]
async fn one_who_left_is_forgotten() {
    let setup = setup().args(["--max-requests=2"]);
    let server = setup.start().await;
    for _ in 0..20 {
        let mut events = watch(&server, None).await;
        events.next().await.unwrap();
        drop(events);
        // The place that it took is free again as soon as the server sees that it is gone.
        crate::support::until("a free place", || async {
            let answer = server.get("topologies/main/groups").await;
            (answer.0 == 200).then_some(())
        })
        .await;
    }
}
