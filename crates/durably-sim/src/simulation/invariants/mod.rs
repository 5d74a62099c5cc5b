//! What must hold, one invariant a file, each with the sentence that it enforces.

pub mod applied;
pub mod awake;
pub mod books;
pub mod calls;
pub mod ceiling;
pub mod committed;
pub mod coordinated;
pub mod entries;
pub mod jobs;
pub mod marks;
pub mod operations;
pub mod order;
pub mod published;
pub mod readers;
pub mod returned;
pub mod roles;
pub mod running;
pub mod sums;
pub mod versions;
