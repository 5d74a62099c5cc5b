//! What is known of every job, as seen from outside the server: when it was acknowledged, when it
//! really ran, and how many ran at once.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use durably::jobs::Admission;

use super::day::Flight;

/// Permits that an airline has, and those of its permits that one airport may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) account: u64,
    pub(super) group: u64,
}

/// Jobs that run, and the most that ever did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) running: u64,
    pub(super) highest: u64,
}

impl Count {
    fn more(&mut self) {
        self.running += 1;
        self.highest = self.highest.max(self.running);
    }

    fn less(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

/// One airline.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub(super) jobs: usize,
    pub(super) all: Count,
    pub(super) groups: BTreeMap<String, Count>,
}

#[derive(Clone, Debug)]
struct Job {
    account: String,
    group: String,
    id: String,
    acknowledged: Option<Instant>,
    started: Option<Instant>,
    ended: bool,
    /// Runs under different keys; a second one would be a job done twice.
    runs: u32,
}

/// The jobs of one run of the demo.
#[derive(Debug)]
pub(super) struct Board {
    limits: Limits,
    jobs: Vec<Job>,
    by_address: HashMap<(String, String), usize>,
    accounts: BTreeMap<String, Account>,
    /// Jobs by how they came to their permit.
    admissions: BTreeMap<String, usize>,
    /// Runs of jobs that were not submitted by this run: left over in a data folder.
    strangers: usize,
    /// When a job was last acknowledged, started or ended.
    moved: Instant,
}

/// The waiting jobs of a group, and the oldest as an example of them.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) account: String,
    pub(super) oldest: String,
    pub(super) jobs: usize,
}

impl Board {
    pub(super) fn new(flights: &[Flight], limits: Limits, now: Instant) -> Board {
        let mut accounts: BTreeMap<String, Account> = BTreeMap::new();
        let mut jobs = Vec::new();
        for flight in flights {
            accounts.entry(flight.account.clone()).or_default().jobs += 1;
            jobs.push(Job {
                account: flight.account.clone(),
                group: flight.group.clone(),
                id: flight.id.clone(),
                acknowledged: None,
                started: None,
                ended: false,
                runs: 0,
            });
        }
        Board {
            limits,
            by_address: jobs
                .iter()
                .enumerate()
                .map(|(index, job)| ((job.account.clone(), job.id.clone()), index))
                .collect(),
            jobs,
            accounts,
            admissions: BTreeMap::new(),
            strangers: 0,
            moved: now,
        }
    }

    /// The server says that it has the job.
    pub(super) fn acknowledged(&mut self, index: usize, now: Instant) {
        if let Some(job) = self.jobs.get_mut(index) {
            job.acknowledged.get_or_insert(now);
            self.moved = now;
        }
    }

    /// A run under a new key has begun.
    pub(super) fn started(
        &mut self,
        account: &str,
        group: &str,
        id: &str,
        admission: &str,
        now: Instant,
    ) {
        self.moved = now;
        *self.admissions.entry(admission.to_owned()).or_default() += 1;
        match self.job(account, id) {
            Some(job) => {
                job.started.get_or_insert(now);
                job.runs += 1;
            }
            None => self.strangers += 1,
        }
        let account = self.accounts.entry(account.to_owned()).or_default();
        account.all.more();
        account.groups.entry(group.to_owned()).or_default().more();
    }

    /// A run has ended.
    pub(super) fn ended(&mut self, account: &str, group: &str, id: &str, now: Instant) {
        self.moved = now;
        if let Some(job) = self.job(account, id) {
            job.ended = true;
        }
        if let Some(account) = self.accounts.get_mut(account) {
            account.all.less();
            if let Some(group) = account.groups.get_mut(group) {
                group.less();
            }
        }
    }

    fn job(&mut self, account: &str, id: &str) -> Option<&mut Job> {
        let address = (account.to_owned(), id.to_owned());
        let index = *self.by_address.get(&address)?;
        self.jobs.get_mut(index)
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn total(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn done(&self) -> usize {
        self.jobs.iter().filter(|job| job.ended).count()
    }

    pub(super) fn all_ended(&self) -> bool {
        self.jobs.iter().all(|job| job.ended)
    }

    pub(super) fn running(&self) -> u64 {
        self.accounts
            .values()
            .map(|account| account.all.running)
            .sum()
    }

    pub(super) fn accounts(&self) -> &BTreeMap<String, Account> {
        &self.accounts
    }

    /// The airlines that give leases: every other one.
    pub(super) fn leasing(&self) -> Vec<String> {
        self.accounts.keys().step_by(2).cloned().collect()
    }

    /// How many jobs came to their permit in this way.
    pub(super) fn admitted(&self, admission: Admission) -> usize {
        let admitted = self.admissions.get(admission.as_str());
        admitted.copied().unwrap_or_default()
    }

    pub(super) fn strangers(&self) -> usize {
        self.strangers
    }

    pub(super) fn moved(&self) -> Instant {
        self.moved
    }

    /// Groups with acknowledged jobs that have not begun to run.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let mut waiting: BTreeMap<(&str, &str), Waiting> = BTreeMap::new();
        for job in &self.jobs {
            if job.acknowledged.is_some() && job.started.is_none() {
                waiting
                    .entry((&job.account, &job.group))
                    .or_insert_with(|| Waiting {
                        account: job.account.clone(),
                        oldest: job.id.clone(),
                        jobs: 0,
                    })
                    .jobs += 1;
            }
        }
        waiting.into_values().collect()
    }

    /// Ids of jobs that did not run to their end.
    pub(super) fn missing(&self) -> Vec<&str> {
        let missing = self.jobs.iter().filter(|job| !job.ended);
        missing.map(|job| job.id.as_str()).collect()
    }

    /// Ids of jobs that ran under more than one key.
    pub(super) fn repeated(&self) -> Vec<&str> {
        let repeated = self.jobs.iter().filter(|job| job.runs > 1);
        repeated.map(|job| job.id.as_str()).collect()
    }

    /// From acknowledgement to the start of the run, the shortest first. A job may start before
    /// its acknowledgement has arrived; it has not waited.
    pub(super) fn waits(&self) -> Vec<Duration> {
        let mut waits: Vec<Duration> = self
            .jobs
            .iter()
            .filter_map(|job| Some(job.started?.saturating_duration_since(job.acknowledged?)))
            .collect();
        waits.sort_unstable();
        waits
    }

    /// Every account or group of which more ran at once than may.
    pub(super) fn passed_limits(&self) -> Vec<String> {
        let mut passed = Vec::new();
        for (name, account) in &self.accounts {
            let whole = (name.clone(), account.all, self.limits.account);
            let groups = account
                .groups
                .iter()
                .map(|(group, count)| (format!("{name} {group}"), *count, self.limits.group));
            for (name, count, limit) in std::iter::once(whole).chain(groups) {
                if count.highest > limit {
                    passed.push(format!("{name}: {} of {limit}", count.highest));
                }
            }
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::day::flights;

    fn board() -> (Board, Vec<Flight>, Instant) {
        let flights = flights(Some(3), None, "").unwrap();
        let limits = Limits {
            account: 1,
            group: 1,
        };
        let now = Instant::now();
        (Board::new(&flights, limits, now), flights, now)
    }

    #[test]
    fn counts_what_really_runs() {
        let (mut board, flights, now) = board();
        // The second and third are of one airline and airport.
        for flight in &flights[1..] {
            board.started(&flight.account, &flight.group, &flight.id, "grant", now);
        }
        assert_eq!(board.passed_limits().len(), 2);
        for flight in &flights {
            board.ended(&flight.account, &flight.group, &flight.id, now);
        }
        assert!(board.all_ended());
        assert_eq!(board.running(), 0);
    }

    #[test]
    fn tells_jobs_that_are_missing_repeated_or_strange() {
        let (mut board, flights, now) = board();
        let first = &flights[0];
        board.started(&first.account, &first.group, &first.id, "lease", now);
        board.started(&first.account, &first.group, &first.id, "lease", now);
        board.started("XX", "JFK", "other", "", now);
        board.ended(&first.account, &first.group, &first.id, now);
        assert_eq!(board.missing().len(), 2);
        assert_eq!(board.repeated(), [first.id.as_str()]);
        assert_eq!(board.strangers(), 1);
        assert_eq!(board.admitted(Admission::Lease), 2);
        assert_eq!(board.admitted(Admission::Grant), 0);
    }

    #[test]
    fn waits_from_acknowledgement_to_start() {
        let (mut board, flights, now) = board();
        let later = now + Duration::from_millis(30);
        board.acknowledged(0, now);
        board.acknowledged(1, later);
        board.acknowledged(2, now);
        assert_eq!(board.waiting().len(), 2);
        for flight in &flights[..2] {
            let at = now + Duration::from_millis(20);
            board.started(
                &flight.account,
                &flight.group,
                &flight.id,
                "lease-at-once",
                at,
            );
        }
        assert_eq!(board.waits(), [Duration::ZERO, Duration::from_millis(20)]);
        assert_eq!(board.waiting()[0].oldest, flights[2].id);
    }
}
