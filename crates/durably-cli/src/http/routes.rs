//! The handlers: each reads a request, asks the application and writes what it says.

use std::fmt;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use durably::jobs::{AccountJobs, CancelOutcome, JobState, JobStatus};
use durably::time::MAX_SAFE_INTEGER;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Api;
use super::body::{self, Kind};
use super::errors::ApiError;
use super::job::{self, ItemResult, Outcome};
use super::ndjson;
use super::overload::InWork;

/// The longest message of the semaphore that is read whatever the bound on other bodies: its lists
/// are bounded by themselves, and a shard whose message is refused would wait for ever.
const MAX_MESSAGE_BYTES: usize = 8 << 20;

pub(super) type Answer<T> = Result<T, ApiError>;
pub(super) type InPath<T> = Result<Path<T>, PathRejection>;

#[derive(Serialize)]
struct Results {
    results: Vec<ItemResult>,
}

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
        Some(Kind::Json) => {
            let (one, list) = (api.config.max_body_bytes, api.config.max_batch_bytes);
            let limit = |first| if first == b'[' { list.max(one) } else { one };
            let json = body::collect(&headers, body, limit).await?;
            if json.trim_ascii_start().first() == Some(&b'[') {
                submit_list(&api, &json).await
            } else {
                submit_one(&api, &json).await
            }
        }
        Some(Kind::Ndjson) => {
            let lines = Body::from_stream(ndjson::outcomes(api, body, in_work));
            let content_type = [(header::CONTENT_TYPE, "application/x-ndjson")];
            Ok((StatusCode::ACCEPTED, content_type, lines).into_response())
        }
        None => Err(ApiError::new(
            "unsupported_media_type",
            "send a job or a list of jobs with the header \"content-type: application/json\", or \
             one job a line with \"content-type: application/x-ndjson\"",
        )),
    }
}

async fn submit_one(api: &Api, json: &[u8]) -> Answer<Response> {
    let job = job::read(json)?;
    let results = job::submit(&api.jobs, vec![Ok(job)]).await;
    let status = match results.first() {
        Some(ItemResult {
            error: Some(error), ..
        }) => return Err(error.clone()),
        Some(result) if result.outcome == Outcome::Duplicate => StatusCode::OK,
        _ => StatusCode::ACCEPTED,
    };
    Ok((status, Json(Results { results })).into_response())
}

async fn submit_list(api: &Api, json: &[u8]) -> Answer<Response> {
    let items: Vec<&RawValue> = serde_json::from_slice(json)
        .map_err(|error| ApiError::new("malformed_json", format!("this is not JSON: {error}")))?;
    let limit = api.config.max_batch_jobs;
    if items.len() > limit {
        return Err(ApiError::new(
            "too_many_jobs",
            format!(
                "a list may have at most {limit} jobs, this one has {}: send several, or a stream \
                 of lines",
                items.len()
            ),
        ));
    }
    let items = items
        .into_iter()
        .map(|item| job::read(item.get().as_bytes()));
    let results = job::submit(&api.jobs, items.collect()).await;
    // Nothing went in, and none of the jobs is at fault: say so where clients look first.
    let failed = |result: &ItemResult| {
        let error = result.error.as_ref();
        error.filter(|error| error.is_about_the_server()).cloned()
    };
    let failures: Option<Vec<ApiError>> = results.iter().map(failed).collect();
    if let Some(error) = failures.and_then(|failures| failures.into_iter().next()) {
        return Err(error);
    }
    Ok((StatusCode::ACCEPTED, Json(Results { results })).into_response())
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
    match status.state {
        JobState::Unknown => Err(unknown_job()),
        _ => Ok(Json(status)),
    }
}

fn unknown_job() -> ApiError {
    ApiError::new(
        "unknown_job",
        "no such job is known: it was never submitted, was cancelled while it waited, or ended \
         longer ago than jobs are kept",
    )
}

#[derive(Deserialize)]
pub(super) struct CancelQuery {
    #[serde(default)]
    running: bool,
}

/// `DELETE /v1/accounts/{account}/jobs/{id}`
pub(super) async fn cancel(
    State(api): State<Api>,
    path: InPath<(String, String)>,
    query: Result<Query<CancelQuery>, QueryRejection>,
) -> Answer<Response> {
    let Path((account, id)) = path?;
    let Query(CancelQuery { running }) = query?;
    let outcome = api.jobs.cancel(&account, &id, running).await?;
    let status = match outcome {
        CancelOutcome::Cancelled => StatusCode::OK,
        CancelOutcome::Stopping => StatusCode::ACCEPTED,
        CancelOutcome::Running => {
            return Err(ApiError::new(
                "job_running",
                "the job runs: cancel it all the same with ?running=true",
            ));
        }
        CancelOutcome::Ended => return Err(ApiError::new("job_ended", "the job has ended")),
        CancelOutcome::Unknown => return Err(unknown_job()),
    };
    Ok((status, Json(json!({ "outcome": outcome }))).into_response())
}

#[derive(Deserialize)]
struct LimitText {
    limit: Option<Permits>,
}

/// A number of permits.
struct Permits(u64);

impl<'de> Deserialize<'de> for Permits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Permits;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a whole number from 0 to {MAX_SAFE_INTEGER}")
            }

            fn visit_u64<E>(self, permits: u64) -> Result<Permits, E> {
                Ok(Permits(permits))
            }
        }
        deserializer.deserialize_u64(Whole)
    }
}

async fn read_limit(api: &Api, headers: &HeaderMap, body: Body) -> Answer<u64> {
    let json = body::read(headers, body, api.config.max_body_bytes).await?;
    let text: LimitText = body::parse_object(&json)?;
    text.limit
        .map(|Permits(permits)| permits)
        .ok_or_else(|| ApiError::invalid("limit", "is missing"))
}

/// A limit as it is shown: that of the account or group, or the default of all.
fn shown_limit(limit: Option<u64>) -> Json<Value> {
    Json(json!({ "limit": limit }))
}

/// `GET /v1/accounts/{account}/limit`
pub(super) async fn limit(State(api): State<Api>, path: InPath<String>) -> Answer<Json<Value>> {
    let Path(account) = path?;
    Ok(shown_limit(Some(api.jobs.limit(&account).await?)))
}

/// `PUT /v1/accounts/{account}/limit`
pub(super) async fn set_limit(
    State(api): State<Api>,
    path: InPath<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Value>> {
    let Path(account) = path?;
    let limit = read_limit(&api, &headers, body).await?;
    api.jobs.set_limit(&account, Some(limit)).await?;
    Ok(shown_limit(Some(limit)))
}

/// `DELETE /v1/accounts/{account}/limit`: back to the default, which is shown.
pub(super) async fn remove_limit(
    State(api): State<Api>,
    path: InPath<String>,
) -> Answer<Json<Value>> {
    let Path(account) = path?;
    api.jobs.set_limit(&account, None).await?;
    Ok(shown_limit(Some(api.jobs.limit(&account).await?)))
}

/// `GET /v1/accounts/{account}/groups/{group}/limit`: null if the group has only its account's.
pub(super) async fn group_limit(
    State(api): State<Api>,
    path: InPath<(String, String)>,
) -> Answer<Json<Value>> {
    let Path((account, group)) = path?;
    Ok(shown_limit(api.jobs.group_limit(&account, &group).await?))
}

/// `PUT /v1/accounts/{account}/groups/{group}/limit`
pub(super) async fn set_group_limit(
    State(api): State<Api>,
    path: InPath<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Value>> {
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
) -> Answer<Json<Value>> {
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

#[derive(Deserialize)]
struct ShardsText {
    shards: Option<Vec<String>>,
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
    let text: ShardsText = body::parse_object(&json)?;
    let shards = text
        .shards
        .ok_or_else(|| ApiError::invalid("shards", "is missing"))?;
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
