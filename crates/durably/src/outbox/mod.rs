//! Values on their way out: what was staged in a transaction reaches its receiver, again after every
//! failure and every death of the object, until the receiver has the newest.
//!
//! Decided here: which version of a key's value is delivered, when, and which outcomes count. Not
//! decided here: what a receiver is. Because an attempt may have arrived although it failed, and an
//! older one may arrive after a newer, a receiver keeps the highest version per key.
//!
//! - `lanes` decides what may run beside what, without I/O;
//! - `store` is the table;
//! - `driver` makes the turns of a channel: settles what has ended, starts what may start;
//! - `call` runs one batch of calls;
//! - `channel` is the door for applications.
//!
//! ```
//! # use std::rc::Rc;
//! use durably::outbox::{Channel, BatchEntry, ChannelConfig, Entry, Outbox, Outcome, OutboxError, Publish};
//! use durably::{OpenError, Scheduler};
//!
//! # fn example(scheduler: &Scheduler) -> Result<Channel, OpenError> {
//! let outbox = Outbox::new(scheduler)?;
//! let prices = outbox.channel(
//!     "prices",
//!     ChannelConfig::default(),
//!     Publish::each(|entry: Entry| async move {
//!         // Send it; `entry.version` lets the receiver tell old from new.
//!         let _ = (entry.key, entry.version, entry.value);
//!         Ok(Outcome::Done)
//!     }),
//! )?;
//! // After `scheduler.open().await?`, with the application's own rows in the same transaction:
//! // scheduler.transaction(move |transaction| prices.stage(transaction, "apple", &json!(3))).await?;
//! # Ok(prices)
//! # }
//! ```

mod call;
mod channel;
mod driver;
mod error;
mod event;
mod lanes;
mod publish;
mod store;
mod turn;

pub use crate::backoff::Backoff;
pub use channel::{Channel, Outbox};
pub use error::OutboxError;
pub use event::{OutboxEvent, OutboxEventKind};
pub use publish::{BatchEntry, ChannelConfig, Entry, Outcome, Overlap, Publish};
pub use store::{Ending, EntryStatus, MIGRATIONS};

/// The capability's name, under which its migrations are recorded.
pub const CAPABILITY: &str = "outbox";
