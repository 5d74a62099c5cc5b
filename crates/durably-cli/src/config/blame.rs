//! Blames wrong values on where they came from: clap names the flag of a value also if the value is
//! that of an environment variable.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, CommandFactory, Parser};

use crate::args::Args;

/// Reads the command line and the environment, or ends the program as clap does.
pub(crate) fn parse_args() -> Args {
    let given: Vec<OsString> = std::env::args_os().collect();
    Args::try_parse_from(&given).unwrap_or_else(|mut error| {
        let variable = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(named)) => variable(&Args::command(), named, &given),
            _ => None,
        };
        if let Some((shown, variable)) = variable {
            let shown = format!("{shown} (environment variable {variable})");
            error.insert(ContextKind::InvalidArg, ContextValue::String(shown));
        }
        error.exit()
    })
}

/// The environment variable that the value of the flag `named` ("--flag <VALUE>") came from, unless
/// it was given on the command line.
fn variable(command: &Command, named: &str, given: &[OsString]) -> Option<(String, String)> {
    let flag = named.split([' ', '=']).next()?;
    let is_given = given.iter().any(|argument| {
        let argument = argument.to_string_lossy();
        argument.split('=').next() == Some(flag)
    });
    if is_given {
        return None;
    }
    let long = flag.strip_prefix("--")?;
    let argument = command
        .get_subcommands()
        .flat_map(Command::get_arguments)
        .find(|argument| argument.get_long() == Some(long))?;
    let variable = argument.get_env()?;
    std::env::var_os(variable)?;
    Some((named.to_owned(), variable.to_string_lossy().into_owned()))
}
