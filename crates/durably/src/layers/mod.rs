//! What goes in front of a transport: layers for calls that leave the object, as tower has them but
//! without its timer, which needs tokio. Both take their clock and their randomness from whoever
//! builds them, hold nothing else, and are `Send` exactly when what they are built of is.
//!
//! Not decided here: what a call is, how long its answer may be held back, and which errors are worth a
//! repetition; the call's [`Repeat`] and [`HeldBack`] and its error's [`Retryable`] say so.

mod backoff;
mod retry;
mod timeout;
mod timer;

pub use backoff::Backoff;
pub use retry::{Repeat, Retry, RetryFuture, RetryLayer, Retryable};
pub use timeout::{Elapsed, HeldBack, Timeout, TimeoutFuture, TimeoutLayer};
pub use timer::{HostRandom, HostTimer, Randomness, Timer};
