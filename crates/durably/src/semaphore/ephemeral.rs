//! Clients without storage: they say how long they may be silent, and what they held comes back
//! after that. A client that has storage never says so, and keeps what it claimed.

use std::rc::Rc;

use super::book::Book;
use super::event::SemaphoreEvent;
use super::holder::Inner;
use super::operators::ForceReleased;
use super::store;
use crate::bugs::{Bug, is_on};
use crate::error::StorageError;
use crate::host::Sql;
use crate::time::Timestamp;

/// The most clients that are looked at in one transaction.
const BATCH: u64 = 100;

impl Inner {
    /// Has a client that was heard of at `now` count as alive for its time to live, from now on as
    /// `ttl` says if it does.
    pub(super) fn renew(
        &self,
        sql: &dyn Sql,
        client_id: &str,
        ttl: Option<u64>,
        now: Timestamp,
    ) -> Result<(), StorageError> {
        match ttl {
            Some(ttl) => {
                // Before the alarm of this very transaction is reconciled.
                self.ephemeral.set(true);
                store::register_client(sql, client_id, ttl, now)
            }
            // The common case, no such client at all, costs no statement.
            None if self.ephemeral.get() => store::renew_client(sql, client_id, now),
            None => Ok(()),
        }
    }

    /// Takes back what clients hold that have been silent for too long.
    pub(super) async fn expire_clients(
        self: &Rc<Self>,
        now: Timestamp,
    ) -> Result<(), StorageError> {
        while self.ephemeral.get() {
            let inner = self.clone();
            let expired = self.scheduler.transaction(move |transaction| {
                let sql = transaction.sql();
                let clients = store::expired_clients(sql, now, BATCH)?;
                let is_last = (clients.len() as u64) < BATCH;
                let mut expired: Vec<(String, ForceReleased)> = Vec::new();
                for client_id in clients {
                    // Whose request waits here is alive, though it has nothing to say meanwhile.
                    let waits = inner.rounds.is_waited_by(&client_id);
                    if waits && !is_on(Bug::WaitingCountsAsSilent) {
                        store::renew_client(sql, &client_id, now)?;
                        continue;
                    }
                    let grants = store::grants_of_client(sql, &client_id)?;
                    let leases = store::leases_of_client(sql, &client_id)?;
                    let mut book = Book::new(grants, leases);
                    let released = book.take_away(None);
                    let (changes, delta) = book.close();
                    store::forget_client(sql, &client_id)?;
                    inner.apply(transaction, &changes, delta)?;
                    expired.push((client_id, released));
                }
                let any = store::knows_clients(sql)?;
                transaction.on_release(Box::new(move || inner.ephemeral.set(any)));
                Ok::<_, StorageError>((expired, is_last))
            });
            let (expired, is_last) = expired.await?;
            for (client_id, released) in expired {
                self.tell(&SemaphoreEvent::ClientExpired {
                    timestamp: now,
                    client_id,
                    granted: released.granted,
                    leased: released.leased,
                });
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }
}
