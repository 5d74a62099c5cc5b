//! Requests to an account's object: its budget and its shards, as docs/http.md has them under
//! `/v1/accounts/{account}`, and messages to it as a holder.

use durably::jobs::{AccountLimit, JobError, check_part};
use durably::semaphore::protocol::Message;
use durably_http::budget::{
    Holders, HoldersQuery, Leases, Limit, MAX_MESSAGE_BYTES, ReleaseQuery, read_leases, read_limit,
    read_shards,
};
use durably_http::{ApiError, body_too_large, parse_query};
use serde_json::json;

use crate::answer::{Answer, not_allowed, not_found};
use crate::request::Request;
use crate::settings::Environment;

/// What an account is given that was not told otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    limit: u64,
    group_limit: Option<u64>,
    shards: u32,
}

impl Defaults {
    pub(crate) fn read(environment: &Environment) -> Result<Defaults, ApiError> {
        let read = || {
            Ok::<_, durably::ConfigError>(Defaults {
                limit: environment.default_limit()?,
                group_limit: environment.default_group_limit()?,
                shards: environment.shards_per_account()?,
            })
        };
        read().map_err(|error| ApiError::new(error.code(), error.to_string()))
    }
}

/// Answers a request whose path follows the account.
pub(crate) async fn answer(
    account: &AccountLimit,
    defaults: Defaults,
    request: Request,
) -> Result<Answer, ApiError> {
    let method = request.method.as_str();
    let json = request.body.as_bytes();
    match request.path().as_slice() {
        ["messages"] => match method {
            "POST" => {
                if json.len() > MAX_MESSAGE_BYTES {
                    return Err(body_too_large(MAX_MESSAGE_BYTES));
                }
                let message = Message::from_json(json);
                let message = message.map_err(|error| JobError::Semaphore(error.into()))?;
                let reply = account.handle(message).await;
                Ok(Answer::ok(&reply.map_err(JobError::Semaphore)?))
            }
            _ => Ok(not_allowed(method, "POST")),
        },
        ["limit"] => {
            let Some(change) = change(&request, read_limit)? else {
                return Ok(not_allowed(method, "GET, PUT, DELETE"));
            };
            if let Change::To(limit) = change {
                account.set_limit(limit).await?;
            }
            let limit = Some(account.limit().unwrap_or(defaults.limit));
            Ok(Answer::ok(&Limit { limit }))
        }
        ["groups", group, "limit"] => {
            check_part("group", group)?;
            let Some(change) = change(&request, read_limit)? else {
                return Ok(not_allowed(method, "GET, PUT, DELETE"));
            };
            if let Change::To(limit) = change {
                account.set_group_limit((*group).to_owned(), limit).await?;
            }
            let limit = account.group_limit(group).or(defaults.group_limit);
            Ok(Answer::ok(&Limit { limit }))
        }
        ["usage"] => match method {
            "GET" => Ok(Answer::ok(&account.usage().await?)),
            _ => Ok(not_allowed(method, "GET")),
        },
        ["groups", group, "usage"] => match method {
            "GET" => {
                check_part("group", group)?;
                Ok(Answer::ok(&account.standing(group).await?))
            }
            _ => Ok(not_allowed(method, "GET")),
        },
        ["leases"] => {
            let Some(change) = change(&request, read_leases)? else {
                return Ok(not_allowed(method, "GET, PUT, DELETE"));
            };
            if let Change::To(leases) = change {
                account.set_leases(leases).await?;
            }
            let leases = account.leases();
            Ok(Answer::ok(&Leases { leases }))
        }
        ["holders"] => match method {
            "GET" => {
                let query: HoldersQuery = parse_query(&request.query)?;
                let limit = query.limit();
                let holders = account.holdings(query.after, limit).await?;
                Ok(Answer::ok(&Holders { holders }))
            }
            _ => Ok(not_allowed(method, "GET")),
        },
        ["holders", client] => match method {
            "DELETE" => {
                check_part("client", client)?;
                let ReleaseQuery { group, reason } = parse_query(&request.query)?;
                let releasing = account.force_release(client, group.as_deref(), &reason);
                Ok(Answer::ok(&releasing.await?))
            }
            _ => Ok(not_allowed(method, "DELETE")),
        },
        ["shards"] => match method {
            "GET" => Ok(Answer::ok(
                &account.shards_or_default(defaults.shards).await?,
            )),
            "PUT" => {
                let shards = read_shards(request.json()?)?;
                Ok(Answer::ok(&account.set_shards(shards).await?))
            }
            _ => Ok(not_allowed(method, "GET, PUT")),
        },
        // What only the worker itself asks.
        ["known-shards"] => Ok(Answer::ok(&account.shards().await?)),
        ["former-shards", version] if method == "DELETE" => {
            let version = version.parse().map_err(|_| not_found())?;
            account.forget_former(version).await?;
            Ok(Answer::ok(&json!({})))
        }
        _ => Err(not_found()),
    }
}

/// What a request does to a setting.
enum Change<T> {
    /// It only asks for it.
    Nothing,
    /// It sets it, or takes it back for the default.
    To(Option<T>),
}

/// What a request does to a setting that `read` reads; `None` for a method that settings do not take.
fn change<T>(
    request: &Request,
    read: fn(&[u8]) -> Result<T, ApiError>,
) -> Result<Option<Change<T>>, ApiError> {
    Ok(Some(match request.method.as_str() {
        "GET" => Change::Nothing,
        "PUT" => Change::To(Some(read(request.json()?)?)),
        "DELETE" => Change::To(None),
        _ => return Ok(None),
    }))
}
