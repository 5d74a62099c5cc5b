//! The fleet of a storm: a server with the budgets, two with the jobs, and the judgement when all is over.

use std::fmt::Write;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use tokio::sync::watch;

use super::TOKEN;
use super::jobs::Jobs;
use super::limits::{Limit, Sharing, put};
use super::seat::Seat;
use super::settings::Storm;
use crate::support::endpoint::Endpoint;
use crate::support::load::Random;
use crate::support::network::Network;
use crate::support::{Setup, until};

const GROUPS: u64 = 3;
const ACCOUNT_LIMIT: u64 = 5;
const GROUP_LIMIT: u64 = 3;

/// How long a lease lives without a sign of life of its shard.
const LEASE_TTL_MS: u64 = 1_500;

pub(super) struct Fleet {
    pub(super) endpoint: Endpoint,
    pub(super) holders: Seat,
    /// Those that take and run jobs.
    pub(super) fronts: [Seat; 2],
    sharing: Vec<Sharing>,
    accounts: Vec<String>,
    groups: Vec<String>,
}

impl Fleet {
    /// Starts three servers, with an account for each way of sharing. `equip` changes what each one is started
    /// with; `allowed` are errors that they may answer besides the usual ones.
    pub(super) async fn start(
        sharing: &[Sharing],
        allowed: &'static [&'static str],
        equip: impl Fn(&'static str, Setup) -> Setup,
    ) -> Fleet {
        let endpoint = Endpoint::start().await;
        let setup = |name| {
            let setup = Setup::new(endpoint.url())
                .args(["--token", TOKEN, "--job-timeout=2s", "--job-attempts=1000"])
                .log_level("error");
            Seat::new(name, equip(name, setup), allowed)
        };
        let holders = setup("holders");
        let network = Network::start().await;
        let fronts = ["left", "right"].map(|name| {
            let mut front = setup(name);
            front.setup = front
                .setup
                .args(["--holders", &network.url()])
                .variable("DURABLY_HOLDERS_TOKEN", TOKEN);
            front
        });
        let mut whereabouts = holders.whereabouts();
        tokio::spawn(async move {
            while whereabouts.changed().await.is_ok() {
                if let Some(address) = *whereabouts.borrow_and_update() {
                    network.lead_to(address);
                }
            }
        });
        let fleet = Fleet {
            endpoint,
            holders,
            fronts,
            sharing: sharing.to_vec(),
            accounts: (0..sharing.len())
                .map(|index| format!("account-{index}"))
                .collect(),
            groups: (0..GROUPS).map(|index| format!("group-{index}")).collect(),
        };
        for seat in fleet.seats() {
            seat.start().await;
        }
        for (account, sharing) in fleet.accounts.iter().zip(&fleet.sharing) {
            let path = format!("accounts/{account}/leases");
            put(&fleet.holders, &path, &sharing.leases(LEASE_TTL_MS)).await;
        }
        for (mut limit, value) in fleet.limits() {
            limit.set(value).await;
        }
        fleet
    }

    pub(super) fn seats(&self) -> [&Seat; 3] {
        [&self.holders, &self.fronts[0], &self.fronts[1]]
    }

    /// Any of the servers.
    pub(super) fn some_seat(&self, random: &mut Random) -> &Seat {
        self.seats()[random.below(3) as usize]
    }

    /// All limits that are set, with what they are at the beginning and at the end.
    fn limits(&self) -> Vec<(Limit<'_>, u64)> {
        let mut limits = Vec::new();
        for (account, sharing) in self.accounts.iter().zip(&self.sharing) {
            let limit = |group| Limit {
                holders: &self.holders,
                endpoint: &self.endpoint,
                account,
                group,
                sharing: *sharing,
                value: 0,
            };
            limits.push((limit(None), ACCOUNT_LIMIT));
            if *sharing == Sharing::Grants {
                let groups = self.groups.iter().map(|group| limit(Some(group)));
                limits.extend(groups.map(|limit| (limit, GROUP_LIMIT)));
            }
        }
        limits
    }

    /// Jobs and moving limits while `blows` last; then all must come to its end.
    pub(super) async fn weather(&self, storm: &Storm, blows: impl Future<Output = String>) {
        let begun = Instant::now();
        let (stop, stopped) = watch::channel(false);
        let jobs = self
            .fronts
            .each_ref()
            .map(|seat| Jobs::new(seat, &self.endpoint, &self.accounts, &self.groups));
        let loading = jobs
            .iter()
            .enumerate()
            .map(|(index, jobs)| jobs.load(storm.random(10 + index as u64), stopped.clone()));
        let moving = self
            .limits()
            .into_iter()
            .enumerate()
            .map(|(index, (mut limit, last))| {
                limit.value = last;
                limit.move_about(last, storm.random(100 + index as u64), stopped.clone())
            });
        let blowing = async {
            let blows = blows.await;
            stop.send_replace(true);
            blows
        };
        let (blows, _, moves) = futures::join!(
            blowing,
            futures::future::join_all(loading),
            futures::future::join_all(moving),
        );
        let blown = begun.elapsed();
        for jobs in &jobs {
            jobs.until_all_ran().await;
        }
        self.until_permits_return().await;
        for jobs in &jobs {
            jobs.check_ends().await;
        }
        {
            let seen = self.endpoint.seen();
            assert!(
                seen.passed.is_empty(),
                "limits were passed: {:#?}",
                seen.passed
            );
        }
        let count: usize = jobs.iter().map(Jobs::acknowledged).sum();
        let repeated: u64 = jobs.iter().map(Jobs::repeated).sum();
        let moves: u64 = moves.into_iter().sum();
        self.report(
            storm,
            &blows,
            blown,
            begun.elapsed(),
            &format!("{count} jobs, {repeated} repeated in between; limits moved {moves} times"),
        );
    }

    /// Waits until no permit is out and no job waits or runs, whichever server is asked.
    async fn until_permits_return(&self) {
        for account in &self.accounts {
            for seat in self.seats() {
                until(&format!("all permits of {account} to return"), || async {
                    let path = format!("accounts/{account}/usage");
                    let (status, usage) = seat.ask(Method::GET, &path, None).await?;
                    let is_over = usage["granted"] == 0 && usage["leased"] == 0;
                    (status == StatusCode::OK && is_over).then_some(())
                })
                .await;
            }
            for seat in &self.fronts {
                until(&format!("nothing of {account} to be left"), || async {
                    let path = format!("accounts/{account}/jobs");
                    let (_, jobs) = seat.ask(Method::GET, &path, None).await?;
                    let is_over = ["waiting", "running", "undrawn"]
                        .iter()
                        .all(|it| jobs[it] == 0);
                    is_over.then_some(())
                })
                .await;
            }
        }
    }

    fn report(&self, storm: &Storm, blows: &str, blown: Duration, took: Duration, what: &str) {
        let mut text = format!(
            "{storm}: {blows} in {:.1} s, over after {:.1} s; {what}\n",
            blown.as_secs_f64(),
            took.as_secs_f64(),
        );
        let seen = self.endpoint.seen();
        let _ = writeln!(
            text,
            "  {} runs, {} requests to the endpoint by admission: {:?}",
            seen.begun(),
            seen.requests.len(),
            seen.admissions
        );
        let highest = seen
            .highest
            .iter()
            .filter(|((_, group), _)| group.is_none());
        let highest: Vec<u64> = highest.map(|(_, highest)| *highest).collect();
        let _ = writeln!(
            text,
            "  most running at once by account: {highest:?} {:?}",
            self.sharing
        );
        for seat in self.seats() {
            let _ = writeln!(text, "  {} answered errors: {:?}", seat.name, seat.errors());
        }
        print!("{text}");
    }
}
