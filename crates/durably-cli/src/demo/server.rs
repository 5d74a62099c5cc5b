//! The demo's server: in this process, or a process of its own that is killed and started again,
//! `durably serve` or workerd.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::config::Settings;
use crate::exit::Failure;
use crate::serve::{self, LISTENING};
use crate::workerd::{Worker, Workerd, forget_settings};

/// A server that opens a folder is not up at once.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// The server's settings, as a file that a user might write.
pub(super) fn settings(
    data_dir: &Path,
    endpoint: SocketAddr,
    limits: super::board::Limits,
) -> String {
    // A JSON string is a TOML string.
    let data_dir = serde_json::Value::from(data_dir.to_string_lossy());
    format!(
        r#"data_dir = {data_dir}
listen = "127.0.0.1:0"
job_endpoint = "http://{endpoint}/run"
default_limit = {account}
default_group_limit = {group}
round_wait = "20ms"
round_period = "40ms"
grant_timeout = "1s"
alarm_min_delay = "1s"
job_timeout = "1h"
drain_timeout = "2s"
"#,
        account = limits.account,
        group = limits.group,
    )
}

/// The same for the ready-made worker, as variables of its environment.
pub(super) fn worker_settings(
    endpoint: SocketAddr,
    limits: super::board::Limits,
) -> Vec<(&'static str, String)> {
    vec![
        ("DURABLY_JOB_URL", format!("http://{endpoint}/run")),
        ("DURABLY_DEFAULT_LIMIT", limits.account.to_string()),
        ("DURABLY_DEFAULT_GROUP_LIMIT", limits.group.to_string()),
        ("DURABLY_ROUND_WAIT_MS", "20".to_owned()),
        ("DURABLY_ROUND_PERIOD_MS", "40".to_owned()),
        ("DURABLY_GRANT_TIMEOUT_MS", "1000".to_owned()),
    ]
}

/// Starts the server in this process.
pub(super) async fn in_process(settings: &str) -> Result<serve::Server, Failure> {
    let settings: Settings =
        toml::from_str(settings).map_err(|error| Failure::Demo(error.to_string()))?;
    serve::Server::start(settings.resolve()?).await
}

/// A server in a process of its own.
pub(crate) struct Process {
    child: Child,
    /// Kept open, for the server may write to it.
    _stdout: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl Process {
    /// Starts a server with the settings in the file `config`; returns when it listens.
    pub(crate) async fn start(config: &Path) -> Result<Process, Failure> {
        let program = std::env::current_exe().map_err(Failure::io("finding this program"))?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg("--config")
            .arg(config)
            .arg("--log-level=error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        forget_settings(&mut command);
        let mut child = command
            .spawn()
            .map_err(Failure::io("starting the server"))?;
        let mut stdout = child
            .stdout
            .take()
            .map(|stdout| BufReader::new(stdout).lines())
            .ok_or_else(|| Failure::Demo("the server has no standard output".to_owned()))?;
        let line = tokio::time::timeout(STARTS_WITHIN, stdout.next_line())
            .await
            .map_err(|_| Failure::Demo("the server did not start in time".to_owned()))?
            .map_err(Failure::io("reading what the server says"))?;
        let address = line
            .as_deref()
            .and_then(|line| line.strip_prefix(LISTENING))
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| Failure::Demo("the server did not start: see above".to_owned()))?;
        Ok(Process {
            child,
            _stdout: stdout,
            address,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the process as a power failure would, and waits until it is gone.
    pub(crate) async fn kill(mut self) -> Result<(), Failure> {
        self.child
            .kill()
            .await
            .map_err(Failure::io("killing the server"))
    }
}

/// How to have a server in a process of its own, now and after it was killed.
pub(super) enum Recipe {
    /// `durably serve` with the settings in this file.
    Serve(PathBuf),
    Workerd {
        worker: Worker,
        /// The folder of its objects.
        objects: PathBuf,
        settings: Vec<(&'static str, String)>,
    },
}

/// A server in a process of its own.
pub(super) enum Running {
    Serve(Process),
    Workerd(Workerd),
}

impl Recipe {
    pub(super) async fn start(&self) -> Result<Running, Failure> {
        Ok(match self {
            Recipe::Serve(config) => Running::Serve(Process::start(config).await?),
            Recipe::Workerd {
                worker,
                objects,
                settings,
            } => Running::Workerd(Workerd::start(worker, objects, settings).await?),
        })
    }
}

impl Running {
    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Running::Serve(process) => process.address(),
            Running::Workerd(workerd) => workerd.address(),
        }
    }

    pub(super) async fn kill(self) -> Result<(), Failure> {
        match self {
            Running::Serve(process) => process.kill().await,
            Running::Workerd(workerd) => workerd.kill().await,
        }
    }
}

/// Kills the server every `period`, or never, and starts it again at once, until told to stop; leaves
/// it running.
pub(super) async fn keep_killing(
    mut running: Running,
    recipe: &Recipe,
    period: Option<Duration>,
    whereabouts: &watch::Sender<Option<SocketAddr>>,
    restarts: &watch::Sender<u64>,
    mut stop: watch::Receiver<bool>,
) -> Result<Running, Failure> {
    let Some(period) = period else {
        // Whoever would tell is gone, which is as good.
        let _ = stop.wait_for(|stop| *stop).await;
        return Ok(running);
    };
    let mut ticks = tokio::time::interval_at((std::time::Instant::now() + period).into(), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(running),
            _ = ticks.tick() => {}
        }
        whereabouts.send_replace(None);
        running.kill().await?;
        running = recipe.start().await?;
        whereabouts.send_replace(Some(running.address()));
        restarts.send_modify(|restarts| *restarts += 1);
    }
}
