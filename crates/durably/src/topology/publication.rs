//! Publication: brings the newest snapshot of each group into the store, and knows when it is there
//! for good.
//!
//! A store that is not version-aware takes whatever comes last, so a write that was given up may still
//! land over a newer one. Every write is therefore recorded before it starts and forgotten when it has
//! ended; while a record of an older write stands, a newer one is not taken for final but written again
//! when the older cannot land any more.

use std::panic::AssertUnwindSafe;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use serde_json::{Value, json};

use super::delivery::took_too_long;
use super::driver::Driver;
use super::error::TopologyError;
use super::publisher::{Landing, Publication, Publisher};
use super::snapshot::{Edition, encode};
use super::store::{self, GroupRow};
use crate::bugs::{self, Bug};
use crate::error::{BoxError, StorageError, error_text, panic_text};
use crate::host::{Sql, Transaction};
use crate::outbox::{Channel, Entry, OutboxError, Outcome};
use crate::time::{MAX_DURATION, Timestamp};

/// A configured publisher.
pub(super) struct Publishing {
    pub(super) publisher: Rc<dyn Publisher>,
    pub(super) channel: Channel,
    pub(super) attempt_timeout: Duration,
    pub(super) landing_window: Duration,
}

impl Publishing {
    /// Stages a group's latest state.
    pub(super) fn stage(
        &self,
        transaction: &dyn Transaction,
        row: &GroupRow,
    ) -> Result<(), OutboxError> {
        let (value, mark) = (publication_value(row.version), row.version.to_string());
        self.channel
            .stage_marked(transaction, &row.group, &value, Some(&mark))?;
        Ok(())
    }

    /// The same while the object opens.
    pub(super) fn stage_opening(&self, sql: &dyn Sql, row: &GroupRow) -> Result<(), OutboxError> {
        let (value, mark) = (publication_value(row.version), row.version.to_string());
        self.channel
            .stage_opening(sql, &row.group, &value, Some(&mark))
    }
}

/// The value of a publication's entry: what it says is in the group's rows, since whatever changes
/// these stages it anew.
fn publication_value(version: u64) -> Value {
    json!({ "version": version })
}

/// A write that is about to start.
struct Write {
    publication: Rc<Publication>,
    /// The record of it, if the store needs one.
    record: Option<String>,
    started: Timestamp,
}

impl Driver {
    /// Publishes the latest state of the group that an entry names.
    pub(super) async fn publish(driver: Weak<Driver>, entry: Entry) -> Result<Outcome, BoxError> {
        let driver = driver.upgrade().ok_or("the object is closing")?;
        let publishing = driver.publishing().ok_or("there is no publisher")?;
        let group = entry.key;
        let Some(write) = driver.begin_write(&group).await? else {
            return Ok(Outcome::Dropped);
        };
        let (landed, landing) = oneshot::channel();
        let publisher = publishing.publisher.clone();
        let publication = write.publication.clone();
        let call = async move { publisher.publish(publication).await };
        let (late, of, record) = (Rc::downgrade(&driver), group.clone(), write.record.clone());
        driver.scheduler.spawn(async move {
            let answer = AssertUnwindSafe(call).catch_unwind().await;
            let waits_no_more = landed.send(answer).is_err();
            if let (true, Some(record), Some(driver)) = (waits_no_more, record, late.upgrade()) {
                driver.settle_late(of, record).await;
            }
        });
        let error = match driver.within(publishing.attempt_timeout, landing).await {
            Some(Ok(Ok(Ok(landing)))) => {
                return driver.landed(group, write, landing).await;
            }
            Some(Ok(Ok(Err(error)))) => error_text(&*error),
            // It did not say whether anything is still on its way, so the record stays.
            Some(Ok(Err(panic))) => {
                let error = panic_text("the publisher", &*panic);
                return Ok(failed(&group, entry.attempt, error));
            }
            Some(Err(_)) => return Err("the write was cut off".into()),
            None => {
                let error = took_too_long("write", publishing.attempt_timeout);
                if let Some(record) = write.record
                    && bugs::is_on(Bug::ForgetUnendedWrite)
                {
                    driver.forget(&group, record).await?;
                }
                return Ok(failed(&group, entry.attempt, error));
            }
        };
        if let Some(record) = write.record {
            // A write that failed has ended, so it cannot land any more.
            driver.forget(&group, record).await?;
        }
        Ok(failed(&group, entry.attempt, error))
    }

    /// Reads what is to be published and records the write.
    async fn begin_write(self: &Rc<Self>, group: &str) -> Result<Option<Write>, StorageError> {
        let (driver, group) = (self.clone(), group.to_owned());
        let begun = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            let publishing = driver.publishing();
            let (Some(row), Some(publishing)) = (store::group(sql, &group)?, publishing) else {
                return Ok::<_, StorageError>(None);
            };
            let edition = driver.edition(row.version);
            let publication = match row.deleted {
                true => Publication::Deletion {
                    tombstone: encode(&group, &edition, None),
                    group: group.clone(),
                    edition,
                },
                false => {
                    let snapshot = driver.snapshot_at(sql, &row)?;
                    Publication::Write {
                        encoded: encode(&group, &edition, Some(&snapshot.members)),
                        snapshot,
                        edition,
                    }
                }
            };
            let started = driver.scheduler.now();
            let record = match publishing.publisher.is_version_aware() {
                true => None,
                false => {
                    let id = driver.scheduler.next_id();
                    let land_by = started + publishing.attempt_timeout + publishing.landing_window;
                    store::record_write(sql, &group, &id, land_by)?;
                    Some(id)
                }
            };
            Ok(Some(Write {
                publication: Rc::new(publication),
                record,
                started,
            }))
        });
        begun.await
    }

    /// What a write that succeeded in time means.
    async fn landed(
        self: &Rc<Self>,
        group: String,
        write: Write,
        landing: Landing,
    ) -> Result<Outcome, BoxError> {
        if let Landing::Superseded(newer) = landing {
            return self
                .superseded(group, write.publication.edition(), newer)
                .await;
        }
        let Some(record) = write.record else {
            return Ok(Outcome::Done);
        };
        let started = match bugs::is_on(Bug::ExpiryAtTheEnd) {
            true => self.scheduler.now(),
            false => write.started,
        };
        let ended = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            store::forget_write(sql, &group, &record)?;
            // One that could land after this write started may have landed over it.
            store::writes_after(sql, &group, started)
        });
        Ok(match ended.await? {
            None => Outcome::Done,
            Some(until) => Outcome::Retry {
                after: Some(until.since(self.scheduler.now()).min(MAX_DURATION)),
                error: Some("an older write may still land over this one".to_owned()),
            },
        })
    }

    /// The store has a newer edition of this coordinator than what was to be published, or the same with
    /// another text. If the coordinator never came to that, its storage is an older copy than the one
    /// that was published from.
    async fn superseded(
        self: &Rc<Self>,
        group: String,
        published: &Edition,
        newer: Edition,
    ) -> Result<Outcome, BoxError> {
        let of = group.clone();
        let host = self.scheduler.host();
        let read = host.transaction(move |transaction| store::group(transaction.sql(), &of));
        let version = read.await?.map_or(0, |row| row.version);
        let ours = self.edition(version);
        let is_behind = ours.compare(&newer).is_some_and(|order| order.is_lt());
        if (is_behind || newer == *published) && !bugs::is_on(Bug::NewerEditionIgnored) {
            tracing::error!(
                group,
                ours = %ours,
                stored = %newer,
                "durability.topology.publish_failed"
            );
            // It stages all groups, this one included, so nothing more is to be said of this entry.
            self.new_incarnation(Some(newer.incarnation.clone()))
                .await?;
        }
        Ok(Outcome::Retry {
            after: None,
            error: Some(format!("the store has {newer}")),
        })
    }

    /// A write that nobody waits for any more has ended: it may have landed over a newer one, so the
    /// latest state is written again.
    async fn settle_late(self: &Rc<Self>, group: String, record: String) {
        let (driver, of) = (self.clone(), group.clone());
        let settled = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            store::forget_write(sql, &of, &record)?;
            let (row, publishing) = (store::group(sql, &of)?, driver.publishing());
            if let (Some(row), Some(publishing)) = (row, publishing)
                && !bugs::is_on(Bug::LateWriteStays)
            {
                publishing.stage(transaction, &row)?;
            }
            Ok::<_, TopologyError>(())
        });
        if let Err(error) = settled.await {
            tracing::error!(group, %error, "durability.topology.restage_failed");
        }
    }

    async fn forget(self: &Rc<Self>, group: &str, record: String) -> Result<(), StorageError> {
        let group = group.to_owned();
        let forgotten = self.scheduler.transaction(move |transaction| {
            store::forget_write(transaction.sql(), &group, &record)
        });
        forgotten.await
    }
}

fn failed(group: &str, attempt: u64, error: String) -> Outcome {
    tracing::error!(group, attempt, error, "durability.topology.publish_failed");
    Outcome::Retry {
        after: None,
        error: Some(error),
    }
}
