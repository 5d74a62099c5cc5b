//! HTTP/JSON under `/v1`.
//!
//! Decided here: what a request may look like and how answers are written. What happens with jobs
//! and permits is the application's matter ([`Jobs`]), and with groups that of [`Topologies`]; which status a failure has is decided in
//! [`errors`] alone.

mod auth;
mod body;
mod budgets;
mod errors;
mod fleet;
mod ndjson;
mod overload;
mod routes;
mod topology;
mod watching;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use durably_native::jobs::Jobs;
use durably_native::topology::Topologies;
use tokio::sync::{Semaphore, watch};

use crate::config::HttpConfig;

/// What handlers work with.
#[derive(Clone)]
struct Api {
    jobs: Jobs,
    topologies: Topologies,
    config: Arc<HttpConfig>,
    /// One permit for each request in work.
    requests: Arc<Semaphore>,
    /// Turns true when the server stops.
    stopping: watch::Receiver<bool>,
}

/// The whole API.
pub(crate) fn router(
    jobs: Jobs,
    topologies: Topologies,
    config: HttpConfig,
    stopping: watch::Receiver<bool>,
) -> Router {
    let api = Api {
        jobs,
        topologies,
        requests: Arc::new(Semaphore::new(config.max_requests)),
        config: Arc::new(config),
        stopping,
    };
    let budgets = Router::new()
        .route(
            "/v1/accounts/{account}/limit",
            get(routes::limit)
                .put(routes::set_limit)
                .delete(routes::remove_limit),
        )
        .route(
            "/v1/accounts/{account}/groups/{group}/limit",
            get(routes::group_limit)
                .put(routes::set_group_limit)
                .delete(routes::remove_group_limit),
        )
        .route("/v1/accounts/{account}/usage", get(routes::usage))
        .route(
            "/v1/accounts/{account}/groups/{group}/usage",
            get(budgets::standing),
        )
        .route(
            "/v1/accounts/{account}/leases",
            get(budgets::leases)
                .put(budgets::set_leases)
                .delete(budgets::remove_leases),
        )
        .route("/v1/accounts/{account}/holders", get(budgets::holders))
        .route(
            "/v1/accounts/{account}/holders/{client}",
            delete(budgets::force_release),
        )
        .route("/v1/holders/{key}/messages", post(routes::message))
        .route_layer(from_fn_with_state(api.clone(), fleet::check));
    let topologies = Router::new()
        .route("/v1/topologies/{topology}/groups", get(topology::groups))
        .route(
            "/v1/topologies/{topology}/groups/{group}",
            get(topology::group)
                .put(topology::put)
                .patch(topology::patch)
                .delete(topology::delete),
        )
        .route(
            "/v1/topologies/{topology}/groups/{group}/states",
            get(topology::states),
        )
        .route(
            "/v1/topologies/{topology}/groups/{group}/convergence",
            get(topology::convergence),
        )
        .route(
            "/v1/topologies/{topology}/published/{group}",
            get(topology::published),
        )
        .route(
            "/v1/topologies/{topology}/published/{group}/watch",
            get(watching::watch),
        )
        .route(
            "/v1/topologies/{topology}/new-incarnation",
            post(topology::new_incarnation),
        );
    Router::new()
        .route("/v1/jobs", post(routes::submit))
        .route(
            "/v1/accounts/{account}/jobs/{id}",
            get(routes::status).delete(routes::cancel),
        )
        .route("/v1/accounts/{account}/jobs", get(routes::account_jobs))
        .route(
            "/v1/accounts/{account}/shards",
            get(routes::shards).put(routes::set_shards),
        )
        .merge(budgets)
        .merge(topologies)
        .fallback(routes::not_found)
        .method_not_allowed_fallback(routes::method_not_allowed)
        .layer(from_fn_with_state(api.clone(), overload::bound))
        .layer(from_fn_with_state(api.clone(), auth::check))
        // Added after the layers, so that it asks for no token and always answers.
        .route("/v1/health", get(routes::health))
        .method_not_allowed_fallback(routes::method_not_allowed)
        .with_state(api)
}
