//! `GET …/published/{group}/watch`: what becomes of a published group, as server-sent events.
//!
//! Each event is what the store has at that moment, so an edition that was replaced at once may not be
//! told; none is older than the one before it.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use durably_native::topology::{PublishedGroup, Watching};
use futures::stream;
use serde_json::json;
use tokio::sync::watch;

use super::Api;
use super::errors::of_topologies;
use super::overload::InWork;
use super::routes::{Answer, InPath};
use super::topology::edition_tag;

/// How often a line is sent that says nothing, so that both sides see that the other is there.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How often the store is looked at even if nothing is told: others may publish into it.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

struct Watch {
    api: Api,
    topology: String,
    group: String,
    watching: Watching,
    stopping: watch::Receiver<bool>,
    /// The tag of the edition that the client has.
    told: Told,
    /// Whether the store was looked at since the last news.
    looked: bool,
    _in_work: InWork,
}

#[derive(PartialEq, Eq)]
enum Told {
    Nothing,
    Missing,
    Edition(String),
}

/// `GET /v1/topologies/{topology}/published/{group}/watch`
pub(super) async fn watch(
    State(api): State<Api>,
    Extension(in_work): Extension<InWork>,
    path: InPath<(String, String)>,
    headers: HeaderMap,
) -> Answer<Response> {
    let Path((topology, group)) = path?;
    // Before the first look, so that nothing is missed in between.
    let watching = api.topologies.watch(&topology, &group);
    // Refuses names that cannot be, as an answer of its own.
    let looked = api.topologies.published(&topology, &group).await;
    looked.map_err(of_topologies)?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let watch = Watch {
        stopping: api.stopping.clone(),
        api,
        topology,
        group,
        watching,
        told: last.map_or(Told::Nothing, |id| Told::Edition(format!("\"{id}\""))),
        looked: false,
        _in_work: in_work,
    };
    let events = stream::unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        Some((Ok::<_, Infallible>(event), watch))
    });
    let heartbeat = KeepAlive::new().interval(HEARTBEAT);
    Ok(Sse::new(events).keep_alive(heartbeat).into_response())
}

impl Watch {
    /// The next event; none when the server stops.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if *self.stopping.borrow() {
                return None;
            }
            if !self.looked {
                self.looked = true;
                let published = self.api.topologies.published(&self.topology, &self.group);
                let event = match published.await {
                    Ok(published) => self.news(published),
                    Err(error) => {
                        // What the client has stays good; it is looked at again.
                        let error = of_topologies(error);
                        tracing::warn!(
                            code = %error.code,
                            "a watched group cannot be read: {}",
                            error.message
                        );
                        None
                    }
                };
                if event.is_some() {
                    return event;
                }
            }
            tokio::select! {
                () = self.watching.changed() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                // An error means that the server itself is gone.
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
            }
            self.looked = false;
        }
    }

    fn news(&mut self, published: Option<PublishedGroup>) -> Option<Event> {
        let (told, event) = match published {
            None => (Told::Missing, Event::default().event("missing").data("{}")),
            Some(PublishedGroup {
                text,
                edition,
                deleted,
            }) => {
                let tag = edition_tag(&edition);
                let id = tag.trim_matches('"').to_owned();
                let event = if deleted {
                    let data = json!({ "version": edition.version }).to_string();
                    Event::default().event("deleted").data(data)
                } else {
                    // It was read as JSON, which is UTF-8.
                    let text = String::from_utf8_lossy(&text).into_owned();
                    Event::default().event("snapshot").data(text)
                };
                (Told::Edition(tag), event.id(id))
            }
        };
        if told == self.told {
            return None;
        }
        self.told = told;
        Some(event)
    }
}
