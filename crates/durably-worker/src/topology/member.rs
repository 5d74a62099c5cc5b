//! A member that applies what it is told and shows what it has: the least that a member must do, and
//! what a class of one's own begins with.

use std::rc::Rc;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::topology::{Applied, StateReceiver};
use durably::{Scheduler, StorageError};
use durably_http::topology::Delivery;
use durably_http::{ApiError, BodyKind, kind, not_json_kind, parse_object, parse_query};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answer::{Answer, not_allowed, not_found};
use crate::request::Request;
use crate::settings::Environment;

/// How many values one answer shows.
const MAX_STATES: u64 = 100;

/// An object that is a member of groups.
pub(super) struct TopologyMember {
    scheduler: Scheduler,
    states: StateReceiver,
}

impl Object for TopologyMember {
    const CLASS: &'static str = "topology-member";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// What takes a method, by the path after the member.
pub(super) fn methods(path: &[&str]) -> Option<&'static str> {
    match path {
        ["state"] => Some("POST"),
        ["states" | "drained"] => Some("GET"),
        _ => None,
    }
}

#[derive(Deserialize)]
struct StatesQuery {
    topology: String,
    group: String,
}

#[derive(Serialize)]
struct Shown {
    states: Vec<Applied>,
}

impl TopologyMember {
    pub(super) async fn open(
        host: Rc<dyn Host>,
        environment: &Environment,
    ) -> Result<Self, BoxError> {
        let scheduler = Scheduler::new(host, environment.scheduler()?)?;
        let states = StateReceiver::new(&scheduler)?;
        scheduler.open().await?;
        Ok(TopologyMember { scheduler, states })
    }

    /// Answers a request whose path follows the member.
    pub(super) async fn answer(&self, request: Request) -> Result<Answer, ApiError> {
        let (path, method) = (request.path(), request.method.as_str());
        match methods(&path) {
            None => return Err(not_found()),
            Some(allowed) if allowed != method => return Ok(not_allowed(method, allowed)),
            Some(_) => {}
        }
        match path.as_slice() {
            ["state"] => self.apply(&request).await,
            ["states"] => self.shown(&request).await,
            // It runs nothing of its own, so there is nothing to wait for.
            _ => Ok(Answer::ok(&json!({ "drained": true }))),
        }
    }

    async fn apply(&self, request: &Request) -> Result<Answer, ApiError> {
        if kind(request.content_type.as_deref()) != Some(BodyKind::Json) {
            return Err(not_json_kind());
        }
        let Delivery {
            topology, update, ..
        } = parse_object(request.body.as_bytes())?;
        let mut update = update.into_owned();
        update.group = group_of(&topology, &update.group);
        let applied = self.states.apply(update, |_, _| Ok::<_, StorageError>(()));
        let applied = applied.await.map_err(of_storage)?;
        Ok(Answer::ok(&json!({ "applied": applied })))
    }

    async fn shown(&self, request: &Request) -> Result<Answer, ApiError> {
        let StatesQuery { topology, group } = parse_query(&request.query)?;
        let stored = group_of(&topology, &group);
        let states = self.states.applied(&stored, MAX_STATES);
        let mut states = states.await.map_err(of_storage)?;
        for state in &mut states {
            state.group.clone_from(&group);
        }
        Ok(Answer::ok(&Shown { states }))
    }
}

/// Groups of two topologies may have the same name.
fn group_of(topology: &str, group: &str) -> String {
    json!([topology, group]).to_string()
}

fn of_storage(error: StorageError) -> ApiError {
    ApiError::new(error.code(), error.to_string())
}
