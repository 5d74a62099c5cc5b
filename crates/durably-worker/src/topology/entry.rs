//! The stateless half: which object a request is for, and what is published, which no coordinator is
//! asked for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;

use durably::topology::{
    NoFallbacks, TopologyNameError, TopologyReader, TopologyUnavailable, UnavailableReason,
    check_group,
};
use durably_cloudflare::WorkerTimer;
use durably_http::ApiError;
use durably_http::topology::{edition_tag, is_known, not_published};
use futures::FutureExt;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use worker::js_sys::{Array, Math, Promise};

use super::asked::Conditions;
use super::store::TopologySource;
use super::{asked, member};
use crate::answer::{Answer, not_allowed, not_found};
use crate::request::Request;
use crate::settings::Environment;
use crate::way::objects;

type Reader = TopologyReader<TopologySource, WorkerTimer, fn() -> u64, NoFallbacks>;

/// Of how many topologies an isolate keeps copies.
const MAX_TOPOLOGIES: usize = 100;

thread_local! {
    static READERS: RefCell<HashMap<String, Reader>> = RefCell::default();
}

/// Answers a request below `/v1/topologies` or `/v1/members` of somebody who may ask: resolves with `[status, body, headers]`. A watch
/// that may begin is answered 200, without a body.
#[wasm_bindgen]
#[allow(clippy::too_many_arguments, reason = "a request, as texts")]
pub fn topology_request(
    environment: JsValue,
    method: String,
    path: Vec<String>,
    query: String,
    content_type: Option<String>,
    body: String,
    if_match: Option<String>,
    if_none_match: Option<String>,
) -> Promise {
    let environment = Environment(environment);
    let request = Request {
        method,
        path,
        query,
        content_type,
        body,
    };
    let conditions = Conditions {
        if_match,
        if_none_match,
    };
    future_to_promise(AssertUnwindSafe(async move {
        let answering = answered(&environment, request, conditions);
        // A panic would leave the request without an answer.
        let answer = AssertUnwindSafe(answering).catch_unwind().await;
        let answer = answer.unwrap_or_else(|_| {
            let error = ApiError::new("worker_panicked", "the worker panicked: see its log");
            Err(error.into())
        });
        Ok(answer.unwrap_or_else(|refusal| refusal).into_javascript())
    }))
}

async fn answered(
    environment: &Environment,
    request: Request,
    conditions: Conditions,
) -> Result<Answer, Answer> {
    let path = request.path();
    let method = request.method.as_str();
    let (name, allowed, binding, class) = match path.as_slice() {
        ["v1", "topologies", topology, rest @ ..] => {
            TopologyNameError::check(topology).map_err(ApiError::from)?;
            if let ["published", group, watch @ ..] = rest {
                let is_watch = match watch {
                    [] => false,
                    ["watch"] => true,
                    _ => return Err(not_found().into()),
                };
                if method != "GET" {
                    return Err(not_allowed(method, "GET"));
                }
                let read = published(environment, topology, group).await;
                return match is_watch {
                    true => watchable(read),
                    false => Ok(shown(read?, &conditions)),
                };
            }
            let allowed = asked::methods(rest);
            (topology, allowed, "TOPOLOGY", "TopologyCoordinator")
        }
        ["v1", "members", member, rest @ ..] => {
            let allowed = member::methods(rest);
            (member, allowed, "TOPOLOGY_MEMBER", "TopologyMember")
        }
        _ => return Err(not_found().into()),
    };
    let Some(allowed) = allowed else {
        return Err(not_found().into());
    };
    if !allowed.split(", ").any(|allowed| allowed == method) {
        return Err(not_allowed(method, allowed));
    }
    check_group(name).map_err(|_| ApiError::invalid("member", "must have 1 to 256 bytes"))?;
    let stubs = objects(environment, binding, class)
        .map_err(|error| ApiError::new(error.code(), error.to_string()))?;
    let rest: Array = path
        .iter()
        .skip(3)
        .map(|part| JsValue::from(*part))
        .collect();
    let arguments = Array::new();
    for argument in [
        method.into(),
        rest.into(),
        request.query.as_str().into(),
        request.content_type.as_deref().into(),
        request.body.as_str().into(),
        conditions.if_match.into(),
        conditions.if_none_match.into(),
    ] {
        arguments.push(&argument);
    }
    match stubs.call(name, "request", &arguments).await {
        Ok(answer) => Ok(Answer::from_javascript(&answer)),
        // What the object had done until then stands; nobody knows how far it came.
        Err(error) => Err(ApiError::new(error.code(), error.to_string()).into()),
    }
}

/// A published text with its tag.
struct Published {
    tag: String,
    text: String,
}

/// What is published of a group, through the isolate's copies.
async fn published(
    environment: &Environment,
    topology: &str,
    group: &str,
) -> Result<Published, ApiError> {
    check_group(group)?;
    // What another request has begun to read ends with that request, so each reads for itself.
    let reader = reader(environment, topology)?.with_own_reads();
    let reading = reader.get(group).await.map_err(unavailable)?;
    match (reading.edition(), reading.to_text()) {
        (Some(edition), Some(text)) => Ok(Published {
            tag: edition_tag(edition),
            text,
        }),
        _ => Err(not_published(group)),
    }
}

fn reader(environment: &Environment, topology: &str) -> Result<Reader, ApiError> {
    let known = READERS.with_borrow(|readers| readers.get(topology).cloned());
    if let Some(reader) = known {
        return Ok(reader);
    }
    let source = TopologySource::new(environment, topology)
        .map_err(|error| ApiError::new(error.code(), error.to_string()))?;
    let random: fn() -> u64 = || (Math::random() * u64::MAX as f64) as u64;
    let reader = environment
        .reader()
        .and_then(|options| TopologyReader::new(options, source, WorkerTimer, random))
        .map_err(|error| ApiError::new(error.code(), error.to_string()))?;
    READERS.with_borrow_mut(|readers| {
        if readers.len() >= MAX_TOPOLOGIES {
            readers.clear();
        }
        readers.insert(topology.to_owned(), reader.clone());
    });
    Ok(reader)
}

fn unavailable(error: TopologyUnavailable) -> ApiError {
    match error.reason {
        UnavailableReason::Missing => not_published(&error.group),
        UnavailableReason::Invalid(problem) => ApiError::new(
            problem.code(),
            format!("what is published of the group cannot be used: {problem}"),
        ),
        _ => ApiError::new(error.code(), error.to_string()),
    }
}

fn shown(published: Published, conditions: &Conditions) -> Answer {
    let known = is_known(conditions.if_none_match.as_deref(), &published.tag);
    let headers = vec![
        ("etag", published.tag),
        // It is asked for again each time, and answered with little if it is still this.
        ("cache-control", "no-cache".to_owned()),
    ];
    let (status, body) = match known {
        true => (304, String::new()),
        false => (200, published.text),
    };
    Answer {
        status,
        headers,
        body,
    }
}

/// A group that is not there can be watched, one that cannot be read can not.
fn watchable(read: Result<Published, ApiError>) -> Result<Answer, Answer> {
    match read {
        Err(error) if error.code != "not_published" => Err(error.into()),
        _ => Ok(Answer {
            status: 200,
            headers: vec![
                ("content-type", "text/event-stream".to_owned()),
                ("cache-control", "no-cache".to_owned()),
            ],
            body: String::new(),
        }),
    }
}
