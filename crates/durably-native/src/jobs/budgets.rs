//! Where the accounts' budgets are: objects of this system, or those of another server, so that
//! several servers' shards share them.
//!
//! Decided here: what belongs to a budget (limits, use, messages) and so is asked for elsewhere,
//! and what a failure of that means. Lists of shards are always this system's own.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use durably::jobs::{AccountLimit, JobError, check_part};
use durably::layers::Elapsed;
use durably::semaphore::client::{ClientError, HolderCall};
use durably::semaphore::protocol::{Message, Reply};
use durably::semaphore::{
    ForceReleased, GroupStanding, Holding, LeaseOptions, SemaphoreError, Standing, Usage,
};
use durably::time::MAX_SAFE_INTEGER;
use durably::{ConfigError, StorageError};
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, select};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{JobsConfig, unavailable};
use crate::{CallError, ObjectHandle, SystemRef};

/// How long another server may take to say or set a limit, or to say what is in use.
const ACCOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to say what a job waits for; its status is told without it then.
const STANDING_TIMEOUT: Duration = Duration::from_secs(2);

/// The budgets of another server. [`HttpHolders`](crate::http::HttpHolders) are some.
///
/// The futures are polled by one runtime, whatever thread asks.
pub trait RemoteHolders: Debug + Send + Sync {
    /// Where they are, for people.
    fn address(&self) -> &str;

    /// Carries a message to the holder of its key.
    fn message(&self, call: HolderCall) -> BoxFuture<'static, Result<Reply, ClientError>>;

    /// The limit that holds for an account or one of its groups; `None` for a group that has only
    /// its account's.
    fn limit(
        &self,
        account: &str,
        group: Option<&str>,
    ) -> BoxFuture<'static, Result<Option<u64>, ClientError>>;

    /// Sets the limit of an account or one of its groups, or takes it back for the default.
    fn set_limit(
        &self,
        account: &str,
        group: Option<&str>,
        limit: Option<u64>,
    ) -> BoxFuture<'static, Result<(), ClientError>>;

    /// What of an account's budget is given out.
    fn usage(&self, account: &str) -> BoxFuture<'static, Result<Usage, ClientError>>;

    /// What a group of an account is measured against.
    fn standing(
        &self,
        account: &str,
        group: &str,
    ) -> BoxFuture<'static, Result<Standing, ClientError>>;

    /// How an account gives leases.
    fn leases(
        &self,
        account: &str,
    ) -> BoxFuture<'static, Result<Option<LeaseOptions>, ClientError>>;

    /// Sets how an account gives leases: `Some(None)` not at all, `None` as by default.
    fn set_leases(
        &self,
        account: &str,
        leases: Option<Option<LeaseOptions>>,
    ) -> BoxFuture<'static, Result<(), ClientError>>;

    /// Who holds permits of an account, after the client `after`.
    fn holdings(
        &self,
        account: &str,
        after: Option<&str>,
        limit: u64,
    ) -> BoxFuture<'static, Result<Vec<Holding>, ClientError>>;

    /// Takes permits of an account from a client.
    fn force_release(
        &self,
        account: &str,
        client_id: &str,
        group: Option<&str>,
        reason: &str,
    ) -> BoxFuture<'static, Result<ForceReleased, ClientError>>;
}

/// The way to all accounts' budgets.
#[derive(Clone)]
pub(super) enum Budgets {
    Here(Here),
    Elsewhere(Elsewhere),
}

/// The budgets of this system.
#[derive(Clone)]
pub(super) struct Here {
    system: SystemRef,
    default_limit: u64,
    default_group_limit: Option<u64>,
    default_leases: Option<LeaseOptions>,
}

/// The budgets of another server.
#[derive(Clone)]
pub(super) struct Elsewhere {
    holders: Arc<dyn RemoteHolders>,
    /// Where the connections live, so that objects' threads only wait for answers.
    runtime: Handle,
    message_timeout: Duration,
}

impl Budgets {
    /// Budgets elsewhere need a runtime around them, which carries their connections.
    pub(super) fn new(config: &JobsConfig, system: SystemRef) -> Result<Budgets, ConfigError> {
        let Some(holders) = &config.holders else {
            return Ok(Budgets::Here(Here {
                system,
                default_limit: config.default_limit,
                default_group_limit: config.default_group_limit,
                default_leases: config.default_leases.clone(),
            }));
        };
        let runtime = Handle::try_current()
            .map_err(|_| ConfigError::new("holders", "need a tokio runtime to be opened in"))?;
        Ok(Budgets::Elsewhere(Elsewhere {
            holders: holders.clone(),
            runtime,
            message_timeout: config.holder_timeout(),
        }))
    }

    /// Carries a message to the holder of its key.
    pub(super) async fn ask(self, call: HolderCall) -> Result<Reply, ClientError> {
        match self {
            Budgets::Here(here) => {
                let HolderCall { key, message } = call;
                match attended(here.account(&key), message).await {
                    Ok(reply) => Ok(reply?),
                    Err(error) => Err(ClientError::unreachable(error)),
                }
            }
            Budgets::Elsewhere(elsewhere) => elsewhere.run(elsewhere.holders.message(call)).await,
        }
    }

    /// Carries the message of a foreign client.
    pub(super) async fn message(&self, key: &str, message: Message) -> Result<Reply, JobError> {
        match self {
            Budgets::Here(here) => attended(here.account(key), message)
                .await
                .map_err(unavailable)?
                .map_err(JobError::Semaphore),
            Budgets::Elsewhere(elsewhere) => {
                let wait = match &message {
                    Message::Request(request) => request.wait_ms.unwrap_or(0),
                    Message::Sync(_) => 0,
                };
                let timeout = elsewhere.message_timeout + Duration::from_millis(wait);
                let call = HolderCall {
                    key: key.to_owned(),
                    message,
                };
                let answer = elsewhere.holders.message(call);
                elsewhere.in_time(timeout, answer).await
            }
        }
    }

    /// The limit that holds for an account or one of its groups.
    pub(super) async fn limit(
        &self,
        account: &str,
        group: Option<&str>,
    ) -> Result<Option<u64>, JobError> {
        match self {
            Budgets::Here(here) => {
                let known = here.known_account(account)?;
                let own = match (known, group.map(str::to_owned)) {
                    (None, _) => None,
                    (Some(object), None) => object
                        .call(|account| async move { account.limit() })
                        .await
                        .map_err(unavailable)?,
                    (Some(object), Some(group)) => object
                        .call(move |account| async move { account.group_limit(&group) })
                        .await
                        .map_err(unavailable)?,
                };
                Ok(own.or(match group {
                    None => Some(here.default_limit),
                    Some(_) => here.default_group_limit,
                }))
            }
            Budgets::Elsewhere(elsewhere) => {
                let answer = elsewhere.holders.limit(account, group);
                elsewhere.in_time(ACCOUNT_TIMEOUT, answer).await
            }
        }
    }

    pub(super) async fn set_limit(
        &self,
        account: &str,
        group: Option<&str>,
        limit: Option<u64>,
    ) -> Result<(), JobError> {
        match self {
            Budgets::Here(here) => {
                let group = group.map(str::to_owned);
                here.account(account)
                    .call(move |account| async move {
                        match group {
                            None => account.set_limit(limit).await,
                            Some(group) => account.set_group_limit(group, limit).await,
                        }
                    })
                    .await
                    .map_err(unavailable)?
            }
            Budgets::Elsewhere(elsewhere) => {
                // Blamed here as the other server would blame it.
                check_limit(limit)?;
                let answer = elsewhere.holders.set_limit(account, group, limit);
                elsewhere.in_time(ACCOUNT_TIMEOUT, answer).await
            }
        }
    }

    pub(super) async fn usage(&self, account: &str) -> Result<Usage, JobError> {
        match self {
            Budgets::Here(here) => match here.known_account(account)? {
                Some(object) => object
                    .call(|account| async move { account.usage().await })
                    .await
                    .map_err(unavailable)?,
                None => Ok(Usage {
                    limit: here.default_limit,
                    granted: 0,
                    leased: 0,
                    available: here.default_limit,
                    groups: BTreeMap::new(),
                }),
            },
            Budgets::Elsewhere(elsewhere) => {
                let answer = elsewhere.holders.usage(account);
                elsewhere.in_time(ACCOUNT_TIMEOUT, answer).await
            }
        }
    }

    /// What a group is measured against. For the status of a job, which does not wait for long.
    pub(super) async fn standing(&self, account: &str, group: &str) -> Result<Standing, JobError> {
        match self {
            Budgets::Here(here) => match here.known_account(account)? {
                Some(object) => {
                    let group = group.to_owned();
                    object
                        .call(move |account| async move { account.standing(&group).await })
                        .await
                        .map_err(unavailable)?
                }
                None => Ok(Standing {
                    limit: here.default_limit,
                    granted: 0,
                    leased: 0,
                    available: here.default_limit,
                    group: GroupStanding {
                        limit: here.default_group_limit,
                        granted: 0,
                        leased: 0,
                        closed: None,
                    },
                }),
            },
            Budgets::Elsewhere(elsewhere) => {
                let answer = elsewhere.holders.standing(account, group);
                elsewhere.in_time(STANDING_TIMEOUT, answer).await
            }
        }
    }

    pub(super) async fn leases(&self, account: &str) -> Result<Option<LeaseOptions>, JobError> {
        match self {
            Budgets::Here(here) => match here.known_account(account)? {
                Some(object) => object
                    .call(|account| async move { account.leases() })
                    .await
                    .map_err(unavailable),
                None => Ok(here.default_leases.clone()),
            },
            Budgets::Elsewhere(elsewhere) => {
                let answer = elsewhere.holders.leases(account);
                elsewhere.in_time(ACCOUNT_TIMEOUT, answer).await
            }
        }
    }

    pub(super) async fn set_leases(
        &self,
        account: &str,
        leases: Option<Option<LeaseOptions>>,
    ) -> Result<(), JobError> {
        match self {
            Budgets::Here(here) => here
                .account(account)
                .call(move |account| async move { account.set_leases(leases).await })
                .await
                .map_err(unavailable)?,
            Budgets::Elsewhere(elsewhere) => {
                if let Some(Some(options)) = &leases {
                    let checked = options.check();
                    checked.map_err(|error| JobError::invalid(error.field(), error.problem()))?;
                }
                let answer = elsewhere.holders.set_leases(account, leases);
                elsewhere.in_time(ACCOUNT_TIMEOUT, answer).await
            }
        }
    }

    pub(super) async fn holdings(
        &self,
        account: &str,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<Holding>, JobError> {
        match self {
            Budgets::Here(here) => match here.known_account(account)? {
                Some(object) => {
                    let after = after.map(str::to_owned);
                    object
                        .call(move |account| async move { account.holdings(after, limit).await })
                        .await
                        .map_err(unavailable)?
                }
                None => Ok(Vec::new()),
            },
            Budgets::Elsewhere(elsewhere) => {
                let answer = elsewhere.holders.holdings(account, after, limit);
                elsewhere.in_time(ACCOUNT_TIMEOUT, answer).await
            }
        }
    }

    pub(super) async fn force_release(
        &self,
        account: &str,
        client_id: &str,
        group: Option<&str>,
        reason: &str,
    ) -> Result<ForceReleased, JobError> {
        match self {
            Budgets::Here(here) => match here.known_account(account)? {
                Some(object) => {
                    let (client_id, reason) = (client_id.to_owned(), reason.to_owned());
                    let group = group.map(str::to_owned);
                    object
                        .call(move |account| async move {
                            let group = group.as_deref();
                            account.force_release(&client_id, group, &reason).await
                        })
                        .await
                        .map_err(unavailable)?
                }
                None => Ok(ForceReleased::default()),
            },
            Budgets::Elsewhere(elsewhere) => {
                let holders = &elsewhere.holders;
                let answer = holders.force_release(account, client_id, group, reason);
                elsewhere.in_time(ACCOUNT_TIMEOUT, answer).await
            }
        }
    }
}

/// Has an account answer a message for as long as somebody waits: a request whose caller has gone
/// must not wait for capacity any longer.
async fn attended(
    account: ObjectHandle<AccountLimit>,
    message: Message,
) -> Result<Result<Reply, SemaphoreError>, CallError> {
    let (waits, gone) = oneshot::channel::<()>();
    let answer = account
        .call(move |account| async move {
            match select(pin!(account.handle(message)), gone).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => {
                    let problem = "nobody waits for the answer any more".to_owned();
                    Err(StorageError::Ended(problem).into())
                }
            }
        })
        .await;
    drop(waits);
    answer
}

impl Here {
    fn account(&self, account: &str) -> ObjectHandle<AccountLimit> {
        self.system.object(account)
    }

    /// The account's object if it exists; asking about an account does not make one.
    fn known_account(&self, account: &str) -> Result<Option<ObjectHandle<AccountLimit>>, JobError> {
        let object = self.account(account);
        Ok(object.exists().map_err(unavailable)?.then_some(object))
    }
}

impl Elsewhere {
    /// Runs a call where connections live; dropped, it ends and its connection closes.
    async fn run<T: Send + 'static>(
        &self,
        call: BoxFuture<'static, Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let mut running = Running(self.runtime.spawn(call));
        match (&mut running.0).await {
            Ok(answer) => answer,
            Err(error) => Err(ClientError::unreachable(error)),
        }
    }

    async fn in_time<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: BoxFuture<'static, Result<T, ClientError>>,
    ) -> Result<T, JobError> {
        match tokio::time::timeout(timeout, self.run(call)).await {
            Ok(answer) => answer.map_err(|error| self.failed(&error)),
            Err(_) => Err(self.failed(&Elapsed(timeout).into())),
        }
    }

    /// What a failure over there means to who asked here. Whatever that server refuses is a matter
    /// between the two servers: what was asked for has been checked here.
    fn failed(&self, error: &ClientError) -> JobError {
        let address = self.holders.address();
        match error {
            ClientError::Refused {
                retryable: false, ..
            }
            | ClientError::Protocol(_) => JobError::Unavailable {
                code: "holders_refused",
                message: format!("the server of the holders, {address}, refuses: {error}"),
            },
            _ => JobError::Unavailable {
                code: "holders_unreachable",
                message: format!(
                    "the server of the holders, {address}, does not answer: try again ({error})"
                ),
            },
        }
    }
}

/// A task that ends when nobody waits for it any more.
struct Running<T>(JoinHandle<T>);

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn check_limit(limit: Option<u64>) -> Result<(), JobError> {
    match limit {
        Some(limit) if limit > MAX_SAFE_INTEGER => Err(JobError::invalid(
            "limit",
            format!("must be a whole number up to {MAX_SAFE_INTEGER}"),
        )),
        _ => Ok(()),
    }
}

/// Refuses an account whose holder cannot be asked: paths of HTTP have no such part.
pub(super) fn check_account(budgets: &Budgets, account: &str) -> Result<(), JobError> {
    check_part("account", account)?;
    match budgets {
        Budgets::Elsewhere(_) if matches!(account, "." | "..") => Err(JobError::invalid(
            "account",
            "must not be \".\" or \"..\" where the holders are asked over HTTP",
        )),
        _ => Ok(()),
    }
}
