//! Settings of topologies.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use durably::time::check_duration;
use durably::topology::{PublisherConfig, RemovalGuard, StateChannelConfig};
use durably::{ConfigError, SchedulerConfig};

/// Settings of [`Topologies`](super::Topologies); the same for each of them.
#[derive(Clone, Debug)]
pub struct TopologiesConfig {
    /// Where snapshots are published, a folder for each topology below it.
    pub publish_dir: PathBuf,
    /// The alarm is never set sooner than this from now: 1 to 15 s.
    pub alarm_min_delay: Duration,
    /// State channels by name; none by default.
    pub channels: BTreeMap<String, StateChannelConfig>,
    /// How publications are attempted.
    pub publisher: PublisherConfig,
    /// Refuses updates that remove more than a share of a group's members; off by default.
    pub removal_guard: Option<RemovalGuard>,
    /// The longest published text, in bytes; 8 MiB by default.
    pub max_snapshot_bytes: usize,
    /// How often a draining member is asked whether it is drained; 30 s by default.
    pub drain_check_period: Duration,
}

impl TopologiesConfig {
    /// The defaults, with a folder to publish into.
    pub fn new(publish_dir: impl Into<PathBuf>) -> Self {
        TopologiesConfig {
            publish_dir: publish_dir.into(),
            alarm_min_delay: Duration::from_secs(15),
            channels: BTreeMap::new(),
            publisher: PublisherConfig::default(),
            removal_guard: None,
            max_snapshot_bytes: 8 << 20,
            drain_check_period: Duration::from_secs(30),
        }
    }

    /// Refuses what no coordinator could be opened with.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.scheduler().check()?;
        check_duration("attempt_timeout", self.publisher.calls.attempt_timeout)?;
        check_duration("landing_window", self.publisher.landing_window)?;
        for (name, channel) in &self.channels {
            if name.is_empty() {
                return Err(ConfigError::new("channel", "must have a name"));
            }
            check_duration("attempt_timeout", channel.calls.attempt_timeout)?;
        }
        if self.max_snapshot_bytes == 0 {
            return Err(ConfigError::new("max_snapshot_bytes", "must not be 0"));
        }
        check_duration("drain_check_period", self.drain_check_period)
    }

    pub(super) fn scheduler(&self) -> SchedulerConfig {
        let mut scheduler = SchedulerConfig::default();
        scheduler.alarm_min_delay = self.alarm_min_delay;
        scheduler
    }
}
