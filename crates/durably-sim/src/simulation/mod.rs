//! Runs in which things go wrong on purpose: everything that a seed decides, on a virtual clock.
//!
//! - A [scenario](scenarios) builds objects, clients and work, and says when all is done.
//! - Its [knobs] are drawn from the seed: sizes down to 1, faults from none to constant.
//! - While faults last, `chaos` evicts objects and fails commits, the [network] loses and repeats
//!   messages, `troubles` kill processes, move clocks and cut connections.
//! - After every step the [invariants] are asked; then everything heals, and what is left to do must
//!   be done in bounded time.
//! - [`drive`] does one run, [`campaign`] many, [`shrink`] looks for a smaller run that fails the same
//!   way, [`evictions`] tries every single eviction of a short run.
//!
//! `docs/simulation.md` says how to replay a seed and how to add a scenario or an invariant.

pub mod campaign;
mod dice;
pub mod drive;
pub mod evictions;
mod failure;
mod history;
pub mod invariants;
pub mod knobs;
pub mod network;
pub mod panics;
mod run;
pub mod scenarios;
pub mod shrink;
mod troubles;

pub use failure::{Failure, FailureKind};
pub use history::{Keep, Line, excerpt};
pub use run::{COMMON, Run};
