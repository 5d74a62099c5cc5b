//! The handlers about how a budget is given out and who has what of it.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use durably::semaphore::{ForceReleased, Standing};
use durably_http::budget::{Holders, HoldersQuery, Leases, ReleaseQuery, read_leases};

use super::Api;
use super::body;
use super::routes::{Answer, InPath};

/// `GET /v1/accounts/{account}/groups/{group}/usage`
pub(super) async fn standing(
    State(api): State<Api>,
    path: InPath<(String, String)>,
) -> Answer<Json<Standing>> {
    let Path((account, group)) = path?;
    Ok(Json(api.jobs.standing(&account, &group).await?))
}

/// `GET /v1/accounts/{account}/leases`
pub(super) async fn leases(State(api): State<Api>, path: InPath<String>) -> Answer<Json<Leases>> {
    let Path(account) = path?;
    shown(&api, &account).await
}

async fn shown(api: &Api, account: &str) -> Answer<Json<Leases>> {
    let leases = api.jobs.leases(account).await?;
    Ok(Json(Leases { leases }))
}

/// `PUT /v1/accounts/{account}/leases`
pub(super) async fn set_leases(
    State(api): State<Api>,
    path: InPath<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Leases>> {
    let Path(account) = path?;
    let json = body::read(&headers, body, api.config.max_body_bytes).await?;
    let leases = read_leases(&json)?;
    api.jobs.set_leases(&account, Some(leases)).await?;
    shown(&api, &account).await
}

/// `DELETE /v1/accounts/{account}/leases`: back to the default, which is shown.
pub(super) async fn remove_leases(
    State(api): State<Api>,
    path: InPath<String>,
) -> Answer<Json<Leases>> {
    let Path(account) = path?;
    api.jobs.set_leases(&account, None).await?;
    shown(&api, &account).await
}

/// `GET /v1/accounts/{account}/holders`
pub(super) async fn holders(
    State(api): State<Api>,
    path: InPath<String>,
    query: Result<Query<HoldersQuery>, QueryRejection>,
) -> Answer<Json<Holders>> {
    let Path(account) = path?;
    let Query(query) = query?;
    let listing = api
        .jobs
        .holdings(&account, query.after.as_deref(), query.limit());
    let holders = listing.await?;
    Ok(Json(Holders { holders }))
}

/// `DELETE /v1/accounts/{account}/holders/{client}`
pub(super) async fn force_release(
    State(api): State<Api>,
    path: InPath<(String, String)>,
    query: Result<Query<ReleaseQuery>, QueryRejection>,
) -> Answer<Json<ForceReleased>> {
    let Path((account, client)) = path?;
    let Query(ReleaseQuery { group, reason }) = query?;
    let jobs = &api.jobs;
    let releasing = jobs.force_release(&account, &client, group.as_deref(), &reason);
    Ok(Json(releasing.await?))
}
