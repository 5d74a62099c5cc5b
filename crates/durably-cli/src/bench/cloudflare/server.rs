//! The bench worker in workerd, as a client sees it: the ready-made worker's API and its own doors,
//! which `crates/durably-worker/bench` has.

use std::path::{Path, PathBuf};

use durably::error::BoxError;
use durably::semaphore::protocol::{Message, Reply};
use reqwest::{Client, Method};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::runner;
use crate::workerd::{Worker, Workerd};

/// The limit of an account that is to be no limit.
pub(super) const NO_LIMIT: u64 = durably::time::MAX_SAFE_INTEGER;

/// What an object has counted, in the units of the bill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counters {
    pub(super) rows_read: u64,
    pub(super) rows_written: u64,
    pub(super) requests: u64,
    pub(super) alarms: u64,
    pub(super) alarms_set: u64,
}

impl Counters {
    /// Both together.
    pub(super) fn and(self, other: Counters) -> Counters {
        Counters {
            rows_read: self.rows_read + other.rows_read,
            rows_written: self.rows_written + other.rows_written,
            requests: self.requests + other.requests,
            alarms: self.alarms + other.alarms,
            alarms_set: self.alarms_set + other.alarms_set,
        }
    }

    /// What came after `before`; none of a counter that was lost with its object meanwhile.
    pub(super) fn since(self, before: Counters) -> Counters {
        Counters {
            rows_read: self.rows_read.saturating_sub(before.rows_read),
            rows_written: self.rows_written.saturating_sub(before.rows_written),
            requests: self.requests.saturating_sub(before.requests),
            alarms: self.alarms.saturating_sub(before.alarms),
            alarms_set: self.alarms_set.saturating_sub(before.alarms_set),
        }
    }
}

/// A running worker.
pub(super) struct Server {
    worker: Worker,
    objects: PathBuf,
    settings: Vec<(&'static str, String)>,
    workerd: Workerd,
    client: Client,
}

impl Server {
    /// Starts it with its objects in a folder.
    pub(super) async fn start(
        worker: &Worker,
        objects: &Path,
        settings: Vec<(&'static str, String)>,
    ) -> Result<Server, BoxError> {
        let workerd = Workerd::start(worker, objects, &settings).await?;
        Ok(Server {
            worker: worker.clone(),
            objects: objects.to_owned(),
            settings,
            workerd,
            client: runner::client_for("http")?,
        })
    }

    /// Kills the process and starts another one on the same objects.
    pub(super) async fn restart(self) -> Result<Server, BoxError> {
        self.workerd.kill().await?;
        Server::start(&self.worker, &self.objects, self.settings).await
    }

    pub(super) async fn stop(self) -> Result<(), BoxError> {
        Ok(self.workerd.kill().await?)
    }

    /// Sends a request, and reads the answer's JSON.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, BoxError> {
        let answer = self.answer(method, path, body).await?;
        Ok(serde_json::from_str(&answer)?)
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, BoxError> {
        let url = format!("http://{}/{path}", self.workerd.address());
        let request = self.client.request(method, url);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        if !status.is_success() {
            return Err(format!("{path} was answered {status}: {text}").into());
        }
        Ok(text)
    }

    /// A message to the holder of a key.
    pub(super) async fn message(&self, key: &str, message: &Message) -> Result<Reply, BoxError> {
        let body = serde_json::to_value(message)?;
        let path = format!("v1/holders/{key}/messages");
        let answer = self.answer(Method::POST, &path, Some(&body)).await?;
        Ok(Reply::from_json(answer.as_bytes())?)
    }

    pub(super) async fn set_limit(&self, account: &str, limit: u64) -> Result<(), BoxError> {
        let path = format!("v1/accounts/{account}/limit");
        let body = json!({ "limit": limit });
        self.ask::<Value>(Method::PUT, &path, Some(&body)).await?;
        Ok(())
    }

    /// Asks an account what is out, and opens it for that if need be.
    pub(super) async fn usage(&self, account: &str) -> Result<u64, BoxError> {
        let path = format!("v1/accounts/{account}/usage");
        let usage: Value = self.ask(Method::GET, &path, None).await?;
        usage["granted"]
            .as_u64()
            .ok_or_else(|| "the usage tells no grants".into())
    }

    /// Goes through a door to the object that has this name in a binding.
    pub(super) async fn door<T: DeserializeOwned>(
        &self,
        binding: &str,
        object: &str,
        door: &str,
    ) -> Result<T, BoxError> {
        let path = format!("bench/{binding}/{object}/{door}");
        self.ask(Method::POST, &path, None).await
    }

    /// How large the memory of the wasm is, in MiB.
    pub(super) async fn wasm_memory(&self) -> Result<f64, BoxError> {
        let bytes: f64 = self.ask(Method::POST, "bench/memory", None).await?;
        Ok(bytes / f64::from(1 << 20))
    }

    /// How much memory the whole process holds, in MiB.
    pub(super) fn resident_memory(&self) -> Result<f64, BoxError> {
        let process = self.workerd.process().ok_or("workerd has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        super::super::idle::resident_mib(&status)
    }
}
