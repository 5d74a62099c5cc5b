//! A concurrency budget shared by many objects: the holder, what is said between it and its
//! clients, and the client half.

pub mod book;
mod builder;
pub mod client;
mod ephemeral;
mod error;
mod event;
mod holder;
mod lease_options;
pub mod leases;
pub mod ledger;
mod limits;
mod numbers;
mod operators;
pub mod protocol;
pub mod queue;
pub mod recording;
pub mod round;
mod rounds;
mod store;
pub mod tap;

pub use builder::SemaphoreBuilder;
pub use error::SemaphoreError;
pub use event::{GroupStanding, GroupUsage, SemaphoreEvent, Standing, Usage};
pub use holder::{MIGRATIONS, Semaphore};
pub use lease_options::{Amount, LeaseOptions, LimitedGroups, Provisioning, Ratio};
pub use operators::{ForceReleased, Holding, MAX_HOLDINGS};
pub use store::{Changes, ClientRow, GrantRow, LeaseRow, NumberRow};
