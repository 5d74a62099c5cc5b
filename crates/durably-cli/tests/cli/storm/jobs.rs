//! The jobs of a storm: submitted until acknowledged, submitted again, cancelled; and where each of them
//! must end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::seat::Seat;
use crate::support::endpoint::Endpoint;
use crate::support::load::Random;
use crate::support::{PATIENCE, until};

/// Jobs of one server that are acknowledged and have not ended, at most.
const UNFINISHED: usize = 150;

/// Asked about at once when all is over.
const AT_ONCE: usize = 8;

/// Jobs in one request when all are submitted again.
const AGAIN: usize = 500;

/// Account and id.
type Address = (String, String);

#[derive(Default)]
struct Book {
    /// What was submitted, by address.
    acknowledged: BTreeMap<Address, Value>,
    /// Those of them that have not run yet, as far as was looked.
    open: BTreeSet<Address>,
    asked_to_cancel: BTreeSet<Address>,
    repeated: u64,
}

/// The jobs of one server.
pub(super) struct Jobs<'a> {
    seat: &'a Seat,
    endpoint: &'a Endpoint,
    accounts: &'a [String],
    groups: &'a [String],
    book: Mutex<Book>,
}

impl<'a> Jobs<'a> {
    pub(super) fn new(
        seat: &'a Seat,
        endpoint: &'a Endpoint,
        accounts: &'a [String],
        groups: &'a [String],
    ) -> Jobs<'a> {
        Jobs {
            seat,
            endpoint,
            accounts,
            groups,
            book: Mutex::default(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    pub(super) fn acknowledged(&self) -> usize {
        self.book().acknowledged.len()
    }

    pub(super) fn repeated(&self) -> u64 {
        self.book().repeated
    }

    /// Submits, repeats and cancels jobs until it is told to stop.
    pub(super) async fn load(&self, mut random: Random, stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let batch = 1 + random.below(30);
            let batch = (0..batch).map(|_| self.job(&mut random)).collect();
            self.submit(batch).await;
            if random.below(3) == 0 {
                self.submit_known(&mut random).await;
            }
            if random.below(4) == 0 {
                self.cancel(&mut random).await;
            }
            let pause = Duration::from_millis(random.below(30));
            tokio::time::sleep(pause).await;
            while self.open().len() > UNFINISHED && !*stop.borrow() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn job(&self, random: &mut Random) -> Value {
        let mut pick = |names: &[String]| names[random.below(names.len() as u64) as usize].clone();
        let (account, group) = (pick(self.accounts), pick(self.groups));
        let mut body = json!({"ms": 5 + random.below(120)});
        if random.below(20) == 0 {
            body["answers"] = json!([503]);
        }
        let id = format!("{}-{:08x}", self.seat.name, random.below(1 << 48));
        json!({"account": account, "group": group, "id": id, "body": body})
    }

    /// Submits jobs until each is acknowledged.
    async fn submit(&self, mut jobs: Vec<Value>) {
        let mut patience = Instant::now() + PATIENCE;
        while !jobs.is_empty() {
            let taken = self.submit_once(&jobs).await;
            if taken.is_empty() {
                assert!(Instant::now() < patience, "no job is acknowledged");
                tokio::time::sleep(Duration::from_millis(10)).await;
            } else {
                patience = Instant::now() + PATIENCE;
            }
            let mut book = self.book();
            for (index, _) in taken.into_iter().rev() {
                let job = jobs.remove(index);
                let address = address(&job);
                book.open.insert(address.clone());
                book.acknowledged.insert(address, job);
            }
        }
    }

    /// Which of the jobs the server took, and whether it knew them.
    async fn submit_once(&self, jobs: &[Value]) -> Vec<(usize, bool)> {
        let body = match jobs {
            [job] => job.clone(),
            jobs => jobs.into(),
        };
        let answer = self.seat.ask(Method::POST, "jobs", Some(&body)).await;
        let Some((status, answer)) = answer else {
            return Vec::new();
        };
        if !status.is_success() {
            return Vec::new();
        }
        let outcomes = answer["results"].as_array().expect("results");
        assert_eq!(outcomes.len(), jobs.len());
        let taken = outcomes.iter().enumerate().filter_map(|(index, outcome)| {
            match outcome["outcome"].as_str() {
                Some("queued") => Some((index, false)),
                Some("duplicate") => Some((index, true)),
                _ => {
                    self.seat.judge(outcome);
                    None
                }
            }
        });
        taken.collect()
    }

    /// Submits a job again that was acknowledged before: it must be known.
    async fn submit_known(&self, random: &mut Random) {
        let known = {
            let book = self.book();
            let index = random.below(book.acknowledged.len().max(1) as u64) as usize;
            let known = book.acknowledged.iter().nth(index);
            let known = known.filter(|(address, _)| !book.asked_to_cancel.contains(*address));
            known.map(|(_, job)| job.clone())
        };
        let Some(job) = known else { return };
        self.must_be_known(&[job]).await;
        self.book().repeated += 1;
    }

    async fn must_be_known(&self, jobs: &[Value]) {
        until("known jobs to be answered", || async {
            let taken = self.submit_once(jobs).await;
            for (index, known) in &taken {
                assert!(known, "{} was forgotten", jobs[*index]);
            }
            (taken.len() == jobs.len()).then_some(())
        })
        .await;
    }

    /// Asks for a job not to be run that may wait still.
    async fn cancel(&self, random: &mut Random) {
        let mut open = self.open();
        if open.is_empty() {
            return;
        }
        let address = open.swap_remove(random.below(open.len() as u64) as usize);
        let (account, id) = &address;
        let path = format!("accounts/{account}/jobs/{id}");
        self.book().asked_to_cancel.insert(address.clone());
        until("a cancellation to be answered", || async {
            let (status, _) = self.seat.ask(Method::DELETE, &path, None).await?;
            (!status.is_server_error()).then_some(())
        })
        .await;
    }

    /// Acknowledged jobs that have not run, of those that nobody wanted to cancel.
    fn open(&self) -> Vec<Address> {
        let seen = self.endpoint.seen();
        let mut book = self.book();
        book.open.retain(|job| seen.run(&key(job)) != Some(true));
        let open = book.open.difference(&book.asked_to_cancel);
        open.cloned().collect()
    }

    /// Waits until all jobs have run, as long as some still do.
    pub(super) async fn until_all_ran(&self) {
        let mut fewest = usize::MAX;
        let mut patience = Instant::now() + PATIENCE;
        loop {
            let left = self.open();
            if left.is_empty() {
                return;
            }
            if left.len() < fewest {
                fewest = left.len();
                patience = Instant::now() + PATIENCE;
            }
            if Instant::now() >= patience {
                let (account, id) = &left[0];
                let path = format!("accounts/{account}/jobs/{id}");
                let state = self.seat.ask(Method::GET, &path, None).await;
                panic!(
                    "{} jobs do not run, for instance {id}: {state:?}",
                    left.len()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks about every job: it has ended as it should, and its id is known.
    pub(super) async fn check_ends(&self) {
        let (jobs, asked_to_cancel) = {
            let book = self.book();
            (book.acknowledged.clone(), book.asked_to_cancel.clone())
        };
        let checks = jobs.keys().map(async |address| {
            let (account, id) = address;
            let path = format!("accounts/{account}/jobs/{id}");
            let last = RefCell::new(Value::Null);
            let ending = until("a job to end", || async {
                let (status, job) = self.seat.ask(Method::GET, &path, None).await?;
                *last.borrow_mut() = job.clone();
                let state = match status {
                    // What is cancelled while it waits is forgotten; once it has a permit, kept.
                    StatusCode::NOT_FOUND => "unknown",
                    _ => job["state"].as_str()?,
                };
                let has_ended = ["completed", "failed", "cancelled", "unknown"].contains(&state);
                has_ended.then(|| state.to_owned())
            });
            let state = tokio::time::timeout(PATIENCE / 2, ending).await;
            let state = state.unwrap_or_else(|_| panic!("it does not end: {}", last.borrow()));
            let run = self.endpoint.seen().run(&key(address));
            match &*state {
                "completed" => assert_eq!(run, Some(true), "{id} is completed"),
                "cancelled" | "unknown" => {
                    assert!(asked_to_cancel.contains(address), "{id} was forgotten");
                    assert_eq!(run, None, "{id} was cancelled before it ran");
                }
                other => panic!("{id} is {other}"),
            }
        });
        let mut checks = futures::stream::iter(checks).buffer_unordered(AT_ONCE);
        while checks.next().await.is_some() {}
        let known = jobs.iter();
        let known = known.filter(|(address, _)| !asked_to_cancel.contains(*address));
        let jobs: Vec<Value> = known.map(|(_, job)| job.clone()).collect();
        for some in jobs.chunks(AGAIN) {
            self.must_be_known(some).await;
        }
    }
}

fn address(job: &Value) -> Address {
    let part = |name: &str| job[name].as_str().expect("a text").to_owned();
    (part("account"), part("id"))
}

/// The `Idempotency-Key` of its runs.
fn key((account, id): &Address) -> String {
    format!("{account}/{id}")
}
