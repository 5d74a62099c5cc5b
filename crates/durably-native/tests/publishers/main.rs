//! Publishers of topology snapshots on real stores: the exam, and what goes wrong with disks, networks
//! and other processes.

mod folder;
mod processes;
mod setup;
