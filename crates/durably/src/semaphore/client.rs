//! Asks holders, from wherever one is: over any [`tower_service::Service`] that carries a
//! [`HolderCall`] to the holder of its key and brings the answer back.
//!
//! Decided here: when a holder may be asked again, and what an error means. Not decided here: how a
//! message travels; that is the transport's matter. What to ask for is the
//! [queue's](super::queue), or an application's own.
//!
//! # Transports
//!
//! A transport is a `Service<HolderCall, Response = Reply, Error = ClientError>` that can be cloned;
//! [`holder_fn`] makes one of an asynchronous closure. It
//!
//! - sends [`HolderCall::message`] to the holder named [`HolderCall::key`] as it is
//!   (`serde_json::to_vec(&message)` writes protocol v1, [`Reply::from_json`] reads the answer);
//! - answers [`ClientError::Unreachable`] if no answer came, [`ClientError::Refused`] with the
//!   holder's own code if it came and was a refusal;
//! - takes no message back when its future is dropped: a caller that stops waiting has only stopped
//!   waiting. So a server handles a message to its end even if the connection breaks.
//!
//! ```
//! use durably::layers::{Timer, TimeoutLayer};
//! use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
//! use durably::semaphore::protocol::Reply;
//! use tower_layer::Layer;
//!
//! # async fn post(url: String, body: Vec<u8>) -> Result<Vec<u8>, std::io::Error> { Ok(body) }
//! fn client<T: Timer + Clone>(timer: T) -> Result<impl Clone, durably::ConfigError> {
//!     let http = holder_fn(|call: HolderCall| async move {
//!         let body = serde_json::to_vec(&call.message).map_err(ClientError::unreachable)?;
//!         let url = format!("https://holders.example/{}", call.key);
//!         let answer = post(url, body).await.map_err(ClientError::unreachable)?;
//!         Ok::<Reply, ClientError>(Reply::from_json(&answer)?)
//!     });
//!     let timeout = TimeoutLayer::new(timer.clone(), std::time::Duration::from_secs(5))?;
//!     Ok(SemaphoreClient::new(timeout.layer(http), timer))
//! }
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tower_service::Service;

use super::error::SemaphoreError;
use super::protocol::{
    GrantReply, Message, PermitRequest, PermitSync, ProtocolError, Reply, SyncReply,
};
use crate::layers::{Elapsed, HeldBack, Repeat, Retryable, Timer};
use crate::time::Timestamp;

/// A message on its way to a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderCall {
    /// Which holder.
    pub key: String,
    /// What is said.
    pub message: Message,
}

impl Repeat for HolderCall {
    fn repeat_at(&mut self, now: Timestamp) {
        match &mut self.message {
            Message::Request(request) => request.sent_at = Some(now),
            Message::Sync(sync) => sync.sent_at = Some(now),
        }
    }
}

impl HeldBack for HolderCall {
    /// A request that waits for capacity is answered when its wait ends, at the latest.
    fn held_back(&self) -> Duration {
        let wait = match &self.message {
            Message::Request(request) => request.wait_ms,
            Message::Sync(_) => None,
        };
        Duration::from_millis(wait.unwrap_or(0))
    }
}

/// Why a holder did not answer a message.
///
/// Unless it was refused, nobody knows whether the holder took it: it may have been applied and only
/// the answer lost. Reports are cumulative, so repeating them is always right; what a repeated
/// request was granted twice comes back by the claim deadline.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No answer came in time.
    #[error("the holder did not answer: {0}")]
    Timeout(#[from] Elapsed),
    /// The holder was not reached, or the connection broke before its answer.
    #[error("the holder could not be reached: {0}")]
    Unreachable(#[source] Arc<dyn Error + Send + Sync>),
    /// The holder answered that it will not.
    #[error("the holder refused the message: {message} ({code})")]
    Refused {
        /// The holder's own code.
        code: String,
        /// What it said.
        message: String,
        /// Whether it may take the same message later.
        retryable: bool,
    },
    /// The message or the answer breaks the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

impl ClientError {
    /// The holder was not reached.
    pub fn unreachable(source: impl Into<Box<dyn Error + Send + Sync>>) -> ClientError {
        ClientError::Unreachable(Arc::from(source.into()))
    }

    /// A stable name for programs; a refusal's is the holder's own.
    pub fn code(&self) -> &str {
        match self {
            ClientError::Timeout(_) => "timeout",
            ClientError::Unreachable(_) => "unreachable",
            ClientError::Refused { code, .. } => code,
            ClientError::Protocol(error) => error.code(),
        }
    }
}

impl From<SemaphoreError> for ClientError {
    /// For holders in the same process.
    fn from(error: SemaphoreError) -> Self {
        match error {
            SemaphoreError::Malformed(error) => ClientError::Protocol(error),
            passing => ClientError::Refused {
                code: passing.code().to_owned(),
                message: passing.to_string(),
                retryable: true,
            },
        }
    }
}

impl Retryable for ClientError {
    fn is_retryable(&self) -> bool {
        match self {
            ClientError::Timeout(_) | ClientError::Unreachable(_) => true,
            ClientError::Refused { retryable, .. } => *retryable,
            ClientError::Protocol(_) => false,
        }
    }
}

/// A transport made of a closure.
#[derive(Clone, Debug)]
pub struct HolderFn<F>(F);

/// Makes a transport of an asynchronous closure, for holders in the same process and for tests.
pub fn holder_fn<F, Answer>(call: F) -> HolderFn<F>
where
    F: Fn(HolderCall) -> Answer,
    Answer: Future<Output = Result<Reply, ClientError>>,
{
    HolderFn(call)
}

impl<F, Answer> Service<HolderCall> for HolderFn<F>
where
    F: Fn(HolderCall) -> Answer,
    Answer: Future<Output = Result<Reply, ClientError>>,
{
    type Response = Reply;
    type Error = ClientError;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: HolderCall) -> Answer {
        (self.0)(call)
    }
}

/// Asks holders by key. Clones share what they remember. It holds no `Rc`: it is `Send`, and so
/// are its futures, exactly when its transport and its timer are.
#[derive(Clone, Debug)]
pub struct SemaphoreClient<S, T> {
    transport: S,
    timer: T,
    gates: Arc<Mutex<Gates>>,
}

impl<S, T> SemaphoreClient<S, T> {
    /// A client over `transport`, usually with a [`TimeoutLayer`](crate::layers::TimeoutLayer)
    /// around it.
    pub fn new(transport: S, timer: T) -> Self {
        SemaphoreClient {
            transport,
            timer,
            gates: Arc::default(),
        }
    }
}

impl<S, T> SemaphoreClient<S, T>
where
    S: Service<HolderCall, Response = Reply, Error: Into<ClientError>> + Clone,
    T: Timer + Clone,
{
    /// Asks the holder of `key` for permits; resolves with its round. Waits first until the holder
    /// wants to be asked again, if it said so before. `sentAt` is filled in here.
    ///
    /// # Errors
    ///
    /// What the transport answers, and [`ClientError::Protocol`] for a message that breaks the
    /// protocol, which is not sent.
    pub fn request(
        &self,
        key: &str,
        request: PermitRequest,
    ) -> impl Future<Output = Result<GrantReply, ClientError>> + use<S, T> {
        let client = self.clone();
        let key = key.to_owned();
        async move {
            loop {
                let wait = client.gates().wait(&key, client.timer.now());
                if wait.is_zero() {
                    break;
                }
                client.timer.sleep(wait).await;
            }
            let (sent, reply) = client.send(&key, Message::Request(request)).await?;
            let Reply::Grant(reply) = reply else {
                return Err(unexpected("synced", "grant"));
            };
            let wait = may_ask_after(&reply, sent, client.timer.now());
            client.gates().close(key, sent, wait);
            Ok(reply)
        }
    }

    /// Reports to the holder of `key`. `sentAt` is filled in here.
    ///
    /// # Errors
    ///
    /// Like [`request`](Self::request).
    pub fn sync(
        &self,
        key: &str,
        sync: PermitSync,
    ) -> impl Future<Output = Result<SyncReply, ClientError>> + use<S, T> {
        let client = self.clone();
        let key = key.to_owned();
        async move {
            match client.send(&key, Message::Sync(sync)).await? {
                (_, Reply::Synced(reply)) => Ok(reply),
                (_, Reply::Grant(_)) => Err(unexpected("grant", "synced")),
            }
        }
    }

    async fn send(&self, key: &str, message: Message) -> Result<(Timestamp, Reply), ClientError> {
        message.check()?;
        let mut transport = self.transport.clone();
        poll_fn(|context| transport.poll_ready(context))
            .await
            .map_err(Into::into)?;
        let sent = self.timer.now();
        let mut call = HolderCall {
            key: key.to_owned(),
            message,
        };
        call.repeat_at(sent);
        let reply = transport.call(call).await.map_err(Into::into)?;
        Ok((sent, reply))
    }

    fn gates(&self) -> std::sync::MutexGuard<'_, Gates> {
        // Nothing that runs under the lock leaves it half done.
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long after `sent` the holder may be asked again. With the holder's clock in the reply the
/// two clocks need not agree; without it they are compared, at `now`, when the reply came.
pub(crate) fn may_ask_after(reply: &GrantReply, sent: Timestamp, now: Timestamp) -> Duration {
    match reply.now {
        Some(holder_now) => reply.next_request_at.since(holder_now),
        None => now.since(sent) + reply.next_request_at.since(now),
    }
}

fn unexpected(found: &str, expected: &str) -> ClientError {
    ClientError::Protocol(ProtocolError {
        field: "type".to_owned(),
        problem: format!("{found:?} does not answer this message, {expected:?} would"),
    })
}

/// When each holder may be asked again, for as long as that lies ahead.
#[derive(Debug, Default)]
struct Gates {
    closed: HashMap<String, Gate>,
    /// How many were left when past ones were last removed.
    left: usize,
}

#[derive(Debug)]
struct Gate {
    since: Timestamp,
    length: Duration,
}

impl Gate {
    /// A clock that stepped back costs at most the whole length once more.
    fn wait(&self, now: Timestamp) -> Duration {
        self.length.saturating_sub(now.since(self.since))
    }
}

impl Gates {
    /// Below this many, past ones are not worth looking for.
    const FEW: usize = 64;

    fn wait(&self, key: &str, now: Timestamp) -> Duration {
        self.closed
            .get(key)
            .map_or(Duration::ZERO, |gate| gate.wait(now))
    }

    fn close(&mut self, key: String, since: Timestamp, length: Duration) {
        self.closed.insert(key, Gate { since, length });
        // Looked for whenever there are twice as many as were left the last time, so the search
        // costs nothing on average and memory follows what is still ahead.
        if self.closed.len() >= Gates::FEW.max(2 * self.left) {
            self.closed.retain(|_, gate| !gate.wait(since).is_zero());
            self.left = self.closed.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_gates_that_have_opened() {
        let mut gates = Gates::default();
        for count in 0..10_000u64 {
            let now = Timestamp::from_millis(count * 10);
            gates.close(format!("k{count}"), now, Duration::from_millis(200));
            assert!(gates.closed.len() <= Gates::FEW);
        }
        let now = Timestamp::from_millis(99_990);
        assert_eq!(gates.wait("k9999", now), Duration::from_millis(200));
        assert_eq!(gates.wait("k9990", now), Duration::from_millis(110));
        assert_eq!(gates.wait("k1", now), Duration::ZERO);
    }

    #[test]
    fn waits_count_from_the_sending_on_one_clock() {
        let at = Timestamp::from_millis;
        let reply = |next, now| GrantReply {
            grants: Vec::new(),
            blocked: Vec::new(),
            grant_results: Vec::new(),
            next_request_at: at(next),
            leases: None,
            contended: false,
            request_number: None,
            now,
        };
        // The holder's clock is far ahead.
        let told = reply(902_000, Some(at(900_000)));
        assert_eq!(
            may_ask_after(&told, at(1_000), at(1_500)),
            Duration::from_secs(2)
        );
        let untold = reply(3_000, None);
        assert_eq!(
            may_ask_after(&untold, at(1_000), at(1_500)),
            Duration::from_secs(2)
        );
        let past = reply(500, None);
        assert_eq!(
            may_ask_after(&past, at(1_000), at(1_500)),
            Duration::from_millis(500)
        );
    }
}
