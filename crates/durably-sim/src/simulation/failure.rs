//! What a run can fail with.

use std::fmt;

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// Something happened that must never happen.
    Safety,
    /// Something did not happen in time although nothing stood in its way.
    Liveness,
    /// Something panicked.
    Crash,
    /// The same seed did not do the same again.
    NonDeterminism,
}

impl FailureKind {
    /// With what the process exits.
    pub fn exit_code(self) -> u8 {
        match self {
            FailureKind::Safety => 10,
            FailureKind::Liveness => 11,
            FailureKind::Crash => 12,
            FailureKind::NonDeterminism => 13,
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            FailureKind::Safety => "safety",
            FailureKind::Liveness => "liveness",
            FailureKind::Crash => "crash",
            FailureKind::NonDeterminism => "non-determinism",
        })
    }
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which kind.
    pub kind: FailureKind,
    /// Which invariant, by its name.
    pub invariant: &'static str,
    /// The object or job concerned; empty for all.
    pub subject: String,
    /// What was seen.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure {
            kind,
            invariant,
            subject,
            message,
        } = self;
        write!(formatter, "{kind}: {invariant}")?;
        if !subject.is_empty() {
            write!(formatter, " ({subject})")?;
        }
        write!(formatter, ": {message}")
    }
}
