//! What a holder's answer gives, and what is given to items: grants are assigned to the oldest, leases
//! are stored and drawn from. Decided here: what is drawn when, and what is stored together. Not
//! decided here: what an echo means ([`lease`](super::lease)).
//!
//! The id of a request is stored before it is sent. It is replaced, or removed, in the transaction that
//! stores what its answer gave, so an answer that was lost is told again under the same id, and one
//! that was stored never is.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::book::{Assignment, Book, Name, Origin, Source};
use super::event::{LeaseStop, QueueEvent};
use super::inner::{Change, Inner};
use super::lease::{Clocks, Echo, Fate, Phase, fate};
use super::store::{self, LeaseRow};
use super::turn::MAX_ASKED;
use crate::error::StorageError;
use crate::host::Sql;
use crate::semaphore::client::ClientError;
use crate::semaphore::protocol::{Grant, LeaseGrant, LeaseReport};
use crate::time::Timestamp;

/// How many waiting items are drawn for in one transaction.
const MAX_DRAWN: u64 = 1_000;

impl Inner {
    /// Stores the id of a request that is about to be sent without one.
    pub(super) async fn name_request(self: &Rc<Self>, key: &Name) -> Result<Name, ClientError> {
        let fresh: Name = self.scheduler.next_id().into();
        let key = key.clone();
        let stored = self.store(move |book, sql| {
            let known = book.request_id(&key).cloned();
            let id = match &known {
                Some(id) => id.clone(),
                None => {
                    store::set_request(sql, &key, &fresh)?;
                    fresh
                }
            };
            let set = id.clone();
            Ok(Change {
                value: id,
                events: Vec::new(),
                pending: Some(Timestamp::ZERO),
                apply: Box::new(move |book| book.request_set(&key, Some(set))),
            })
        });
        stored.await.map_err(|error| self.unstored(error))
    }

    /// Removes the rows of requests that are over and will not be followed by others.
    pub(super) async fn close(self: &Rc<Self>, keys: Vec<Name>) {
        let closed = self.store(move |book, sql| {
            let keys: Vec<Name> = keys.into_iter().filter(|key| book.may_close(key)).collect();
            for key in &keys {
                store::remove_request(sql, key)?;
            }
            Ok(Change {
                value: (),
                events: Vec::new(),
                pending: None,
                apply: Box::new(move |book| {
                    for key in keys {
                        book.request_set(&key, None);
                    }
                }),
            })
        });
        if let Err(error) = closed.await {
            self.report("the id of a request could not be removed", &error);
        }
    }

    /// Stores what an answer gave and gives it to the oldest items. What nobody needs of a grant is
    /// left to its claim deadline. Of `leases` none was reported in the request.
    pub(super) async fn take_given(
        self: &Rc<Self>,
        key: &Name,
        grants: Vec<Grant>,
        leases: Vec<LeaseGrant>,
        clocks: Clocks,
    ) -> Result<(), ClientError> {
        if grants.is_empty() && leases.is_empty() {
            return Ok(());
        }
        let key = key.clone();
        let fresh: Name = self.scheduler.next_id().into();
        let stored = self.store(move |book, sql| {
            let mut given = Given::default();
            let mut room = book.room();
            for grant in &grants {
                let permits = grant.permits.min(room).min(MAX_ASKED);
                let assigned = assign(sql, &key, &grant.group, permits, &grant.grant_id, None)?;
                room -= given.assigned(assigned);
            }
            for grant in leases {
                take_lease(book, sql, &key, grant, &clocks, &mut room, &mut given)?;
            }
            let gave = !grants.is_empty() || !given.leases.is_empty();
            // Nothing that this request gave may be told again.
            let next_id = match gave {
                false => None,
                true if book.waiting_in(&key) > given.items => {
                    store::set_request(sql, &key, &fresh)?;
                    Some(Some(fresh))
                }
                true => {
                    store::remove_request(sql, &key)?;
                    Some(None)
                }
            };
            Ok(Change {
                value: (),
                events: given.events,
                pending: Some(Timestamp::ZERO),
                apply: Box::new(move |book| {
                    for lease in &given.leases {
                        book.lease_stored(&key, lease);
                    }
                    for assignment in given.assignments {
                        book.assigned(&key, assignment);
                    }
                    book.leases_stopped(&key, &given.stopped, Phase::Stopped, clocks.now);
                    if let Some(id) = next_id {
                        book.request_set(&key, id);
                    }
                }),
            })
        });
        stored.await.map_err(|error| self.unstored(error))
    }

    /// Does what the echoes of `reports` ask for.
    pub(super) async fn take_echoes(
        self: &Rc<Self>,
        key: &Name,
        reports: &[LeaseReport],
        echoes: &[LeaseGrant],
        clocks: Clocks,
    ) -> Result<(), ClientError> {
        if reports.is_empty() {
            return Ok(());
        }
        let echoes: BTreeMap<&str, &LeaseGrant> = echoes
            .iter()
            .map(|lease| (lease.lease_id.as_str(), lease))
            .collect();
        let answered: Vec<(LeaseReport, Echo)> = reports
            .iter()
            .map(|report| {
                let answer = echoes.get(report.lease_id.as_str()).copied();
                let echo = Echo::of_reported(report, answer, &clocks);
                (report.clone(), echo)
            })
            .collect();
        if answered
            .iter()
            .any(|(report, echo)| changes_rows(&self.book.borrow(), key, report, echo))
        {
            let key = key.clone();
            let stored =
                self.store(move |book, sql| judge_leases(book, sql, &key, answered, clocks));
            return stored.await.map_err(|error| self.unstored(error));
        }
        let mut book = self.book.borrow_mut();
        for (report, echo) in answered {
            let id = report.lease_id.as_str().into();
            book.lease_heard(key, &id, &report, clocks.sent, &echo);
        }
        Ok(())
    }

    /// Gives back, if others want them, the undrawn permits of groups for which nothing waits.
    pub(super) async fn return_idle(
        self: &Rc<Self>,
        key: &Name,
        contended: bool,
    ) -> Result<(), ClientError> {
        if !contended || self.book.borrow().idle_leases(key).is_empty() {
            return Ok(());
        }
        let now = self.now();
        let key = key.clone();
        let stored = self.store(move |book, sql| {
            let idle = book.idle_leases(&key);
            stop_leases(book, sql, &key, idle, now)
        });
        stored.await.map_err(|error| self.unstored(error))
    }

    /// Stops leases whose time is over, or that nobody used for half of it.
    pub(super) async fn end_leases(self: &Rc<Self>, key: Name, leases: Vec<Name>) {
        let now = self.now();
        let (of, ended) = (key.clone(), leases.clone());
        let stored = self.store(move |book, sql| stop_leases(book, sql, &of, ended, now));
        match stored.await {
            Ok(()) => self.book.borrow_mut().end_ended(&key),
            Err(error) => {
                self.report("a lease could not be stopped", &error);
                let delay = self.delay();
                let mut book = self.book.borrow_mut();
                book.end_failed(&key, &leases, now, delay);
            }
        }
    }

    /// Draws from leases for items that wait.
    pub(super) async fn draw(self: &Rc<Self>) {
        let now = self.now();
        let stored = self.store(move |book, sql| {
            let draws = draw_waiting(book, sql, book.room(), now)?;
            Ok(Change {
                value: (),
                events: Vec::new(),
                pending: (!draws.is_empty()).then_some(Timestamp::ZERO),
                apply: Box::new(move |book| apply_draws(book, draws)),
            })
        });
        match stored.await {
            Ok(()) => self.book.borrow_mut().draw_ended(),
            Err(error) => {
                self.report("permits could not be drawn", &error);
                let delay = self.delay();
                self.book.borrow_mut().draw_failed(now, delay);
            }
        }
    }
}

/// What an answer gave, as far as it is stored.
#[derive(Default)]
struct Given {
    leases: Vec<LeaseRow>,
    assignments: Vec<Assignment>,
    /// Items that wait no longer.
    items: u64,
    stopped: Vec<Name>,
    events: Vec<QueueEvent>,
}

impl Given {
    fn assigned(&mut self, assignment: Option<Assignment>) -> u64 {
        let count = assignment.as_ref().map_or(0, |one| one.items.len() as u64);
        self.assignments.extend(assignment);
        self.items += count;
        count
    }
}

/// Takes a lease that was not reported in the request: a new one, one whose telling was lost, or one
/// that the holder has stopped because it was not reported.
fn take_lease(
    book: &Book,
    sql: &dyn Sql,
    key: &Name,
    grant: LeaseGrant,
    clocks: &Clocks,
    room: &mut u64,
    given: &mut Given,
) -> Result<(), StorageError> {
    let Some(echo) = Echo::of_unreported(&grant, clocks) else {
        return Ok(());
    };
    if let Some(lease) = book.lease(key, &grant.lease_id) {
        if let Fate::Stops(phase) = fate(lease, &echo) {
            store::stop_lease(sql, key, &grant.lease_id, phase)?;
            given.stopped.push(grant.lease_id.as_str().into());
            let id = grant.lease_id;
            given
                .events
                .push(stopped(key, id, lease.group.to_string(), LeaseStop::Holder));
        }
        return Ok(());
    }
    let (phase, until, lifetime) = match echo {
        // A reply may take longer than the lease lasts.
        Echo::Live { until, lifetime } if until > clocks.now => (Phase::Live, until, lifetime),
        Echo::Live { until, lifetime } => (Phase::Stopped, until, lifetime),
        // Never drawn from, and stored all the same: only a report of that gives its permits back.
        _ => (Phase::Stopped, clocks.now, std::time::Duration::ZERO),
    };
    let row = LeaseRow {
        key: key.to_string(),
        lease_id: grant.lease_id,
        group: grant.group,
        permits: grant.permits,
        settled: 0,
        phase,
        until,
        lifetime,
    };
    if !store::insert_lease(sql, &row)? {
        return Ok(());
    }
    let mut source = Source {
        lease: row.lease_id.as_str().into(),
        drawn: 0,
        undrawn: row.permits,
    };
    if phase == Phase::Live {
        while let Some(draw) = draw_from(sql, key, &row.group, *room, &mut source)? {
            *room -= given.assigned(Some(draw));
        }
    }
    given.leases.push(row);
    Ok(())
}

/// Whether `echo` changes rows.
fn changes_rows(book: &Book, key: &Name, report: &LeaseReport, echo: &Echo) -> bool {
    let Some(lease) = book.lease(key, &report.lease_id) else {
        return false;
    };
    fate(lease, echo) != Fate::Stays || extension(lease, echo).is_some()
}

/// Until when a lease is drawn from, if its row has to be told: it need not know exactly, and stops
/// too early rather than too late.
fn extension(lease: &super::lease::Lease, echo: &Echo) -> Option<Timestamp> {
    match echo {
        Echo::Live { until, lifetime } if lease.phase == Phase::Live => {
            (*until >= lease.stored_until + *lifetime / 2).then_some(*until)
        }
        _ => None,
    }
}

fn judge_leases(
    book: &Book,
    sql: &dyn Sql,
    key: &Name,
    answered: Vec<(LeaseReport, Echo)>,
    clocks: Clocks,
) -> Result<Change<()>, StorageError> {
    let mut events = Vec::new();
    let mut judged = Vec::new();
    for (report, echo) in answered {
        let id = report.lease_id.as_str();
        let Some(lease) = book.lease(key, id) else {
            continue;
        };
        let fate = fate(lease, &echo);
        let extended = extension(lease, &echo);
        let undrawn = lease.undrawn() > 0;
        let reason = match echo {
            Echo::Stopped => LeaseStop::Holder,
            _ => LeaseStop::Unknown,
        };
        match fate {
            Fate::Stops(phase) => store::stop_lease(sql, key, id, phase)?,
            Fate::Gone => store::remove_lease(sql, key, id)?,
            Fate::Stays => {}
        }
        if fate != Fate::Stays && undrawn {
            events.push(stopped(key, id.to_owned(), lease.group.to_string(), reason));
        }
        if let (Some(until), Echo::Live { lifetime, .. }) = (extended, &echo) {
            store::extend_lease(sql, key, id, until, *lifetime)?;
        }
        judged.push((report, echo, fate, extended));
    }
    let key = key.clone();
    Ok(Change {
        value: (),
        events,
        pending: Some(Timestamp::ZERO),
        apply: Box::new(move |book| {
            for (report, echo, fate, extended) in judged {
                let id: Name = report.lease_id.as_str().into();
                match fate {
                    Fate::Gone => {
                        book.lease_removed(&key, &id);
                        continue;
                    }
                    Fate::Stops(phase) => {
                        book.leases_stopped(&key, std::slice::from_ref(&id), phase, clocks.now);
                    }
                    Fate::Stays => {}
                }
                book.lease_heard(&key, &id, &report, clocks.sent, &echo);
                if let Some(until) = extended {
                    book.lease_extended(&key, &id, until);
                }
            }
        }),
    })
}

/// Stops leases for reasons of our own.
fn stop_leases(
    book: &Book,
    sql: &dyn Sql,
    key: &Name,
    leases: Vec<Name>,
    now: Timestamp,
) -> Result<Change<()>, StorageError> {
    let mut events = Vec::new();
    let mut ids = Vec::new();
    for id in leases {
        let Some(lease) = book.lease(key, &id) else {
            continue;
        };
        if lease.phase == Phase::Live {
            store::stop_lease(sql, key, &id, Phase::Stopped)?;
            let group = lease.group.to_string();
            let reason = match now < lease.until {
                true => LeaseStop::Idle,
                false => LeaseStop::Expired,
            };
            events.push(stopped(key, id.to_string(), group, reason));
            ids.push(id);
        }
    }
    let key = key.clone();
    Ok(Change {
        value: (),
        events,
        pending: Some(Timestamp::ZERO),
        apply: Box::new(move |book| book.leases_stopped(&key, &ids, Phase::Stopped, now)),
    })
}

fn stopped(key: &Name, lease_id: String, group: String, reason: LeaseStop) -> QueueEvent {
    QueueEvent::LeaseStopped {
        key: key.to_string(),
        lease_id,
        group,
        reason,
    }
}

/// Draws for the oldest waiting items, as far as `room` and leases go. What is drawn is stored.
pub(super) fn draw_waiting(
    book: &Book,
    sql: &dyn Sql,
    room: u64,
    now: Timestamp,
) -> Result<Vec<(Name, Assignment)>, StorageError> {
    let mut room = room.min(MAX_DRAWN);
    let mut draws = Vec::new();
    if room == 0 {
        return Ok(draws);
    }
    for (key, group, sources) in book.to_draw(now, room) {
        for mut source in sources {
            while let Some(draw) = draw_from(sql, &key, &group, room, &mut source)? {
                room -= draw.items.len() as u64;
                draws.push((key.clone(), draw));
            }
        }
    }
    Ok(draws)
}

pub(super) fn apply_draws(book: &mut Book, draws: Vec<(Name, Assignment)>) {
    for (key, draw) in draws {
        book.assigned(&key, draw);
    }
}

/// Draws once for the oldest waiting items, as far as `room` and the lease go.
fn draw_from(
    sql: &dyn Sql,
    key: &Name,
    group: &str,
    room: u64,
    source: &mut Source,
) -> Result<Option<Assignment>, StorageError> {
    let permits = source.undrawn.min(room).min(MAX_ASKED);
    let name = source.draw_name();
    let draw = assign(sql, key, group, permits, &name, Some(&source.lease))?;
    let count = draw.as_ref().map_or(0, |draw| draw.items.len() as u64);
    source.drawn += count;
    source.undrawn -= count;
    Ok(draw)
}

/// Assigns a grant, or a draw of `lease`, to the oldest items of the group.
fn assign(
    sql: &dyn Sql,
    key: &Name,
    group: &str,
    permits: u64,
    name: &str,
    lease: Option<&Name>,
) -> Result<Option<Assignment>, StorageError> {
    if permits == 0 {
        return Ok(None);
    }
    let mut items = store::oldest(sql, key, group, permits + 1)?;
    let next = match items.len() as u64 > permits {
        true => items.pop(),
        false => None,
    };
    let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
    let of = lease.map(|lease| &**lease);
    if ids.is_empty() || !store::insert_grant(sql, key, name, group, &ids, of, false)? {
        return Ok(None);
    }
    for id in &ids {
        store::assign(sql, id, name)?;
    }
    Ok(Some(Assignment {
        grant_id: name.into(),
        group: group.into(),
        lease: lease.cloned(),
        items: items
            .iter()
            .map(|item| (item.id.as_str().into(), item.place))
            .collect(),
        origin: Origin::Waiting {
            next: next.map(|item| item.place),
        },
    }))
}
