//! What becomes of a call: decided from its row and its handler's limits alone.

use super::event::TerminalReason;
use super::handler::HandlerConfig;
use crate::bugs::{Bug, is_on};

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for its time or for a slot.
    Waiting,
    /// An attempt was started; if no claim in memory says so too, the object's death cut it off.
    Started,
    /// An attempt was started, and the call ends as cancelled when that has ended.
    Cancelling,
    /// It has its result.
    Completed,
    /// It ended otherwise.
    Ended(TerminalReason),
}

impl State {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Started => "started",
            State::Cancelling => "cancelling",
            State::Completed => "completed",
            State::Ended(reason) => reason.code(),
        }
    }

    pub(super) fn parse(text: &str) -> Option<State> {
        const ALL: [State; 8] = [
            State::Waiting,
            State::Started,
            State::Cancelling,
            State::Completed,
            State::Ended(TerminalReason::AttemptsExhausted),
            State::Ended(TerminalReason::NonRetryable),
            State::Ended(TerminalReason::Interrupted),
            State::Ended(TerminalReason::Cancelled),
        ];
        ALL.into_iter().find(|state| state.as_str() == text)
    }

    pub(super) fn has_ended(self) -> bool {
        matches!(self, State::Completed | State::Ended(_))
    }
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) state: State,
    /// Attempts that failed and count.
    pub(super) attempts: u64,
    /// Attempts that the object's death cut off.
    pub(super) interruptions: u64,
}

/// What to do with a due call that no attempt of this instance is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    Start {
        attempt: u64,
        interruptions: u64,
    },
    End(TerminalReason),
    /// Its handler is not registered: a build that has it may come back.
    Postpone,
}

pub(super) fn pick(progress: Progress, limits: Option<&HandlerConfig>) -> Pick {
    if progress.state == State::Cancelling {
        return Pick::End(TerminalReason::Cancelled);
    }
    let Some(limits) = limits else {
        return Pick::Postpone;
    };
    // Also a last attempt that timed out and whose handler then died with the object.
    if progress.attempts >= limits.max_attempts {
        return Pick::End(TerminalReason::AttemptsExhausted);
    }
    let interruptions = progress.interruptions + u64::from(progress.state == State::Started);
    if interruptions > limits.max_interruptions {
        return Pick::End(TerminalReason::Interrupted);
    }
    let uncounted = match is_on(Bug::InterruptionCounts) {
        true => interruptions,
        false => 0,
    };
    Pick::Start {
        attempt: progress.attempts + 1 + uncounted,
        interruptions,
    }
}

/// How a handler's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With a result, as JSON.
    Completed(String),
    /// With a failure, a timeout or a panic.
    Failed(String),
    /// With a failure that another attempt would not mend.
    NonRetryable(String),
}

impl Outcome {
    pub(super) fn error(&self) -> Option<&str> {
        match self {
            Outcome::Completed(_) => None,
            Outcome::Failed(error) | Outcome::NonRetryable(error) => Some(error),
        }
    }
}

/// What an attempt's outcome means for its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    Complete,
    Retry,
    End(TerminalReason),
}

pub(super) fn settle(
    attempt: u64,
    max_attempts: u64,
    cancel_requested: bool,
    outcome: &Outcome,
) -> Settlement {
    if cancel_requested {
        return Settlement::End(TerminalReason::Cancelled);
    }
    match outcome {
        Outcome::Completed(_) => Settlement::Complete,
        Outcome::NonRetryable(_) => Settlement::End(TerminalReason::NonRetryable),
        Outcome::Failed(_) if attempt < max_attempts => Settlement::Retry,
        Outcome::Failed(_) => Settlement::End(TerminalReason::AttemptsExhausted),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(max_attempts: u64, max_interruptions: u64) -> HandlerConfig {
        HandlerConfig {
            max_attempts,
            max_interruptions,
            ..HandlerConfig::default()
        }
    }

    proptest! {
        /// However failures and deaths of the object alternate, a call ends, after exactly its
        /// attempts or one interruption more than allowed.
        #[test]
        fn calls_end_within_their_limits(
            max_attempts in 1u64..6,
            max_interruptions in 1u64..6,
            deaths in proptest::collection::vec(any::<bool>(), 16),
        ) {
            let limits = limits(max_attempts, max_interruptions);
            let mut progress = Progress { state: State::Waiting, attempts: 0, interruptions: 0 };
            let (mut failed, mut died) = (0, 0);
            for dies in deaths {
                match pick(progress, Some(&limits)) {
                    Pick::Start { attempt, interruptions } => {
                        prop_assert_eq!(attempt, failed + 1);
                        prop_assert_eq!(interruptions, died);
                        progress.state = State::Started;
                        progress.interruptions = interruptions;
                        if dies {
                            died += 1;
                            continue;
                        }
                        failed += 1;
                        let settlement =
                            settle(attempt, max_attempts, false, &Outcome::Failed(String::new()));
                        if failed == max_attempts {
                            let reason = TerminalReason::AttemptsExhausted;
                            prop_assert_eq!(settlement, Settlement::End(reason));
                            return Ok(());
                        }
                        prop_assert_eq!(settlement, Settlement::Retry);
                        progress.state = State::Waiting;
                        progress.attempts = attempt;
                    }
                    Pick::End(reason) => {
                        prop_assert_eq!(reason, TerminalReason::Interrupted);
                        prop_assert_eq!(died, max_interruptions + 1);
                        return Ok(());
                    }
                    Pick::Postpone => prop_assert!(false, "the handler is known"),
                }
            }
        }
    }

    #[test]
    fn a_cancelled_call_ends_even_without_its_handler() {
        let progress = Progress {
            state: State::Cancelling,
            attempts: 0,
            interruptions: 0,
        };
        assert_eq!(pick(progress, None), Pick::End(TerminalReason::Cancelled));
    }

    #[test]
    fn states_read_back() {
        for text in [
            "waiting",
            "started",
            "cancelling",
            "completed",
            "interrupted",
        ] {
            assert_eq!(State::parse(text).map(State::as_str), Some(text));
        }
        assert_eq!(State::parse("lost"), None);
    }
}
