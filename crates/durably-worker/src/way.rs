//! The way from the stateless half of the worker to its objects.

use std::cell::RefCell;
use std::collections::HashMap;

use durably::host::LocalFuture;
use durably::jobs::{JobError, JobRouter, Reach, ShardCall, ShardLists};
use durably::semaphore::Standing;
use durably_cloudflare::{BindingError, ObjectStubs, WorkerTimer};
use durably_http::ApiError;
use serde::de::DeserializeOwned;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::future_to_promise;
use worker::js_sys::{Array, Function, Reflect};

use crate::answer::Answer;
use crate::request::Request;
use crate::settings::Environment;

/// How long a list of shards is gone by before the account is asked again. Jobs are not lost by an older
/// one: a shard that has heard of a newer list refuses them.
const LIST_TTL_MS: u64 = 5_000;

/// How often the former shards of one account are looked through at most.
const LOOK_THROUGH_EVERY_MS: u64 = 60_000;

/// Of how many accounts the lists are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// What an isolate remembers of an account, for all its requests.
#[derive(Default)]
struct Remembered {
    lists: Option<(ShardLists, u64)>,
    looked_through: Option<u64>,
}

thread_local! {
    static REMEMBERED: RefCell<HashMap<String, Remembered>> = RefCell::default();
}

fn remember<T>(account: &str, change: impl FnOnce(&mut Remembered) -> T) -> T {
    REMEMBERED.with_borrow_mut(|remembered| {
        if remembered.len() >= MAX_REMEMBERED && !remembered.contains_key(account) {
            remembered.clear();
        }
        change(remembered.entry(account.to_owned()).or_default())
    })
}

fn now() -> u64 {
    use durably::layers::Timer;
    WorkerTimer.now().as_millis()
}

/// The objects, and the request on whose behalf they are asked.
#[derive(Clone)]
pub(crate) struct Way {
    accounts: ObjectStubs,
    shards: ObjectStubs,
    /// The request's context, whose `waitUntil` carries on what nobody waits for.
    context: JsValue,
}

impl Way {
    pub(crate) fn new(environment: &Environment, context: JsValue) -> Result<Way, BindingError> {
        Ok(Way {
            accounts: accounts(environment)?,
            shards: objects(environment, "JOB_SHARD", "JobShard")?,
            context,
        })
    }

    fn account<T: DeserializeOwned + 'static>(
        &self,
        account: &str,
        method: &str,
        path: &[&str],
    ) -> LocalFuture<Result<T, JobError>> {
        let request = Request {
            method: method.to_owned(),
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            ..Request::default()
        };
        let answer = ask(&self.accounts, account, request);
        Box::pin(async move { answer.await.read().map_err(told) })
    }
}

/// The accounts' objects.
pub(crate) fn accounts(environment: &Environment) -> Result<ObjectStubs, BindingError> {
    objects(environment, "ACCOUNT_LIMIT", "AccountLimit")
}

/// The objects of a class, which come to be where the settings wish.
pub(crate) fn objects(
    environment: &Environment,
    binding: &str,
    class: &'static str,
) -> Result<ObjectStubs, BindingError> {
    let stubs = ObjectStubs::new(&environment.0, binding, class)?;
    Ok(match environment.location_hint() {
        Some(hint) => stubs.with_location_hints(move |_| Some(hint.clone())),
        None => stubs,
    })
}

/// Has an object answer a request. The call begins at once.
pub(crate) fn ask(
    stubs: &ObjectStubs,
    name: &str,
    request: Request,
) -> impl Future<Output = Answer> + use<> {
    let path: Array = request
        .path
        .iter()
        .map(|part| JsValue::from(part))
        .collect();
    let arguments = Array::of5(
        &request.method.into(),
        &path,
        &request.query.into(),
        &request.content_type.into(),
        &request.body.into(),
    );
    let answer = stubs.call(name, "request", &arguments);
    async move {
        match answer.await {
            Ok(answer) => Answer::from_javascript(&answer),
            // What the object had done until then stands; nobody knows how far it came.
            Err(error) => ApiError::new(error.code(), error.to_string()).into(),
        }
    }
}

fn told(error: ApiError) -> JobError {
    JobError::Told {
        code: error.code.into_owned(),
        message: error.message,
        field: error.field,
    }
}

impl Reach for Way {
    type Answer<T: Send + 'static> = LocalFuture<Result<T, JobError>>;

    fn published_lists(&self, account: &str) -> Self::Answer<Option<ShardLists>> {
        let now = now();
        let lists = remember(account, |remembered| remembered.lists.clone());
        let young = lists.filter(|(_, until)| now < *until);
        let lists = young.map(|(lists, _)| lists);
        Box::pin(async move { Ok(lists) })
    }

    fn lists(&self, account: &str) -> Self::Answer<Option<ShardLists>> {
        self.account(account, "GET", &["known-shards"])
    }

    fn lists_or_default(&self, account: &str) -> Self::Answer<ShardLists> {
        let answer = self.account(account, "GET", &["shards"]);
        let account = account.to_owned();
        Box::pin(async move {
            let lists: ShardLists = answer.await?;
            let until = now() + LIST_TTL_MS;
            remember(&account, |remembered| {
                remembered.lists = Some((lists.clone(), until));
            });
            Ok(lists)
        })
    }

    fn forget_former(&self, account: &str, version: u64) -> Self::Answer<()> {
        let version = version.to_string();
        let answer = self.account(account, "DELETE", &["former-shards", &version]);
        Box::pin(async move {
            let _: serde_json::Value = answer.await?;
            Ok(())
        })
    }

    fn standing(&self, account: &str, group: &str) -> Self::Answer<Standing> {
        self.account(account, "GET", &["groups", group, "usage"])
    }

    fn ask<C: ShardCall>(&self, shard: &str, call: C) -> Self::Answer<C::Answer> {
        let body = serde_json::to_string(&call);
        let (shards, shard) = (self.shards.clone(), shard.to_owned());
        Box::pin(async move {
            let body = body.map_err(|error| JobError::invalid("call", error.to_string()))?;
            let request = Request {
                method: "POST".to_owned(),
                path: vec![C::NAME.to_owned()],
                body,
                ..Request::default()
            };
            let answer = ask(&shards, &shard, request).await;
            answer.read().map_err(told)
        })
    }

    /// The platform does not say which objects there are.
    fn may_exist(&self, _shard: &str) -> Result<bool, JobError> {
        Ok(true)
    }

    fn met_former_lists(&self, account: &str, lists: &ShardLists) {
        let now = now();
        let due = remember(account, |remembered| {
            let due = remembered
                .looked_through
                .is_none_or(|at| now.saturating_sub(at) >= LOOK_THROUGH_EVERY_MS);
            if due {
                remembered.looked_through = Some(now);
            }
            due
        });
        if !due {
            return;
        }
        let (way, account, lists) = (self.clone(), account.to_owned(), lists.clone());
        let looking = future_to_promise(std::panic::AssertUnwindSafe(async move {
            // The next submission tries again.
            if let Err(error) = JobRouter::new(way).forget_drained(&account, &lists).await {
                tracing::debug!(%error, account, "shards not looked through");
            }
            Ok(JsValue::UNDEFINED)
        }));
        let wait_until = Reflect::get(&self.context, &"waitUntil".into())
            .and_then(|method| method.dyn_into::<Function>());
        if let Ok(wait_until) = wait_until {
            // Where it cannot wait, this is for the next submission as well.
            let _ = wait_until.call1(&self.context, &looking);
        }
    }
}
