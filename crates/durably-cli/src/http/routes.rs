//! The handlers: each reads a request, asks the application and writes what it says.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use durably::jobs::{AccountJobs, JobStatus};
use durably_http::budget::{self, Limit, MAX_MESSAGE_BYTES};
use durably_http::job::{self, CancelQuery};
use durably_http::{ApiError, BodyKind};
use serde::Serialize;
use serde_json::json;

use super::Api;
use super::body;
use super::ndjson;
use super::overload::InWork;

pub(super) type Answer<T> = Result<T, ApiError>;
pub(super) type InPath<T> = Result<Path<T>, PathRejection>;

/// `POST /v1/jobs`: one job, a list of jobs, or a stream of lines.
pub(super) async fn submit(
    State(api): State<Api>,
    Extension(in_work): Extension<InWork>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    if !api.config.takes_jobs {
        return Err(ApiError::new(
            "no_job_endpoint",
            "this server takes no jobs: start it with --job-endpoint, the URL that runs them",
        ));
    }
    match body::kind(&headers) {
        Some(BodyKind::Json) => {
            let (one, list) = (api.config.max_body_bytes, api.config.max_batch_bytes);
            let limit = |first| if first == b'[' { list.max(one) } else { one };
            let json = body::collect(&headers, body, limit).await?;
            if job::is_list(&json) {
                submit_list(&api, &json).await
            } else {
                submit_one(&api, &json).await
            }
        }
        Some(BodyKind::Ndjson) => {
            let lines = Body::from_stream(ndjson::outcomes(api, body, in_work));
            let content_type = [(header::CONTENT_TYPE, "application/x-ndjson")];
            Ok((StatusCode::ACCEPTED, content_type, lines).into_response())
        }
        None => Err(job::not_jobs_kind()),
    }
}

async fn submit_one(api: &Api, json: &[u8]) -> Answer<Response> {
    let job = job::read(json)?;
    told(job::answer_one(submitted(api, vec![Ok(job)]).await)?)
}

async fn submit_list(api: &Api, json: &[u8]) -> Answer<Response> {
    let items = job::read_list(json, api.config.max_batch_jobs)?;
    told(job::answer_list(submitted(api, items).await)?)
}

async fn submitted(api: &Api, items: Vec<job::Item>) -> Vec<job::ItemResult> {
    job::submit(items, async |jobs| api.jobs.submit(jobs).await).await
}

fn told((status, answer): (u16, impl Serialize)) -> Answer<Response> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Ok((status, Json(answer)).into_response())
}

/// `GET /v1/accounts/{account}/jobs`
pub(super) async fn account_jobs(
    State(api): State<Api>,
    path: InPath<String>,
) -> Answer<Json<AccountJobs>> {
    let Path(account) = path?;
    Ok(Json(api.jobs.account_jobs(&account).await?))
}

/// `GET /v1/accounts/{account}/jobs/{id}`
pub(super) async fn status(
    State(api): State<Api>,
    path: InPath<(String, String)>,
) -> Answer<Json<JobStatus>> {
    let Path((account, id)) = path?;
    let status = api.jobs.status(&account, &id).await?;
    Ok(Json(job::known(status)?))
}

/// `DELETE /v1/accounts/{account}/jobs/{id}`
pub(super) async fn cancel(
    State(api): State<Api>,
    path: InPath<(String, String)>,
    query: Result<Query<CancelQuery>, QueryRejection>,
) -> Answer<Response> {
    let Path((account, id)) = path?;
    let Query(CancelQuery { running }) = query?;
    told(job::cancelled(
        api.jobs.cancel(&account, &id, running).await?,
    )?)
}

async fn read_limit(api: &Api, headers: &HeaderMap, body: Body) -> Answer<u64> {
    let json = body::read(headers, body, api.config.max_body_bytes).await?;
    budget::read_limit(&json)
}

fn shown_limit(limit: Option<u64>) -> Json<Limit> {
    Json(Limit { limit })
}

/// `GET /v1/accounts/{account}/limit`
pub(super) async fn limit(State(api): State<Api>, path: InPath<String>) -> Answer<Json<Limit>> {
    let Path(account) = path?;
    Ok(shown_limit(Some(api.jobs.limit(&account).await?)))
}

/// `PUT /v1/accounts/{account}/limit`
pub(super) async fn set_limit(
    State(api): State<Api>,
    path: InPath<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Limit>> {
    let Path(account) = path?;
    let limit = read_limit(&api, &headers, body).await?;
    api.jobs.set_limit(&account, Some(limit)).await?;
    Ok(shown_limit(Some(limit)))
}

/// `DELETE /v1/accounts/{account}/limit`: back to the default, which is shown.
pub(super) async fn remove_limit(
    State(api): State<Api>,
    path: InPath<String>,
) -> Answer<Json<Limit>> {
    let Path(account) = path?;
    api.jobs.set_limit(&account, None).await?;
    Ok(shown_limit(Some(api.jobs.limit(&account).await?)))
}

/// `GET /v1/accounts/{account}/groups/{group}/limit`: null if the group has only its account's.
pub(super) async fn group_limit(
    State(api): State<Api>,
    path: InPath<(String, String)>,
) -> Answer<Json<Limit>> {
    let Path((account, group)) = path?;
    Ok(shown_limit(api.jobs.group_limit(&account, &group).await?))
}

/// `PUT /v1/accounts/{account}/groups/{group}/limit`
pub(super) async fn set_group_limit(
    State(api): State<Api>,
    path: InPath<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Limit>> {
    let Path((account, group)) = path?;
    let limit = read_limit(&api, &headers, body).await?;
    let set = api.jobs.set_group_limit(&account, &group, Some(limit));
    set.await?;
    Ok(shown_limit(Some(limit)))
}

/// `DELETE /v1/accounts/{account}/groups/{group}/limit`: back to the default, which is shown.
pub(super) async fn remove_group_limit(
    State(api): State<Api>,
    path: InPath<(String, String)>,
) -> Answer<Json<Limit>> {
    let Path((account, group)) = path?;
    api.jobs.set_group_limit(&account, &group, None).await?;
    Ok(shown_limit(api.jobs.group_limit(&account, &group).await?))
}

/// `GET /v1/accounts/{account}/usage`
pub(super) async fn usage(State(api): State<Api>, path: InPath<String>) -> Answer<Response> {
    let Path(account) = path?;
    Ok(Json(api.jobs.usage(&account).await?).into_response())
}

/// `GET /v1/accounts/{account}/shards`
pub(super) async fn shards(State(api): State<Api>, path: InPath<String>) -> Answer<Response> {
    let Path(account) = path?;
    Ok(Json(api.jobs.shards(&account).await?).into_response())
}

/// `PUT /v1/accounts/{account}/shards`
pub(super) async fn set_shards(
    State(api): State<Api>,
    path: InPath<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let Path(account) = path?;
    let json = body::read(&headers, body, api.config.max_body_bytes).await?;
    let shards = budget::read_shards(&json)?;
    Ok(Json(api.jobs.set_shards(&account, shards).await?).into_response())
}

/// `POST /v1/holders/{key}/messages`: a message of the semaphore's protocol, answered when its
/// round has been held.
pub(super) async fn message(
    State(api): State<Api>,
    path: InPath<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let Path(key) = path?;
    let limit = api.config.max_body_bytes.max(MAX_MESSAGE_BYTES);
    let json = body::read(&headers, body, limit).await?;
    Ok(Json(api.jobs.message(&key, &json).await?).into_response())
}

/// `GET /v1/health`
pub(super) async fn health() -> Response {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") })).into_response()
}

pub(super) async fn not_found(uri: Uri) -> ApiError {
    ApiError::new(
        "not_found",
        format!("nothing is at {}: docs/http.md lists the paths", uri.path()),
    )
}

pub(super) async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::new(
        "method_not_allowed",
        format!(
            "{} is not possible here: see the header \"Allow\"",
            request.method()
        ),
    )
}
