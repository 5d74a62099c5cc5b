//! Stores of topology snapshots: where a coordinator publishes its groups and readers find them.
//!
//! [`FolderPublisher`] keeps one file a group in a folder; with the feature `object-store`,
//! `ObjectStorePublisher` keeps one object a group in a bucket. Both sides need nothing of each other but the
//! store. What a store must do is written at [`Publisher`](durably::topology::Publisher).

mod folder;
#[cfg(feature = "object-store")]
mod object_store;

pub use durably::topology::stored_name;
pub use folder::{FolderError, FolderPublisher, FolderReader};
#[cfg(feature = "object-store")]
pub use object_store::{ObjectStoreError, ObjectStorePublisher, ObjectStoreReader};
