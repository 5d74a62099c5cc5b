//! The demo's job endpoint: takes as long as each job says.
//!
//! A run is known by its `Idempotency-Key`. It goes on when its connection breaks; a repeat joins
//! it, or gets its result if it has ended. So what is counted here is what really runs.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::board::Board;
use super::day::Pace;
use crate::exit::Failure;

/// What the demo's tasks know together.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Board>>);

impl Shared {
    pub(super) fn new(board: Board) -> Shared {
        Shared(Arc::new(Mutex::new(board)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Board> {
        // A board is never left half changed, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
struct Endpoint {
    board: Shared,
    pace: Pace,
    /// By key: turns true when the run has ended.
    runs: Arc<Mutex<HashMap<String, watch::Receiver<bool>>>>,
}

#[derive(Deserialize)]
struct Run {
    account: String,
    group: String,
    id: String,
    body: Body,
}

#[derive(Deserialize)]
struct Body {
    minutes: u32,
}

/// Starts the endpoint on a free port.
pub(super) async fn start(board: Shared, pace: Pace) -> Result<SocketAddr, Failure> {
    let endpoint = Endpoint {
        board,
        pace,
        runs: Arc::default(),
    };
    let router = Router::new().route("/run", post(run)).with_state(endpoint);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listen = |source| Failure::Listen {
        address: any,
        source,
    };
    let listener = TcpListener::bind(any).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

async fn run(
    State(endpoint): State<Endpoint>,
    headers: HeaderMap,
    Json(run): Json<Run>,
) -> Response {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let Some(key) = key else {
        return (
            StatusCode::BAD_REQUEST,
            "the header Idempotency-Key is missing",
        )
            .into_response();
    };
    let id = run.id.clone();
    let admission = headers
        .get("durably-admission")
        .and_then(|admission| admission.to_str().ok());
    let mut ended = endpoint.join(key, run, admission.unwrap_or_default());
    // An error would mean that the run's task died, which is no end of the run.
    match ended.wait_for(|ended| *ended).await {
        Ok(_) => Json(json!({ "landed": id })).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl Endpoint {
    /// The end of the run of this key, which begins if it is not known.
    fn join(&self, key: &str, run: Run, admission: &str) -> watch::Receiver<bool> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = runs.get(key) {
            return ended.clone();
        }
        let (end, ended) = watch::channel(false);
        runs.insert(key.to_owned(), ended.clone());
        drop(runs);
        let Run {
            account,
            group,
            id,
            body,
        } = run;
        self.board
            .lock()
            .started(&account, &group, &id, admission, Instant::now());
        let (board, takes) = (self.board.clone(), self.pace.real(body.minutes));
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            board.lock().ended(&account, &group, &id, Instant::now());
            end.send_replace(true);
        });
        ended
    }
}
