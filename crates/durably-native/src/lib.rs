//! Where durable objects live when they are embedded: worker threads, one SQLite file per object,
//! alarms, hibernation, calls within the process. Nothing to install, nothing to operate.
//!
//! Start at [`System::builder`]. What a system promises is written at [`durably::host`]; how it keeps
//! those promises: [`sqlite`] has the one path by which commits reach the disk, and a journal beside
//! the objects' files knows which of them to wake.

mod class;
mod clock;
mod config;
mod error;
mod folder;
mod handle;
mod host;
#[cfg(feature = "http")]
pub mod http;
mod instance;
pub mod jobs;
mod journal;
mod key;
pub mod publishers;
pub mod reading;
mod residency;
pub mod sqlite;
mod system;
mod timers;
pub mod topology;
mod worker;

pub use config::SystemConfig;
pub use error::{CallError, SystemError};
pub use handle::{ObjectHandle, SystemRef};
pub use system::{System, SystemBuilder};

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
