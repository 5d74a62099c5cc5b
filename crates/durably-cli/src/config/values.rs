//! Kinds of values that settings have, the same in flags, environment and file.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use tracing_subscriber::filter::Targets;

/// A duration as people write it: "250ms", "2s", "7d".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Period(Duration);

impl Period {
    pub(crate) fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text)
            .map_err(|error| format!("{error}; write for instance \"250ms\" or \"2s\""))?;
        let bounds = Duration::from_millis(1)..=durably::time::MAX_DURATION;
        if !bounds.contains(&duration) || duration.subsec_nanos() % 1_000_000 != 0 {
            return Err("must be whole milliseconds, from 1 ms to 24 days".to_owned());
        }
        Ok(Period(duration))
    }
}

impl TryFrom<String> for Period {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The least severe events that are logged, for all sources or by source.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct LogLevel(Targets);

impl LogLevel {
    pub(crate) fn targets(&self) -> Targets {
        self.0.clone()
    }
}

impl Default for LogLevel {
    fn default() -> Self {
        LogLevel(Targets::new().with_default(tracing::Level::INFO))
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A lone word that is no level would be taken for a source, and silence all others.
        let lone = text.split(',').map(str::trim).find(|part| {
            !part.contains('=')
                && part
                    .parse::<tracing_subscriber::filter::LevelFilter>()
                    .is_err()
        });
        if let Some(word) = lone {
            return Err(format!(
                "{word:?} is no level: write off, error, warn, info, debug or trace, or SOURCE=LEVEL"
            ));
        }
        text.parse()
            .map(LogLevel)
            .map_err(|error| format!("{error}; write for instance \"info\""))
    }
}

impl TryFrom<String> for LogLevel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// How events are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
