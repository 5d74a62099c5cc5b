//! Capabilities that an application composes inside a *durable object*: a single-threaded actor
//! with a name, its own SQLite database and one alarm.
//!
//! This library decides and stores; where an object lives, what time it is and how a commit
//! reaches the disk is the matter of a [`host::Host`]. Nothing in here knows tokio, rusqlite or
//! Cloudflare.

mod backoff;
#[cfg(feature = "deliberate-bugs")]
pub mod bugs;
#[cfg(not(feature = "deliberate-bugs"))]
#[allow(unreachable_pub, reason = "it is public with the feature")]
mod bugs;
pub mod error;
pub mod host;
pub mod id;
pub mod jobs;
pub mod layers;
pub mod lifecycle;
pub mod migrations;
pub mod names;
pub mod operations;
pub mod outbox;
mod rendezvous;
pub mod scheduler;
pub mod semaphore;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
pub mod topology;

pub use error::{ConfigError, OpenError, StorageError};
pub use scheduler::{Scheduler, SchedulerConfig};
pub use time::Timestamp;
