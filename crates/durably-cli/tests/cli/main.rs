//! The real binary, over real sockets.

mod bad_input;
mod budgets;
mod demo;
mod drain;
mod fleet;
mod flows;
mod holders;
mod kill;
mod ndjson;
mod record;
mod startup;
mod storm;
mod support;
mod topology;
