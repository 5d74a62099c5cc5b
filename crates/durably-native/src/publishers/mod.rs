//! Stores of topology snapshots: where a coordinator publishes its groups and readers find them.
//!
//! [`FolderPublisher`] keeps one file a group in a folder. Both sides need nothing of each other but the
//! store. What a store must do is written at [`Publisher`](durably::topology::Publisher).

mod folder;
mod names;

pub use folder::{FolderError, FolderPublisher, FolderReader};
pub use names::stored_name;
