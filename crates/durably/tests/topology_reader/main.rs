//! The reader of published groups, on a virtual clock.

mod allocations;
mod caching;
mod changes;
mod copies;
mod fallbacks;
mod random;
mod setup;
mod sharing;
