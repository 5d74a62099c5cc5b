//! Members of groups as an HTTP server, which keeps the newest value of each as members do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

#[derive(Default)]
pub(crate) struct Seen {
    /// By member and channel, what it has applied.
    pub(crate) applied: BTreeMap<(String, String), Value>,
    pub(crate) deliveries: Vec<Value>,
    /// The bearer tokens that came along, where one did.
    pub(crate) tokens: Vec<String>,
    /// Versions that were lower than one before, of the same member and channel.
    pub(crate) older: Vec<Value>,
    /// Members that refuse everything.
    pub(crate) refusing: Vec<String>,
    /// Members that hold nothing any more.
    pub(crate) drained: Vec<String>,
    /// Members that were asked whether they are drained.
    pub(crate) asked: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Members {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Members {
    pub(crate) async fn start() -> Members {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let members = Members {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
        };
        let router = Router::new()
            .route("/{member}/state", post(state))
            .route("/{member}/drained", get(drained))
            .with_state(members.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        members
    }

    /// A member of a draft, with its address in its metadata.
    pub(crate) fn member(&self, id: &str) -> Value {
        let url = format!("http://{}/{id}", self.address);
        json!({"id": id, "state": "active", "meta": {"url": url}})
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// What a member has of a channel.
    pub(crate) fn value(&self, member: &str, channel: &str) -> Option<Value> {
        let key = (member.to_owned(), channel.to_owned());
        let seen = self.seen();
        Some(seen.applied.get(&key)?["value"].clone())
    }
}

async fn state(
    State(members): State<Members>,
    Path(member): Path<String>,
    headers: HeaderMap,
    Json(update): Json<Value>,
) -> StatusCode {
    let mut seen = members.seen();
    if seen.refusing.contains(&member) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    assert_eq!(update["member"], *member);
    if let Some(token) = headers.get("authorization") {
        seen.tokens.push(token.to_str().unwrap().to_owned());
    }
    let key = (member, update["channel"].as_str().unwrap().to_owned());
    let version = |update: &Value| update["version"].as_u64().unwrap();
    match seen.applied.get(&key).map(version) {
        Some(known) if known > version(&update) => seen.older.push(update.clone()),
        Some(known) if known == version(&update) => {}
        _ => {
            seen.applied.insert(key, update.clone());
        }
    }
    seen.deliveries.push(update);
    StatusCode::NO_CONTENT
}

async fn drained(
    State(members): State<Members>,
    Path(member): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    assert_eq!(query["member"], member);
    assert!(query.contains_key("group") && query.contains_key("topology"));
    let mut seen = members.seen();
    let drained = seen.drained.contains(&member);
    seen.asked.push(member);
    Json(json!({ "drained": drained })).into_response()
}
