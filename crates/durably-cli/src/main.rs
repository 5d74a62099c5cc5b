//! The binary `durably`: a server for the jobs of many accounts, and a demonstration of it.

mod args;
mod bench;
mod config;
mod demo;
mod exit;
mod http;
mod logs;
mod members;
mod runner;
mod serve;
mod topology;
mod workerd;

use std::io::Write;
use std::process::ExitCode;

use crate::args::Command;
use crate::exit::Failure;

fn main() -> ExitCode {
    let outcome = match config::parse_args().command {
        Command::Serve(args) => serve::run(args),
        Command::Topology(args) => topology::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Bench(args) => bench::run(args).map_err(Failure::Bench),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Standard error may be gone; the exit code says it all the same.
            let _ = writeln!(std::io::stderr(), "durably: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
