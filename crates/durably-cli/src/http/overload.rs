//! The bound on requests in work: more are told to come back instead of being queued.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::OwnedSemaphorePermit;

use super::Api;
use durably_http::ApiError;

/// Held while a request is in work; an answer that streams keeps a clone.
pub(super) type InWork = Arc<OwnedSemaphorePermit>;

pub(super) async fn bound(
    State(api): State<Api>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let Ok(permit) = api.requests.clone().try_acquire_owned() else {
        return Err(ApiError::new(
            "overloaded",
            "too many requests are in work: try again in a moment",
        ));
    };
    let in_work: InWork = Arc::new(permit);
    request.extensions_mut().insert(in_work.clone());
    let response = next.run(request).await;
    drop(in_work);
    Ok(response)
}
