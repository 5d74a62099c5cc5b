//! The binary `durably-sim`: replays traces, and runs scenarios in which things go wrong on purpose.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use durably_sim::replay::{Outcome, replay_file};
use durably_sim::simulation::campaign::{Campaign, Finding, Summary};
use durably_sim::simulation::drive::{Order, drive};
use durably_sim::simulation::evictions::exhaust;
use durably_sim::simulation::scenarios::{self, Plan};
use durably_sim::simulation::{COMMON, Keep, panics};

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
    /// Runs scenarios in which things go wrong on purpose. Exits with 10 if an invariant was broken,
    /// 11 if something was not done in time, 12 if something panicked, 13 if a seed did not do the
    /// same again.
    Run(RunArguments),
    /// Tries every single eviction of a short run of each scenario, and pairs of evictions. Exits as
    /// `run` does.
    Evict(EvictArguments),
    /// Lists the scenarios, or the knobs of one.
    Scenarios {
        /// Which one.
        name: Option<String>,
    },
}

#[derive(Args)]
struct RunArguments {
    /// Which seeds: one, or the first and the one after the last.
    #[arg(long, value_name = "A..B", value_parser = seeds)]
    seeds: Range<u64>,
    /// Only this scenario; otherwise each seed runs one of them by its number.
    #[arg(long, value_name = "NAME", value_parser = plan)]
    scenario: Option<&'static Plan>,
    /// Stop after so many minutes, whatever is left.
    #[arg(long, value_name = "M", value_parser = minutes)]
    minutes: Option<Duration>,
    /// Threads; as many as there are processors if not given.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Sets a knob, which then is not left to the seed; see `scenarios NAME`.
    #[arg(long, value_name = "KNOB=VALUE", value_parser = knob)]
    set: Vec<(String, u64)>,
    /// Evicts an object for certain at these polls of objects, from 1.
    #[arg(long, value_name = "PLACES", value_delimiter = ',')]
    evict_at: Vec<u64>,
    /// Looks for a smaller run that fails the same way, for so many seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60")]
    shrink: Option<u64>,
    /// Prints all that happens; for a single seed.
    #[arg(long)]
    log: bool,
}

#[derive(Args)]
struct EvictArguments {
    /// Which seeds.
    #[arg(long, value_name = "A..B", value_parser = seeds, default_value = "1")]
    seeds: Range<u64>,
    /// Only this scenario.
    #[arg(long, value_name = "NAME", value_parser = plan)]
    scenario: Option<&'static Plan>,
    /// How many pairs to try for each seed.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pairs: u64,
    /// Threads; as many as there are processors if not given.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| {
        let number = text.parse::<u64>();
        number.map_err(|_| format!("{text:?} is no seed: seeds are whole numbers"))
    };
    let range = match text.split_once("..") {
        Some((first, end)) => number(first)?..number(end)?,
        None => number(text)?..number(text)?.saturating_add(1),
    };
    match range.is_empty() {
        true => Err(format!(
            "{text} has no seeds: the second must be larger than the first"
        )),
        false => Ok(range),
    }
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())
}

fn plan(name: &str) -> Result<&'static Plan, String> {
    let names: Vec<&str> = scenarios::all().iter().map(|plan| plan.name).collect();
    scenarios::named(name)
        .ok_or_else(|| format!("there is no such scenario; there are {}", names.join(", ")))
}

fn knob(text: &str) -> Result<(String, u64), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| "must be KNOB=VALUE".to_owned())?;
    let value = value
        .parse::<u64>()
        .map_err(|_| format!("{value:?} is not a whole number"))?;
    Ok((name.to_owned(), value))
}

/// Refuses what none of the scenarios has a knob for, and values that one of them does not take.
fn check_knobs(plans: &[&Plan], set: &BTreeMap<String, u64>) -> Result<(), String> {
    for (name, value) in set {
        let own = plans.iter().flat_map(|plan| plan.knobs);
        let mut named = own
            .chain(COMMON)
            .filter(|knob| knob.name == name)
            .peekable();
        if named.peek().is_none() {
            return Err(format!(
                "there is no knob {name:?}; see `durably-sim scenarios NAME`"
            ));
        }
        if !named.all(|knob| knob.allows(*value)) {
            return Err(format!(
                "{name} cannot be {value}; see `durably-sim scenarios NAME`"
            ));
        }
    }
    Ok(())
}

/// Says what is wrong with the command line, as `clap` does.
fn refuse(problem: &str) -> io::Result<ExitCode> {
    writeln!(io::stderr(), "error: {problem}")?;
    Ok(ExitCode::from(2))
}

fn threads(jobs: Option<NonZeroUsize>) -> NonZeroUsize {
    jobs.or_else(|| thread::available_parallelism().ok())
        .unwrap_or(NonZeroUsize::MIN)
}

fn main() -> io::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Replay { files } => replay(&files),
        Command::Run(arguments) => {
            panics::collect();
            run(arguments)
        }
        Command::Evict(arguments) => {
            panics::collect();
            evict(arguments)
        }
        Command::Scenarios { name } => list(name.as_deref()),
    }
}

fn run(arguments: RunArguments) -> io::Result<ExitCode> {
    let set: BTreeMap<String, u64> = arguments.set.into_iter().collect();
    let mut out = io::stdout().lock();
    let plans = match arguments.scenario {
        Some(plan) => vec![plan],
        None => scenarios::all().to_vec(),
    };
    if let Err(problem) = check_knobs(&plans, &set) {
        return refuse(&problem);
    }
    let seed = arguments.seeds.start;
    let is_one = arguments.seeds.end - seed == 1;
    let shrink = arguments.shrink.map(Duration::from_secs);
    if is_one {
        let plan = plans[(seed % plans.len() as u64) as usize];
        let order = Order {
            seed,
            set,
            evictions: arguments.evict_at,
            keep: if arguments.log {
                Keep::Lines
            } else {
                Keep::Digest
            },
        };
        let outcome = drive(plan, &order);
        for line in &outcome.lines {
            writeln!(out, "{line}")?;
        }
        let knobs: Vec<String> = outcome
            .knobs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        writeln!(out, "{} with {}", plan.name, knobs.join(" "))?;
        writeln!(
            out,
            "{} awaits, {} s on the virtual clock, digest {:016x}",
            outcome.polls,
            outcome.lasted.as_secs(),
            outcome.digest
        )?;
        return finding_of(&mut out, plan, order, outcome.failure, shrink);
    }
    if arguments.log || !arguments.evict_at.is_empty() {
        return refuse("--log and --evict-at are for a single seed");
    }
    let campaign = Campaign {
        plans: plans.clone(),
        seeds: arguments.seeds,
        set,
        budget: arguments.minutes,
        jobs: threads(arguments.jobs),
    };
    let summary: Summary = campaign.run(&|done, polls, took| {
        let rate = polls as f64 / took.as_secs_f64().max(0.001);
        let _ = writeln!(
            io::stderr(),
            "{done} seeds, {rate:.0} awaits a second, {} s",
            took.as_secs()
        );
    });
    write!(out, "{}", summary.table(&plans))?;
    match summary.finding {
        None => Ok(ExitCode::SUCCESS),
        Some(finding) => {
            write!(out, "{}", finding.report(shrink))?;
            Ok(ExitCode::from(finding.failure.kind.exit_code()))
        }
    }
}

fn finding_of(
    out: &mut impl Write,
    plan: &'static Plan,
    order: Order,
    failure: Option<durably_sim::simulation::Failure>,
    shrink: Option<Duration>,
) -> io::Result<ExitCode> {
    let Some(failure) = failure else {
        writeln!(out, "clean")?;
        return Ok(ExitCode::SUCCESS);
    };
    let finding = Finding {
        plan,
        order,
        failure,
    };
    write!(out, "{}", finding.report(shrink))?;
    Ok(ExitCode::from(finding.failure.kind.exit_code()))
}

fn evict(arguments: EvictArguments) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let plans = match arguments.scenario {
        Some(plan) => vec![plan],
        None => scenarios::all().to_vec(),
    };
    for plan in plans {
        for seed in arguments.seeds.clone() {
            let evictions = exhaust(plan, seed, arguments.pairs, threads(arguments.jobs));
            writeln!(
                out,
                "{} seed {seed}: {} single evictions, {} pairs",
                plan.name, evictions.places, evictions.pairs
            )?;
            if let Some(finding) = evictions.finding {
                write!(out, "{}", finding.report(None))?;
                return Ok(ExitCode::from(finding.failure.kind.exit_code()));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(name: Option<&str>) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Some(name) = name else {
        for plan in scenarios::all() {
            writeln!(out, "{:<12} {}", plan.name, plan.about)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    match plan(name) {
        Ok(plan) => {
            for knob in COMMON.iter().chain(plan.knobs) {
                let values = knob.values();
                writeln!(out, "{:<24} {:<12} {}", knob.name, values, knob.about)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(problem) => refuse(&problem),
    }
}

fn replay(files: &[PathBuf]) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let (mut ok, mut different, mut unreadable) = (0, 0, 0);
    for file in files {
        let name = file.display();
        match replay_file(file) {
            Outcome::Ok => {
                ok += 1;
                writeln!(out, "ok {name}")?;
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
        "{} traces: {ok} ok, {different} different, {unreadable} unreadable",
        files.len()
    )?;
    Ok(if different + unreadable == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
