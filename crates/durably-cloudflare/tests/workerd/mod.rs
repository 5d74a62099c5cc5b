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

/// A client for asking it.
pub(crate) fn client() -> reqwest::Client {
    // Built with the whole workspace, it wants to know how to encrypt, though nothing here is.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// What runs node, and finds miniflare.
const NODE: &str = "DURABLY_NODE";

/// A process of workerd, killed when it is dropped.
pub(crate) struct Workerd {
    worker: &'static str,
    /// Miniflare starts it, which brings its simulators of KV and R2.
    simulated: bool,
    folder: TempDir,
    process: RefCell<Option<Child>>,
    port: Cell<u64>,
}

impl Workerd {
    pub(crate) async fn start(worker: &'static str) -> Workerd {
        Workerd::begin(worker, false).await
    }

    /// The same started by miniflare, with the bindings that the worker's `miniflare.mjs` has. It cannot be
    /// killed whole.
    pub(crate) async fn in_miniflare(worker: &'static str) -> Workerd {
        Workerd::begin(worker, true).await
    }

    async fn begin(worker: &'static str, simulated: bool) -> Workerd {
        let folder = TempDir::new().expect("a folder for objects");
        let (process, port) = serve(worker, &folder, simulated).await;
        Workerd {
            worker,
            simulated,
            folder,
            process: RefCell::new(Some(process)),
            port: Cell::new(port),
        }
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
        let (process, port) = serve(self.worker, &self.folder, self.simulated).await;
        self.process.replace(Some(process));
        self.port.set(port);
    }
}

async fn serve(worker: &str, folder: &TempDir, simulated: bool) -> (Child, u64) {
    let place = |variable: &str| {
        let value = std::env::var_os(variable);
        PathBuf::from(value.unwrap_or_else(|| panic!("{variable} is set by .ci/cloudflare")))
    };
    let place_of_worker = place(WORKERS).join(worker);
    let mut command = match simulated {
        false => Command::new(place(BINARY)),
        true => Command::new(place(NODE)),
    };
    if simulated {
        command
            .arg("node")
            .arg(place_of_worker.join("miniflare.mjs"))
            .arg(&place_of_worker)
            .arg(folder.path())
            // It ends when nobody holds the other side.
            .stdin(Stdio::piped());
    } else {
        command
            .arg("serve")
            .arg(place_of_worker.join("worker.capnp"))
            .arg("config")
            .args(["--socket-addr", "http=127.0.0.1:0", "--control-fd", "1"])
            .arg(format!("--directory-path=disk={}", folder.path().display()))
            .stdin(Stdio::null());
    }
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
