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
use durably_http::topology::Told;
use durably_native::topology::{PublishedGroup, Watching};
use futures::stream;
use tokio::sync::watch;

use super::Api;
use super::errors::of_topologies;
use super::overload::InWork;
use super::routes::{Answer, InPath};

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
        told: Told::before(last),
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
        let published = published.as_ref();
        let found = published.map(
            |PublishedGroup {
                 text,
                 edition,
                 deleted,
             }| { (edition, (!deleted).then_some(&**text)) },
        );
        let told = self.told.news(found)?;
        let event = Event::default().event(told.name).data(told.data);
        Some(match told.id {
            Some(id) => event.id(id),
            None => event,
        })
    }
}
