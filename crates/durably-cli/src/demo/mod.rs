//! `durably demo`: a real day of flights as jobs, within limits, watched from outside.
//!
//! Airlines are accounts, airports groups. The server is the real one, driven over HTTP; the jobs
//! run at an endpoint in this process, which counts what really runs. With `--kill-every` the
//! server is a process of its own that is killed and started again; with `--cloudflare` that is a
//! workerd with the ready-made worker.

mod board;
mod day;
mod display;
mod driver;
mod endpoint;
pub(crate) mod server;
mod summary;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use durably::ConfigError;
use futures::future::join_all;
use reqwest::Url;
use tokio::sync::watch;

use self::board::{Board, Limits};
use self::day::{Flight, Pace};
use self::display::{Display, Progress};
use self::driver::Server;
use self::endpoint::Shared;
use self::server::Recipe;
use self::summary::Summary;
use crate::args::DemoArgs;
use crate::exit::Failure;
use crate::{logs, runner, serve};

const LIMITS: Limits = Limits {
    account: 12,
    group: 8,
};

/// Between two looks at how the day goes.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Longer than the longest job without any movement means that nothing moves any more.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Within this after the last job all permits are back.
const PERMITS_RETURN_WITHIN: Duration = Duration::from_secs(20);

pub(crate) fn run(args: DemoArgs) -> Result<(), Failure> {
    logs::init(&args.log_level, args.log_format);
    serve::runtime()?.block_on(async {
        tokio::select! {
            outcome = demonstrate(args) => outcome,
            _ = tokio::signal::ctrl_c() => Err(Failure::Demo("interrupted".to_owned())),
        }
    })
}

async fn demonstrate(args: DemoArgs) -> Result<(), Failure> {
    let worker = match args.cloudflare {
        true => Some(args.workerd.worker("durably")?),
        false => None,
    };
    // Also holds the server's settings, so it is there with a data folder of the user's too.
    let scratch = tempfile::tempdir().map_err(Failure::io("making a folder for the demo"))?;
    let data_dir = args
        .data_dir
        .clone()
        .unwrap_or_else(|| scratch.path().join("data"));
    let flights = day::flights(args.jobs, args.until, &suffix(&data_dir))
        .map_err(|error| Failure::Demo(error.to_string()))?;
    if flights.is_empty() {
        let problem = "is too early, no flight leaves before that: name a later minute";
        return Err(ConfigError::new("until", problem).into());
    }
    let pace = Pace::new(args.speed);
    let start = Instant::now();
    let board = Shared::new(Board::new(&flights, LIMITS, start));
    let endpoint = endpoint::start(board.clone(), pace).await?;
    let show = Show {
        flights,
        pace,
        start,
        board,
    };
    let settings = server::settings(&data_dir, endpoint, LIMITS);
    let period = args.kill_every.map(|period| period.duration());
    let (took, restarts, still_out) = match worker {
        Some(worker) => {
            let recipe = Recipe::Workerd {
                worker,
                objects: data_dir,
                settings: server::worker_settings(endpoint, LIMITS),
            };
            show.apart(&recipe, period).await?
        }
        None if period.is_some() => {
            let config = scratch.path().join("serve.toml");
            std::fs::write(&config, settings).map_err(Failure::io("writing the settings"))?;
            show.apart(&Recipe::Serve(config), period).await?
        }
        None => show.calm(&settings).await?,
    };
    let board = show.board.lock();
    let summary = Summary {
        board: &board,
        pace,
        took,
        restarts,
        still_out,
    };
    write!(io::stdout(), "{summary}").map_err(Failure::io("writing the summary"))?;
    match summary.problems() {
        none if none.is_empty() => writeln!(io::stdout(), "every job ran, and no limit was passed")
            .map_err(Failure::io("writing the summary")),
        problems => Err(Failure::Demo(problems.join("; "))),
    }
}

/// Makes ids new in a folder that has seen the day already: there they would be duplicates.
fn suffix(data_dir: &Path) -> String {
    let used = std::fs::read_dir(data_dir).is_ok_and(|mut entries| entries.next().is_some());
    if !used {
        return String::new();
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("-{}", now.as_millis())
}

/// Time taken, restarts, and permits that did not return.
type Course = (Duration, u64, Option<u64>);

struct Show {
    flights: Vec<Flight>,
    pace: Pace,
    start: Instant,
    board: Shared,
}

impl Show {
    /// The day with a server in this process.
    async fn calm(&self, settings: &str) -> Result<Course, Failure> {
        let mut server = server::in_process(settings).await?;
        let (_, whereabouts) = watch::channel(Some(server.address()));
        let (_, restarts) = watch::channel(0);
        let client = client(whereabouts)?;
        let took = self.pass(&client, restarts).await;
        let still_out = self.still_out(&client).await;
        server.drain().await;
        server.close().await;
        Ok((took, 0, still_out))
    }

    /// The day with a server in a process of its own, killed every `period` and started again.
    async fn apart(&self, recipe: &Recipe, period: Option<Duration>) -> Result<Course, Failure> {
        let process = recipe.start().await?;
        let (at, whereabouts) = watch::channel(Some(process.address()));
        let (count, restarts) = watch::channel(0);
        let (stop, stopped) = watch::channel(false);
        let client = client(whereabouts)?;
        let passing = async {
            let took = self.pass(&client, restarts.clone()).await;
            stop.send_replace(true);
            took
        };
        let killing = server::keep_killing(process, recipe, period, &at, &count, stopped);
        let mut passing = std::pin::pin!(passing);
        let mut killing = std::pin::pin!(killing);
        let (took, process) = tokio::select! {
            took = &mut passing => (took, killing.await?),
            // It ends before the day only if the server cannot be started.
            process = &mut killing => {
                let process = process?;
                (passing.await, process)
            }
        };
        let still_out = self.still_out(&client).await;
        process.kill().await?;
        let restarts = *restarts.borrow();
        Ok((took, restarts, still_out))
    }

    /// Submits the day and watches it until all jobs have run, or nothing moves any more.
    async fn pass(&self, server: &Server, restarts: watch::Receiver<u64>) -> Duration {
        let leasing = self.board.lock().leasing();
        join_all(leasing.iter().map(|account| server.give_leases(account))).await;
        let submitting =
            driver::submit_all(&self.flights, self.pace, self.start, &self.board, server);
        let watching = self.watch(server, restarts);
        let mut submitting = std::pin::pin!(submitting);
        let mut watching = std::pin::pin!(watching);
        tokio::select! {
            () = &mut submitting => watching.await,
            () = &mut watching => {}
        }
        self.start.elapsed()
    }

    async fn watch(&self, server: &Server, restarts: watch::Receiver<u64>) {
        let mut display = Display::new();
        let patience = self.longest_calm() + GIVE_UP_AFTER;
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let (waiting, ended, still) = {
                let board = self.board.lock();
                let still = board.moved().elapsed() < patience;
                (board.waiting(), board.all_ended(), still)
            };
            let reasons = join_all(
                waiting
                    .iter()
                    .map(|group| server.blocked_reason(&group.account, &group.oldest)),
            )
            .await;
            let mut progress = Progress::of(&self.board.lock(), &waiting, &reasons);
            progress.elapsed = self.start.elapsed();
            progress.minute = self.pace.minutes(progress.elapsed) as u64;
            progress.restarts = *restarts.borrow();
            display.show(&progress);
            if ended || !still {
                break;
            }
        }
        display.end();
    }

    /// How long a day that goes well may go without a job that is submitted, starts or ends.
    fn longest_calm(&self) -> Duration {
        let longest = self.flights.iter().map(|flight| flight.minutes).max();
        let latest = self.flights.iter().map(|flight| flight.at_minute).max();
        self.pace.real(longest.max(latest).unwrap_or(0))
    }

    /// Permits that do not return in time; `None` if the server does not say.
    async fn still_out(&self, server: &Server) -> Option<u64> {
        let deadline = Instant::now() + PERMITS_RETURN_WITHIN;
        loop {
            let accounts: Vec<String> = self.board.lock().accounts().keys().cloned().collect();
            let out = join_all(accounts.iter().map(|account| server.out(account))).await;
            let out = out.into_iter().sum::<Option<u64>>();
            if out == Some(0) || Instant::now() >= deadline {
                return out;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn client(whereabouts: watch::Receiver<Option<SocketAddr>>) -> Result<Server, Failure> {
    let loopback: Url = "http://127.0.0.1"
        .parse()
        .map_err(|_| Failure::Demo("loopback has no URL".to_owned()))?;
    let client = runner::client(&loopback).map_err(|error| Failure::Demo(error.to_string()))?;
    Ok(Server::new(client, whereabouts))
}
