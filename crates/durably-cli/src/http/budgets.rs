//! The handlers about how a budget is given out and who has what of it.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use durably::semaphore::{ForceReleased, Holding, LeaseOptions, MAX_HOLDINGS, Standing};
use serde::{Deserialize, Deserializer, Serialize};

use super::Api;
use super::body;
use super::errors::ApiError;
use super::routes::{Answer, InPath};

/// `GET /v1/accounts/{account}/groups/{group}/usage`
pub(super) async fn standing(
    State(api): State<Api>,
    path: InPath<(String, String)>,
) -> Answer<Json<Standing>> {
    let Path((account, group)) = path?;
    Ok(Json(api.jobs.standing(&account, &group).await?))
}

/// How an account gives leases; null if it gives none.
#[derive(Serialize)]
pub(super) struct Leases {
    leases: Option<LeaseOptions>,
}

/// Tells null from a field that is missing.
#[derive(Deserialize)]
struct LeasesText {
    #[serde(default, deserialize_with = "given")]
    leases: Option<Option<LeaseOptions>>,
}

fn given<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<LeaseOptions>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
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
    let text: LeasesText = body::parse_object(&json)?;
    let leases = text
        .leases
        .ok_or_else(|| ApiError::invalid("leases", "is missing"))?;
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

#[derive(Deserialize)]
pub(super) struct HoldersQuery {
    after: Option<String>,
    limit: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct Holders {
    holders: Vec<Holding>,
}

/// `GET /v1/accounts/{account}/holders`
pub(super) async fn holders(
    State(api): State<Api>,
    path: InPath<String>,
    query: Result<Query<HoldersQuery>, QueryRejection>,
) -> Answer<Json<Holders>> {
    let Path(account) = path?;
    let Query(HoldersQuery { after, limit }) = query?;
    let limit = limit.unwrap_or(MAX_HOLDINGS);
    let listing = api.jobs.holdings(&account, after.as_deref(), limit);
    let holders = listing.await?;
    Ok(Json(Holders { holders }))
}

#[derive(Deserialize)]
pub(super) struct ReleaseQuery {
    group: Option<String>,
    #[serde(default)]
    reason: String,
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
