//! Clients outside of objects: a clock, and a way to a server in a process of its own.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use durably::Timestamp;
use durably::error::BoxError;
use durably::layers::Timer;
use durably::semaphore::client::{ClientError, HolderCall};
use durably::semaphore::protocol::Reply;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tower_service::Service;

use super::objects::now;
use crate::demo::server::Process;

/// The clock of the runtime that measures.
#[derive(Clone, Copy)]
pub(super) struct Clock;

impl Timer for Clock {
    type Sleep = tokio::time::Sleep;

    fn now(&self) -> Timestamp {
        now()
    }

    fn sleep(&self, duration: Duration) -> tokio::time::Sleep {
        tokio::time::sleep(duration)
    }
}

/// `durably serve` in a process of its own.
pub(super) struct Server(Process);

impl Server {
    /// Starts it on a data folder, with so many permits an account and such rounds.
    pub(super) async fn start(folder: &Path, limit: u64, round: &str) -> Result<Server, BoxError> {
        // A JSON string is a TOML string.
        let data_dir = serde_json::Value::from(folder.to_string_lossy());
        let settings = format!(
            "data_dir = {data_dir}
             listen = \"127.0.0.1:0\"
             job_endpoint = \"http://127.0.0.1:9/none\"
             default_limit = {limit}
             round_wait = \"{round}\"
             round_period = \"{round}\"\n"
        );
        let config = folder.with_extension("toml");
        std::fs::write(&config, settings)?;
        Ok(Server(Process::start(&config).await?))
    }

    /// A connection to it, as a transport.
    pub(super) async fn transport(&self) -> Result<OverHttp, BoxError> {
        let stream = TcpStream::connect(self.0.address()).await?;
        stream.set_nodelay(true)?;
        Ok(OverHttp(Rc::new(Mutex::new(BufStream::new(stream)))))
    }

    pub(super) async fn stop(self) -> Result<(), BoxError> {
        Ok(self.0.kill().await?)
    }
}

/// A connection that is kept open, and used by one caller at a time.
#[derive(Clone)]
pub(super) struct OverHttp(Rc<Mutex<BufStream<TcpStream>>>);

impl Service<HolderCall> for OverHttp {
    type Response = Reply;
    type Error = ClientError;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, ClientError>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: HolderCall) -> Self::Future {
        let connection = self.0.clone();
        Box::pin(async move {
            let mut connection = connection.lock().await;
            let answer = post(&mut connection, &call).await;
            let answer = answer.map_err(ClientError::unreachable)?;
            Ok(Reply::from_json(&answer)?)
        })
    }
}

/// One exchange on a connection that is kept open. A client library would cost the measuring process
/// more than the server's answer takes.
async fn post(
    connection: &mut BufStream<TcpStream>,
    call: &HolderCall,
) -> Result<Vec<u8>, BoxError> {
    let body = serde_json::to_vec(&call.message)?;
    let head = format!(
        "POST /v1/holders/{}/messages HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        call.key,
        body.len()
    );
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(&body).await?;
    connection.flush().await?;
    let mut line = String::new();
    connection.read_line(&mut line).await?;
    let succeeded = line.starts_with("HTTP/1.1 200 ");
    let mut length = 0;
    loop {
        line.clear();
        connection.read_line(&mut line).await?;
        let header = line.trim_end();
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    let mut answer = vec![0; length];
    connection.read_exact(&mut answer).await?;
    match succeeded {
        true => Ok(answer),
        false => Err(format!("the server refused: {}", String::from_utf8_lossy(&answer)).into()),
    }
}
