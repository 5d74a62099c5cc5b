//! Taking items into the queue: what is refused, what is known already, what waits, and what is given a
//! permit of a lease at once, in the transaction that stores it.

use std::collections::{BTreeMap, BTreeSet};

use super::book::{Assignment, Book, Name, Origin, Place, Source};
use super::builder::Settings;
use super::event::QueueEvent;
use super::inner::Change;
use super::item::{MAX_ITEM_ID_BYTES, NewItem, Outcome, Refusal};
use super::store::{self, State};
use super::turn::MAX_ASKED;
use crate::bugs::{Bug, is_on};
use crate::error::StorageError;
use crate::host::Sql;
use crate::semaphore::protocol::check_id;
use crate::time::Timestamp;

/// Stores `items`. `next_id` makes ids of requests, for keys that begin to wait.
pub(super) fn enqueue(
    book: &Book,
    sql: &dyn Sql,
    items: Vec<NewItem>,
    settings: &Settings,
    is_heard: bool,
    now: Timestamp,
    next_id: impl Fn() -> String,
) -> Result<Change<Vec<Outcome>>, StorageError> {
    let forgotten = super::forgotten_before(now, settings.retention);
    let mut place = Place {
        seq: book.next_seq(),
        queued_at: now,
    };
    let mut places = settings.max_queue_length.saturating_sub(book.queued());
    let mut draws = Draws::new(book, now);
    let mut outcomes = Vec::with_capacity(items.len());
    let mut waiting = Vec::new();
    let mut events = Vec::new();
    for item in items {
        if let Some(reason) = refusal(&item, settings) {
            outcomes.push(Outcome::Refused { reason });
            continue;
        }
        let draw = draws.next(&item.key, &item.group);
        // Known is known, also while the queue is full: a caller that lost the answer must not take
        // its item for refused.
        if draw.is_none() && places == 0 {
            outcomes.push(match is_known(sql, &item.id, forgotten)? {
                true => Outcome::Duplicate,
                false => Outcome::Refused {
                    reason: Refusal::QueueFull {
                        max_items: settings.max_queue_length,
                    },
                },
            });
            continue;
        }
        if !store::insert(sql, &item, place, draw.as_deref(), forgotten)? {
            outcomes.push(Outcome::Duplicate);
            continue;
        }
        if is_heard {
            events.push(QueueEvent::Enqueued {
                id: item.id.clone(),
                key: item.key.clone(),
                group: item.group.clone(),
            });
        }
        if draw.is_some() {
            draws.take(&item, place);
        } else {
            draws.waits(&item);
            waiting.push((item.key, item.group, place));
            places -= 1;
        }
        place.seq += 1;
        outcomes.push(Outcome::Queued);
    }
    let draws = draws.close();
    for (key, draw) in &draws {
        let ids: Vec<&str> = draw.items.iter().map(|(id, _)| &**id).collect();
        let lease = draw.lease.as_deref();
        store::insert_grant(sql, key, &draw.grant_id, &draw.group, &ids, lease, true)?;
    }
    let unnamed: BTreeSet<&str> = waiting
        .iter()
        .map(|(key, ..)| key.as_str())
        .filter(|key| book.request_id(key).is_none())
        .collect();
    let mut requests = Vec::with_capacity(unnamed.len());
    for key in unnamed {
        let id = next_id();
        store::set_request(sql, key, &id)?;
        requests.push((key.to_owned(), id));
    }
    Ok(Change {
        value: outcomes,
        events,
        pending: (!waiting.is_empty() || !draws.is_empty()).then_some(Timestamp::ZERO),
        apply: Box::new(move |book| {
            book.enqueued(waiting);
            for (key, id) in requests {
                book.request_set(&key, Some(id.into()));
            }
            super::giving::apply_draws(book, draws);
        }),
    })
}

/// What new items draw.
struct Draws<'a> {
    book: &'a Book,
    now: Timestamp,
    room: u64,
    groups: BTreeMap<(String, String), OfGroup>,
}

/// What new items of a group draw.
#[derive(Default)]
struct OfGroup {
    /// Leases that are left, the one that is drawn from last.
    sources: Vec<Source>,
    draws: Vec<Assignment>,
}

impl<'a> Draws<'a> {
    fn new(book: &'a Book, now: Timestamp) -> Self {
        Draws {
            book,
            now,
            room: book.room(),
            groups: BTreeMap::new(),
        }
    }

    /// The name of the draw that the next item of the group belongs to, if it need not wait. It does
    /// not overtake one that waits.
    fn next(&mut self, key: &str, group: &str) -> Option<Name> {
        if self.room == 0 && !is_on(Bug::OvertakeWaiting) {
            return None;
        }
        let (book, now) = (self.book, self.now);
        let of_group = self
            .groups
            .entry((key.to_owned(), group.to_owned()))
            .or_insert_with(|| {
                let waits = book.waits(key, group) && !is_on(Bug::OvertakeWaiting);
                let mut sources = match waits {
                    true => Vec::new(),
                    false => book.sources(key, group, now),
                };
                sources.reverse();
                OfGroup {
                    sources,
                    draws: Vec::new(),
                }
            });
        let source = of_group.sources.last()?;
        let open = of_group.draws.last().filter(|draw| {
            draw.lease.as_ref() == Some(&source.lease) && (draw.items.len() as u64) < MAX_ASKED
        });
        Some(match open {
            Some(draw) => draw.grant_id.clone(),
            None => source.draw_name(),
        })
    }

    /// The item was stored as part of the draw that [`next`](Self::next) named.
    fn take(&mut self, item: &NewItem, place: Place) {
        let Some(name) = self.next(&item.key, &item.group) else {
            return;
        };
        let of_group = self
            .groups
            .entry((item.key.clone(), item.group.clone()))
            .or_default();
        let Some(source) = of_group.sources.last_mut() else {
            return;
        };
        if of_group
            .draws
            .last()
            .is_none_or(|draw| draw.grant_id != name)
        {
            of_group.draws.push(Assignment {
                grant_id: name,
                group: item.group.as_str().into(),
                lease: Some(source.lease.clone()),
                items: Vec::new(),
                origin: Origin::New,
            });
        }
        if let Some(draw) = of_group.draws.last_mut() {
            draw.items.push((item.id.as_str().into(), place));
        }
        source.drawn += 1;
        source.undrawn -= 1;
        if source.undrawn == 0 {
            of_group.sources.pop();
        }
        self.room = self.room.saturating_sub(1);
    }

    /// The item waits, so those behind it do.
    fn waits(&mut self, item: &NewItem) {
        let of_group = self
            .groups
            .entry((item.key.clone(), item.group.clone()))
            .or_default();
        of_group.sources.clear();
    }

    fn close(self) -> Vec<(Name, Assignment)> {
        let groups = self.groups.into_iter();
        groups
            .flat_map(|((key, _), of_group)| {
                let key: Name = key.into();
                let draws = of_group.draws.into_iter();
                draws.map(move |draw| (key.clone(), draw))
            })
            .collect()
    }
}

fn refusal(item: &NewItem, settings: &Settings) -> Option<Refusal> {
    if item.id.is_empty() || item.id.len() > MAX_ITEM_ID_BYTES {
        return Some(Refusal::InvalidField {
            field: "id",
            problem: format!("must be 1 to {MAX_ITEM_ID_BYTES} bytes long"),
        });
    }
    for (field, text) in [("key", &item.key), ("group", &item.group)] {
        if let Err(error) = check_id(field, text) {
            return Some(Refusal::InvalidField {
                field,
                problem: error.problem,
            });
        }
    }
    let bytes = item.body.get().len() as u64;
    (bytes > settings.max_body_bytes).then_some(Refusal::BodyTooLarge {
        bytes,
        max_bytes: settings.max_body_bytes,
    })
}

fn is_known(sql: &dyn Sql, id: &str, forgotten: Option<Timestamp>) -> Result<bool, StorageError> {
    let row = store::item(sql, id)?;
    Ok(row.is_some_and(|row| row.state != State::Finished || row.finished_at > forgotten))
}
