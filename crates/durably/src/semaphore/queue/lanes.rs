//! What passes between a queue and its holders: reports in one lane per key, requests in another, at
//! most one message in each. Decided here: what an answer has stored. Not decided here: when a message
//! is sent and what it says ([`book`](super::book)), and what an answer means for a grant
//! ([`claim`](super::claim)).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;

use futures::future::{Either, select};

use super::book::{Assignment, Book, Name, Start};
use super::claim::{Verdict, judge};
use super::event::{QueueEvent, RequeueReason};
use super::inner::{Change, Inner};
use super::store;
use super::turn::{Asked, MAX_ASKED};
use crate::error::StorageError;
use crate::host::Sql;
use crate::layers::Elapsed;
use crate::semaphore::client::{ClientError, may_ask_after};
use crate::semaphore::protocol::{
    Demand, Grant, GrantReport, GrantResult, GrantStatus, PermitRequest, PermitSync,
};
use crate::time::Timestamp;

/// How many finished items are forgotten together; their ids share a row.
const MAX_FORGOTTEN: usize = 500;

impl Inner {
    pub(super) async fn perform(self: &Rc<Self>, start: Start) {
        match start {
            Start::Tell(key, reports) => self.report_to(key, reports).await,
            Start::Ask(key, asked, reports) => self.ask(key, asked, reports).await,
            Start::Admit(key, grant) => self.hand_over(key, grant).await,
            Start::Check(items) => self.check(items).await,
            Start::Forget => self.forget().await,
        }
    }

    async fn report_to(self: &Rc<Self>, key: Name, reports: Vec<GrantReport>) {
        let message = PermitSync {
            client_id: self.client_id.clone(),
            grants: reports.clone(),
            leases: None,
            sent_at: Some(self.now()),
            client_ttl_ms: None,
        };
        let answer = self.in_time(self.holder.sync(&key, message)).await;
        let error = match answer {
            Ok(reply) => match self.take_answers(&key, reports, reply.grant_results).await {
                Ok(()) => {
                    self.book.borrow_mut().tell_answered(&key);
                    return;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        let now = self.now();
        let is_new = self.book.borrow_mut().tell_failed(&key, now, self.delay());
        self.failed(&key, is_new, &error);
    }

    async fn ask(self: &Rc<Self>, key: Name, asked: Vec<Asked>, reports: Vec<GrantReport>) {
        let sent = self.now();
        let demand = asked.iter().map(|asked| Demand {
            group: asked.group.to_string(),
            count: asked.count,
            oldest_at: asked.oldest_at,
        });
        let message = PermitRequest {
            client_id: self.client_id.clone(),
            demand: demand.collect(),
            grants: reports.clone(),
            leases: None,
            sent_at: Some(sent),
            request_id: None,
            wait_ms: None,
            client_ttl_ms: None,
        };
        let error = match self.in_time(self.holder.request(&key, message)).await {
            Ok(reply) => {
                let next_at = sent + may_ask_after(&reply, sent, self.now());
                let answers = reply.grant_results;
                let taken = self.take_answers(&key, reports, answers).await;
                // Whatever became of the reports, what was granted is not left to expire.
                match self.assign(&key, reply.grants).await.and(taken) {
                    Ok(()) => {
                        let mut book = self.book.borrow_mut();
                        book.ask_answered(&key, &asked, &reply.blocked, self.now(), next_at);
                        return;
                    }
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        let now = self.now();
        let delay = self.delay();
        let is_new = self.book.borrow_mut().ask_failed(&key, &asked, now, delay);
        self.failed(&key, is_new, &error);
    }

    /// Waits for an answer only so long; a queue must not hang on a transport.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, ClientError>> + Unpin,
    ) -> Result<T, ClientError> {
        let timeout = self.settings.answer_timeout;
        match select(answer, self.scheduler.host().sleep(timeout)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), _)) => Err(Elapsed(timeout).into()),
        }
    }

    fn failed(&self, key: &Name, is_new: bool, error: &ClientError) {
        tracing::debug!(
            target: super::event::TARGET,
            key = &**key,
            code = error.code(),
            error = %error,
            "durability.semaphore_queue.message_failed"
        );
        if is_new {
            self.tell(&QueueEvent::HolderUnreachable {
                key: key.to_string(),
                error: error.code().to_owned(),
            });
        }
    }

    /// What an answer changes could not be stored; the message is repeated like one that failed.
    fn unstored(&self, error: StorageError) -> ClientError {
        self.report("a holder's answer could not be stored", &error);
        ClientError::unreachable(error)
    }

    /// Does what the holder's answers to `reports` ask for.
    async fn take_answers(
        self: &Rc<Self>,
        key: &Name,
        reports: Vec<GrantReport>,
        results: Vec<GrantResult>,
    ) -> Result<(), ClientError> {
        if reports.is_empty() {
            return Ok(());
        }
        let mut by_grant: BTreeMap<String, GrantResult> = results
            .into_iter()
            .map(|result| (result.grant_id.clone(), result))
            .collect();
        let all = reports.len();
        let answered: Vec<(GrantReport, GrantResult)> = reports
            .into_iter()
            .filter_map(|report| {
                let result = by_grant.remove(&report.grant_id)?;
                Some((report, result))
            })
            .collect();
        let missing = all - answered.len();
        if self.is_stored(key, &answered) {
            let now = self.now();
            let key = key.clone();
            let stored = self.store(move |book, sql| judge_all(book, sql, &key, &answered, now));
            stored.await.map_err(|error| self.unstored(error))?;
        } else {
            let mut book = self.book.borrow_mut();
            for (report, result) in answered {
                let grant_id: Name = report.grant_id.as_str().into();
                if let Some(verdict) = verdict(&book, key, &report, &result) {
                    book.judged(key, &grant_id, &verdict);
                }
            }
        }
        if missing > 0 {
            // Repeated with a delay, so that such a holder is not asked in a circle.
            return Err(ClientError::Refused {
                code: "unanswered".to_owned(),
                message: format!("the holder left {missing} reports unanswered"),
                retryable: true,
            });
        }
        Ok(())
    }

    /// Whether what was answered changes rows.
    fn is_stored(&self, key: &Name, answered: &[(GrantReport, GrantResult)]) -> bool {
        let book = self.book.borrow();
        answered.iter().any(|(report, result)| {
            verdict(&book, key, report, result).is_some_and(|verdict| verdict.is_stored())
        })
    }

    /// Assigns what was granted to the oldest items. What nobody needs is left to its claim deadline.
    async fn assign(self: &Rc<Self>, key: &Name, grants: Vec<Grant>) -> Result<(), ClientError> {
        if grants.is_empty() {
            return Ok(());
        }
        let key = key.clone();
        let stored = self.store(move |book, sql| {
            let mut room = book.room();
            let mut assignments = Vec::new();
            for grant in grants {
                let permits = grant.permits.min(room).min(MAX_ASKED);
                if let Some(assignment) = assign_one(sql, &key, &grant, permits)? {
                    room -= assignment.items.len() as u64;
                    assignments.push(assignment);
                }
            }
            Ok(Change {
                value: (),
                events: Vec::new(),
                pending: (!assignments.is_empty()).then_some(Timestamp::ZERO),
                apply: Box::new(move |book| {
                    for assignment in assignments {
                        book.assigned(&key, assignment);
                    }
                }),
            })
        });
        stored.await.map_err(|error| self.unstored(error))
    }
}

fn assign_one(
    sql: &dyn Sql,
    key: &Name,
    grant: &Grant,
    permits: u64,
) -> Result<Option<Assignment>, StorageError> {
    if permits == 0 {
        return Ok(None);
    }
    let mut items = store::oldest(sql, key, &grant.group, permits + 1)?;
    let next = match items.len() as u64 > permits {
        true => items.pop(),
        false => None,
    };
    let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
    if ids.is_empty() || !store::insert_grant(sql, key, &grant.grant_id, &grant.group, &ids)? {
        return Ok(None);
    }
    for id in &ids {
        store::assign(sql, id, &grant.grant_id)?;
    }
    Ok(Some(Assignment {
        grant_id: grant.grant_id.as_str().into(),
        group: grant.group.as_str().into(),
        items: items
            .iter()
            .map(|item| (item.id.as_str().into(), item.place))
            .collect(),
        next: next.map(|item| item.place),
    }))
}

/// What an answer changes, as the grant stands now; nothing if the grant is settled already.
fn verdict(book: &Book, key: &Name, report: &GrantReport, result: &GrantResult) -> Option<Verdict> {
    let grant = book.grant(key, &report.grant_id)?;
    let items = book.standings(key, &report.grant_id, grant);
    Some(judge(&items, grant.claim, grant.told(), report, result))
}

/// Stores what answers change.
fn judge_all(
    book: &Book,
    sql: &dyn Sql,
    key: &Name,
    answered: &[(GrantReport, GrantResult)],
    now: Timestamp,
) -> Result<Change<()>, StorageError> {
    let mut events = Vec::new();
    let mut verdicts = Vec::new();
    let mut forgotten: Vec<Name> = Vec::new();
    let mut seen = BTreeSet::new();
    for (report, result) in answered {
        let name = &report.grant_id;
        let Some(grant) = book.grant(key, name).filter(|_| seen.insert(name)) else {
            continue;
        };
        let Some(verdict) = verdict(book, key, report, result) else {
            continue;
        };
        let reason = match result.status {
            GrantStatus::Expired => RequeueReason::Expired,
            GrantStatus::NotFound => RequeueReason::NotFound,
            GrantStatus::Ok => RequeueReason::Fewer,
        };
        let id = |position: &usize| &grant.items[*position];
        for id in verdict.back.iter().map(id) {
            store::requeue(sql, id)?;
            events.push(QueueEvent::Requeued {
                id: id.to_string(),
                key: key.to_string(),
                group: grant.group.to_string(),
                reason,
            });
        }
        for id in verdict.dropped.iter().map(id) {
            store::remove(sql, id)?;
        }
        for id in verdict.unwanted.iter().map(id) {
            store::finish(sql, id, now)?;
            events.push(QueueEvent::Released {
                id: id.to_string(),
                key: key.to_string(),
            });
        }
        let kept = match &verdict.kept {
            None => grant.items.clone(),
            Some(kept) => kept.iter().map(|position| id(position).clone()).collect(),
        };
        if verdict.settled {
            store::remove_grant(sql, key, name)?;
            forgotten.extend(kept);
        } else if verdict.kept.is_some() {
            let kept: Vec<&str> = kept.iter().map(|id| &**id).collect();
            store::cut_grant(sql, key, name, &kept)?;
        }
        forgotten.extend(verdict.orphans.iter().map(|position| id(position).clone()));
        verdicts.push((Name::from(name.as_str()), verdict));
    }
    for batch in forgotten.chunks(MAX_FORGOTTEN) {
        let batch: Vec<&str> = batch.iter().map(|id| &**id).collect();
        store::insert_finished(sql, &batch, now)?;
    }
    let key = key.clone();
    let any_forgotten = !forgotten.is_empty();
    Ok(Change {
        value: (),
        events,
        // What goes on about these grants is pending at once; the next transaction knows better.
        pending: Some(Timestamp::ZERO),
        apply: Box::new(move |book| {
            for (grant_id, verdict) in verdicts {
                book.judged(&key, &grant_id, &verdict);
            }
            if any_forgotten {
                book.settled(now);
            }
        }),
    })
}
