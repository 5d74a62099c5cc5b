//! The settings of topologies: what is set, checked, with the defaults.

use std::path::{Path, PathBuf};
use std::time::Duration;

use durably::ConfigError;
use durably::topology::{RemovalGuard, StateChannelConfig};
use durably_native::topology::TopologiesConfig;

use super::Period;
use super::values::StateChannel;
use crate::members::{MembersConfig, check_template};

pub(super) struct TopologySettings {
    pub(super) publish_dir: Option<PathBuf>,
    pub(super) state_channels: Vec<StateChannel>,
    pub(super) member_url: Option<String>,
    pub(super) member_token: Option<String>,
    pub(super) delivery_timeout: Option<Period>,
    pub(super) drain_check_period: Option<Period>,
    pub(super) removal_guard: Option<f64>,
    pub(super) max_snapshot_bytes: Option<usize>,
    pub(super) alarm_min_delay: Option<Period>,
}

impl TopologySettings {
    pub(super) fn resolve(
        self,
        data_dir: &Path,
    ) -> Result<(TopologiesConfig, MembersConfig), ConfigError> {
        let publish_dir = self.publish_dir;
        let mut config =
            TopologiesConfig::new(publish_dir.unwrap_or_else(|| data_dir.join("published")));
        if let Some(delay) = self.alarm_min_delay {
            config.alarm_min_delay = delay.duration();
        }
        if let Some(period) = self.drain_check_period {
            config.drain_check_period = period.duration();
        }
        if let Some(bytes) = self.max_snapshot_bytes {
            config.max_snapshot_bytes = bytes;
        }
        config.removal_guard = self.removal_guard.map(RemovalGuard::share).transpose()?;
        let timeout = self
            .delivery_timeout
            .map_or(Duration::from_secs(30), Period::duration);
        for StateChannel(channel) in self.state_channels {
            let durably_http::topology::StateChannel { name, role } = channel;
            let mut channel = StateChannelConfig::default();
            channel.members = role;
            channel.calls.attempt_timeout = timeout;
            if config.channels.insert(name.clone(), channel).is_some() {
                return Err(ConfigError::new(
                    "state_channels",
                    format!("must not name {name:?} twice"),
                ));
            }
        }
        if let Some(template) = &self.member_url {
            check_template(template).map_err(|problem| {
                ConfigError::new("member_url", format!("is wrong: {problem}"))
            })?;
        } else if self.member_token.is_some() {
            return Err(ConfigError::new(
                "member_token",
                "is given without --member-url: it is not sent to addresses that metadata names",
            ));
        }
        let members = MembersConfig {
            url: self.member_url,
            token: self.member_token,
            timeout,
        };
        Ok((config, members))
    }
}
