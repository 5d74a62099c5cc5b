//! Who submits and cancels jobs, sets limits and lists of shards. Submissions go by the account's lists,
//! former owners first.

use std::rc::Rc;
use std::time::Duration;

use durably::jobs::{CancelOutcome, NewJob, OutdatedList, ShardLists, SubmitOutcome, route};
use serde_json::Value;

use super::Application;
use super::routing::{lists_of, stored_lists_of};
use crate::simulation::invariants::jobs::LOST;

const TWICE: &str = "a job is taken once";

/// A job as its submitter knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Submitted {
    group: String,
    acknowledged: bool,
    /// It will not run.
    cancelled: bool,
    /// Somebody tried to cancel it.
    perhaps_cancelled: bool,
    /// It was submitted again, so that it may be another job by now.
    repeated: bool,
    ended: bool,
}

type Name = (String, String);

/// Plans all that is done while faults last.
pub(super) fn start(application: &Rc<Application>) {
    let run = &application.run;
    let accounts = run.knob("accounts");
    for number in 0..run.knob("jobs") {
        let account = format!("account-{}", application.dice.below(accounts));
        let name = (account, format!("job-{number:03}"));
        let group = format!("group-{}", application.dice.below(run.knob("groups")));
        let submitted = Submitted {
            group,
            ..Submitted::default()
        };
        application
            .submitted
            .borrow_mut()
            .insert(name.clone(), submitted);
        application
            .dice
            .sometime(application, move |application| submit(application, name));
    }
    let any_job = |application: &Application| {
        let jobs = application.submitted.borrow();
        let place = application.dice.below(jobs.len() as u64) as usize;
        jobs.keys().nth(place).cloned().unwrap_or_default()
    };
    for _ in 0..run.knob("repeats") {
        let name = any_job(application);
        application
            .dice
            .sometime(application, move |application| repeat(application, name));
    }
    for _ in 0..run.knob("cancels") {
        let name = any_job(application);
        application
            .dice
            .sometime(application, move |application| cancel(application, name));
    }
    for _ in 0..run.knob("limit-moves") {
        application.dice.sometime(application, set_limit);
    }
    for _ in 0..run.knob("list-changes") {
        application.dice.sometime(application, set_shards);
        application.dice.sometime(application, look_through);
    }
}

/// Takes the limits back to what they were by default, until that is done.
pub(super) fn heal(application: &Rc<Application>) {
    for account in application.accounts.borrow().iter() {
        let (object, world) = (account.object.clone(), application.run.world.clone());
        let groups = application.run.knob("groups");
        application.run.world.spawn(async move {
            loop {
                let healed = object
                    .call(move |account| async move {
                        account.set_limit(None).await?;
                        for index in 0..groups {
                            account
                                .set_group_limit(format!("group-{index}"), None)
                                .await?;
                        }
                        Ok::<_, durably::jobs::JobError>(())
                    })
                    .await;
                if let Ok(Ok(())) = healed {
                    return;
                }
                world.sleep(Duration::from_secs(1)).await;
            }
        });
    }
}

/// A job that is not acknowledged or has not ended.
pub(super) fn left(application: &Application) -> Option<(String, String)> {
    let mut jobs = application.submitted.borrow_mut();
    for ((account, id), job) in jobs.iter_mut() {
        if job.ended {
            continue;
        }
        let key = format!("{account}/{id}");
        if !job.acknowledged {
            return Some((key.clone(), format!("{key} is not acknowledged")));
        }
        let state = application.state_of(&key);
        job.ended = match &state {
            Some((_, has_ended)) => *has_ended,
            None => job.cancelled || job.perhaps_cancelled,
        };
        if !job.ended {
            return Some((
                key.clone(),
                format!("{key} has not ended: {state:?}, {job:?}"),
            ));
        }
    }
    None
}

/// Checks that what is said to be done was done.
pub(super) fn finish(application: &Application) {
    for (account, id) in application.submitted.borrow().keys() {
        let key = format!("{account}/{id}");
        match application.state_of(&key) {
            Some((state, _)) if state == "completed" => {
                application.run.cover("job completed");
                if !application.endpoint.has_done(&key) {
                    let message = "it is completed, and nobody did it".to_owned();
                    application.run.fail(LOST, &key, message);
                }
            }
            Some((state, _)) if state == "cancelled" => application.run.cover("job stopped"),
            Some(_) => application.run.cover("job failed"),
            None => {}
        }
    }
}

impl Application {
    /// Whether a job was cancelled for certain before it ran.
    pub(super) fn must_not_run(&self, key: &str) -> bool {
        let Some((account, id)) = key.split_once('/') else {
            return false;
        };
        let jobs = self.submitted.borrow();
        let job = jobs.get(&(account.to_owned(), id.to_owned()));
        job.is_some_and(|job| job.cancelled && !job.repeated)
    }

    fn change(&self, name: &Name, change: impl FnOnce(&mut Submitted)) {
        if let Some(job) = self.submitted.borrow_mut().get_mut(name) {
            change(job);
        }
    }

    fn job(&self, name: &Name) -> Submitted {
        self.submitted
            .borrow()
            .get(name)
            .cloned()
            .unwrap_or_default()
    }
}

async fn submit(application: Rc<Application>, name: Name) {
    loop {
        if let Some(outcome) = submit_once(&application, &name).await {
            match outcome {
                SubmitOutcome::Queued | SubmitOutcome::Duplicate => {
                    application.change(&name, |job| job.acknowledged = true);
                }
                SubmitOutcome::Refused(error) => {
                    let (account, id) = &name;
                    let key = format!("{account}/{id}");
                    application
                        .run
                        .fail(LOST, &key, format!("it was refused: {error}"));
                }
            }
            return;
        }
        application.dice.rest().await;
    }
}

/// What is acknowledged is known when it is submitted again.
async fn repeat(application: Rc<Application>, name: Name) {
    let before = application.job(&name);
    if !before.acknowledged || before.perhaps_cancelled {
        return;
    }
    application.change(&name, |job| job.repeated = true);
    let outcome = submit_once(&application, &name).await;
    let after = application.job(&name);
    match outcome {
        Some(SubmitOutcome::Duplicate) => application.run.cover("job known before"),
        Some(SubmitOutcome::Queued) if !after.perhaps_cancelled => {
            let (account, id) = &name;
            let message = "it was submitted before, and was taken again".to_owned();
            application
                .run
                .fail(TWICE, &format!("{account}/{id}"), message);
        }
        _ => {}
    }
}

/// Submits a job once; `None` if something could not be reached or has changed meanwhile.
async fn submit_once(application: &Rc<Application>, name: &Name) -> Option<SubmitOutcome> {
    let lists = lists_of(application, &name.0).await?;
    match submit_by(application, name, &lists).await? {
        Ok(outcome) => Some(outcome),
        Err(OutdatedList { .. }) => {
            application.run.cover("old list of shards refused");
            let lists = stored_lists_of(application, &name.0).await?;
            submit_by(application, name, &lists).await?.ok()
        }
    }
}

/// Submits a job by these lists; `None` if something could not be reached.
async fn submit_by(
    application: &Rc<Application>,
    name: &Name,
    lists: &ShardLists,
) -> Option<Result<SubmitOutcome, OutdatedList>> {
    let (account, id) = name;
    let version = lists.current.version;
    let route = route(lists, id)?;
    for former in &route.former {
        application.run.cover("job asked of a former shard");
        let object = application.shard(former).object.clone();
        let (account, ids) = (account.clone(), vec![id.clone()]);
        let known = object
            .call(move |shard| async move { shard.knows(&account, version, &ids).await })
            .await;
        match known.ok()?.ok()? {
            Ok(known) if known.first() == Some(&true) => {
                return Some(Ok(SubmitOutcome::Duplicate));
            }
            Ok(_) => {}
            Err(outdated) => return Some(Err(outdated)),
        }
    }
    let object = application.shard(route.owner).object.clone();
    let job = NewJob {
        account: account.clone(),
        id: id.clone(),
        group: application.job(name).group,
        body: Value::from(id.as_str()),
    };
    let account = account.clone();
    let taken = object
        .call(move |shard| async move { shard.submit(&account, version, vec![job]).await })
        .await;
    match taken.ok()?.ok()? {
        Ok(outcomes) => outcomes.into_iter().next().map(Ok),
        Err(outdated) => Some(Err(outdated)),
    }
}

async fn cancel(application: Rc<Application>, name: Name) {
    let (account, id) = name.clone();
    let running = application.dice.below(2) == 0;
    let Some(lists) = lists_of(&application, &account).await else {
        return;
    };
    let Some(route) = route(&lists, &id) else {
        return;
    };
    let was_acknowledged = application.job(&name).acknowledged;
    application.change(&name, |job| job.perhaps_cancelled = true);
    for shard in route.former.iter().chain([&route.owner]) {
        let object = application.shard(shard).object.clone();
        let (account, id) = (account.clone(), id.clone());
        let cancelled = object
            .call(move |shard| async move { shard.cancel(&account, &id, running).await })
            .await;
        let Ok(Ok(outcome)) = cancelled else {
            continue;
        };
        application.run.note(
            &format!("{}/{}", name.0, name.1),
            format_args!("cancelling it: {outcome:?}"),
        );
        // A submission whose answer was lost is made again, and is a new job then.
        if outcome == CancelOutcome::Cancelled && was_acknowledged {
            application.run.cover("job cancelled");
            application.change(&name, |job| job.cancelled = true);
        }
    }
}

async fn set_limit(application: Rc<Application>) {
    let index = application.dice.below(application.run.knob("accounts"));
    let Some(account) = application.account(&format!("account-{index}")) else {
        return;
    };
    let limit = application.dice.below(application.run.knob("limit") + 2);
    let group = format!(
        "group-{}",
        application.dice.below(application.run.knob("groups"))
    );
    let of_group = application.dice.below(3) == 0;
    application.run.cover("limit set");
    let what = if of_group { group.as_str() } else { "all" };
    application.run.note(
        &account.key,
        format_args!("the limit of {what} becomes {limit}"),
    );
    let _ = account
        .object
        .call(move |account| async move {
            match of_group {
                true => account.set_group_limit(group, Some(limit)).await,
                false => account.set_limit(Some(limit)).await,
            }
        })
        .await;
}

async fn set_shards(application: Rc<Application>) {
    let index = application.dice.below(application.run.knob("accounts"));
    let Some(account) = application.account(&format!("account-{index}")) else {
        return;
    };
    let number = application.lists.get() + 1;
    application.lists.set(number);
    let shards: Vec<String> = (0..=application.dice.below(3))
        .map(|index| match application.dice.below(2) {
            0 => format!("{}-{index}", account.key),
            _ => format!("{}-{number}-{index}", account.key),
        })
        .collect();
    application.run.cover("list of shards set");
    application
        .run
        .note(&account.key, format_args!("its shards become {shards:?}"));
    let _ = account
        .object
        .call(move |account| async move { account.set_shards(shards).await })
        .await;
}

/// Forgets former lists whose shards hold nothing of another's any more.
async fn look_through(application: Rc<Application>) {
    let index = application.dice.below(application.run.knob("accounts"));
    let key = format!("account-{index}");
    let Some(account) = application.account(&key) else {
        return;
    };
    let Some(lists) = lists_of(&application, &key).await else {
        return;
    };
    'lists: for former in &lists.former {
        for shard in &former.shards {
            let object = application.shard(shard).object.clone();
            let (key, current) = (key.clone(), lists.current.clone());
            let drained = object
                .call(move |shard| async move { shard.is_drained(&key, &current).await })
                .await;
            if !matches!(drained, Ok(Ok(Ok(true)))) {
                continue 'lists;
            }
        }
        let version = former.version;
        application.run.cover("former list forgotten");
        let _ = account
            .object
            .call(move |account| async move { account.forget_former(version).await })
            .await;
    }
}
