//! The binary `durably-sim`: replays traces.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use durably_sim::replay::{Outcome, replay_file};

/// Drives the capabilities of durably on a virtual clock.
#[derive(Parser)]
#[command(name = "durably-sim", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replays traces and compares what comes out. Exits with 1 if anything differs or a file cannot
    /// be read; a trace of something that is not built yet is counted apart.
    Replay {
        /// Traces, one JSON object a line.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

fn main() -> io::Result<ExitCode> {
    let Command::Replay { files } = Arguments::parse().command;
    let mut out = io::stdout().lock();
    let (mut ok, mut different, mut unreadable, mut needs) = (0, 0, 0, 0);
    for file in &files {
        let name = file.display();
        match replay_file(file) {
            Outcome::Ok => {
                ok += 1;
                writeln!(out, "ok {name}")?;
            }
            Outcome::Needs(what) => {
                needs += 1;
                writeln!(out, "needs {what} {name}")?;
            }
            Outcome::Different(difference) => {
                different += 1;
                writeln!(out, "DIFF {name}")?;
                writeln!(out, "{difference}")?;
            }
            Outcome::Unreadable(problem) => {
                unreadable += 1;
                writeln!(out, "UNREADABLE {name}: {problem}")?;
            }
        }
    }
    writeln!(
        out,
        "{} traces: {ok} ok, {different} different, {unreadable} unreadable, \
         {needs} need topology",
        files.len()
    )?;
    Ok(if different + unreadable == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
