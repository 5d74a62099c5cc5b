//! Settings of a system.

use std::time::Duration;

use durably::ConfigError;
use durably::time::{check_count, check_duration};

use crate::sqlite::{Settings, Synchronous};

/// Settings of a [`System`](crate::System).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SystemConfig {
    /// Threads on which objects run; 16 by default. More than there are cores, since a commit blocks
    /// its thread.
    pub threads: usize,
    /// An object that nobody called and that has no task for this long is closed; 10 s by default.
    pub idle_timeout: Duration,
    /// How many objects may be open at once; 1,000 by default.
    pub max_open_objects: usize,
    /// How long a call waits for room when all open objects are busy; 5 s by default.
    pub open_wait: Duration,
    /// How many calls may be under way or waiting in the whole system; 65,536 by default.
    pub max_calls: usize,
    /// The most closures of one object that share a commit; 256 by default, 1 gives each its own.
    pub max_batch: usize,
    /// How long a shutdown waits for calls and alarms to finish; 10 s by default.
    pub shutdown_timeout: Duration,
    /// When commits wait for the disk; [`Synchronous::Full`] by default.
    pub synchronous: Synchronous,
    /// The most memory for pages of one object, in KiB; 1,024 by default.
    pub cache_kib: u32,
    /// The length of an object's write-ahead log, in pages of 4 KiB, at which it is moved into the
    /// file; 1,000 by default.
    pub checkpoint_pages: u32,
    /// The longest text, blob or row, in bytes; 2 MiB by default.
    pub max_value_bytes: u32,
    /// How large the file of an object may grow, in bytes; as large as the disk by default.
    pub max_object_bytes: Option<u64>,
    /// Counts the rows that objects write, by table and exactly, for benchmarks: triggers on every
    /// table slow statements down. Off by default.
    pub count_rows: bool,
}

impl Default for SystemConfig {
    fn default() -> Self {
        let database = Settings::default();
        SystemConfig {
            threads: 16,
            idle_timeout: Duration::from_secs(10),
            max_open_objects: 1_000,
            open_wait: Duration::from_secs(5),
            max_calls: 65_536,
            max_batch: 256,
            shutdown_timeout: Duration::from_secs(10),
            synchronous: database.synchronous,
            cache_kib: database.cache_kib,
            checkpoint_pages: database.checkpoint_pages,
            max_value_bytes: database.max_value_bytes,
            max_object_bytes: database.max_file_bytes,
            count_rows: false,
        }
    }
}

impl SystemConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_count("threads", self.threads as u64)?;
        if self.threads > 1_024 {
            return Err(ConfigError::new("threads", "must be at most 1024"));
        }
        check_duration("idle_timeout", self.idle_timeout)?;
        check_count("max_open_objects", self.max_open_objects as u64)?;
        if self.max_open_objects > tokio::sync::Semaphore::MAX_PERMITS {
            return Err(ConfigError::new("max_open_objects", "is out of reach"));
        }
        check_duration("open_wait", self.open_wait)?;
        check_count("max_calls", self.max_calls as u64)?;
        check_count("max_batch", self.max_batch as u64)?;
        check_duration("shutdown_timeout", self.shutdown_timeout)?;
        check_count("cache_kib", u64::from(self.cache_kib))?;
        check_count("checkpoint_pages", u64::from(self.checkpoint_pages))?;
        check_count("max_value_bytes", u64::from(self.max_value_bytes))?;
        if let Some(bytes) = self.max_object_bytes {
            check_count("max_object_bytes", bytes)?;
        }
        Ok(())
    }

    /// How the files of objects are opened.
    pub(crate) fn database(&self) -> Settings {
        Settings {
            synchronous: self.synchronous,
            cache_kib: self.cache_kib,
            checkpoint_pages: self.checkpoint_pages,
            max_value_bytes: self.max_value_bytes,
            max_file_bytes: self.max_object_bytes,
            counters: None,
        }
    }
}
