//! Draining with an end: a member that was told to go is removed by the coordinator itself, when its
//! time is up or when the application says that it holds nothing any more.

use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;

use super::draft::{DrainEnd, Membership};
use super::driver::Driver;
use super::error::TopologyError;
use super::event::TopologyEventKind;
use super::snapshot::{Member, MemberState};
use super::store::{self, DrainRow};
use crate::error::{BoxError, StorageError, error_text};
use crate::host::{LocalFuture, Sql};
use crate::time::Timestamp;

/// An application's answer whether a draining member holds nothing any more.
pub(super) type Drained = Rc<dyn Fn(String, Member) -> LocalFuture<Result<bool, BoxError>>>;

/// How many drains one pass looks at.
const BATCH: u64 = 100;
/// How long `drained` may take; it is asked again later.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What an update means for the drain of a member.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DrainPlan {
    /// It drains, and is removed then.
    Begin(String, DrainEnd),
    /// It has gone, or is active again.
    End(String),
}

/// What an update means for the drains of a group.
pub(super) fn plan_drains(before: &[Member], change: &Membership) -> Vec<DrainPlan> {
    let removed = change.removed.iter().cloned().map(DrainPlan::End);
    let begun = change.drains.iter().cloned();
    let begun = begun.map(|(member, end)| DrainPlan::Begin(member, end));
    let written = change.written.iter().map(|place| &change.after[*place]);
    let active_again = written
        .filter(|member| member.state == MemberState::Active)
        .filter(|member| {
            before
                .iter()
                .any(|old| old.id == member.id && old.state == MemberState::Draining)
        })
        .map(|member| DrainPlan::End(member.id.clone()));
    removed.chain(active_again).chain(begun).collect()
}

/// What one look at a drain found.
enum Look {
    Over { by_deadline: bool },
    NotYet,
}

impl Driver {
    pub(super) fn begin_drain(
        &self,
        sql: &dyn Sql,
        group: &str,
        member: String,
        end: DrainEnd,
        now: Timestamp,
    ) -> Result<(), StorageError> {
        let drain = DrainRow {
            group: group.to_owned(),
            member,
            deadline: end.within.map(|within| now + within),
            when_drained: end.when_drained,
        };
        // The first question comes at once: it may hold nothing already.
        let check_at = if drain.when_drained {
            now
        } else {
            drain.deadline.unwrap_or(now)
        };
        store::put_drain(sql, &drain, check_at)
    }

    /// Looks at the drains that are due.
    pub(super) async fn end_drains(self: &Rc<Self>, now: Timestamp) -> Result<(), TopologyError> {
        loop {
            let host = self.scheduler.host();
            let read = host
                .transaction(move |transaction| store::due_drains(transaction.sql(), now, BATCH));
            let mut due = read.await?;
            let all = (due.len() as u64) < BATCH;
            due.retain(|drain| {
                // Another pass may be looking at it.
                let name = (drain.group.clone(), drain.member.clone());
                self.draining.borrow_mut().insert(name)
            });
            let nothing = due.is_empty();
            let looks = due.into_iter().map(|drain| self.look_at(drain));
            for looked in join_all(looks).await {
                looked?;
            }
            if all || nothing {
                return Ok(());
            }
        }
    }

    async fn look_at(self: &Rc<Self>, drain: DrainRow) -> Result<(), TopologyError> {
        let name = (drain.group.clone(), drain.member.clone());
        let looked = self.look(&drain).await;
        let settled = match looked {
            Ok(look) => self.settle_drain(drain, look).await,
            Err(error) => Err(error),
        };
        self.draining.borrow_mut().remove(&name);
        settled
    }

    async fn look(self: &Rc<Self>, drain: &DrainRow) -> Result<Look, TopologyError> {
        let passed = |drain: &DrainRow, now| drain.deadline.is_some_and(|deadline| deadline <= now);
        if passed(drain, self.scheduler.now()) {
            return Ok(Look::Over { by_deadline: true });
        }
        let Some(drained) = self.settings.drained.clone().filter(|_| drain.when_drained) else {
            return Ok(Look::NotYet);
        };
        let (group, id) = (drain.group.clone(), drain.member.clone());
        let host = self.scheduler.host();
        let read = host.transaction(move |transaction| {
            store::member(transaction.sql(), &group, &id).map_err(TopologyError::from)
        });
        let Some(member) = read.await? else {
            return Ok(Look::Over { by_deadline: false });
        };
        let error = match self
            .within(ANSWER_TIMEOUT, drained(drain.group.clone(), member))
            .await
        {
            Some(Ok(true)) => return Ok(Look::Over { by_deadline: false }),
            Some(Ok(false)) => return Ok(Look::NotYet),
            Some(Err(error)) => error_text(&*error),
            None => super::delivery::took_too_long("answer of `drained`", ANSWER_TIMEOUT),
        };
        tracing::error!(
            group = drain.group,
            member = drain.member,
            error,
            "durability.topology.drain_check_failed"
        );
        Ok(Look::NotYet)
    }

    /// Removes the member, or says when to look again.
    async fn settle_drain(
        self: &Rc<Self>,
        drain: DrainRow,
        look: Look,
    ) -> Result<(), TopologyError> {
        let (driver, of) = (self.clone(), drain.clone());
        let (over, by_deadline) = match look {
            Look::Over { by_deadline } => (true, by_deadline),
            Look::NotYet => (false, false),
        };
        let settled = self.scheduler.transaction(move |transaction| {
            let sql = transaction.sql();
            if over {
                match driver.remove_drained(transaction, &of.group, &of.member) {
                    // A group keeps its last member; the operator may add one or delete the group.
                    Err(TopologyError::NoMembers) => {}
                    other => return other,
                }
            }
            // Meanwhile an update may have given it another end, or none.
            if let Some(drain) = store::drain(sql, &of.group, &of.member)? {
                let next = driver.scheduler.now() + driver.settings.drain_check_period;
                let deadline = drain.deadline.filter(|_| !over);
                let check_at = match (drain.when_drained || over, deadline) {
                    (true, deadline) => deadline.map_or(next, |deadline| deadline.min(next)),
                    (false, deadline) => deadline.unwrap_or(next),
                };
                store::put_drain(sql, &drain, check_at)?;
            }
            Ok(false)
        });
        match settled.await {
            Ok(true) => {
                let kind = TopologyEventKind::Drained {
                    member: drain.member,
                    by_deadline,
                };
                self.tell(&drain.group, kind);
                self.waiting.changed(&drain.group);
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(error @ TopologyError::Storage(_)) => Err(error),
            Err(error) => {
                tracing::error!(
                    group = drain.group,
                    member = drain.member,
                    %error,
                    "durability.topology.drain_failed"
                );
                Ok(())
            }
        }
    }
}
