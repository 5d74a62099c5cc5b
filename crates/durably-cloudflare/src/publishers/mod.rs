//! Stores of topology snapshots on Cloudflare: where a coordinator publishes its groups, and what
//! stateless workers read.
//!
//! `R2Publisher` keeps one object a group in a bucket and writes on conditions; `KvPublisher` keeps
//! one key a group in Workers KV, which takes whatever comes last; `ShelfPublisher` keeps each group in a
//! Durable Object of its own, for workers that have neither. Each has a reader, a
//! [`Source`](durably::topology::Source) for a [`TopologyReader`](durably::topology::TopologyReader). Groups are
//! called everywhere as in the stores of other hosts, see [`stored_name`](durably::topology::stored_name).

#[cfg(any(test, target_arch = "wasm32"))]
mod refusal;

#[cfg(target_arch = "wasm32")]
mod kv;
#[cfg(target_arch = "wasm32")]
mod r2;
#[cfg(target_arch = "wasm32")]
mod shelf;
#[cfg(target_arch = "wasm32")]
mod store;

#[cfg(target_arch = "wasm32")]
pub use kv::{KvPublisher, KvReader};
#[cfg(target_arch = "wasm32")]
pub use r2::{R2Publisher, R2Reader};
#[cfg(target_arch = "wasm32")]
pub use shelf::{ShelfPublisher, ShelfReader, on_shelf};
#[cfg(target_arch = "wasm32")]
pub use store::StoreError;
