//! Requests to an account's budget, as docs/http.md has them under `/v1/accounts/{account}` and
//! `/v1/holders/{key}`. Decided here: which requests there are and how they are read. What becomes of
//! them is the matter of `AccountLimit`.

use durably::error::BoxError;
use durably::jobs::{AccountLimit, JobError, check_part};
use durably::semaphore::LeaseOptions;
use durably::semaphore::protocol::Message;
use durably::time::MAX_SAFE_INTEGER;
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::answer::{Answer, parse_object};

/// The longest body that is read: lists in messages are bounded by themselves.
const MAX_BODY_BYTES: usize = 8 << 20;

/// The default limit as the worker's configuration has it.
pub(crate) fn default_limit(given: f64) -> Result<u64, BoxError> {
    if given.fract() == 0.0 && (0.0..=MAX_SAFE_INTEGER as f64).contains(&given) {
        Ok(given as u64)
    } else {
        Err(format!(
            "DEFAULT_LIMIT must be a whole number from 0 to {MAX_SAFE_INTEGER}, not {given}: set it \
             among the worker's `vars`"
        )
        .into())
    }
}

/// Answers a request for `path`, which follows the account.
pub(crate) async fn answer(
    account: &AccountLimit,
    default_limit: u64,
    method: &str,
    path: &[String],
    body: &str,
) -> Answer {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let answered = if body.len() > MAX_BODY_BYTES {
        Err(Answer::refusal(
            "body_too_large",
            &format!("the body must be at most {MAX_BODY_BYTES} bytes long"),
            None,
        ))
    } else {
        route(account, default_limit, method, &path, body).await
    };
    answered.unwrap_or_else(|refusal| refusal)
}

async fn route(
    account: &AccountLimit,
    default_limit: u64,
    method: &str,
    path: &[&str],
    body: &str,
) -> Result<Answer, Answer> {
    match (path, method) {
        (["messages"], "POST") => {
            let message = Message::from_json(body.as_bytes())
                .map_err(|error| refused(&JobError::Semaphore(error.into())))?;
            let reply = account.handle(message).await;
            let reply = reply.map_err(|error| refused(&JobError::Semaphore(error)))?;
            Ok(Answer::ok(&reply))
        }
        (["limit"], "GET" | "PUT" | "DELETE") => {
            if method != "GET" {
                let limit = given_limit(method, body)?;
                account
                    .set_limit(limit)
                    .await
                    .map_err(|error| refused(&error))?;
            }
            let limit = account.limit().unwrap_or(default_limit);
            Ok(Answer::ok(&json!({ "limit": limit })))
        }
        (["groups", group, "limit"], "GET" | "PUT" | "DELETE") => {
            check_part("group", group).map_err(|error| refused(&error))?;
            if method != "GET" {
                let limit = given_limit(method, body)?;
                let set = account.set_group_limit((*group).to_owned(), limit);
                set.await.map_err(|error| refused(&error))?;
            }
            Ok(Answer::ok(&json!({ "limit": account.group_limit(group) })))
        }
        (["usage"], "GET") => {
            let usage = account.usage().await.map_err(|error| refused(&error))?;
            Ok(Answer::ok(&usage))
        }
        (["groups", group, "usage"], "GET") => {
            check_part("group", group).map_err(|error| refused(&error))?;
            let standing = account.standing(group).await;
            Ok(Answer::ok(&standing.map_err(|error| refused(&error))?))
        }
        (["leases"], "GET" | "PUT" | "DELETE") => {
            if method != "GET" {
                let leases = given_leases(method, body)?;
                let set = account.set_leases(leases);
                set.await.map_err(|error| refused(&error))?;
            }
            Ok(Answer::ok(&json!({ "leases": account.leases() })))
        }
        (
            ["messages"] | ["limit"] | ["usage"] | ["leases"] | ["groups", _, "limit" | "usage"],
            _,
        ) => Err(Answer::refusal(
            "method_not_allowed",
            &format!("{method} is not possible here"),
            None,
        )),
        _ => Err(Answer::refusal(
            "not_found",
            "nothing is here: docs/http.md lists the paths",
            None,
        )),
    }
}

fn refused(error: &JobError) -> Answer {
    Answer::refusal(error.code(), &error.to_string(), error.field())
}

#[derive(Deserialize)]
struct LimitText {
    limit: Option<u64>,
}

/// The limit to set; `None` to take it back.
fn given_limit(method: &str, body: &str) -> Result<Option<u64>, Answer> {
    if method == "DELETE" {
        return Ok(None);
    }
    let text: LimitText = parse_object(body)?;
    let limit = text
        .limit
        .ok_or_else(|| Answer::invalid("limit", "is missing"))?;
    Ok(Some(limit))
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

fn given_leases(method: &str, body: &str) -> Result<Option<Option<LeaseOptions>>, Answer> {
    if method == "DELETE" {
        return Ok(None);
    }
    let text: LeasesText = parse_object(body)?;
    let leases = text
        .leases
        .ok_or_else(|| Answer::invalid("leases", "is missing"))?;
    Ok(Some(leases))
}
