//! A server as a process, its API, and a job endpoint that watches what really runs.

pub(crate) mod endpoint;
pub(crate) mod load;
pub(crate) mod network;

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

/// Nothing that a test waits for takes longer, unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `found` finds something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut found: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = found().await {
            return value;
        }
        assert!(Instant::now() < deadline, "still waiting for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The program, without what the environment of the tests may say.
pub(crate) fn durably() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_durably"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DURABLY_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// A data folder and flags that a server can be started with, more than once.
pub(crate) struct Setup {
    folder: TempDir,
    args: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Setup {
    /// Quick rounds, a free port, and a job endpoint at `endpoint`.
    pub(crate) fn new(endpoint: impl ToString) -> Setup {
        Setup::slow_rounds(endpoint, "5ms")
    }

    /// The same with rounds that wait.
    pub(crate) fn slow_rounds(endpoint: impl ToString, wait: &str) -> Setup {
        let setup = Setup::bare();
        let data_dir = setup.data_dir().to_string_lossy().into_owned();
        setup.args([
            "--data-dir",
            &data_dir,
            "--listen=127.0.0.1:0",
            "--round-wait",
            wait,
            "--round-period=10ms",
            "--grant-timeout=1s",
            "--alarm-min-delay=1s",
            "--log-level=warn",
            "--job-endpoint",
            &endpoint.to_string(),
        ])
    }

    /// A folder, and no flags at all.
    pub(crate) fn bare() -> Setup {
        Setup {
            folder: TempDir::new().unwrap(),
            args: Vec::new(),
            variables: Vec::new(),
        }
    }

    pub(crate) fn args<const N: usize>(mut self, args: [&str; N]) -> Setup {
        self.args.extend(args.map(str::to_owned));
        self
    }

    /// Logs from this level on.
    pub(crate) fn log_level(mut self, level: &str) -> Setup {
        self.args.retain(|arg| !arg.starts_with("--log-level"));
        self.args.push(format!("--log-level={level}"));
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Setup {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a configuration file and names it.
    pub(crate) fn config(self, text: &str) -> Setup {
        let path = self.folder.path().join("durably.toml");
        std::fs::write(&path, text).unwrap();
        self.args(["--config", &path.to_string_lossy()])
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self) -> Command {
        let mut command = durably();
        command
            .arg("serve")
            .args(&self.args)
            .envs(self.variables.iter().cloned())
            .current_dir(self.folder.path());
        command
    }

    /// Starts a server; returns when it listens.
    pub(crate) async fn start(&self) -> Server {
        self.start_or_code()
            .await
            .expect("the server ended instead of listening")
    }

    /// Starts a server: it listens, or it has ended with this exit code.
    pub(crate) async fn start_or_code(&self) -> Result<Server, i32> {
        listening(self.command()).await
    }

    /// Starts a server that logs everything, and what it will have logged when it has ended.
    pub(crate) async fn start_logged(mut self) -> (Server, impl Future<Output = String>) {
        self = self.log_level("trace");
        let mut command = self.command();
        command.stderr(Stdio::piped());
        let server = listening(command).await;
        let mut server = server.expect("the server ended instead of listening");
        let mut log = server.child.stderr.take().unwrap();
        let reading = tokio::spawn(async move {
            let mut text = String::new();
            log.read_to_string(&mut text).await.unwrap();
            text
        });
        (server, async move {
            let text = reading.await.unwrap();
            drop(self);
            text
        })
    }

    /// Starts a server that must end by itself: its exit code and what it says.
    pub(crate) async fn refused(&self) -> (i32, String) {
        let mut command = self.command();
        let output = command.stdout(Stdio::null()).stderr(Stdio::piped());
        let output = tokio::time::timeout(PATIENCE, output.output()).await;
        let output = output.expect("the server started").unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        (output.status.code().expect("an exit code"), text)
    }
}

/// The server when it listens, or the code with which it has ended.
async fn listening(mut command: Command) -> Result<Server, i32> {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.expect("the server says nothing").unwrap();
    let Some(line) = line else {
        let status = child.wait().await.unwrap();
        return Err(status.code().expect("an exit code"));
    };
    let address = line.strip_prefix("listening on http://").unwrap();
    Ok(Server {
        child,
        address: address.parse().unwrap(),
        client: client(PATIENCE),
        token: None,
    })
}

/// A client without TLS, which needs no certificates.
pub(crate) fn client(timeout: Duration) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A connection each, so that no request meets one that the server has just closed.
    let builder = Client::builder().pool_max_idle_per_host(0);
    let builder = builder.tls_certs_only([]).timeout(timeout);
    builder.build().unwrap()
}

/// A server that runs; dropped, it is killed.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    pub(crate) token: Option<String>,
}

impl Server {
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, self.url(path));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/v1/{path}", self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.request(Method::PUT, path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::DELETE, path)).await
    }

    /// The state of a job, `unknown` if the server does not know it.
    pub(crate) async fn state(&self, account: &str, id: &str) -> String {
        let (status, body) = self.get(&format!("accounts/{account}/jobs/{id}")).await;
        match status {
            StatusCode::OK => body["state"].as_str().unwrap().to_owned(),
            StatusCode::NOT_FOUND => "unknown".to_owned(),
            other => panic!("{other}: {body}"),
        }
    }

    /// Waits until a job is in a state.
    pub(crate) async fn until_state(&self, account: &str, id: &str, state: &str) {
        until(&format!("{account}/{id} to be {state}"), || async {
            (self.state(account, id).await == state).then_some(())
        })
        .await;
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().unwrap().to_string();
        let status = std::process::Command::new("sh")
            .args(["-c", &format!("kill -{name} {id}")])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits until the process has ended by itself.
    pub(crate) async fn ended(mut self) -> std::process::ExitStatus {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        status.expect("the server does not end").unwrap()
    }

    /// Ends the process at once.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// Status and JSON body; an empty body reads as null.
pub(crate) async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    if text.is_empty() {
        return (status, Value::Null);
    }
    let body = serde_json::from_str(&text);
    (status, body.unwrap_or_else(|_| panic!("not JSON: {text}")))
}

/// All files below a folder, with their bytes.
pub(crate) fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}
