//! What operators may ask and do: who holds permits, and taking them away from a client that will
//! never give them back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::book::Book;
use super::error::SemaphoreError;
use super::event::{SemaphoreEvent, TARGET};
use super::holder::Semaphore;
use super::protocol::check_id;
use super::store;
use super::tap::Act;
use crate::error::StorageError;
use crate::time::Timestamp;

/// The most holdings that are listed at once.
pub const MAX_HOLDINGS: u64 = 1_000;

/// What a client holds of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holding {
    /// The client.
    pub client_id: String,
    /// The group.
    pub group: String,
    /// Permits of grants that are not released.
    pub granted: u64,
    /// Permits of leases that are not released.
    pub leased: u64,
    /// When the oldest of its grants and leases was given.
    pub since: Timestamp,
    /// When the client was last heard of; unknown if that was before the object was last opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_report: Option<Timestamp>,
}

/// What a client lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForceReleased {
    /// Permits of grants.
    pub granted: u64,
    /// Permits of leases.
    pub leased: u64,
}

impl Semaphore {
    /// Who holds permits, by client and group, those after the client `after`; at most `limit`
    /// clients' worth, and no more than 1,000. Ask again after the last client for more.
    ///
    /// # Errors
    ///
    /// [`SemaphoreError::Storage`].
    pub async fn holdings(
        &self,
        after: Option<String>,
        limit: u64,
    ) -> Result<Vec<Holding>, SemaphoreError> {
        let inner = self.inner();
        let limit = limit.min(MAX_HOLDINGS);
        let read = inner.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            let after = after.unwrap_or_default();
            store::holdings(sql, &after, limit)
        });
        let mut holdings: BTreeMap<(String, String), Holding> = BTreeMap::new();
        for row in read.await? {
            let name = (row.client_id.clone(), row.group.clone());
            match holdings.get_mut(&name) {
                Some(known) => {
                    known.granted += row.granted;
                    known.leased += row.leased;
                    known.since = known.since.min(row.since);
                }
                None => {
                    holdings.insert(name, row);
                }
            }
        }
        let heard = inner.heard.borrow();
        let mut holdings: Vec<Holding> = holdings.into_values().collect();
        for holding in &mut holdings {
            holding.last_report = heard.get(&holding.client_id).copied();
        }
        Ok(holdings)
    }

    /// Takes all permits from a client, or those of one group, whatever it says: for a client that
    /// is gone for good. Work of it that still runs is counted no more. Told as an event, with the
    /// `reason` that is given.
    ///
    /// # Errors
    ///
    /// [`SemaphoreError::Malformed`] for a bad name, [`SemaphoreError::Storage`].
    #[tracing::instrument(
        level = "debug",
        target = "durably::semaphore",
        name = "Semaphore.force_release",
        skip_all
    )]
    pub async fn force_release(
        &self,
        client_id: &str,
        group: Option<&str>,
        reason: &str,
    ) -> Result<ForceReleased, SemaphoreError> {
        check_id("clientId", client_id)?;
        if let Some(group) = group {
            check_id("group", group)?;
        }
        let inner = self.inner();
        let now = inner.scheduler.now();
        let act = inner.told.begin(
            now,
            Act::ForceRelease {
                client_id,
                group,
                reason,
            },
        );
        let (writer, client, of_group) = (
            inner.clone(),
            client_id.to_owned(),
            group.map(str::to_owned),
        );
        let written = inner.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            let mut book = Book::new(
                store::grants_of_client(sql, &client)?,
                store::leases_of_client(sql, &client)?,
            );
            let released = book.take_away(of_group.as_deref());
            let (changes, delta) = book.close();
            writer.apply(transaction, &changes, delta)?;
            Ok::<_, StorageError>(released)
        });
        let released = written.await;
        inner.told.end(act, released.is_err());
        let released = released?;
        if released != ForceReleased::default() {
            tracing::warn!(
                target: TARGET,
                client_id,
                group,
                reason,
                granted = released.granted,
                leased = released.leased,
                "durability.semaphore.force_released"
            );
            inner.tell(&SemaphoreEvent::ForceReleased {
                timestamp: now,
                client_id: client_id.to_owned(),
                group: group.map(str::to_owned),
                granted: released.granted,
                leased: released.leased,
                reason: reason.to_owned(),
            });
        }
        Ok(released)
    }
}
