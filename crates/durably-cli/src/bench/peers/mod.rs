//! A counting semaphore whose every step is durable, beside its peers: how many permits a second can
//! be taken and given back, one after the other by each client.
//!
//! A cycle ends when the client has held a permit that outlives a loss of power and has given it back.
//! Ours takes two messages: a *request*, which carries the release of the cycle before and is answered
//! after the grant's commit, and a *sync*, answered after the claim's. The peers take two as well:
//! *acquire* and *release*, each answered after its flush. All are given 64 permits. Every client has a
//! connection of its own, kept open; the peers' are unix sockets, ours is TCP, or a call within the
//! process.
//!
//! The peers are started by this program, in its own folder, and are skipped if they are not
//! installed. Their clients are compiled only with the feature `peers`.

mod ours;
#[cfg(feature = "peers")]
mod postgres;
#[cfg(feature = "peers")]
mod redis;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, Instant};

use durably::error::BoxError;
use futures::future::try_join_all;

use super::report::{Goal, Value};
use super::{Bench, clear, median_of, per_second};

/// Clients at once.
const CLIENTS: [usize; 3] = [1, 16, 64];

/// Permits, so that nobody waits for another.
const LIMIT: usize = 64;

type Answer<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + 'a>>;

/// One client and its connection.
trait Client {
    /// Takes a permit and gives it back.
    fn cycle(&mut self) -> Answer<'_>;

    /// Gives back what the last cycle may have left.
    fn settle(&mut self) -> Answer<'_> {
        Box::pin(async { Ok(()) })
    }
}

type Clients = Vec<Box<dyn Client>>;

/// A semaphore that takes part, with its clients.
struct Peer {
    name: &'static str,
    clients: Clients,
    /// For each number of clients, the cycles a second of every repetition.
    rates: [Vec<f64>; CLIENTS.len()],
}

impl Peer {
    fn new(name: &'static str, clients: Clients) -> Peer {
        Peer {
            name,
            clients,
            rates: Default::default(),
        }
    }

    async fn measure(&mut self, which: usize, time: Duration) -> Result<(), BoxError> {
        let start = Instant::now();
        let clients = &mut self.clients[..CLIENTS[which]];
        let running = clients.iter_mut().map(|client| async move {
            let mut cycles = 0;
            while start.elapsed() < time {
                client.cycle().await?;
                cycles += 1;
            }
            Ok::<usize, BoxError>(cycles)
        });
        let cycles: usize = try_join_all(running).await?.into_iter().sum();
        self.rates[which].push(per_second(cycles, start.elapsed()));
        try_join_all(clients.iter_mut().map(|client| client.settle())).await?;
        Ok(())
    }
}

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin(
        "peers",
        "durable acquire + release of one of 64 permits, cycles a second",
    )?;
    let repetitions = bench.amount(5, 2);
    let time = Duration::from_millis(bench.amount(1_500, 300) as u64);
    let folder = bench.fresh("peers");
    std::fs::create_dir(&folder)?;
    let mut peers = Vec::new();
    let (within, clients) = ours::in_process(&folder.join("in-process"))?;
    peers.push(Peer::new(IN_PROCESS, clients));
    let (server, clients) = ours::over_http(&folder).await?;
    peers.push(Peer::new("durably serve, over HTTP", clients));
    let others = Others::start(&folder, bench, &mut peers).await?;
    for repetition in 0..=repetitions {
        for which in 0..CLIENTS.len() {
            // Each is the first one in its turn, for what one has written may slow the next one down.
            for turn in 0..peers.len() {
                let peer = (repetition + which + turn) % peers.len();
                peers[peer].measure(which, time).await?;
            }
        }
        if repetition == 0 {
            // It filled caches and opened files.
            peers
                .iter_mut()
                .for_each(|peer| peer.rates = Default::default());
        }
    }
    print(bench, &peers)?;
    drop(peers);
    others.stop().await?;
    server.stop().await?;
    within.shutdown().await;
    drop(within);
    clear(&folder)
}

const IN_PROCESS: &str = "durably, in process";
#[cfg(feature = "peers")]
const REDIS: &str = "Redis, AOF always, fair Lua";
#[cfg(feature = "peers")]
const POSTGRES: &str = "Postgres, slot rows, SKIP LOCKED";

/// Ratios first: of medians, and of what was measured in one run.
fn print(bench: &mut Bench, peers: &[Peer]) -> Result<(), BoxError> {
    let Some((ours, others)) = peers.split_first() else {
        return Ok(());
    };
    for (which, clients) in CLIENTS.iter().enumerate() {
        for other in others {
            let goal = match (is_redis(other.name), clients) {
                (true, 64) => Goal::AtLeast(Value::Ratio(1.0)),
                _ => Goal::None,
            };
            let pairs = ours.rates[which].iter().zip(&other.rates[which]);
            let ratios: Vec<f64> = pairs.map(|(ours, other)| ours / other).collect();
            bench.report.line(
                &format!("{clients} clients: ratio, in process to {}", other.name),
                Value::Ratio(median_of(&ratios)?),
                goal,
            )?;
        }
    }
    for (which, clients) in CLIENTS.iter().enumerate() {
        for peer in peers {
            bench.report.line(
                &format!("{clients} clients: {}", peer.name),
                Value::Rate(median_of(&peer.rates[which])?),
                Goal::None,
            )?;
        }
    }
    Ok(())
}

/// The servers that are not ours.
#[cfg(feature = "peers")]
struct Others {
    redis: Option<redis::Server>,
    postgres: Option<postgres::Server>,
}

#[cfg(feature = "peers")]
impl Others {
    async fn start(
        folder: &Path,
        bench: &mut Bench,
        peers: &mut Vec<Peer>,
    ) -> Result<Others, BoxError> {
        let redis = match redis::start(&folder.join("redis")).await? {
            Started::Skipped(why) => {
                bench.report.skipped(REDIS, &why)?;
                None
            }
            Started::Running(server, clients) => {
                peers.push(Peer::new(REDIS, clients));
                Some(server)
            }
        };
        let postgres = match postgres::start(&folder.join("postgres")).await? {
            Started::Skipped(why) => {
                bench.report.skipped(POSTGRES, &why)?;
                None
            }
            Started::Running(server, clients) => {
                peers.push(Peer::new(POSTGRES, clients));
                Some(server)
            }
        };
        Ok(Others { redis, postgres })
    }

    async fn stop(self) -> Result<(), BoxError> {
        if let Some(server) = self.redis {
            server.stop().await?;
        }
        if let Some(server) = self.postgres {
            server.stop().await?;
        }
        Ok(())
    }
}

/// What became of starting a peer.
#[cfg(feature = "peers")]
enum Started<Server> {
    Running(Server, Clients),
    /// It cannot run here, for this reason.
    Skipped(String),
}

#[cfg(feature = "peers")]
fn is_redis(name: &str) -> bool {
    name == REDIS
}

#[cfg(not(feature = "peers"))]
struct Others;

#[cfg(not(feature = "peers"))]
impl Others {
    async fn start(_: &Path, bench: &mut Bench, _: &mut Vec<Peer>) -> Result<Others, BoxError> {
        bench.report.skipped(
            "Redis and Postgres",
            "this program was built without them: cargo run --release --features peers -- bench \
             --only peers",
        )?;
        Ok(Others)
    }

    async fn stop(self) -> Result<(), BoxError> {
        Ok(())
    }
}

#[cfg(not(feature = "peers"))]
fn is_redis(_: &str) -> bool {
    false
}

/// The program `name`, on the path or in one of `folders`.
#[cfg(feature = "peers")]
fn find(name: &str, folders: &[std::path::PathBuf]) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(folders.iter().cloned());
    places.find_map(|folder| {
        let program = folder.join(name);
        program.is_file().then_some(program)
    })
}

/// Tries until it succeeds, or has failed for half a minute.
#[cfg(feature = "peers")]
async fn until_up<T, Attempt>(attempt: impl Fn() -> Attempt) -> Result<T, BoxError>
where
    Attempt: Future<Output = Result<T, BoxError>>,
{
    let began = Instant::now();
    loop {
        match attempt().await {
            Ok(up) => return Ok(up),
            Err(error) if began.elapsed() > Duration::from_secs(30) => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
