//! A real workerd that serves a built worker, with its objects in a folder of its own.
#![allow(dead_code, reason = "each test uses some of it")]

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Where the binary of workerd is.
const BINARY: &str = "DURABLY_WORKERD";
/// The folder with a folder for each worker: its modules and its `worker.capnp`.
const WORKERS: &str = "DURABLY_WORKERS";

/// A client for asking it, with a connection for each request: workerd closes one that was idle for 15 s, and a
/// request that is just being sent on it is lost.
pub(crate) fn client() -> reqwest::Client {
    // Built with the whole workspace, it wants to know how to encrypt, though nothing here is.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().pool_max_idle_per_host(0);
    builder.build().expect("a client")
}

/// What runs node, and finds miniflare.
const NODE: &str = "DURABLY_NODE";

/// A process of workerd, killed when it is dropped.
pub(crate) struct Workerd {
    setup: Setup,
    folder: TempDir,
    process: RefCell<Option<Child>>,
    port: Cell<u64>,
}

/// How a worker is served.
pub(crate) struct Setup {
    /// Where its modules are.
    place: PathBuf,
    /// Where its configuration is.
    config: PathBuf,
    /// Miniflare starts it, which brings its simulators of KV and R2.
    simulated: bool,
    variables: Vec<(&'static str, String)>,
    /// Where an own configuration is, for as long as it is needed.
    _own: Option<TempDir>,
}

fn place(variable: &str) -> PathBuf {
    let value = std::env::var_os(variable);
    PathBuf::from(value.unwrap_or_else(|| panic!("{variable} is set by .ci/cloudflare")))
}

impl Setup {
    pub(crate) fn new(worker: &str) -> Setup {
        let place = place(WORKERS).join(worker);
        Setup {
            config: place.join("worker.capnp"),
            place,
            simulated: false,
            variables: Vec::new(),
            _own: None,
        }
    }

    /// A setting of the worker, which its configuration takes from the environment.
    pub(crate) fn variable(mut self, name: &'static str, value: impl Into<String>) -> Setup {
        self.variables.push((name, value.into()));
        self
    }

    /// The same with another configuration.
    pub(crate) fn reconfigured(mut self, change: impl FnOnce(String) -> String) -> Setup {
        let own = TempDir::new().expect("a folder for the configuration");
        for entry in std::fs::read_dir(&self.place).expect("the worker is built") {
            let entry = entry.expect("a module").path();
            let here = own.path().join(entry.file_name().expect("a name"));
            std::fs::copy(&entry, here).expect("a module is copied");
        }
        self.config = own.path().join("worker.capnp");
        let text = std::fs::read_to_string(&self.config).expect("a configuration");
        std::fs::write(&self.config, change(text)).expect("the configuration is written");
        self._own = Some(own);
        self
    }

    /// Miniflare starts it, with the bindings that the worker's `miniflare.mjs` has. It cannot be killed
    /// whole.
    pub(crate) fn in_miniflare(mut self) -> Setup {
        self.simulated = true;
        self
    }

    pub(crate) async fn start(self) -> Workerd {
        let folder = TempDir::new().expect("a folder for objects");
        let (process, port) = self.serve(&folder).await;
        Workerd {
            setup: self,
            folder,
            process: RefCell::new(Some(process)),
            port: Cell::new(port),
        }
    }

    fn command(&self, folder: &TempDir) -> Command {
        if self.simulated {
            let mut command = Command::new(place(NODE));
            command
                .arg("node")
                .arg(self.place.join("miniflare.mjs"))
                .arg(&self.place)
                .arg(folder.path())
                .envs(self.variables.iter().map(|(name, value)| (name, value)))
                // It ends when nobody holds the other side.
                .stdin(Stdio::piped());
            return command;
        }
        let mut command = Command::new(place(BINARY));
        command
            .arg("serve")
            .arg(&self.config)
            .arg("config")
            .args(["--socket-addr", "http=127.0.0.1:0", "--control-fd", "1"])
            .arg(format!("--directory-path=disk={}", folder.path().display()))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    async fn serve(&self, folder: &TempDir) -> (Child, u64) {
        let mut command = self.command(folder);
        listening(&mut command).await
    }
}

impl Workerd {
    pub(crate) async fn start(worker: &str) -> Workerd {
        Setup::new(worker).start().await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port.get())
    }

    /// Kills the process and serves the same objects again after `away`.
    pub(crate) async fn restart(&self, away: Duration) {
        let process = self.process.take();
        let mut process = process.expect("nobody else restarts it meanwhile");
        process.kill().await.expect("workerd is killed");
        tokio::time::sleep(away).await;
        let (process, port) = self.setup.serve(&self.folder).await;
        self.process.replace(Some(process));
        self.port.set(port);
    }
}

/// Starts it, and waits until it says where it listens.
async fn listening(command: &mut Command) -> (Child, u64) {
    let mut process = command
        .stdout(Stdio::piped())
        // It tells of every panic and every reset, which are many here and on purpose.
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("workerd starts");
    let output = process.stdout.take().expect("its output is a pipe");
    let mut lines = BufReader::new(output).lines();
    let port = loop {
        let line = lines.next_line().await.expect("workerd writes lines");
        let line = line.expect("workerd listens");
        let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if let (Some("http"), Some(port)) = (event["socket"].as_str(), event["port"].as_u64()) {
            break port;
        }
    };
    // Whoever writes into a pipe that nobody reads stands still.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (process, port)
}
