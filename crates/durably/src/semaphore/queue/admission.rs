//! What passes between a queue and its application: items whose permit is confirmed are handed over,
//! it is asked which have ended, and what ended long ago is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;

use serde_json::value::RawValue;

use super::book::{Book, Grant, Name};
use super::claim::Claim;
use super::event::{QueueEvent, Via};
use super::giving::{apply_draws, draw_waiting};
use super::inner::{Change, Inner};
use super::item::AdmittedItem;
use super::lanes::MAX_FORGOTTEN;
use super::lease::Phase;
use super::store;
use crate::error::{BoxError, StorageError};
use crate::host::Sql;
use crate::time::Timestamp;

/// When an item was queued, and its body.
type Stored = (Timestamp, Box<RawValue>);

impl Inner {
    /// Hands the next items of a grant to the application.
    pub(super) async fn hand_over(self: &Rc<Self>, key: Name, grant_id: Name) {
        match self.hand_over_batch(&key, &grant_id).await {
            Ok(()) => self.book.borrow_mut().admit_ended(&key, &grant_id),
            Err(error) => {
                self.report("items could not be admitted and will be again", &error);
                let now = self.now();
                let delay = self.delay();
                let mut book = self.book.borrow_mut();
                book.admit_failed(&key, &grant_id, now, delay);
            }
        }
    }

    async fn hand_over_batch(self: &Rc<Self>, key: &Name, grant_id: &Name) -> Result<(), BoxError> {
        let limit = usize::try_from(self.settings.max_admit_items).unwrap_or(usize::MAX);
        let next = {
            let book = self.book.borrow();
            let next = book.next_to_admit(key, grant_id, limit);
            let grant = book.grant(key, grant_id);
            let of = grant.map(|grant| (grant.group.clone(), via(grant_id, grant)));
            next.zip(of)
        };
        let Some(((ids, end), (group, via))) = next else {
            return Ok(());
        };
        if ids.is_empty() {
            return Ok(());
        }
        let bodies = self.bodies(ids.clone()).await?;
        let items = ids.iter().zip(bodies).filter_map(|(id, stored)| {
            // Gone only if it ended meanwhile.
            let (queued_at, body) = stored?;
            Some(AdmittedItem {
                id: id.to_string(),
                key: key.to_string(),
                group: group.to_string(),
                via: via.clone(),
                queued_at,
                body,
            })
        });
        let items: Vec<AdmittedItem> = items.collect();
        if !items.is_empty() {
            (self.admit)(items).await?;
        }
        let (key, grant_id) = (key.clone(), grant_id.clone());
        let now = self.now();
        let pending = self
            .finished
            .as_ref()
            .map(|_| now + self.settings.finished_after);
        let stored = self.store(move |_, sql| {
            store::mark_admitted(sql, &key, &grant_id, end as u64)?;
            let events = ids.iter().map(|id| QueueEvent::Admitted {
                id: id.to_string(),
                key: key.to_string(),
                group: group.to_string(),
                via: via.clone(),
            });
            Ok(Change {
                value: (),
                events: events.collect(),
                pending,
                apply: Box::new(move |book| book.admitted(&key, &grant_id, end, now)),
            })
        });
        Ok(stored.await?)
    }

    /// When items were queued, and their bodies.
    fn bodies(
        &self,
        ids: Vec<Name>,
    ) -> impl Future<Output = Result<Vec<Option<Stored>>, StorageError>> + use<> {
        self.scheduler.host().transaction(move |transaction| {
            let sql = transaction.sql();
            ids.iter().map(|id| store::body(sql, id)).collect()
        })
    }

    /// Asks the application which of `items` have ended, and releases them.
    pub(super) async fn check(self: &Rc<Self>, items: Vec<Name>) {
        let limit = usize::try_from(self.settings.max_admit_items).unwrap_or(usize::MAX);
        for batch in items.chunks(limit) {
            if let Err(error) = self.check_batch(batch).await {
                self.report("the application could not say which items ended", &error);
            }
        }
        let now = self.now();
        self.book.borrow_mut().check_ended(now);
    }

    async fn check_batch(self: &Rc<Self>, batch: &[Name]) -> Result<(), BoxError> {
        let Some(finished) = &self.finished else {
            return Ok(());
        };
        let asked: Vec<String> = batch.iter().map(|id| id.to_string()).collect();
        let ended = finished(asked.clone()).await?;
        let ended = ended.into_iter().filter(|id| asked.contains(id)).collect();
        self.release_items(ended).await?;
        Ok(())
    }

    /// Takes the permits back of those items that hold one.
    pub(super) fn release_items(
        self: &Rc<Self>,
        ids: Vec<String>,
    ) -> impl Future<Output = Result<u64, StorageError>> + use<> {
        let now = self.now();
        self.store(move |book, sql| {
            let mut events = Vec::new();
            let mut released: BTreeSet<Name> = BTreeSet::new();
            let mut of_draws: BTreeMap<(&Name, &Name), u64> = BTreeMap::new();
            for id in &ids {
                let Some(held) = book.held(id).filter(|_| !released.contains(id.as_str())) else {
                    continue;
                };
                if !may_release(book, id) {
                    continue;
                }
                store::finish(sql, id, now)?;
                events.push(QueueEvent::Released {
                    id: id.clone(),
                    key: held.key.to_string(),
                });
                released.insert(id.as_str().into());
                *of_draws.entry((&held.key, &held.grant)).or_default() += 1;
            }
            let settled = settle_draws(book, sql, of_draws, now)?;
            let room = book.room() + released.len() as u64;
            let draws = match released.is_empty() {
                true => Vec::new(),
                false => draw_waiting(book, sql, room, now)?,
            };
            Ok(Change {
                value: released.len() as u64,
                events,
                pending: (!released.is_empty()).then_some(Timestamp::ZERO),
                apply: Box::new(move |book| {
                    for id in released {
                        book.finished(&id);
                    }
                    settled.apply(book, now);
                    apply_draws(book, draws);
                }),
            })
        })
    }

    /// Forgets the oldest batch of finished items, if its time has come.
    pub(super) async fn forget(self: &Rc<Self>) {
        let now = self.now();
        let retention = self.settings.retention;
        let forgotten = self.store(move |_, sql| {
            let mut first = store::first_finished(sql)?;
            if let Some(batch) = &first
                && batch.settled_at + retention <= now
            {
                store::forget(sql, batch)?;
                first = store::first_finished(sql)?;
            }
            let next = first.map(|batch| batch.settled_at);
            Ok(Change {
                value: (),
                events: Vec::new(),
                pending: next.map(|settled_at| settled_at + retention),
                apply: Box::new(move |book| book.forgotten(next)),
            })
        });
        match forgotten.await {
            Ok(()) => self.book.borrow_mut().forget_ended(),
            Err(error) => {
                self.report("finished items could not be forgotten", &error);
                let delay = self.delay();
                self.book.borrow_mut().forget_failed(now, delay);
            }
        }
    }
}

/// What is gone with the last items of draws.
#[derive(Default)]
struct Settled {
    /// Key and draw.
    draws: Vec<(Name, Name)>,
    /// Key and lease, of leases that nobody has to hear of any more.
    leases: Vec<(Name, Name)>,
}

impl Settled {
    fn apply(self, book: &mut Book, now: Timestamp) {
        if !self.draws.is_empty() {
            book.settled(now);
        }
        for (key, draw) in self.draws {
            book.draw_settled(&key, &draw);
        }
        for (key, lease) in self.leases {
            book.lease_removed(&key, &lease);
        }
    }
}

/// Removes draws all of whose items have ended, with those that end now by draw in `ending`. The holder
/// hears of them by the marks of their lease.
fn settle_draws(
    book: &Book,
    sql: &dyn Sql,
    ending: BTreeMap<(&Name, &Name), u64>,
    now: Timestamp,
) -> Result<Settled, StorageError> {
    let mut settled = Settled::default();
    let mut forgotten: Vec<&str> = Vec::new();
    // Key and lease, with the permits that come back to it now and that are settled now.
    let mut leases: BTreeMap<(&Name, &Name), (u64, u64)> = BTreeMap::new();
    for ((key, draw), ended) in ending {
        let Some(grant) = book.grant(key, draw) else {
            continue;
        };
        let Some(lease) = &grant.lease else {
            continue;
        };
        let of_lease = leases.entry((key, lease)).or_default();
        of_lease.0 += ended;
        if grant.finished() + ended == grant.items.len() as u64 {
            of_lease.1 += grant.items.len() as u64;
            store::remove_grant(sql, key, draw)?;
            forgotten.extend(grant.items.iter().map(|id| &**id));
            settled.draws.push((key.clone(), draw.clone()));
        }
    }
    for batch in forgotten.chunks(MAX_FORGOTTEN) {
        store::insert_finished(sql, batch, now)?;
    }
    for ((key, id), (released, gone)) in leases {
        let Some(lease) = book.lease(key, id) else {
            continue;
        };
        if lease.phase == Phase::Unknown && lease.released + released >= lease.drawn {
            store::remove_lease(sql, key, id)?;
            settled.leases.push((key.clone(), id.clone()));
        } else if gone > 0 {
            store::settle_draws(sql, key, id, lease.settled + gone)?;
        }
    }
    Ok(settled)
}

fn via(grant_id: &Name, grant: &Grant) -> Via {
    match &grant.lease {
        None => Via::Grant {
            grant_id: grant_id.to_string(),
        },
        Some(lease) => Via::Lease {
            lease_id: lease.to_string(),
            at_once: grant.at_once,
        },
    }
}

/// Whether an item may be in the application's hands. One whose claim this instance made and nobody
/// has confirmed is not, so a release of it is meant for another life of its id.
pub(super) fn may_release(book: &Book, id: &str) -> bool {
    book.held(id).is_some_and(|held| {
        let claim = book.grant_of(held).map(|grant| grant.claim);
        !held.cancelled && claim.is_some_and(|claim| claim != Claim::Open)
    })
}
