//! Shard topology: one coordinator holds the membership of groups, publishes each group's snapshot
//! to a store, and pushes shared state to the members; readers follow the store and never go back.

mod canonical;
mod change;
mod convergence;
mod coordinator;
mod delivery;
mod draft;
mod drain;
mod driver;
mod error;
mod event;
mod members;
mod publication;
mod publisher;
mod reader;
mod receiver;
mod shelf;
mod snapshot;
mod store;
mod update;
mod waiting;

pub use change::{Drain, Expected, GroupChange, Patch, TopologyNameError, check_group};
pub use convergence::{Audience, ChannelConvergence, Convergence, MemberConvergence, Progress};
pub use coordinator::{
    Deleted, PublisherConfig, StateChannelConfig, Topology, TopologyBuilder, Updated,
};
pub use delivery::StateUpdate;
pub use draft::{Current, Draft, DrainEnd, NewMember, RemovalGuard, Role};
pub use error::{MAX_HINT_BYTES, MAX_ID_BYTES, MAX_META_BYTES, MAX_STATE_BYTES, TopologyError};
pub use event::{TopologyEvent, TopologyEventKind};
pub use publisher::{
    ConditionalText, Conditionally, Found, Landing, MemoryPublisher, Place, Publication, Publisher,
    Refused, Verdict, stored_name,
};
pub use reader::{
    Change, FallbackEvent, Fallbacks, NoFallbacks, Origin, ReaderCounters, ReaderOptions, Reading,
    Source, TopologyReader, TopologyUnavailable, UnavailableReason,
};
pub use receiver::{Applied, RECEIVER_MIGRATIONS, StateReceiver};
pub use shelf::{SHELF_MIGRATIONS, Shelf, ShelfObject};
#[cfg(feature = "testing")]
pub(crate) use snapshot::encode;
pub use store::MIGRATIONS;

/// The capability's name, under which its migrations are recorded.
pub const CAPABILITY: &str = "topology";
pub use snapshot::{
    Edition, Incarnation, Member, MemberState, Published, SCHEMA, Snapshot, SnapshotError, decode,
};
