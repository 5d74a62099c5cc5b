//! The binary `durably-model`: explores small worlds exhaustively and says how large they were.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use durably_model::{check, worlds};

/// Checks the deciding code of durably's semaphore in small worlds, exhaustively. Exits with 1 if a
/// property does not hold, and shows the steps that break it.
#[derive(Parser)]
#[command(name = "durably-model", version)]
struct Arguments {
    /// Only the world of this name; may be repeated.
    #[arg(long, value_name = "NAME")]
    world: Vec<String>,
    /// A short look: no time passes and nothing is lost.
    #[arg(long)]
    brief: bool,
    /// Lists the worlds and checks nothing.
    #[arg(long)]
    list: bool,
}

fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut out = io::stdout().lock();
    let all = worlds();
    if let Some(unknown) = arguments
        .world
        .iter()
        .find(|name| !all.iter().any(|world| world.name == **name))
    {
        writeln!(
            io::stderr(),
            "no world is named {unknown}; --list names them"
        )?;
        return Ok(ExitCode::from(64));
    }
    let is_chosen = |name: &str| {
        arguments.world.is_empty() || arguments.world.iter().any(|chosen| chosen == name)
    };
    let (mut states, mut seconds, mut failed) = (0, 0.0, 0);
    for world in all.into_iter().filter(|world| is_chosen(world.name)) {
        let (name, about) = (world.name, world.about);
        if arguments.list {
            writeln!(out, "{name:<14} {about}")?;
            continue;
        }
        let verdict = check(match arguments.brief {
            true => world.briefly(),
            false => world,
        });
        let took = verdict.took.as_secs_f64();
        (states, seconds) = (states + verdict.unique, seconds + took);
        writeln!(
            out,
            "{name:<14} {:>9} states, {:>9} unique, depth {:>3}, {took:>6.2} s  ({})",
            verdict.states,
            verdict.unique,
            verdict.depth,
            verdict.coverage.names().join(", ")
        )?;
        if let Some(broken) = verdict.broken {
            failed += 1;
            writeln!(out, "BROKEN {name}: {}", broken.property)?;
            for (number, step) in broken.steps.iter().enumerate() {
                writeln!(out, "{:>4}  {step}", number + 1)?;
            }
        }
        out.flush()?;
    }
    if !arguments.list {
        writeln!(
            out,
            "{states} unique states, {seconds:.1} s, {failed} broken"
        )?;
    }
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
