//! What an application gives to have its entries delivered, and what its callback gets and answers.

use std::cell::RefCell;
use std::future::Future;
use std::time::Duration;

use serde_json::Value;

use crate::backoff::Backoff;
use crate::error::{BoxError, ConfigError};
use crate::host::LocalFuture;
use crate::time::{check_count, check_duration};

/// An entry on its way.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Rises with every value staged under this key. The receiver drops what is not newer than what it
    /// has.
    pub version: u64,
    /// What was staged.
    pub value: Value,
    /// Which attempt this is, from 1. An attempt that the object's death cut off counts.
    pub attempt: u64,
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has arrived.
    Done,
    /// It is to be tried again.
    Retry {
        /// After this delay, at most 2^31 - 1 ms; by the channel's back-off if none is given.
        after: Option<Duration>,
        /// Why.
        error: Option<String>,
    },
    /// Nobody needs it any more: it ends as if it had been discarded.
    Dropped,
}

/// An entry of a batch, with its outcome: [`Outcome::Done`] unless it is changed.
#[derive(Debug)]
pub struct BatchEntry {
    entry: Entry,
    outcome: RefCell<Option<Outcome>>,
}

impl BatchEntry {
    pub(super) fn new(entry: Entry) -> Self {
        BatchEntry {
            entry,
            outcome: RefCell::new(None),
        }
    }

    /// Says what became of this entry.
    pub fn settle(&self, outcome: Outcome) {
        *self.outcome.borrow_mut() = Some(outcome);
    }

    pub(super) fn outcome(self) -> Outcome {
        self.outcome.into_inner().unwrap_or(Outcome::Done)
    }
}

impl std::ops::Deref for BatchEntry {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        &self.entry
    }
}

type Each = Box<dyn Fn(Entry) -> LocalFuture<Result<Outcome, BoxError>>>;
type Batch = Box<dyn Fn(Vec<BatchEntry>) -> LocalFuture<Result<Vec<BatchEntry>, BoxError>>>;

/// A channel's publish callback. An error, a panic and the attempt time-out mean another attempt.
///
/// A callback that needs the object that owns the outbox must hold it by [`Weak`](std::rc::Weak).
pub struct Publish(pub(super) Way);

pub(super) enum Way {
    Each(Each),
    Batch(Batch),
}

impl Publish {
    /// One call for each entry, with an attempt time-out of its own.
    pub fn each<F, Answer>(publish: F) -> Self
    where
        F: Fn(Entry) -> Answer + 'static,
        Answer: Future<Output = Result<Outcome, BoxError>> + 'static,
    {
        Publish(Way::Each(Box::new(move |entry| Box::pin(publish(entry)))))
    }

    /// One call for all entries that start together, for receivers that take many at once. It hands
    /// the entries back, each with its outcome; one that it does not hand back is tried again.
    ///
    /// ```
    /// use durably::outbox::{Outcome, Publish};
    ///
    /// let publish = Publish::batch(|entries| async move {
    ///     for entry in &entries {
    ///         if entry.key.starts_with("later/") {
    ///             entry.settle(Outcome::Retry { after: None, error: None });
    ///         }
    ///     }
    ///     Ok(entries)
    /// });
    /// # drop(publish);
    /// ```
    pub fn batch<F, Answer>(publish: F) -> Self
    where
        F: Fn(Vec<BatchEntry>) -> Answer + 'static,
        Answer: Future<Output = Result<Vec<BatchEntry>, BoxError>> + 'static,
    {
        Publish(Way::Batch(Box::new(move |entries| {
            Box::pin(publish(entries))
        })))
    }
}

/// Which calls of a channel may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Calls for one key never overlap; keys are independent, and each entry settles alone.
    #[default]
    PerKey,
    /// One batch of due entries at a time, settled as a whole when its last entry has ended.
    Never,
}

/// Settings of a channel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChannelConfig {
    /// Which calls may overlap.
    pub overlap: Overlap,
    /// How many entries are on their way at once, with [`Overlap::PerKey`]; 64 by default.
    pub max_in_flight: u64,
    /// A call that takes this long has failed and is no longer polled; 30 s by default.
    pub attempt_timeout: Duration,
    /// The delay between attempts; doubling from 1 s to 5 min by default, with jitter.
    pub backoff: Backoff,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        ChannelConfig {
            overlap: Overlap::default(),
            max_in_flight: 64,
            attempt_timeout: Duration::from_secs(30),
            backoff: Backoff::default(),
        }
    }
}

impl ChannelConfig {
    /// Refuses settings out of range.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the field.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_count("max_in_flight", self.max_in_flight)?;
        check_duration("attempt_timeout", self.attempt_timeout)?;
        self.backoff.check()
    }
}
