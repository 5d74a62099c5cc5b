//! Structured logs on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::{LogFormat, LogLevel};

/// Starts logging; a second call changes nothing.
pub(crate) fn init(level: &LogLevel, format: LogFormat) {
    let filter: Targets = level.targets();
    let layer = fmt::layer().with_writer(io::stderr);
    let layer = match format {
        LogFormat::Text => layer.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    // Fails if a subscriber is installed already, which then stays.
    let _ = tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init();
}
