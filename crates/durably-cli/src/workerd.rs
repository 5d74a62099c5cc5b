//! A local workerd that serves the workers of this checkout, with their objects in a folder.
//!
//! What is served, and what is asked of it, is others' matter: here is how the process starts and
//! ends, and what is said when something that it needs is missing.

use std::io::{Read, Seek};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use durably::ConfigError;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::exit::Failure;

/// It compiles its modules before it listens.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Where workerd and the workers are. `.ci/cloudflare with COMMAND` sets both variables.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WorkerdArgs {
    /// The binary of workerd.
    #[arg(long, env = "DURABLY_WORKERD", value_name = "FILE")]
    pub(crate) workerd: Option<PathBuf>,
    /// The folder that holds one for each built worker.
    #[arg(long, env = "DURABLY_WORKERS", value_name = "FOLDER")]
    pub(crate) workers: Option<PathBuf>,
}

/// What it takes to serve one worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    binary: PathBuf,
    folder: PathBuf,
}

impl WorkerdArgs {
    /// The worker of this name.
    pub(crate) fn worker(&self, name: &str) -> Result<Worker, ConfigError> {
        let binary = self.workerd.clone().filter(|binary| binary.is_file());
        let binary = binary.ok_or_else(|| {
            ConfigError::new(
                "workerd",
                "must name the binary of workerd: run this as `.ci/cloudflare with durably …`, which \
                 installs it, or give --workerd or DURABLY_WORKERD",
            )
        })?;
        let folder = self.workers.as_ref().map(|workers| workers.join(name));
        let folder = folder.filter(|folder| folder.join("worker.capnp").is_file());
        let folder = folder.ok_or_else(|| {
            ConfigError::new(
                "workers",
                format!(
                    "must name a folder with the built worker {name:?}: build it with `.ci/cloudflare \
                     worker`, and run this as `.ci/cloudflare with durably …` or give --workers or \
                     DURABLY_WORKERS"
                ),
            )
        })?;
        Ok(Worker { binary, folder })
    }
}

impl Worker {
    /// The files that the worker is made of.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// What a user has set for a server of their own is none of another one's matter.
pub(crate) fn forget_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"DURABLY_") {
            command.env_remove(name);
        }
    }
}

/// A process of workerd. It is killed when this is dropped.
pub(crate) struct Workerd {
    child: Child,
    address: SocketAddr,
}

/// What it tells of its sockets.
#[derive(Deserialize)]
struct Event {
    socket: String,
    port: u16,
}

impl Workerd {
    /// Serves the worker on a free port of this machine, with its objects in the folder `objects` and
    /// `settings` for variables of its environment; returns when it listens.
    pub(crate) async fn start(
        worker: &Worker,
        objects: &Path,
        settings: &[(&str, String)],
    ) -> Result<Workerd, Failure> {
        std::fs::create_dir_all(objects).map_err(Failure::io("making a folder for objects"))?;
        let errors = Failure::io("making a file for what workerd says");
        let (mut said, stderr) = tempfile::tempfile()
            .and_then(|file| Ok((file.try_clone()?, file)))
            .map_err(errors)?;
        let mut command = Command::new(&worker.binary);
        command
            .arg("serve")
            .arg(worker.folder.join("worker.capnp"))
            .arg("config")
            .args(["--socket-addr=http=127.0.0.1:0", "--control-fd=1"])
            .arg(format!("--directory-path=disk={}", objects.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true);
        forget_settings(&mut command);
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().map_err(Failure::io("starting workerd"))?;
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| Failure::Workerd("it has no standard output".to_owned()))?;
        let mut lines = BufReader::new(stdout).lines();
        let listening = async {
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(Event { socket, port }) if socket == "http" => return Some(port),
                    _ => {}
                }
            }
            None
        };
        let port = tokio::time::timeout(STARTS_WITHIN, listening).await;
        let Some(port) = port.unwrap_or_default() else {
            // Both handles share the place where the process has stopped writing.
            let mut text = String::new();
            let read = said.rewind().and_then(|()| said.read_to_string(&mut text));
            read.map_err(Failure::io("reading what workerd says"))?;
            return Err(Failure::Workerd(format!("it does not listen: {text}")));
        };
        // Whoever writes into a pipe that nobody reads stands still.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Workerd {
            child,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of its process.
    pub(crate) fn process(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends the process as a power failure would, and waits until it is gone. SIGTERM would wait for
    /// open requests without end.
    pub(crate) async fn kill(mut self) -> Result<(), Failure> {
        self.child
            .kill()
            .await
            .map_err(Failure::io("killing workerd"))
    }
}
