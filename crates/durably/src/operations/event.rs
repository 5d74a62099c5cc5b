//! What an application can hear about its calls.

use std::sync::Arc;

use crate::time::Timestamp;

/// Something happened to a call. Told after the commit, best effort.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationEvent {
    /// The call's id.
    pub id: String,
    /// The name of its handler.
    pub name: Arc<str>,
    /// Which use of the id this is.
    pub generation: u64,
    /// The attempt that this is about, or the number of attempts so far.
    pub attempt: u64,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub kind: OperationEventKind,
}

/// What happened to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationEventKind {
    /// It was registered.
    Registered,
    /// An attempt starts.
    AttemptStarted,
    /// An attempt has ended.
    AttemptSettled(AttemptOutcome),
    /// The call has ended, and not by completing.
    Terminal(TerminalReason),
    /// The call was removed.
    Purged,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptOutcome {
    /// The call has its result.
    Completed,
    /// Another attempt follows.
    Retrying {
        /// When it is due.
        next_attempt_at: Timestamp,
    },
    /// No other attempt follows.
    Failed,
}

/// Why a call ended without completing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TerminalReason {
    /// Every attempt failed.
    AttemptsExhausted,
    /// The handler said that trying again would not help.
    NonRetryable,
    /// The death of the object cut off its attempts too often.
    Interrupted,
    /// It was cancelled.
    Cancelled,
}

impl TerminalReason {
    /// A stable name for programs.
    pub fn code(self) -> &'static str {
        match self {
            TerminalReason::AttemptsExhausted => "attempts_exhausted",
            TerminalReason::NonRetryable => "non_retryable",
            TerminalReason::Interrupted => "interrupted",
            TerminalReason::Cancelled => "cancelled",
        }
    }
}

impl OperationEvent {
    /// The same as a `tracing` event.
    pub(super) fn trace(&self) {
        let OperationEvent {
            id, name, attempt, ..
        } = self;
        match self.kind {
            OperationEventKind::Registered => {
                tracing::debug!(id, %name, "durability.operation.registered");
            }
            OperationEventKind::AttemptStarted => {
                tracing::debug!(id, %name, attempt, "durability.operation.attempt_started");
            }
            OperationEventKind::AttemptSettled(outcome) => {
                let (outcome, next_attempt_at) = match outcome {
                    AttemptOutcome::Completed => ("completed", None),
                    AttemptOutcome::Retrying { next_attempt_at } => {
                        ("retrying", Some(next_attempt_at.as_millis()))
                    }
                    AttemptOutcome::Failed => ("failed", None),
                };
                tracing::debug!(
                    id,
                    %name,
                    attempt,
                    outcome,
                    next_attempt_at,
                    "durability.operation.attempt_settled"
                );
            }
            OperationEventKind::Terminal(reason) => {
                tracing::debug!(
                    id,
                    %name,
                    attempt,
                    reason = reason.code(),
                    "durability.operation.terminal"
                );
            }
            OperationEventKind::Purged => {
                tracing::debug!(id, %name, attempt, "durability.operation.purged");
            }
        }
    }
}
