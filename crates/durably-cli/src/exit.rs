//! How the program ends: every failure, the exit code it becomes and the remedy it names.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use durably::ConfigError;
use durably::error::BoxError;

/// Why the program ends without success. [`EXIT_CODES`] documents the codes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("configuration file {}: {problem}", path.display())]
    ConfigFile { path: PathBuf, problem: String },
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error(
        "cannot listen on {address}: {source}; name another address with --listen, or end the \
         program that listens there"
    )]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error(
        "the data folder {} is in use: end the process that has it open, or name another folder \
         with --data-dir", path.display()
    )]
    Locked { path: PathBuf },
    #[error(
        "the data folder {} is damaged: restore it from a copy, or name another with --data-dir \
         ({detail})", path.display()
    )]
    Damaged { path: PathBuf, detail: String },
    #[error("no space is left for the data folder {}: free some ({detail})", path.display())]
    Full { path: PathBuf, detail: String },
    #[error(
        "cannot use the data folder {}: check that it is a folder that this user may write to, or \
         name another with --data-dir ({detail})", path.display()
    )]
    Folder { path: PathBuf, detail: String },
    #[error("{0}")]
    Demo(String),
    #[error("workerd: {0}")]
    Workerd(String),
    #[error("a measurement failed: {0}")]
    Bench(BoxError),
    #[error("{problem}")]
    Input { problem: String },
    #[error("{problem}")]
    Unreachable { problem: String },
    #[error("{message}")]
    Refused { message: String },
    #[error("{message}")]
    Conflict { message: String },
    #[error("{message}")]
    NotThere { message: String },
    #[error("not reached within {timeout:?}")]
    NotReached { timeout: Duration },
    #[error("{what}: {source}")]
    Io {
        what: &'static str,
        source: io::Error,
    },
}

/// Shown at the end of the help texts.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  ended as asked
  1  failed while running; for the demo: a job did not run, or a limit was passed
  2  wrong flag, environment variable, configuration or input file
  3  the address to listen on is in use or not to be had
  4  another process owns the data folder
  5  the data folder is damaged
  6  no space is left on the disk
  7  the data folder cannot be used otherwise, for instance for lack of permission
  8  the server cannot be reached, or ended a stream
  9  the server refused
  10 the server refused: the group is not as the change expects
  11 the server knows no such group or member, or it is not published
  12 the version was not reached in time";

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Demo(_) | Failure::Workerd(_) | Failure::Bench(_) | Failure::Io { .. } => 1,
            Failure::ConfigFile { .. } | Failure::Config(_) | Failure::Input { .. } => 2,
            Failure::Listen { .. } => 3,
            Failure::Locked { .. } => 4,
            Failure::Damaged { .. } => 5,
            Failure::Full { .. } => 6,
            Failure::Folder { .. } => 7,
            Failure::Unreachable { .. } => 8,
            Failure::Refused { .. } => 9,
            Failure::Conflict { .. } => 10,
            Failure::NotThere { .. } => 11,
            Failure::NotReached { .. } => 12,
        }
    }

    /// Completes `map_err`: an I/O failure of `what`.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::Io { what, source }
    }
}
