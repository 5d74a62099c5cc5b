//! The handlers about topologies: changing groups, asking their coordinators, and what is published.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use durably::topology::{Expected, GroupChange, Incarnation};
use durably_http::ApiError;
use durably_http::topology::{
    Changed, ConvergenceQuery, Groups, GroupsQuery, HeaderValues, Reached, Removed, States,
    edition_tag, expected, expected_by_deletion, is_known, not_published, read_draft, read_patch,
    version_tag,
};
use durably_native::topology::PublishedGroup;

use super::Api;
use super::body;
use super::errors::of_topologies;
use super::routes::{Answer, InPath};

/// Topology and group.
type GroupPath = InPath<(String, String)>;

/// `PUT /v1/topologies/{topology}/groups/{group}`
pub(super) async fn put(
    State(api): State<Api>,
    path: GroupPath,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    update(&api, path, &headers, body, read_draft).await
}

/// `PATCH /v1/topologies/{topology}/groups/{group}`
pub(super) async fn patch(
    State(api): State<Api>,
    path: GroupPath,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    update(&api, path, &headers, body, read_patch).await
}

async fn update(
    api: &Api,
    path: GroupPath,
    headers: &HeaderMap,
    body: Body,
    read: impl FnOnce(&[u8]) -> Result<GroupChange, ApiError>,
) -> Answer<Response> {
    let Path((topology, group)) = path?;
    let expected = expecting(headers, expected)?;
    let json = body::read(headers, body, api.config.max_draft_bytes).await?;
    let change = read(&json)?;
    let updating = api.topologies.update(&topology, &group, expected, change);
    let updated = updating.await.map_err(of_topologies)?;
    let tag = [(header::ETAG, version_tag(updated.snapshot.version))];
    let changed = Changed {
        snapshot: &updated.snapshot,
        published: updated.published,
    };
    Ok((tag, Json(changed)).into_response())
}

/// What a change expects, by its headers.
fn expecting(
    headers: &HeaderMap,
    read: impl FnOnce(HeaderValues<'_>, HeaderValues<'_>) -> Result<Expected, ApiError>,
) -> Result<Expected, ApiError> {
    let values = |name| -> Vec<Option<&str>> {
        let values = headers.get_all(name).iter();
        values.map(|value| value.to_str().ok()).collect()
    };
    read(&values(header::IF_MATCH), &values(header::IF_NONE_MATCH))
}

/// `DELETE /v1/topologies/{topology}/groups/{group}`
pub(super) async fn delete(
    State(api): State<Api>,
    path: GroupPath,
    headers: HeaderMap,
) -> Answer<Json<Removed>> {
    let Path((topology, group)) = path?;
    let expected = expecting(&headers, expected_by_deletion)?;
    let deleted = api
        .topologies
        .delete(&topology, &group, expected)
        .await
        .map_err(of_topologies)?;
    Ok(Json(Removed {
        version: deleted.version,
        published: deleted.published,
    }))
}

/// `GET /v1/topologies/{topology}/groups/{group}`
pub(super) async fn group(State(api): State<Api>, path: GroupPath) -> Answer<Response> {
    let Path((topology, group)) = path?;
    let snapshot = api
        .topologies
        .snapshot(&topology, &group)
        .await
        .map_err(of_topologies)?;
    let tag = [(header::ETAG, version_tag(snapshot.version))];
    Ok((tag, Json(snapshot)).into_response())
}

/// `GET /v1/topologies/{topology}/groups/{group}/states`
pub(super) async fn states(State(api): State<Api>, path: GroupPath) -> Answer<Json<States>> {
    let Path((topology, group)) = path?;
    let states = api
        .topologies
        .states(&topology, &group)
        .await
        .map_err(of_topologies)?;
    Ok(Json(States { states }))
}

/// `GET /v1/topologies/{topology}/groups`
pub(super) async fn groups(
    State(api): State<Api>,
    path: InPath<String>,
    query: Result<Query<GroupsQuery>, QueryRejection>,
) -> Answer<Json<Groups>> {
    let Path(topology) = path?;
    let Query(query) = query?;
    let limit = query.limit()?;
    let groups = api
        .topologies
        .groups(&topology, &query.after, limit)
        .await
        .map_err(of_topologies)?;
    Ok(Json(Groups { groups }))
}

/// `GET /v1/topologies/{topology}/groups/{group}/convergence`
pub(super) async fn convergence(
    State(api): State<Api>,
    path: GroupPath,
    query: Result<Query<ConvergenceQuery>, QueryRejection>,
) -> Answer<Json<Reached>> {
    let Path((topology, group)) = path?;
    let Query(query) = query?;
    let wait = query.wait()?;
    let topologies = &api.topologies;
    let convergence = if wait.is_zero() {
        topologies
            .convergence(&topology, &group)
            .await
            .map_err(of_topologies)?
    } else {
        let mut stopping = api.stopping.clone();
        let stopped = async move {
            // An error means that the server itself is gone.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        };
        let (version, audience) = (query.version(), query.audience());
        let waiting = topologies.wait_until(&topology, &group, version, audience, wait);
        tokio::select! {
            convergence = waiting => convergence.map_err(of_topologies)?,
            () = stopped => {
                topologies.convergence(&topology, &group).await.map_err(of_topologies)?
            }
        }
    };
    Ok(Json(query.reached(convergence)))
}

/// `POST /v1/topologies/{topology}/new-incarnation`
pub(super) async fn new_incarnation(
    State(api): State<Api>,
    path: InPath<String>,
) -> Answer<Json<Incarnation>> {
    let Path(topology) = path?;
    tracing::warn!(topology, "an operator begins a new incarnation");
    Ok(Json(
        api.topologies
            .new_incarnation(&topology)
            .await
            .map_err(of_topologies)?,
    ))
}

/// `GET /v1/topologies/{topology}/published/{group}`: the text as readers read it.
pub(super) async fn published(
    State(api): State<Api>,
    path: GroupPath,
    headers: HeaderMap,
) -> Answer<Response> {
    let Path((topology, group)) = path?;
    let published = api
        .topologies
        .published(&topology, &group)
        .await
        .map_err(of_topologies)?;
    let Some(PublishedGroup { text, edition, .. }) = published.filter(|group| !group.deleted)
    else {
        return Err(not_published(&group));
    };
    let tag = edition_tag(&edition);
    let lists = headers.get_all(header::IF_NONE_MATCH).iter();
    let known = is_known(lists.filter_map(|list| list.to_str().ok()), &tag);
    let tags = [
        (header::ETAG, tag),
        // It is asked for again each time, and answered with little if it is still this.
        (header::CACHE_CONTROL, "no-cache".to_owned()),
    ];
    if known {
        return Ok((StatusCode::NOT_MODIFIED, tags).into_response());
    }
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((tags, kind, text).into_response())
}
