//! One batch of calls: makes them, watches the time, and gathers what became of them.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::rc::Rc;

use futures::FutureExt;
use futures::future::{Either, join_all, select};
use serde_json::Value;

use super::driver::{Driver, Lane, Settled, SettledEntry};
use super::publish::{BatchEntry, Entry, Outcome, Way};
use super::store::DueEntry;
use super::turn::Starting;
use crate::error::{BoxError, error_text, panic_text};

impl Driver {
    /// Runs a batch and hands what became of it to the channel's next turn.
    pub(super) async fn run(self: Rc<Self>, lane: Rc<Lane>, starting: Starting) {
        let (entries, damaged) = entries(starting.entries);
        let mut settled = match &lane.publish {
            Way::Each(publish) => {
                let calls = entries.into_iter().map(|entry| async {
                    let called = Called::of(&entry);
                    let outcome = self.attempt(&lane, async { publish(entry).await }).await;
                    called.settled(outcome.unwrap_or_else(retry))
                });
                join_all(calls).await
            }
            Way::Batch(_) if entries.is_empty() => Vec::new(),
            Way::Batch(publish) => {
                let called: Vec<_> = entries.iter().map(Called::of).collect();
                let batch = entries.into_iter().map(BatchEntry::new).collect();
                match self.attempt(&lane, async { publish(batch).await }).await {
                    Ok(answered) => settled_by(called, answered),
                    Err(error) => called
                        .into_iter()
                        .map(|called| called.settled(retry(error.clone())))
                        .collect(),
                }
            }
        };
        settled.extend(damaged);
        lane.settled.borrow_mut().push(Rc::new(Settled {
            batch: starting.batch,
            entries: settled,
        }));
        self.wake(&lane);
    }

    /// Waits for a call, at most for the attempt time-out; says why it failed.
    async fn attempt<T>(
        &self,
        lane: &Lane,
        call: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, String> {
        let timeout = lane.config.attempt_timeout;
        let call = pin!(AssertUnwindSafe(call).catch_unwind());
        match select(call, self.scheduler.host().sleep(timeout)).await {
            Either::Left((Ok(Ok(answer)), _)) => Ok(answer),
            Either::Left((Ok(Err(error)), _)) => Err(error_text(&*error)),
            Either::Left((Err(panic), _)) => Err(panic_text("the publish callback", &*panic)),
            Either::Right(_) => Err(format!(
                "the attempt took longer than {} ms",
                timeout.as_millis()
            )),
        }
    }
}

fn retry(error: String) -> Outcome {
    Outcome::Retry {
        after: None,
        error: Some(error),
    }
}

/// The entries as their callback gets them, and what becomes of those that cannot be read.
fn entries(rows: Vec<DueEntry>) -> (Vec<Entry>, Vec<SettledEntry>) {
    let mut entries = Vec::with_capacity(rows.len());
    let mut damaged = Vec::new();
    for row in rows {
        let attempt = row.attempts + 1;
        match serde_json::from_str::<Value>(&row.value) {
            Ok(value) => entries.push(Entry {
                key: row.key,
                version: row.version,
                value,
                attempt,
            }),
            Err(error) => damaged.push(SettledEntry {
                key: row.key,
                version: row.version,
                attempt,
                outcome: retry(format!("the stored value is no JSON: {error}")),
            }),
        }
    }
    (entries, damaged)
}

/// Which entry a call was for.
struct Called {
    key: String,
    version: u64,
    attempt: u64,
}

impl Called {
    fn of(entry: &Entry) -> Self {
        Called {
            key: entry.key.clone(),
            version: entry.version,
            attempt: entry.attempt,
        }
    }

    fn settled(self, outcome: Outcome) -> SettledEntry {
        SettledEntry {
            key: self.key,
            version: self.version,
            attempt: self.attempt,
            outcome,
        }
    }
}

/// What became of a batch by what its callback handed back.
fn settled_by(called: Vec<Called>, answered: Vec<BatchEntry>) -> Vec<SettledEntry> {
    let mut outcomes: BTreeMap<String, Outcome> = answered
        .into_iter()
        .map(|entry| (entry.key.clone(), entry.outcome()))
        .collect();
    called
        .into_iter()
        .map(|called| {
            let outcome = outcomes.remove(&called.key);
            let missing = || retry("the publish callback did not hand it back".to_owned());
            called.settled(outcome.unwrap_or_else(missing))
        })
        .collect()
}
