//! The handlers about topologies: changing groups, asking their coordinators, and what is published.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use durably::topology::{
    Audience, Convergence, Draft, Edition, Expected, GroupChange, Incarnation, Patch,
    TopologyError, Updated,
};
use durably_http::ApiError;
use durably_native::topology::PublishedGroup;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Api;
use super::body;
use super::errors::of_topologies;
use super::routes::{Answer, InPath};

/// The longest wait for a version; who wants more asks again.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// How many groups one answer lists.
const MAX_GROUPS: u64 = 1_000;

/// Topology and group.
type GroupPath = InPath<(String, String)>;

/// `PUT /v1/topologies/{topology}/groups/{group}`
pub(super) async fn put(
    State(api): State<Api>,
    path: GroupPath,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let draft = |value| Ok(GroupChange::Draft(Draft::from_json(value)?));
    update(&api, path, &headers, body, draft).await
}

/// `PATCH /v1/topologies/{topology}/groups/{group}`
pub(super) async fn patch(
    State(api): State<Api>,
    path: GroupPath,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let patch = |value| Ok(GroupChange::Patch(Patch::from_json(value)?));
    update(&api, path, &headers, body, patch).await
}

async fn update(
    api: &Api,
    path: GroupPath,
    headers: &HeaderMap,
    body: Body,
    read: impl FnOnce(Value) -> Result<GroupChange, TopologyError>,
) -> Answer<Response> {
    let Path((topology, group)) = path?;
    let expected = expected(headers)?;
    let json = body::read(headers, body, api.config.max_draft_bytes).await?;
    let change = read(durably_http::parse(&json)?).map_err(of_topologies)?;
    let updating = api.topologies.update(&topology, &group, expected, change);
    let Updated {
        snapshot,
        published,
        ..
    } = updating.await.map_err(of_topologies)?;
    let tag = [(header::ETAG, version_tag(snapshot.version))];
    let shown = json!({ "snapshot": snapshot, "published": published });
    Ok((tag, Json(shown)).into_response())
}

/// `DELETE /v1/topologies/{topology}/groups/{group}`
pub(super) async fn delete(
    State(api): State<Api>,
    path: GroupPath,
    headers: HeaderMap,
) -> Answer<Json<Value>> {
    let Path((topology, group)) = path?;
    let expected = match expected(&headers)? {
        Expected::None => {
            return Err(malformed(&header::IF_NONE_MATCH, "cannot go with DELETE"));
        }
        expected => expected,
    };
    let deleted = api
        .topologies
        .delete(&topology, &group, expected)
        .await
        .map_err(of_topologies)?;
    Ok(Json(
        json!({ "version": deleted.version, "published": deleted.published }),
    ))
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
pub(super) async fn states(State(api): State<Api>, path: GroupPath) -> Answer<Json<Value>> {
    let Path((topology, group)) = path?;
    let states = api
        .topologies
        .states(&topology, &group)
        .await
        .map_err(of_topologies)?;
    Ok(Json(json!({ "states": states })))
}

#[derive(Deserialize)]
pub(super) struct GroupsQuery {
    #[serde(default)]
    after: String,
    limit: Option<u64>,
}

/// `GET /v1/topologies/{topology}/groups`
pub(super) async fn groups(
    State(api): State<Api>,
    path: InPath<String>,
    query: Result<Query<GroupsQuery>, QueryRejection>,
) -> Answer<Json<Value>> {
    let Path(topology) = path?;
    let Query(GroupsQuery { after, limit }) = query?;
    let limit = limit.unwrap_or(MAX_GROUPS);
    if !(1..=MAX_GROUPS).contains(&limit) {
        let problem = format!("must be from 1 to {MAX_GROUPS}");
        return Err(ApiError::invalid("limit", problem));
    }
    let groups = api
        .topologies
        .groups(&topology, &after, limit)
        .await
        .map_err(of_topologies)?;
    Ok(Json(json!({ "groups": groups })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConvergenceQuery {
    version: Option<u64>,
    audience: Option<AudienceText>,
    wait_ms: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AudienceText {
    Published,
    Quorum,
    All,
}

impl From<AudienceText> for Audience {
    fn from(text: AudienceText) -> Self {
        match text {
            AudienceText::Published => Audience::Published,
            AudienceText::Quorum => Audience::Quorum,
            AudienceText::All => Audience::All,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Reached {
    reached: bool,
    #[serde(flatten)]
    convergence: Convergence,
}

/// `GET /v1/topologies/{topology}/groups/{group}/convergence`
pub(super) async fn convergence(
    State(api): State<Api>,
    path: GroupPath,
    query: Result<Query<ConvergenceQuery>, QueryRejection>,
) -> Answer<Json<Reached>> {
    let Path((topology, group)) = path?;
    let Query(query) = query?;
    let version = query.version.unwrap_or(0);
    let audience = query.audience.map_or(Audience::All, Audience::from);
    let wait = Duration::from_millis(query.wait_ms.unwrap_or(0));
    if wait > MAX_WAIT {
        let problem = format!("must be at most {}", MAX_WAIT.as_millis());
        return Err(ApiError::invalid("waitMs", problem));
    }
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
        let waiting = topologies.wait_until(&topology, &group, version, audience, wait);
        tokio::select! {
            convergence = waiting => convergence.map_err(of_topologies)?,
            () = stopped => {
                topologies.convergence(&topology, &group).await.map_err(of_topologies)?
            }
        }
    };
    Ok(Json(Reached {
        reached: convergence.reached(version, audience),
        convergence,
    }))
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
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| names(value, &tag)));
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

pub(super) fn not_published(group: &str) -> ApiError {
    ApiError::new(
        "not_published",
        format!(
            "no group {group:?} is published: it was never there, is deleted, or is on its way"
        ),
    )
}

/// The tag of a group at its coordinator: the version that a change may name in `If-Match`.
fn version_tag(version: u64) -> String {
    format!("\"{version}\"")
}

/// The tag of a published text. Coordinators that follow each other count the same versions.
pub(super) fn edition_tag(edition: &Edition) -> String {
    let incarnation = &edition.incarnation;
    format!(
        "\"{}-{}-{}\"",
        edition.version,
        incarnation.created_at.as_millis(),
        incarnation.nonce
    )
}

/// Whether a header's list of tags names this one; weak ones do as well.
fn names(list: &str, tag: &str) -> bool {
    list.split(',').map(str::trim).any(|known| {
        known == "*" || known == tag || known.strip_prefix("W/").is_some_and(|weak| weak == tag)
    })
}

/// What a change expects, by its headers.
fn expected(headers: &HeaderMap) -> Result<Expected, ApiError> {
    let only = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        let first = values.next().map(|value| value.to_str().map(str::trim));
        match (first, values.next()) {
            (None, _) => Ok(None),
            (Some(Ok(value)), None) => Ok(Some(value)),
            _ => Err(malformed(name, "must be there once, in ASCII")),
        }
    };
    match (only(&header::IF_MATCH)?, only(&header::IF_NONE_MATCH)?) {
        (None, None) => Ok(Expected::Anything),
        (Some("*"), None) => Ok(Expected::Some),
        (Some(tag), None) => version(tag).map(Expected::Version).ok_or_else(|| {
            malformed(
                &header::IF_MATCH,
                "must be the group's version in quotes, for instance \"3\", or *",
            )
        }),
        (None, Some("*")) => Ok(Expected::None),
        (None, Some(_)) => Err(malformed(&header::IF_NONE_MATCH, "must be *")),
        (Some(_), Some(_)) => Err(malformed(&header::IF_MATCH, "cannot go with If-None-Match")),
    }
}

fn version(tag: &str) -> Option<u64> {
    let digits = tag.strip_prefix('"')?.strip_suffix('"')?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| digits.parse().ok()).flatten()
}

fn malformed(name: &HeaderName, problem: &str) -> ApiError {
    let shown = match *name {
        header::IF_MATCH => "If-Match",
        _ => "If-None-Match",
    };
    ApiError {
        code: "malformed_request".into(),
        message: format!("{shown} {problem}"),
        field: Some(shown.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(headers: &[(HeaderName, &'static str)]) -> Result<Expected, Option<String>> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_static(value));
        }
        expected(&map).map_err(|error| error.field)
    }

    #[test]
    fn headers_say_what_a_change_expects() {
        let (matches, none) = (header::IF_MATCH, header::IF_NONE_MATCH);
        assert_eq!(read(&[]), Ok(Expected::Anything));
        assert_eq!(
            read(&[(matches.clone(), "\"3\"")]),
            Ok(Expected::Version(3))
        );
        assert_eq!(read(&[(matches.clone(), " * ")]), Ok(Expected::Some));
        assert_eq!(read(&[(none.clone(), "*")]), Ok(Expected::None));
        for wrong in [
            "3",
            "\"\"",
            "\"-1\"",
            "\"+1\"",
            "W/\"3\"",
            "\"3\", \"4\"",
            "\"x\"",
            "\"",
        ] {
            let blamed = Err(Some("If-Match".to_owned()));
            assert_eq!(read(&[(matches.clone(), wrong)]), blamed, "{wrong}");
        }
        assert!(read(&[(none.clone(), "\"3\"")]).is_err());
        assert!(read(&[(matches.clone(), "*"), (none, "*")]).is_err());
        assert!(read(&[(matches.clone(), "\"1\""), (matches, "\"1\"")]).is_err());
    }

    #[test]
    fn a_list_of_tags_may_name_one() {
        for (list, named) in [
            ("\"a\"", true),
            ("\"b\", \"a\"", true),
            ("W/\"a\"", true),
            ("*", true),
            ("\"b\"", false),
            ("", false),
        ] {
            assert_eq!(names(list, "\"a\""), named, "{list}");
        }
    }
}
