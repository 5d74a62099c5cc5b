//! The settings of topologies, named and meant as those of `durably serve`.

use std::time::Duration;

use durably::ConfigError;
use durably::topology::{PublisherConfig, ReaderOptions, RemovalGuard, StateChannelConfig};
use durably_http::topology::{StateChannel, check_template};

use super::way::check_url;
use crate::settings::Environment;

/// How long a read of what is published may take: a store may be on the other side of the earth.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a coordinator.
pub(super) struct TopologySettings {
    pub(super) channels: Vec<(String, StateChannelConfig)>,
    pub(super) publisher: PublisherConfig,
    pub(super) removal_guard: Option<RemovalGuard>,
    pub(super) max_snapshot_bytes: usize,
    pub(super) drain_check_period: Duration,
}

impl Environment {
    pub(super) fn topology(&self) -> Result<TopologySettings, ConfigError> {
        let timeout = self.delivery_timeout()?;
        let channels = self.state_channels()?.into_iter().map(|channel| {
            let mut config = StateChannelConfig::default();
            config.members = channel.role;
            config.calls.attempt_timeout = timeout;
            (channel.name, config)
        });
        let mut publisher = PublisherConfig::default();
        publisher.landing_window = self.millis("LANDING_WINDOW_MS", publisher.landing_window)?;
        let removal_guard = match self.text("REMOVAL_GUARD") {
            None => None,
            Some(text) => {
                let share: f64 = text.parse().map_err(|_| {
                    ConfigError::new("REMOVAL_GUARD", "must be a share from 0 to 1")
                })?;
                Some(RemovalGuard::share(share)?)
            }
        };
        Ok(TopologySettings {
            channels: channels.collect(),
            publisher,
            removal_guard,
            max_snapshot_bytes: self.count("MAX_SNAPSHOT_BYTES", 8 << 20)? as usize,
            drain_check_period: self.millis("DRAIN_CHECK_PERIOD_MS", Duration::from_secs(30))?,
        })
    }

    pub(super) fn state_channels(&self) -> Result<Vec<StateChannel>, ConfigError> {
        let mut channels: Vec<StateChannel> = Vec::new();
        let Some(text) = self.text("STATE_CHANNELS") else {
            return Ok(channels);
        };
        for channel in text.split(',') {
            let channel: StateChannel = channel.trim().parse().map_err(|problem| {
                ConfigError::new("STATE_CHANNELS", format!("is wrong: {problem}"))
            })?;
            if channels.iter().any(|known| known.name == channel.name) {
                let problem = format!("must not name {:?} twice", channel.name);
                return Err(ConfigError::new("STATE_CHANNELS", problem));
            }
            channels.push(channel);
        }
        Ok(channels)
    }

    pub(super) fn delivery_timeout(&self) -> Result<Duration, ConfigError> {
        self.millis("DELIVERY_TIMEOUT_MS", Duration::from_secs(30))
    }

    /// The address of a member, as a template, and the token that goes along.
    pub(super) fn member_url(&self) -> Result<Option<(String, Option<String>)>, ConfigError> {
        let token = self.text("MEMBER_TOKEN");
        let Some(template) = self.text("MEMBER_URL") else {
            return match token {
                None => Ok(None),
                Some(_) => Err(ConfigError::new(
                    "MEMBER_TOKEN",
                    "is given without MEMBER_URL: it is not sent to addresses that metadata names",
                )),
            };
        };
        check_template(&template, check_url)
            .map_err(|problem| ConfigError::new("MEMBER_URL", format!("is wrong: {problem}")))?;
        Ok(Some((template, token)))
    }

    /// How an isolate reads what is published: it looks at the store each time, unless it may keep copies.
    pub(super) fn reader(&self) -> Result<ReaderOptions, ConfigError> {
        let mut options = ReaderOptions::default();
        options.ttl = self.millis("READER_TTL_MS", Duration::from_millis(1))?;
        options.negative_ttl = options.negative_ttl.min(options.ttl);
        options.read_timeout = READ_TIMEOUT;
        options.max_groups = 1_000;
        Ok(options)
    }
}
