//! Storms: a fleet of real processes under load, and one kind of trouble after the other. What must hold is
//! checked from outside, as users would see it: every acknowledged job runs to its end, no account or group
//! ever has more running than may be at that moment, all permits return, a repeated submission is a
//! duplicate, and the servers open again.
//!
//! Short by default. Longer ones, and how to repeat one: `docs/testing.md`.

#![allow(clippy::print_stdout, reason = "a storm says its seed and what it saw")]

mod clock;
mod disk;
mod fleet;
mod freeze;
mod jobs;
mod kills;
mod limits;
mod seat;
mod settings;

const TOKEN: &str = "the-fleets-secret";
