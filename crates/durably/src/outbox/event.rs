//! What an application can hear of its entries.

use std::rc::Rc;

use crate::time::Timestamp;

/// Something happened to an entry. Told after the commit, best effort.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxEvent {
    /// The name of its channel.
    pub channel: Rc<str>,
    /// Its key.
    pub key: String,
    /// The version that this is about.
    pub version: u64,
    /// The attempt that this is about, or the number of attempts so far.
    pub attempt: u64,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub kind: OutboxEventKind,
}

/// What happened to an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboxEventKind {
    /// It is stored and due.
    Staged,
    /// An attempt starts.
    AttemptStarted,
    /// It has arrived.
    Delivered,
    /// An attempt failed, or asked for another.
    Retrying {
        /// When the next is due.
        next_attempt_at: Timestamp,
        /// Why, if the publish callback said.
        error: Option<String>,
    },
    /// A newer version took its place before it had arrived.
    Superseded,
    /// It was taken back, or had become needless by the time of its call.
    Discarded,
}

impl OutboxEvent {
    /// The same as a `tracing` event.
    pub(super) fn trace(&self) {
        let OutboxEvent {
            channel,
            key,
            version,
            attempt,
            ..
        } = self;
        match &self.kind {
            OutboxEventKind::Staged => {
                tracing::debug!(%channel, key, version, "durability.outbox.staged");
            }
            OutboxEventKind::AttemptStarted => {
                tracing::debug!(%channel, key, version, attempt, "durability.outbox.attempt_started");
            }
            OutboxEventKind::Delivered => {
                tracing::debug!(%channel, key, version, attempt, "durability.outbox.delivered");
            }
            OutboxEventKind::Retrying {
                next_attempt_at,
                error,
            } => {
                tracing::debug!(
                    %channel,
                    key,
                    version,
                    attempt,
                    next_attempt_at = next_attempt_at.as_millis(),
                    error,
                    "durability.outbox.retrying"
                );
            }
            OutboxEventKind::Superseded => {
                tracing::debug!(%channel, key, version, "durability.outbox.superseded");
            }
            OutboxEventKind::Discarded => {
                tracing::debug!(%channel, key, version, "durability.outbox.discarded");
            }
        }
    }
}
