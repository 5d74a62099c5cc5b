//! What passes between a queue and its holders: reports in one lane per key, requests in another, at
//! most one message in each. Decided here: what an answer has stored. Not decided here: when a message
//! is sent and what it says ([`book`](super::book)), and what an answer means for a grant
//! ([`claim`](super::claim)).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, select};

use super::book::{Ask, Book, Name, Reports, Start};
use super::claim::{Verdict, judge};
use super::event::{QueueEvent, RequeueReason};
use super::inner::{Change, Inner};
use super::lease::Clocks;
use super::store;
use crate::bugs::{Bug, is_on};
use crate::error::StorageError;
use crate::host::Sql;
use crate::layers::Elapsed;
use crate::semaphore::client::{ClientError, may_ask_after};
use crate::semaphore::protocol::{
    Demand, GrantReply, GrantReport, GrantResult, GrantStatus, PermitRequest, PermitSync,
};
use crate::time::{MAX_SAFE_INTEGER, Timestamp};

/// How many finished items are forgotten together; their ids share a row.
pub(super) const MAX_FORGOTTEN: usize = 500;

impl Inner {
    pub(super) async fn perform(self: &Rc<Self>, start: Start) {
        match start {
            Start::Tell(key, reports) => self.report_to(key, reports).await,
            Start::Ask(ask) => self.ask(ask).await,
            Start::Admit(key, grant) => self.hand_over(key, grant).await,
            Start::Check(items) => self.check(items).await,
            Start::End(key, leases) => self.end_leases(key, leases).await,
            Start::Draw => self.draw().await,
            Start::Close(keys) => self.close(keys).await,
            Start::Forget => self.forget().await,
        }
    }

    async fn report_to(self: &Rc<Self>, key: Name, reports: Reports) {
        let sent = self.now();
        let message = PermitSync {
            client_id: self.client_id.clone(),
            grants: reports.grants.clone(),
            leases: (!reports.leases.is_empty()).then(|| reports.leases.clone()),
            sent_at: Some(sent),
            client_ttl_ms: None,
        };
        let timeout = self.settings.answer_timeout;
        let answer = self.in_time(self.holder.sync(&key, message), timeout).await;
        let error = match answer {
            Ok(reply) => {
                let clocks = Clocks {
                    sent,
                    now: self.now(),
                    holder: reply.now,
                };
                let grants = self.take_answers(&key, reports.grants, reply.grant_results);
                let grants = grants.await;
                let echoes = reply.leases.unwrap_or_default();
                let leases = self.take_echoes(&key, &reports.leases, &echoes, clocks);
                let leases = leases.await;
                let idle = self.return_idle(&key, reply.contended).await;
                match grants.and(leases).and(idle) {
                    Ok(()) => {
                        self.book.borrow_mut().tell_answered(&key);
                        return;
                    }
                    Err(error) => error,
                }
            }
            Err(error) => {
                if is_on(Bug::RequeueOnTimeout) {
                    let results = reports.grants.iter().map(|report| GrantResult {
                        grant_id: report.grant_id.clone(),
                        claimed: 0,
                        status: GrantStatus::Expired,
                    });
                    let results = results.collect();
                    let _ = self.take_answers(&key, reports.grants, results).await;
                }
                error
            }
        };
        let now = self.now();
        let is_new = self.book.borrow_mut().tell_failed(&key, now, self.delay());
        self.failed(&key, is_new, &error);
    }

    async fn ask(self: &Rc<Self>, ask: Ask) {
        let (key, number) = (ask.key.clone(), ask.number);
        // Whoever asked before leaves.
        let (own, replaced) = oneshot::channel();
        self.asking.borrow_mut().insert(key.clone(), own);
        let asked = ask.asked.clone();
        let sent = self.now();
        let answer = match select(Box::pin(self.answer_to(ask)), replaced).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => return,
        };
        if !self.book.borrow_mut().ask_ended(&key, number) {
            return;
        }
        self.asking.borrow_mut().remove(&key);
        let error = match answer {
            Ok((reports, reply)) => {
                let next_at = sent + may_ask_after(&reply, sent, self.now());
                let blocked = reply.blocked.clone();
                let seen = reply.request_number;
                self.book.borrow_mut().number_seen(&key, seen);
                match self.take_reply(&key, reports, reply, sent).await {
                    Ok(()) => {
                        let times = (sent, self.now());
                        let mut book = self.book.borrow_mut();
                        book.ask_answered(&key, &asked, &blocked, times, next_at);
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

    /// Sends a request, once its id is stored, and waits for its answer.
    async fn answer_to(self: &Rc<Self>, ask: Ask) -> Result<(Reports, GrantReply), ClientError> {
        let id = match ask.id {
            _ if is_on(Bug::NewIdOnRepeat) => self.scheduler.next_id().into(),
            Some(id) => id,
            None => self.name_request(&ask.key).await?,
        };
        let demand = ask.asked.iter().map(|asked| Demand {
            group: asked.group.to_string(),
            count: asked.count,
            oldest_at: asked.oldest_at,
        });
        let message = PermitRequest {
            client_id: self.client_id.clone(),
            demand: demand.collect(),
            grants: ask.reports.grants.clone(),
            leases: Some(ask.reports.leases.clone()),
            sent_at: Some(self.now()),
            request_id: Some(id.to_string()),
            request_number: Some(ask.number.min(MAX_SAFE_INTEGER)),
            wait_ms: ask
                .wait
                .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            client_ttl_ms: None,
        };
        let timeout = self.settings.answer_timeout;
        let answer = self.holder.request(&ask.key, message);
        Ok((ask.reports, self.in_time(answer, timeout).await?))
    }

    /// Does what the answer of a request asks for.
    async fn take_reply(
        self: &Rc<Self>,
        key: &Name,
        reports: Reports,
        reply: GrantReply,
        sent: Timestamp,
    ) -> Result<(), ClientError> {
        let clocks = Clocks {
            sent,
            now: self.now(),
            holder: reply.now,
        };
        let reported: BTreeSet<&str> = reports
            .leases
            .iter()
            .map(|report| report.lease_id.as_str())
            .collect();
        let (echoes, others): (Vec<_>, Vec<_>) = reply
            .leases
            .unwrap_or_default()
            .into_iter()
            .partition(|lease| reported.contains(lease.lease_id.as_str()));
        let answers = reply.grant_results;
        let grants = self.take_answers(key, reports.grants, answers).await;
        let leases = self.take_echoes(key, &reports.leases, &echoes, clocks);
        let leases = leases.await;
        // Whatever became of the reports, what was granted is not left to expire.
        let given = self.take_given(key, reply.grants, others, clocks).await;
        let idle = self.return_idle(key, reply.contended).await;
        given.and(grants).and(leases).and(idle)
    }

    /// Waits for an answer only so long; a queue must not hang on a transport.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, ClientError>> + Unpin,
        timeout: Duration,
    ) -> Result<T, ClientError> {
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
    pub(super) fn unstored(&self, error: StorageError) -> ClientError {
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
            match is_on(Bug::LoseExpiredItem) {
                true => store::remove(sql, id)?,
                false => store::requeue(sql, id)?,
            }
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
