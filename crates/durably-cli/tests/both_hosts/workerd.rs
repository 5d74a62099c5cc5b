//! The ready-made worker in a real workerd, with a second worker beside it that evicts its objects.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::host::Settings;
use crate::support::PATIENCE;

/// Where the binary of workerd is.
const BINARY: &str = "DURABLY_WORKERD";
/// The folder with a folder for each worker: its modules and its `worker.capnp`.
const WORKERS: &str = "DURABLY_WORKERS";

const EVICTOR: &str = r#"
const evictor :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  compatibilityFlags = ["unsafe_module"],
  modules = [(name = "evictor.js", esModule = embed "evictor.js")],
);
"#;

const EVICTOR_MODULE: &str = r#"
import unsafe from "workerd:unsafe";
export default {
  async fetch() {
    await unsafe.abortAllDurableObjects();
    return new Response();
  },
};
"#;

/// What a process of workerd is started with, more than once.
pub(crate) struct Setup {
    /// The worker's modules and its configuration, with the evictor added.
    config: TempDir,
    data: TempDir,
    variables: Vec<(&'static str, String)>,
}

/// A process of workerd, killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
    pub(crate) evictor: String,
}

fn place(variable: &str) -> PathBuf {
    let value = std::env::var_os(variable);
    PathBuf::from(value.unwrap_or_else(|| panic!("{variable} is set by .ci/cloudflare")))
}

impl Setup {
    pub(crate) fn new(settings: &Settings) -> Setup {
        let config = TempDir::new().unwrap();
        let worker = place(WORKERS).join("durably");
        for entry in std::fs::read_dir(&worker).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != "worker.capnp" {
                let here = config.path().join(entry.file_name());
                std::os::unix::fs::symlink(entry.path(), here).unwrap();
            }
        }
        let text = std::fs::read_to_string(worker.join("worker.capnp")).unwrap();
        std::fs::write(config.path().join("worker.capnp"), with_evictor(&text)).unwrap();
        std::fs::write(config.path().join("evictor.js"), EVICTOR_MODULE).unwrap();
        Setup {
            config,
            data: TempDir::new().unwrap(),
            variables: settings.variables(),
        }
    }

    pub(crate) async fn start(&self) -> Process {
        let mut command = Command::new(place(BINARY));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DURABLY_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .arg("serve")
            .arg(self.config.path().join("worker.capnp"))
            .args(["config", "--experimental", "--control-fd", "1"])
            .args(["http", "evictor"].map(|socket| format!("--socket-addr={socket}=127.0.0.1:0")))
            .arg(directory("disk", self.data.path()))
            .envs(self.variables.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // It tells of every reset, which are many here and on purpose.
            .stderr(match std::env::var_os("DURABLY_TEST_LOG") {
                Some(_) => Stdio::inherit(),
                None => Stdio::null(),
            })
            .kill_on_drop(true)
            .spawn()
            .expect("workerd starts");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ports = tokio::time::timeout(PATIENCE, ports(&mut lines)).await;
        let (http, evictor) = ports.expect("workerd does not listen");
        // Whoever writes into a pipe that nobody reads stands still.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Process {
            child,
            address: format!("127.0.0.1:{http}"),
            evictor: format!("http://127.0.0.1:{evictor}/"),
        }
    }
}

impl Process {
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn directory(name: &str, path: &Path) -> String {
    format!("--directory-path={name}={}", path.display())
}

/// The worker's configuration with one more service, and a socket for it.
fn with_evictor(text: &str) -> String {
    let mut text = text.to_owned();
    for (list, entry) in [
        ("services = [", "(name = \"evictor\", worker = .evictor),"),
        (
            "sockets = [",
            "(name = \"evictor\", http = (), service = \"evictor\"),",
        ),
    ] {
        let begin = text.find(list).expect("a list in worker.capnp") + list.len();
        text.insert_str(begin, entry);
    }
    text + EVICTOR
}

async fn ports(lines: &mut Lines<BufReader<ChildStdout>>) -> (u64, u64) {
    let (mut http, mut evictor) = (None, None);
    loop {
        let line = lines.next_line().await.expect("workerd writes lines");
        let line = line.expect("workerd listens");
        let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        match event["socket"].as_str() {
            Some("http") => http = event["port"].as_u64(),
            Some("evictor") => evictor = event["port"].as_u64(),
            _ => {}
        }
        if let (Some(http), Some(evictor)) = (http, evictor) {
            return (http, evictor);
        }
    }
}
