//! Hearing what a holder takes, does by itself and answers, in an order in which doing the same
//! again gives the same answers; and deciding when its waits end, for whoever does it again.
//!
//! Every act is begun at a time and has a number, rising by one. Acts overlap only where one waits
//! for storage, and take effect in the order in which they began.

use std::cell::Cell;
use std::rc::Rc;

use super::error::SemaphoreError;
use super::lease_options::LeaseOptions;
use super::protocol::{Message, Reply};
use super::round::Policy;
use crate::host::LocalFuture;
use crate::time::Timestamp;

/// What a holder begins.
#[derive(Clone, Copy, Debug)]
pub enum Act<'a> {
    /// To take a message. Its number names the message from then on.
    Message(&'a Message),
    /// The round that was scheduled.
    Round,
    /// To answer the parked request with this number, whose wait is over.
    WaitEnded(u64),
    /// To forget the parked request with this number, whose caller has left.
    CallerLeft(u64),
    /// To take back what is due, as the alarm asks for.
    CleanUp,
    /// To give leases as these options say.
    Leases(Option<&'a LeaseOptions>),
    /// To look again whether limits leave room.
    LimitsChanged,
    /// To take permits from a client.
    ForceRelease {
        /// The client.
        client_id: &'a str,
        /// Only those of this group.
        group: Option<&'a str>,
        /// Why.
        reason: &'a str,
    },
}

/// What an act learned from the application.
#[derive(Clone, Copy, Debug)]
pub enum Reading<'a> {
    /// The limit; `None` if it could not be read.
    Limit(Option<u64>),
    /// What a group may have.
    Group(&'a str, Policy),
}

/// Why a holder waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For the time of its next round.
    Round,
    /// For the end of the wait of the parked request with this number.
    Parked(u64),
}

/// Hears a holder; see the [module](self). Nothing that it does may call the holder.
pub trait Tap {
    /// An act begins.
    fn begun(&self, act: u64, at: Timestamp, what: Act<'_>);

    /// An act that has begun reads something.
    fn read(&self, act: u64, reading: Reading<'_>);

    /// An act answers a message.
    fn answered(&self, act: u64, message: u64, answer: Result<&Reply, &SemaphoreError>);

    /// An act has ended, well or with a failure that nobody foresees.
    fn ended(&self, act: u64, failed: bool);

    /// What the holder waits for in place of `sleep`.
    fn wait(&self, why: Wait, sleep: LocalFuture<()>) -> LocalFuture<()> {
        let _ = why;
        sleep
    }
}

/// Where a holder tells what it does: nowhere, unless it has a tap.
#[derive(Default)]
pub(super) struct Told {
    tap: Option<Rc<dyn Tap>>,
    acts: Cell<u64>,
}

impl Told {
    pub(super) fn new(tap: Option<Rc<dyn Tap>>) -> Told {
        Told {
            tap,
            acts: Cell::new(0),
        }
    }

    pub(super) fn anybody(&self) -> bool {
        self.tap.is_some()
    }

    pub(super) fn begin(&self, at: Timestamp, what: Act<'_>) -> u64 {
        let act = self.acts.get() + 1;
        self.acts.set(act);
        if let Some(tap) = &self.tap {
            tap.begun(act, at, what);
        }
        act
    }

    pub(super) fn read(&self, act: u64, reading: Reading<'_>) {
        if let Some(tap) = &self.tap {
            tap.read(act, reading);
        }
    }

    pub(super) fn answered(&self, act: u64, message: u64, answer: Result<&Reply, &SemaphoreError>) {
        if let Some(tap) = &self.tap {
            tap.answered(act, message, answer);
        }
    }

    pub(super) fn end(&self, act: u64, failed: bool) {
        if let Some(tap) = &self.tap {
            tap.ended(act, failed);
        }
    }

    /// An act that takes no time.
    pub(super) fn act(&self, at: Timestamp, what: Act<'_>) {
        let act = self.begin(at, what);
        self.end(act, false);
    }

    pub(super) fn wait(&self, why: Wait, sleep: LocalFuture<()>) -> LocalFuture<()> {
        match &self.tap {
            Some(tap) => tap.wait(why, sleep),
            None => sleep,
        }
    }
}
