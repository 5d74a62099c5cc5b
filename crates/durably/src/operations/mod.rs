//! Durable calls: what was registered is run, again after every failure and every death of its
//! object, until it has completed or failed for good.
//!
//! Decided here: when an attempt starts, which attempts count, when a call has ended. Not decided
//! here: how many handlers run at once (the scheduler's pool) and what a handler does. Because a
//! crash after a side effect and before the commit repeats the attempt, a handler must be
//! idempotent by the call's id.
//!
//! - `decide` and `backoff` decide, without I/O;
//! - `store` is the table;
//! - `driver` claims due rows and starts their attempts, `attempt` runs and settles one;
//! - `changes` are the transactions that register, cancel and purge;
//! - `capability` is the door for applications.
//!
//! ```
//! # use std::rc::Rc;
//! use durably::operations::{Call, HandlerConfig, HandlerError, Operations};
//! use durably::{OpenError, Scheduler};
//!
//! # fn example(scheduler: &Scheduler) -> Result<Operations, OpenError> {
//! let operations = Operations::builder(scheduler)
//!     .handler("greet", HandlerConfig::default(), |call: Call| async move {
//!         let name = call.payload["name"]
//!             .as_str()
//!             .ok_or_else(|| HandlerError::non_retryable("the payload has no name"))?;
//!         Ok(format!("hello {name}").into())
//!     })
//!     .build()?;
//! // After `scheduler.open().await?`:
//! // operations.run("greet", "call-1", serde_json::json!({"name": "Ada"})).await?;
//! # Ok(operations)
//! # }
//! ```

mod attempt;
mod capability;
mod changes;
mod decide;
mod driver;
mod error;
mod event;
mod handler;
mod store;
mod token;

pub use crate::backoff::Backoff;
pub use capability::{CancelOutcome, OperationResult, Operations, OperationsBuilder, RunOutcome};
pub use error::OperationError;
pub use event::{AttemptOutcome, OperationEvent, OperationEventKind, TerminalReason};
pub use handler::{Call, HandlerConfig, HandlerError};
pub use store::MIGRATIONS;
pub use token::CancellationToken;

/// The capability's name, under which its migrations are recorded.
pub const CAPABILITY: &str = "operations";
