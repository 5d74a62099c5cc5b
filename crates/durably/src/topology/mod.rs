//! Shard topology: one coordinator holds the membership of groups, publishes each group's snapshot
//! to a store, and pushes shared state to the members; readers follow the store and never go back.

mod publisher;
mod snapshot;

pub use publisher::{Landing, MemoryPublisher, Publication, Publisher, Verdict};
#[cfg(feature = "testing")]
pub(crate) use snapshot::encode;
pub use snapshot::{
    Edition, Incarnation, Member, MemberState, Published, SCHEMA, Snapshot, SnapshotError, decode,
};
