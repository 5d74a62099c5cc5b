//! Settings as JSON, a line each: how leases are given, limits, and what objects are opened with. What is refused changes
//! nothing; with what is taken, the objects work.

use std::time::Duration;

use durably::SchedulerConfig;
use durably::jobs::{AccountConfig, NewJob, ShardConfig};
use durably::operations::{Backoff, HandlerConfig};
use durably::semaphore::LeaseOptions;
use serde::Deserialize;
use serde_json::Value;

use super::lines;
use super::stand::{Stand, account_config, shard_config, stored};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    limit: Option<u64>,
    group: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shards {
    shards: Vec<String>,
}

/// Settings of objects; what is not given is as it is otherwise.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Opening {
    alarm_min_delay_ms: Option<u64>,
    alarm_concurrency: Option<u64>,
    alarm_handoff_ms: Option<u64>,
    default_limit: Option<u64>,
    default_group_limit: Option<u64>,
    default_leases: Option<LeaseOptions>,
    round_wait_ms: Option<u64>,
    round_period_ms: Option<u64>,
    grant_timeout_ms: Option<u64>,
    max_attempts: Option<u64>,
    attempt_timeout_ms: Option<u64>,
    max_interruptions: Option<u64>,
    backoff_base_ms: Option<u64>,
    backoff_max_ms: Option<u64>,
    max_body_bytes: Option<u64>,
    max_queue_length: Option<u64>,
    retention_ms: Option<u64>,
}

/// Configures objects as the input says, and uses them.
///
/// # Panics
///
/// If it finds a fault.
pub fn configuration(input: &[u8]) {
    let mut stand: Option<Stand> = None;
    for line in lines(input) {
        if let Ok(opening) = serde_json::from_slice::<Opening>(line) {
            if let Some(opened) = open(opening) {
                stand = Some(opened);
            }
        } else if let Ok(options) = serde_json::from_slice::<Option<LeaseOptions>>(line) {
            give_leases(stand.get_or_insert_with(Stand::new), options);
        } else if let Ok(Limit { limit, group }) = serde_json::from_slice(line) {
            let set = move |account: std::rc::Rc<durably::jobs::AccountLimit>| async move {
                match group {
                    None => account.set_limit(limit).await,
                    Some(group) => account.set_group_limit(group, limit).await,
                }
            };
            change(stand.get_or_insert_with(Stand::new), set);
        } else if let Ok(Shards { shards }) = serde_json::from_slice(line) {
            change(stand.get_or_insert_with(Stand::new), |account| async move {
                account.set_shards(shards).await.map(|_| ())
            });
        } else {
            continue;
        }
        if let Some(stand) = &stand {
            work(stand);
        }
    }
}

/// Opens objects if their settings can be had, and makes sure that they say what is wrong with them otherwise.
fn open(opening: Opening) -> Option<Stand> {
    let ms = |value: Option<u64>, usual: Duration| value.map_or(usual, Duration::from_millis);
    let usual = SchedulerConfig::default();
    let mut scheduler = usual.clone();
    scheduler.alarm_min_delay = ms(opening.alarm_min_delay_ms, usual.alarm_min_delay);
    scheduler.alarm_concurrency = opening.alarm_concurrency.unwrap_or(usual.alarm_concurrency);
    scheduler.alarm_handoff = ms(opening.alarm_handoff_ms, usual.alarm_handoff);
    let usual = account_config();
    let account = AccountConfig {
        scheduler: scheduler.clone(),
        default_limit: opening.default_limit.unwrap_or(usual.default_limit),
        default_group_limit: opening.default_group_limit,
        default_leases: opening.default_leases,
        round_wait: ms(opening.round_wait_ms, usual.round_wait),
        round_period: ms(opening.round_period_ms, usual.round_period),
        grant_timeout: ms(opening.grant_timeout_ms, usual.grant_timeout),
        recorder: None,
    };
    let usual = HandlerConfig::default();
    let mut attempts = usual.clone();
    attempts.max_attempts = opening.max_attempts.unwrap_or(usual.max_attempts);
    attempts.attempt_timeout = ms(opening.attempt_timeout_ms, usual.attempt_timeout);
    attempts.max_interruptions = opening.max_interruptions.unwrap_or(usual.max_interruptions);
    attempts.backoff = Backoff::Exponential {
        base: ms(opening.backoff_base_ms, Duration::from_secs(1)),
        max: ms(opening.backoff_max_ms, Duration::from_secs(300)),
    };
    let usual = shard_config();
    let shard = ShardConfig {
        scheduler,
        attempts,
        max_body_bytes: opening.max_body_bytes.unwrap_or(usual.max_body_bytes),
        max_queue_length: opening.max_queue_length.unwrap_or(usual.max_queue_length),
        retention: ms(opening.retention_ms, usual.retention),
    };
    let stand = Stand::with(account.clone(), shard.clone());
    let account = opens(account.check(), stand.account(|_| async {}).err());
    let shard = opens(shard.check(), stand.shard(|_| async {}).err());
    (account && shard).then_some(stand)
}

/// Whether an object opens, which it must exactly if its settings can be had.
fn opens(checked: Result<(), durably::ConfigError>, refused: Option<crate::CallError>) -> bool {
    match (checked, refused) {
        (Ok(()), None) => true,
        (Err(error), Some(refused)) => {
            let text = refused.to_string();
            assert!(
                text.contains(error.field()),
                "{text} does not name {}",
                error.field()
            );
            false
        }
        (checked, refused) => panic!("checked: {checked:?}, opened: {refused:?}"),
    }
}

fn give_leases(stand: &Stand, options: Option<LeaseOptions>) {
    if let Some(options) = &options {
        let json = serde_json::to_vec(options).expect("options are JSON");
        let read: LeaseOptions = serde_json::from_slice(&json).expect("options that were written");
        assert_eq!(&read, options);
    }
    change(stand, |account| async move {
        account.set_leases(Some(options)).await
    });
}

/// Sets something, which changes nothing if it is refused.
fn change<F>(
    stand: &Stand,
    set: impl FnOnce(std::rc::Rc<durably::jobs::AccountLimit>) -> F + 'static,
) where
    F: Future<Output = Result<(), durably::jobs::JobError>> + 'static,
{
    let _ = stand.account(|account| async move { account.usage().await });
    let before = stored(&stand.account);
    if let Err(error) = stand.account(set).expect("the account lives") {
        assert!(!error.code().is_empty() && !error.to_string().is_empty());
        assert_eq!(
            stored(&stand.account),
            before,
            "refused, and not without a trace"
        );
    }
}

/// Some jobs, which may have to wait.
fn work(stand: &Stand) {
    for group in ["a", "b"] {
        let jobs = ["1", "2", "3"].map(|id| NewJob {
            account: "acme".to_owned(),
            id: format!("{group}{id}"),
            group: group.to_owned(),
            body: Value::Null,
        });
        let submitted =
            stand.shard(move |shard| async move { shard.submit("acme", 1, jobs.into()).await });
        submitted
            .expect("the shard lives")
            .expect("jobs can be submitted")
            .expect("a list");
    }
    stand.advance(Duration::from_secs(3));
    let usage = stand.account(|account| async move { account.usage().await });
    usage.expect("the account lives").expect("usage can be had");
    stand.account.crash();
    stand.shard.crash();
    stand.advance(Duration::from_secs(30));
}
