//! Publishers of topology snapshots on real stores: the exam, and what goes wrong with disks, networks
//! and other processes.

mod folder;
#[cfg(feature = "object-store")]
mod object_store;
mod processes;
mod setup;
#[cfg(feature = "object-store")]
mod troubled;
