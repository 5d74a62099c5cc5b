//! How an object's database is opened.

use std::sync::Arc;

use super::counters::Counters;

/// When SQLite waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// With every commit: what was acknowledged survives a loss of power.
    #[default]
    Full,
    /// At checkpoints only: consistent after a loss of power, but the newest commits may be missing.
    /// A crash of the process alone loses nothing.
    Normal,
}

/// Settings of an object's database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// When SQLite waits for the disk; [`Synchronous::Full`] by default.
    pub synchronous: Synchronous,
    /// The most memory that SQLite uses for pages of one object, in KiB; 1,024 by default. It is
    /// taken as pages are read, not at once.
    pub cache_kib: u32,
    /// Once the write-ahead log holds this many pages of 4 KiB a checkpoint is wanted; 1,000 by
    /// default.
    pub checkpoint_pages: u32,
    /// The longest text, blob or row, in bytes; 2 MiB by default, as on Cloudflare.
    pub max_value_bytes: u32,
    /// The object's quota: the largest that its file may grow, in bytes, in whole pages of 4 KiB.
    /// None by default.
    pub max_file_bytes: Option<u64>,
    /// Where to count what databases do, if anywhere.
    pub counters: Option<Arc<Counters>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            synchronous: Synchronous::Full,
            cache_kib: 1_024,
            checkpoint_pages: 1_000,
            max_value_bytes: 2 * 1_024 * 1_024,
            max_file_bytes: None,
            counters: None,
        }
    }
}
