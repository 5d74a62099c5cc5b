//! Requests about budgets that are kept by another server: they are passed on, once.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use durably_native::http::NO_FORWARDING;

use super::Api;
use durably_http::ApiError;

/// Refuses to pass on what has been passed on already, or servers that name each other as the one
/// of the holders would do so for ever.
pub(super) async fn check(
    State(api): State<Api>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match api.jobs.holders() {
        Some(holders) if request.headers().contains_key(NO_FORWARDING) => Err(ApiError::new(
            "held_elsewhere",
            format!("this server keeps no budgets itself: ask {holders}, where it asks as well"),
        )),
        _ => Ok(next.run(request).await),
    }
}
