//! `durably topology`: what operators and scripts ask a running server about its topologies.
//!
//! Answers go to standard output as the server gives them, one JSON value a line (names of groups as
//! they are). How a command ends says
//! what became of it: see the exit codes.

mod client;
mod watch;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Subcommand;
use reqwest::Method;
use reqwest::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use serde_json::{Value, json};

use self::client::{Client, Request};
use crate::config::Period;
use crate::exit::{EXIT_CODES, Failure};
use crate::serve::runtime;

/// Asks a running server about its topologies, or changes them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct TopologyArgs {
    /// Address of the server.
    #[arg(
        long,
        env = "DURABLY_SERVER",
        global = true,
        default_value = "http://127.0.0.1:7070",
        value_name = "URL"
    )]
    server: String,
    /// Bearer token that the server asks for. A flag is visible to others: prefer the environment.
    #[arg(
        long,
        env = "DURABLY_TOKEN",
        global = true,
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
    /// The topology.
    #[arg(long, global = true, default_value = "main", value_name = "NAME")]
    topology: String,
    #[command(subcommand)]
    command: TopologyCommand,
}

/// What a change expects of its group.
#[derive(Debug, clap::Args)]
struct Condition {
    /// Only if the group is at this version.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum TopologyCommand {
    /// Names of all groups, one a line.
    Groups,
    /// A group, as its coordinator has it.
    Get { group: String },
    /// The values of a group's state channels.
    States { group: String },
    /// Say what a group is to be.
    Put {
        group: String,
        /// File with the draft as JSON, "-" for standard input.
        #[arg(long, default_value = "-", value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        condition: Condition,
        /// Only if there is no such group.
        #[arg(long, conflicts_with = "if_version")]
        create: bool,
    },
    /// Say what of a group is to be otherwise.
    Patch {
        group: String,
        /// File with the patch as JSON, "-" for standard input.
        #[arg(long, default_value = "-", value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        condition: Condition,
    },
    /// Have a member take no new work, and removed at the end if it is given one.
    Drain {
        group: String,
        member: String,
        /// Remove it after this long.
        #[arg(long, value_name = "PERIOD")]
        within: Option<Period>,
        /// Remove it as soon as it says that it holds nothing any more.
        #[arg(long)]
        when_drained: bool,
        #[command(flatten)]
        condition: Condition,
    },
    /// Delete a group.
    Delete {
        group: String,
        #[command(flatten)]
        condition: Condition,
    },
    /// How far a group has come: what is published, and what each member has.
    Convergence { group: String },
    /// Wait until a version of a group has reached somebody.
    Wait {
        group: String,
        /// This version or a later one; whatever there is by default.
        #[arg(long, default_value_t = 0, value_name = "VERSION")]
        version: u64,
        /// Whom it is to have reached.
        #[arg(long, value_enum, default_value_t = Audience::All)]
        audience: Audience,
        /// How long to wait.
        #[arg(long, default_value = "30s", value_name = "PERIOD")]
        timeout: Period,
    },
    /// What is published of a group.
    Published { group: String },
    /// What becomes of a published group, an event a line, until this is ended.
    Watch { group: String },
    /// Begin a new incarnation: after the server's data was restored from an older copy.
    NewIncarnation,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Audience {
    Published,
    Quorum,
    All,
}

impl Audience {
    fn as_str(self) -> &'static str {
        match self {
            Audience::Published => "published",
            Audience::Quorum => "quorum",
            Audience::All => "all",
        }
    }
}

/// How many groups are asked for at a time.
const PAGE: usize = 1_000;

/// The longest that the server is asked to wait at a time.
const WAIT: Duration = Duration::from_secs(30);

pub(crate) fn run(args: TopologyArgs) -> Result<(), Failure> {
    let client = Client::new(&args.server, args.token.as_deref(), args.topology)?;
    runtime()?.block_on(carry_out(&client, args.command))
}

async fn carry_out(client: &Client, command: TopologyCommand) -> Result<(), Failure> {
    let get = |kind: &'static str, group: String, rest: &'static [&'static str]| {
        let path = [kind.to_owned(), group].into_iter();
        let path = path.chain(rest.iter().map(|&step| step.to_owned()));
        client.answer(Request::new(Method::GET, path.collect::<Vec<_>>()))
    };
    let answer = match command {
        TopologyCommand::Groups => return groups(client).await,
        TopologyCommand::Watch { group } => return watch::watch(client, group).await,
        TopologyCommand::Wait {
            group,
            version,
            audience,
            timeout,
        } => return wait(client, &group, version, audience, timeout.duration()).await,
        TopologyCommand::Get { group } => get("groups", group, &[]).await?,
        TopologyCommand::States { group } => get("groups", group, &["states"]).await?,
        TopologyCommand::Convergence { group } => get("groups", group, &["convergence"]).await?,
        TopologyCommand::Published { group } => get("published", group, &[]).await?,
        TopologyCommand::Put {
            group,
            file,
            condition,
            create,
        } => {
            let condition = match create {
                true => Some((IF_NONE_MATCH, "*".to_owned())),
                false => condition.header(),
            };
            let body = read(&file)?;
            change(client, Method::PUT, group, condition, Some(body)).await?
        }
        TopologyCommand::Patch {
            group,
            file,
            condition,
        } => {
            let body = read(&file)?;
            change(client, Method::PATCH, group, condition.header(), Some(body)).await?
        }
        TopologyCommand::Drain {
            group,
            member,
            within,
            when_drained,
            condition,
        } => {
            let within = within
                .map(|within| u64::try_from(within.duration().as_millis()).unwrap_or(u64::MAX));
            let drain = json!({ "id": member, "withinMs": within, "whenDrained": when_drained });
            let body = json!({ "drain": [drain] }).to_string().into_bytes();
            change(client, Method::PATCH, group, condition.header(), Some(body)).await?
        }
        TopologyCommand::Delete { group, condition } => {
            change(client, Method::DELETE, group, condition.header(), None).await?
        }
        TopologyCommand::NewIncarnation => {
            let path = vec!["new-incarnation".to_owned()];
            client.answer(Request::new(Method::POST, path)).await?
        }
    };
    print(&answer)
}

impl Condition {
    fn header(&self) -> Option<(HeaderName, String)> {
        let version = self.if_version?;
        Some((IF_MATCH, format!("\"{version}\"")))
    }
}

async fn change(
    client: &Client,
    method: Method,
    group: String,
    condition: Option<(HeaderName, String)>,
    body: Option<Vec<u8>>,
) -> Result<String, Failure> {
    let mut request = Request::new(method, vec!["groups".to_owned(), group]);
    request.headers.extend(condition);
    request.body = body;
    client.answer(request).await
}

async fn groups(client: &Client) -> Result<(), Failure> {
    let mut after = String::new();
    loop {
        let mut request = Request::new(Method::GET, vec!["groups".to_owned()]);
        request.query = vec![("after", after), ("limit", PAGE.to_string())];
        let answer = client.json(request).await?;
        let names = answer["groups"].as_array().into_iter().flatten();
        let names: Vec<&str> = names.filter_map(Value::as_str).collect();
        let Some(last) = names.last() else {
            return Ok(());
        };
        after = (*last).to_owned();
        for name in names {
            print(name)?;
        }
    }
}

/// Asks again until the time is up: the server waits for a while only.
async fn wait(
    client: &Client,
    group: &str,
    version: u64,
    audience: Audience,
    timeout: Duration,
) -> Result<(), Failure> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let path = ["groups", group, "convergence"].map(str::to_owned);
        let mut request = Request::new(Method::GET, path.to_vec());
        request.query = vec![
            ("version", version.to_string()),
            ("audience", audience.as_str().to_owned()),
            ("waitMs", left.min(WAIT).as_millis().to_string()),
        ];
        let answer = client.json(request).await?;
        let reached = answer["reached"] == true;
        if reached || left.is_zero() {
            print(&answer.to_string())?;
            return match reached {
                true => Ok(()),
                false => Err(Failure::NotReached { timeout }),
            };
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().lock().read_to_end(&mut text).map(drop),
        _ => std::fs::read(file).map(|read| text = read),
    };
    read.map_err(|error| Failure::Input {
        problem: format!("{}: {error}", file.display()),
    })?;
    Ok(text)
}

fn print(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(Failure::io("writing to standard output"))
}
