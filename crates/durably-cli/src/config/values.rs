//! Kinds of values that settings have, the same in flags, environment and file.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use tracing_subscriber::filter::Targets;

/// Reads a value that is a text in files as well, saying what it should be if it is none.
struct Texts<T> {
    expected: &'static str,
    read: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for Texts<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).map_err(E::custom)
    }
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen(SocketAddr);

const LISTEN_EXAMPLE: &str = "an IP address and a port, for instance \"127.0.0.1:7070\"";

impl Listen {
    pub(crate) fn address(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse().map(Listen);
        address.map_err(|_| format!("{text:?} is not {LISTEN_EXAMPLE}"))
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Texts {
            expected: LISTEN_EXAMPLE,
            read: Listen::from_str,
        })
    }
}

/// A duration as people write it: "250ms", "2s", "7d".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Texts {
            expected: "a number with its unit, for instance \"250ms\" or \"2s\"",
            read: Period::from_str,
        })
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

/// A state channel: its name, and whom it reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateChannel(pub(crate) durably_http::topology::StateChannel);

impl FromStr for StateChannel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(StateChannel)
    }
}

impl<'de> Deserialize<'de> for StateChannel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Texts {
            expected: "a channel, for instance \"limits\" or \"flags=read\"",
            read: StateChannel::from_str,
        })
    }
}
