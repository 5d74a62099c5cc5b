//! Where the jobs of a measurement are run: an endpoint that answers at once and counts.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use durably::error::BoxError;
use tokio::net::TcpListener;

/// A job that has not run by then is none that runs.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub(super) struct Endpoint {
    address: SocketAddr,
    /// The keys of what has run.
    ran: Arc<Mutex<HashSet<String>>>,
}

impl Endpoint {
    pub(super) async fn start() -> Result<Endpoint, BoxError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let endpoint = Endpoint {
            address: listener.local_addr()?,
            ran: Arc::default(),
        };
        let router = Router::new()
            .route("/run", post(run))
            .with_state(endpoint.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(endpoint)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/run", self.address)
    }

    fn ran(&self) -> MutexGuard<'_, HashSet<String>> {
        // A set is never left half changed.
        self.ran.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many jobs have run, all that ever did.
    pub(super) async fn until(&self, jobs: usize) -> Result<(), BoxError> {
        let all = async {
            while self.ran().len() < jobs {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, all).await;
        waited.map_err(|_| format!("{} of {jobs} jobs have run", self.ran().len()).into())
    }
}

async fn run(State(endpoint): State<Endpoint>, headers: HeaderMap) -> StatusCode {
    let key = headers.get("idempotency-key");
    match key.and_then(|key| key.to_str().ok()) {
        Some(key) => {
            endpoint.ran().insert(key.to_owned());
            StatusCode::OK
        }
        None => StatusCode::BAD_REQUEST,
    }
}
