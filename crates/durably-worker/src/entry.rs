//! The stateless half: what comes over HTTP, on its way to the objects. Decided here: which object a path
//! belongs to, and who may ask.

use durably::jobs::{JobRouter, check_part};
use durably_cloudflare::BindingError;
use durably_http::job::{self, CancelQuery, Item};
use durably_http::{ApiError, BodyKind, body_too_large, kind, not_json_kind, parse_query};
use serde::Serialize;
use serde_json::json;
use wasm_bindgen::JsValue;

use crate::answer::{Answer, not_allowed, not_found};
use crate::request::Request;
use crate::runner::takes_jobs;
use crate::settings::Environment;
use crate::way::{Way, accounts, ask};

/// The longest list of jobs, in bytes and jobs.
const MAX_BATCH_BYTES: usize = 8 << 20;
const MAX_BATCH_JOBS: usize = 5_000;

/// The longest stream of lines: it is read whole before the first is submitted.
const MAX_LINES_BYTES: usize = 16 << 20;

/// Lines that are submitted together at most.
const BATCH_LINES: usize = 500;

/// Answers a request; `None` for a path that is nobody's here.
pub(crate) async fn answer(
    environment: &Environment,
    context: JsValue,
    authorization: Option<String>,
    request: Request,
) -> Option<Answer> {
    let path = request.path();
    if path == ["v1", "health"] {
        let version = env!("CARGO_PKG_VERSION");
        return Some(Answer::ok(&json!({ "status": "ok", "version": version })));
    }
    if let Err(refusal) = authorized(environment, authorization.as_deref()) {
        return Some(refusal.into());
    }
    let answered = match path.as_slice() {
        ["v1", "jobs"] => jobs(environment, context, &request).await,
        ["v1", "accounts", account, "jobs", rest @ ..] => {
            let way = Way::new(environment, context).map_err(missing);
            match way {
                Ok(way) => account_jobs(way, account, rest, &request).await,
                Err(error) => Err(error),
            }
        }
        ["v1", "accounts", account, _, ..] | ["v1", "holders", account, "messages"] => {
            to_account(environment, account, &request).await
        }
        _ => return None,
    };
    Some(answered.unwrap_or_else(Answer::from))
}

fn missing(error: BindingError) -> ApiError {
    ApiError::new(error.code(), error.to_string())
}

/// Refuses who does not know the token, if there is one.
fn authorized(environment: &Environment, authorization: Option<&str>) -> Result<(), ApiError> {
    let Some(token) = environment.api_token() else {
        return Ok(());
    };
    let given = authorization.and_then(|value| value.strip_prefix("Bearer "));
    // All of it is compared whatever differs, so that time tells nothing.
    let same = given.is_some_and(|given| {
        given.len() == token.len()
            && std::iter::zip(given.bytes(), token.bytes())
                .fold(0, |differs, (one, other)| differs | (one ^ other))
                == 0
    });
    match same {
        true => Ok(()),
        false => Err(ApiError::new(
            "unauthorized",
            "send the header \"authorization: Bearer TOKEN\" with the worker's API_TOKEN",
        )),
    }
}

async fn to_account(
    environment: &Environment,
    account: &str,
    request: &Request,
) -> Result<Answer, ApiError> {
    let field = if request.path.get(1).is_some_and(|room| room == "holders") {
        "key"
    } else {
        "account"
    };
    check_part(field, account)?;
    let stubs = accounts(environment).map_err(missing)?;
    let forwarded = Request {
        method: request.method.clone(),
        path: request.path.iter().skip(3).cloned().collect(),
        query: request.query.clone(),
        content_type: request.content_type.clone(),
        body: request.body.clone(),
    };
    if forwarded
        .path
        .first()
        .is_some_and(|part| INTERNAL.contains(&part.as_str()))
    {
        return Err(not_found());
    }
    let is_message = forwarded.path == ["messages"] && forwarded.method == "POST";
    if is_message && kind(request.content_type.as_deref()) != Some(BodyKind::Json) {
        return Err(not_json_kind());
    }
    Ok(ask(&stubs, account, forwarded).await)
}

/// What only the worker itself asks of an account.
const INTERNAL: [&str; 2] = ["known-shards", "former-shards"];

async fn jobs(
    environment: &Environment,
    context: JsValue,
    request: &Request,
) -> Result<Answer, ApiError> {
    if request.method != "POST" {
        return Ok(not_allowed(&request.method, "POST"));
    }
    if !takes_jobs(environment) {
        return Err(ApiError::new(
            "no_job_endpoint",
            "this worker takes no jobs: set JOB_URL, the URL that runs them, among its vars, or bind \
             a service to JOB_ENDPOINT",
        ));
    }
    let router = JobRouter::new(Way::new(environment, context).map_err(missing)?);
    let submit =
        async |items: Vec<Item>| job::submit(items, async |jobs| router.submit(jobs).await).await;
    let max_body = environment.max_body_bytes();
    let max_body = max_body.map_err(|error| ApiError::new(error.code(), error.to_string()))?;
    let max_body = max_body as usize;
    let json = request.body.as_bytes();
    match kind(request.content_type.as_deref()) {
        Some(BodyKind::Json) => {
            let is_list = job::is_list(json);
            let limit = if is_list { MAX_BATCH_BYTES } else { max_body };
            if json.len() > limit {
                return Err(body_too_large(limit));
            }
            let (status, results) = if is_list {
                let items = job::read_list(json, MAX_BATCH_JOBS)?;
                job::answer_list(submit(items).await)?
            } else {
                let job = job::read(json)?;
                job::answer_one(submit(vec![Ok(job)]).await)?
            };
            Ok(Answer::new(status, &results))
        }
        Some(BodyKind::Ndjson) => {
            if json.len() > MAX_LINES_BYTES {
                return Err(body_too_large(MAX_LINES_BYTES));
            }
            let lines: Vec<(u64, &str)> = std::iter::zip(1.., request.body.split('\n'))
                .filter(|(_, line)| !line.trim_ascii().is_empty())
                .collect();
            let mut body = String::new();
            for some in lines.chunks(BATCH_LINES) {
                let items = some.iter().map(|(_, line)| match line.len() > max_body {
                    true => Err(job::line_too_large(max_body)),
                    false => job::read(line.as_bytes()),
                });
                let results = submit(items.collect()).await;
                for (mut result, (number, _)) in std::iter::zip(results, some) {
                    result.line = Some(*number);
                    push_line(&mut body, &result);
                }
            }
            Ok(Answer {
                status: 202,
                headers: vec![("content-type", "application/x-ndjson".to_owned())],
                body,
            })
        }
        None => Err(job::not_jobs_kind()),
    }
}

fn push_line(body: &mut String, line: &impl Serialize) {
    // Texts and numbers into memory: this cannot fail.
    body.push_str(&serde_json::to_string(line).unwrap_or_default());
    body.push('\n');
}

async fn account_jobs(
    way: Way,
    account: &str,
    path: &[&str],
    request: &Request,
) -> Result<Answer, ApiError> {
    let router = JobRouter::new(way);
    let method = request.method.as_str();
    match (path, method) {
        ([], "GET") => Ok(Answer::ok(&router.account_jobs(account).await?)),
        ([id], "GET") => {
            let status = router.status(account, id).await?;
            Ok(Answer::ok(&job::known(status)?))
        }
        ([id], "DELETE") => {
            let CancelQuery { running } = parse_query(&request.query)?;
            let outcome = router.cancel(account, id, running).await?;
            let (status, answer) = job::cancelled(outcome)?;
            Ok(Answer::new(status, &answer))
        }
        ([], _) => Ok(not_allowed(method, "GET")),
        ([_], _) => Ok(not_allowed(method, "GET, DELETE")),
        _ => Err(not_found()),
    }
}
