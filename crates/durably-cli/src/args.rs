//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::config::{LogFormat, LogLevel, Period, Settings};
use crate::exit::EXIT_CODES;
use crate::topology::TopologyArgs;
use crate::workerd::WorkerdArgs;

/// Runs jobs of many accounts, each within its limit of running jobs, and loses none.
#[derive(Debug, Parser)]
#[command(name = "durably", version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve jobs over HTTP, from one data folder.
    Serve(Box<ServeArgs>),
    /// Show a real day of flights, run as jobs within limits.
    Demo(DemoArgs),
    /// Ask a running server about its topologies, or change them.
    Topology(TopologyArgs),
    /// Measure what jobs, rounds and objects cost on this machine.
    Bench(BenchArgs),
}

/// Flags override environment variables, which override the configuration file.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct ServeArgs {
    /// TOML file with any of the settings below, named as the flags with `_` for `-`.
    #[arg(long, env = "DURABLY_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DemoArgs {
    /// Keep the server's data here; by default in a new folder that is removed at the end.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data_dir: Option<PathBuf>,
    /// How many times faster than a whole day in 45 s.
    #[arg(long, default_value_t = 1.0, value_parser = speed, value_name = "FACTOR")]
    pub(crate) speed: f64,
    /// Run the ready-made worker in a local workerd instead of the server.
    #[arg(long)]
    pub(crate) cloudflare: bool,
    #[command(flatten)]
    pub(crate) workerd: WorkerdArgs,
    /// Run the server as a process of its own and kill it (SIGKILL) this often, for instance "2s".
    #[arg(long, value_name = "PERIOD")]
    pub(crate) kill_every: Option<Period>,
    /// Only the first N flights of the day.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) jobs: Option<u32>,
    /// Only the flights that leave before this minute of the day.
    #[arg(long, value_name = "MINUTE")]
    pub(crate) until: Option<u32>,
    /// The least severe events that are logged.
    #[arg(long, default_value = "error", value_name = "LEVEL")]
    pub(crate) log_level: LogLevel,
    /// How events are logged.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if (0.01..=100.0).contains(&speed) => Ok(speed),
        _ => Err("must be a number from 0.01 to 100".to_owned()),
    }
}
