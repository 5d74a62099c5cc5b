//! `durably serve`: a server's life from its settings to its drained end.

use std::future::IntoFuture;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use durably::jobs::JobRunner;
use durably::{ConfigError, StorageError};
use durably_native::jobs::{Jobs, JobsConfig};
use durably_native::topology::Topologies;
use durably_native::{System, SystemError};
use reqwest::Url;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::args::ServeArgs;
use crate::config::{ServeConfig, Settings, unknown_variables};
use crate::exit::Failure;
use crate::http;
use crate::logs;
use crate::members::HttpMembers;
use crate::runner::{HttpRunner, NoRunner};

/// Before the address, on the one line that `serve` writes to standard output.
pub(crate) const LISTENING: &str = "listening on http://";

/// The account that is asked about to see whether the holders are there; asking does not make one.
const GREETED: &str = "durably";

/// Serves until a signal ends it.
pub(crate) fn run(args: Box<ServeArgs>) -> Result<(), Failure> {
    let settings = Settings::gather(*args)?;
    logs::init(
        &settings.log_level.clone().unwrap_or_default(),
        settings.log_format.unwrap_or_default(),
    );
    for name in unknown_variables() {
        tracing::warn!(
            name,
            "this environment variable is not known and changes nothing"
        );
    }
    let config = settings.resolve()?;
    if config.http.token.is_none() && !config.listen.ip().is_loopback() {
        tracing::warn!(address = %config.listen, "others can reach this server, and it asks for no token");
    }
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let mut server = Server::start(config).await?;
        announce(server.address())?;
        signals.next().await;
        tracing::info!("stopping: open requests may end; another signal ends them");
        tokio::select! {
            () = server.drain() => {}
            () = signals.next() => {}
        }
        server.close().await;
        Ok(())
    })
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("starting threads"))
}

/// Tells scripts and tests where the server is.
fn announce(address: SocketAddr) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{LISTENING}{address}")
        .and_then(|()| out.flush())
        .map_err(Failure::io("writing to standard output"))
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::io("listening for signals"));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Who runs jobs.
fn runner(
    endpoint: Option<Url>,
    jobs: &JobsConfig,
) -> Result<Arc<dyn JobRunner + Send + Sync>, Failure> {
    match endpoint {
        Some(endpoint) => {
            let runner = HttpRunner::new(endpoint).map_err(|error| Failure::Io {
                what: "preparing the connections to the job endpoint",
                source: io::Error::other(error),
            })?;
            Ok(Arc::new(runner))
        }
        // They would use up their attempts.
        None if jobs.has_shards() => Err(Failure::Config(ConfigError::new(
            "job_endpoint",
            "is missing, and the data folder has jobs: name the URL that runs them with --job-endpoint",
        ))),
        None => Ok(Arc::new(NoRunner)),
    }
}

/// A server that runs.
pub(crate) struct Server {
    address: SocketAddr,
    stopping: watch::Sender<bool>,
    serving: JoinHandle<()>,
    drain_timeout: Duration,
    jobs: Jobs,
}

impl Server {
    /// Takes the address first, so that a server that cannot have it touches no data.
    pub(crate) async fn start(config: ServeConfig) -> Result<Server, Failure> {
        let cannot_listen = |source| Failure::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        let runner = runner(config.job_endpoint, &config.jobs)?;
        let members = HttpMembers::new(config.members).map_err(|error| Failure::Io {
            what: "preparing the connections to members of groups",
            source: io::Error::other(error),
        })?;
        let builder = System::builder(&config.data_dir).config(config.jobs.system.clone());
        let (builder, topologies) =
            Topologies::register(builder, config.topologies, Arc::new(members))?;
        let jobs = Jobs::open_in(builder, config.jobs, runner)
            .map_err(|error| cannot_open(&config.data_dir, error))?;
        let (stopping, stopped) = watch::channel(false);
        let router = http::router(jobs.clone(), topologies, config.http, stopped.clone());
        let listener = listener.tap_io(|stream| {
            // Without it small answers may wait for the client's acknowledgement.
            let _ = stream.set_nodelay(true);
        });
        let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
            let mut stopped = stopped;
            // An error means that the server itself is gone.
            let _ = stopped.wait_for(|stopping| *stopping).await;
        });
        let serving = tokio::spawn(async {
            if let Err(error) = serving.into_future().await {
                tracing::error!(%error, "serving ended");
            }
        });
        tracing::info!(
            %address,
            data_dir = %config.data_dir.display(),
            holders = jobs.holders(),
            "serving"
        );
        if jobs.holders().is_some() {
            tokio::spawn(greet(jobs.clone()));
        }
        Ok(Server {
            address,
            stopping,
            serving,
            drain_timeout: config.drain_timeout,
            jobs,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting and waits for open requests, but not longer than set.
    pub(crate) async fn drain(&mut self) {
        self.stopping.send_replace(true);
        if tokio::time::timeout(self.drain_timeout, &mut self.serving)
            .await
            .is_err()
        {
            tracing::warn!("requests are still open: they are cut off");
        }
    }

    /// Closes the data folder. Jobs that run are run again, under their keys, by the next server.
    pub(crate) async fn close(self) {
        self.serving.abort();
        self.jobs.shutdown().await;
        tracing::info!("stopped");
    }
}

/// Asks the server of the holders something, so that a wrong address or token shows in the log at
/// once and not when the first job waits. Nothing depends on the answer: it may come up later.
async fn greet(jobs: Jobs) {
    if let Err(error) = jobs.limit(GREETED).await {
        tracing::warn!(
            code = error.code(),
            "jobs wait until their holders answer: {error}"
        );
    }
}

/// What a data folder's failure means for the program.
fn cannot_open(data_dir: &Path, error: SystemError) -> Failure {
    let path = data_dir.to_owned();
    let detail = error.to_string();
    match error {
        SystemError::Config(error) => Failure::Config(error),
        SystemError::FolderLocked(_) | SystemError::Journal(StorageError::Locked(_)) => {
            Failure::Locked { path }
        }
        SystemError::Journal(StorageError::Damaged(_)) => Failure::Damaged { path, detail },
        SystemError::Journal(StorageError::Full(_)) => Failure::Full { path, detail },
        SystemError::Folder { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
            Failure::Full { path, detail }
        }
        _ => Failure::Folder { path, detail },
    }
}
