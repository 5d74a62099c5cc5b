//! The settings of `durably serve`: flags over environment over file, over the defaults.
//!
//! One struct is both the flags (with their environment variables) and the file, so the three can
//! never differ in what they know.

mod blame;
mod topology;
mod values;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::CommandFactory;
use durably::ConfigError;
use durably::semaphore::LeaseOptions;
use durably::time::MAX_SAFE_INTEGER;
use durably_native::http::HttpHolders;
use durably_native::jobs::JobsConfig;
use durably_native::topology::TopologiesConfig;
use reqwest::Url;
use serde::Deserialize;

use crate::args::{Args, ServeArgs};
use crate::exit::Failure;
use crate::members::MembersConfig;
use crate::runner;
use topology::TopologySettings;

pub(crate) use blame::parse_args;
use values::StateChannel;
pub(crate) use values::{Listen, LogFormat, LogLevel, Period};

/// What may be set; what is not has its default.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// Address to listen on; port 0 takes a free one. [default: 127.0.0.1:7070]
    #[arg(long, env = "DURABLY_LISTEN", value_name = "ADDRESS")]
    pub(crate) listen: Option<Listen>,
    /// Folder of everything that is stored. [default: ./durably-data]
    #[arg(long, env = "DURABLY_DATA_DIR", value_name = "FOLDER")]
    pub(crate) data_dir: Option<PathBuf>,
    /// URL that jobs are posted to in order to run them. [default: none; jobs are refused then]
    #[arg(long, env = "DURABLY_JOB_ENDPOINT", value_name = "URL")]
    pub(crate) job_endpoint: Option<String>,
    /// Bearer token that requests must carry. A flag is visible to others: prefer the environment
    /// or the file. [default: none is asked for]
    #[arg(
        long,
        env = "DURABLY_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    pub(crate) token: Option<String>,
    /// Another `durably serve` that keeps the accounts' budgets, for instance
    /// "http://10.0.0.5:7070": jobs of this server run within those. [default: this server's own]
    #[arg(long, env = "DURABLY_HOLDERS", value_name = "URL")]
    pub(crate) holders: Option<String>,
    /// Bearer token that the server of the holders asks for. [default: none]
    #[arg(
        long,
        env = "DURABLY_HOLDERS_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    pub(crate) holders_token: Option<String>,

    /// Folder for recordings of what the accounts' holders receive and answer, which durably-sim
    /// replays. [default: nothing is recorded]
    #[arg(long, env = "DURABLY_RECORD", value_name = "FOLDER")]
    pub(crate) record: Option<PathBuf>,

    /// Running jobs of an account that was given no limit. [default: 10]
    #[arg(long, env = "DURABLY_DEFAULT_LIMIT", value_name = "N")]
    pub(crate) default_limit: Option<u64>,
    /// Running jobs of a group that was given no limit. [default: as its account]
    #[arg(long, env = "DURABLY_DEFAULT_GROUP_LIMIT", value_name = "N")]
    pub(crate) default_group_limit: Option<u64>,
    /// Shards that the jobs of a new account are spread over. [default: 4]
    #[arg(long, env = "DURABLY_SHARDS_PER_ACCOUNT", value_name = "N")]
    pub(crate) shards_per_account: Option<u32>,
    /// Jobs that one shard runs at once. [default: 256]
    #[arg(long, env = "DURABLY_JOB_CONCURRENCY", value_name = "N")]
    pub(crate) job_concurrency: Option<u64>,
    /// Attempts before a job counts as failed. [default: 3]
    #[arg(long, env = "DURABLY_JOB_ATTEMPTS", value_name = "N")]
    pub(crate) job_attempts: Option<u64>,
    /// How long one attempt may take. [default: 5m]
    #[arg(long, env = "DURABLY_JOB_TIMEOUT", value_name = "PERIOD")]
    pub(crate) job_timeout: Option<Period>,
    /// Jobs of one shard that may wait. [default: 1000000]
    #[arg(long, env = "DURABLY_MAX_QUEUE_LENGTH", value_name = "N")]
    pub(crate) max_queue_length: Option<u64>,
    /// How long an ended job is remembered. [default: 7d]
    #[arg(long, env = "DURABLY_RETENTION", value_name = "PERIOD")]
    pub(crate) retention: Option<Period>,

    /// How long a round waits for more requests. [default: 1s]
    #[arg(long, env = "DURABLY_ROUND_WAIT", value_name = "PERIOD")]
    pub(crate) round_wait: Option<Period>,
    /// Least time between the starts of two rounds. [default: 2s]
    #[arg(long, env = "DURABLY_ROUND_PERIOD", value_name = "PERIOD")]
    pub(crate) round_period: Option<Period>,
    /// Permits that are not claimed for this long return. [default: 10s]
    #[arg(long, env = "DURABLY_GRANT_TIMEOUT", value_name = "PERIOD")]
    pub(crate) grant_timeout: Option<Period>,
    /// Permits of a lease, for accounts that were not told how to give leases: those share the limit
    /// with grants, strictly. 0 gives no leases. [default: 0]
    #[arg(long, env = "DURABLY_LEASE_PERMITS", value_name = "N")]
    pub(crate) lease_permits: Option<u64>,
    /// How long such a lease is good without a sign of life of its shard. [default: 10m]
    #[arg(long, env = "DURABLY_LEASE_TTL", value_name = "PERIOD")]
    pub(crate) lease_ttl: Option<Period>,
    /// An object's alarm is never sooner than this from now, from 1s to 15s. [default: 15s]
    #[arg(long, env = "DURABLY_ALARM_MIN_DELAY", value_name = "PERIOD")]
    pub(crate) alarm_min_delay: Option<Period>,
    /// Threads that objects live on; commits block them, so there are more than cores. [default: 16]
    #[arg(long, env = "DURABLY_THREADS", value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Bytes that the file of one object may have. [default: as the disk allows]
    #[arg(long, env = "DURABLY_MAX_OBJECT_BYTES", value_name = "BYTES")]
    pub(crate) max_object_bytes: Option<u64>,

    /// Bytes of one request body, job's body or NDJSON line. [default: 131072]
    #[arg(long, env = "DURABLY_MAX_BODY_BYTES", value_name = "BYTES")]
    pub(crate) max_body_bytes: Option<usize>,
    /// Bytes of a request body that is an array of jobs. [default: 8388608]
    #[arg(long, env = "DURABLY_MAX_BATCH_BYTES", value_name = "BYTES")]
    pub(crate) max_batch_bytes: Option<usize>,
    /// Jobs in an array. [default: 5000]
    #[arg(long, env = "DURABLY_MAX_BATCH_JOBS", value_name = "N")]
    pub(crate) max_batch_jobs: Option<usize>,
    /// Requests in work at once; more are told to come back. [default: 4096]
    #[arg(long, env = "DURABLY_MAX_REQUESTS", value_name = "N")]
    pub(crate) max_requests: Option<usize>,
    /// How long open requests may take to end after SIGTERM or SIGINT, and work in the data folder
    /// after that. Jobs that still run then are run again by the next server. [default: 10s]
    #[arg(long, env = "DURABLY_DRAIN_TIMEOUT", value_name = "PERIOD")]
    pub(crate) drain_timeout: Option<Period>,

    /// Folder that snapshots of topologies are published into, one below it for each topology.
    /// [default: "published" in the data folder]
    #[arg(long, env = "DURABLY_PUBLISH_DIR", value_name = "FOLDER")]
    pub(crate) publish_dir: Option<PathBuf>,
    /// State channels of topologies, with whom they reach: "limits,flags=read". Active members with
    /// "write", draining ones too with "read". [default: none; a name alone is "write"]
    #[arg(
        long,
        env = "DURABLY_STATE_CHANNELS",
        value_delimiter = ',',
        value_name = "NAME[=ROLE]"
    )]
    pub(crate) state_channels: Option<Vec<StateChannel>>,
    /// Address of a member of a group, for instance "http://{member}.shards:8080": below it, /state
    /// takes values and /drained answers. {topology}, {group} and {member} stand for their names.
    /// [default: "url" in the member's metadata]
    #[arg(long, env = "DURABLY_MEMBER_URL", value_name = "URL")]
    pub(crate) member_url: Option<String>,
    /// Bearer token that members ask for; only with --member-url. [default: none]
    #[arg(
        long,
        env = "DURABLY_MEMBER_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    pub(crate) member_token: Option<String>,
    /// How long the delivery of a value to a member may take. [default: 30s]
    #[arg(long, env = "DURABLY_DELIVERY_TIMEOUT", value_name = "PERIOD")]
    pub(crate) delivery_timeout: Option<Period>,
    /// How often a draining member is asked whether it is drained. [default: 30s]
    #[arg(long, env = "DURABLY_DRAIN_CHECK_PERIOD", value_name = "PERIOD")]
    pub(crate) drain_check_period: Option<Period>,
    /// Largest share of a group's members that one change may remove, from 0 to 1, unless it names
    /// another. [default: any]
    #[arg(long, env = "DURABLY_REMOVAL_GUARD", value_name = "SHARE")]
    pub(crate) removal_guard: Option<f64>,
    /// Bytes of a published snapshot. [default: 8388608]
    #[arg(long, env = "DURABLY_MAX_SNAPSHOT_BYTES", value_name = "BYTES")]
    pub(crate) max_snapshot_bytes: Option<usize>,
    /// Bytes of a request body that changes a group. [default: 8388608]
    #[arg(long, env = "DURABLY_MAX_DRAFT_BYTES", value_name = "BYTES")]
    pub(crate) max_draft_bytes: Option<usize>,

    /// Least severe events that are logged, by name of the source if wanted: "warn" or
    /// "info,durably=debug". [default: info]
    #[arg(long, env = "DURABLY_LOG_LEVEL", value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// How events are logged. [default: text]
    #[arg(long, env = "DURABLY_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

impl From<Period> for Duration {
    fn from(period: Period) -> Duration {
        period.duration()
    }
}

/// Everything that the server needs to know.
#[derive(Clone, Debug)]
pub(crate) struct ServeConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) data_dir: PathBuf,
    /// None for a server that takes no jobs.
    pub(crate) job_endpoint: Option<Url>,
    pub(crate) http: HttpConfig,
    pub(crate) drain_timeout: Duration,
    pub(crate) jobs: JobsConfig,
    pub(crate) topologies: TopologiesConfig,
    pub(crate) members: MembersConfig,
}

/// What the HTTP side needs to know.
#[derive(Clone, Debug)]
pub(crate) struct HttpConfig {
    pub(crate) token: Option<String>,
    pub(crate) max_body_bytes: usize,
    pub(crate) max_batch_bytes: usize,
    pub(crate) max_batch_jobs: usize,
    /// Whether jobs are taken.
    pub(crate) takes_jobs: bool,
    pub(crate) max_requests: usize,
    pub(crate) max_draft_bytes: usize,
}

impl Settings {
    /// Flags and environment over the file that they name, if any.
    pub(crate) fn gather(args: ServeArgs) -> Result<Settings, Failure> {
        Ok(match &args.config {
            Some(path) => args.settings.or(Settings::from_file(path)?),
            None => args.settings,
        })
    }

    fn from_file(path: &Path) -> Result<Settings, Failure> {
        let refused = |problem: String| Failure::ConfigFile {
            path: path.to_owned(),
            problem,
        };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        toml::from_str(&text).map_err(|error| refused(error.to_string()))
    }

    fn or(self, other: Settings) -> Settings {
        macro_rules! each_or {
            ($($field:ident)*) => { Settings { $($field: self.$field.or(other.$field)),* } };
        }
        each_or! {
            listen data_dir job_endpoint token holders holders_token record
            default_limit default_group_limit shards_per_account job_concurrency job_attempts
            job_timeout max_queue_length retention
            round_wait round_period grant_timeout lease_permits lease_ttl alarm_min_delay threads max_object_bytes
            max_body_bytes max_batch_bytes max_batch_jobs max_requests drain_timeout
            publish_dir state_channels member_url member_token delivery_timeout drain_check_period
            removal_guard max_snapshot_bytes max_draft_bytes
            log_level log_format
        }
    }

    /// Checks what is set and fills in the defaults.
    pub(crate) fn resolve(self) -> Result<ServeConfig, ConfigError> {
        let listen = self.listen.map_or(
            SocketAddr::from((Ipv4Addr::LOCALHOST, 7070)),
            Listen::address,
        );
        let data_dir = self.data_dir.unwrap_or_else(|| "durably-data".into());
        let max_body_bytes = at_least_1("max_body_bytes", self.max_body_bytes, 128 << 10)?;
        let http = HttpConfig {
            token: token("token", self.token)?,
            max_body_bytes,
            max_batch_bytes: at_least_1("max_batch_bytes", self.max_batch_bytes, 8 << 20)?,
            takes_jobs: self.job_endpoint.is_some(),
            max_batch_jobs: at_least_1("max_batch_jobs", self.max_batch_jobs, 5_000)?,
            max_requests: at_least_1("max_requests", self.max_requests, 4_096)?,
            max_draft_bytes: at_least_1("max_draft_bytes", self.max_draft_bytes, 8 << 20)?,
        };
        let topology = TopologySettings {
            publish_dir: self.publish_dir,
            state_channels: self.state_channels.unwrap_or_default(),
            member_url: self.member_url,
            member_token: token("member_token", self.member_token)?,
            delivery_timeout: self.delivery_timeout,
            drain_check_period: self.drain_check_period,
            removal_guard: self.removal_guard,
            max_snapshot_bytes: self.max_snapshot_bytes,
            alarm_min_delay: self.alarm_min_delay,
        };
        let (topologies, members) = topology.resolve(&data_dir)?;
        let mut jobs = JobsConfig::new(&data_dir);
        jobs.max_body_bytes = max_body_bytes as u64;
        let holders_token = token("holders_token", self.holders_token)?;
        jobs.record = self.record;
        if let Some(holders) = holders(self.holders, holders_token, listen)? {
            jobs.holders = Some(Arc::new(holders));
        }
        /// Takes what is set; the defaults are the library's.
        fn set<T>(setting: &mut T, value: Option<impl Into<T>>) {
            if let Some(value) = value {
                *setting = value.into();
            }
        }
        set(&mut jobs.system.threads, self.threads);
        set(&mut jobs.system.max_object_bytes, self.max_object_bytes);
        set(&mut jobs.system.shutdown_timeout, self.drain_timeout);
        set(&mut jobs.default_limit, self.default_limit);
        set(&mut jobs.default_group_limit, self.default_group_limit);
        set(&mut jobs.shards_per_account, self.shards_per_account);
        set(&mut jobs.job_concurrency, self.job_concurrency);
        set(&mut jobs.attempts.max_attempts, self.job_attempts);
        set(&mut jobs.attempts.attempt_timeout, self.job_timeout);
        set(&mut jobs.retention, self.retention);
        set(&mut jobs.max_queue_length, self.max_queue_length);
        set(&mut jobs.round_wait, self.round_wait);
        set(&mut jobs.round_period, self.round_period);
        set(&mut jobs.grant_timeout, self.grant_timeout);
        set(&mut jobs.alarm_min_delay, self.alarm_min_delay);
        jobs.default_leases = leases(self.lease_permits, self.lease_ttl)?;
        Ok(ServeConfig {
            listen,
            data_dir,
            job_endpoint: self.job_endpoint.map(job_endpoint).transpose()?,
            http,
            drain_timeout: self
                .drain_timeout
                .map_or(Duration::from_secs(10), |period| period.duration()),
            jobs,
            topologies,
            members,
        })
    }
}

/// Environment variables that look like ours and are none of them. They are warned of and not
/// refused, since orchestrators set such variables for services by themselves.
pub(crate) fn unknown_variables() -> Vec<String> {
    let command = Args::command();
    let known: Vec<_> = command
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .filter_map(clap::Arg::get_env)
        .collect();
    std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.as_encoded_bytes().starts_with(b"DURABLY_"))
        .filter(|name| !known.contains(&name.as_os_str()))
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

fn at_least_1(
    field: &'static str,
    value: Option<usize>,
    default: usize,
) -> Result<usize, ConfigError> {
    match value {
        Some(0) => Err(ConfigError::new(field, "must be at least 1")),
        value => Ok(value.unwrap_or(default)),
    }
}

/// How accounts give leases that were not told.
fn leases(permits: Option<u64>, ttl: Option<Period>) -> Result<Option<LeaseOptions>, ConfigError> {
    match permits {
        None | Some(0) => match ttl {
            Some(_) => Err(ConfigError::new(
                "lease_ttl",
                "is given without leases: say how many permits one has with --lease-permits",
            )),
            None => Ok(None),
        },
        Some(MAX_SAFE_INTEGER..) => Err(ConfigError::new(
            "lease_permits",
            format!("must be a whole number below {MAX_SAFE_INTEGER}"),
        )),
        Some(permits_per_lease) => Ok(Some(LeaseOptions {
            permits_per_lease,
            ttl: ttl.map_or(Duration::from_secs(10 * 60), |period| period.duration()),
            ..LeaseOptions::default()
        })),
    }
}

/// A token that a header can carry; an empty one would let everybody in by accident.
fn token(field: &'static str, token: Option<String>) -> Result<Option<String>, ConfigError> {
    match &token {
        Some(text) if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(
            ConfigError::new(field, "must be one or more visible ASCII characters"),
        ),
        _ => Ok(token),
    }
}

/// Another server's holders; not this server's own, which would ask itself for ever.
fn holders(
    url: Option<String>,
    token: Option<String>,
    listen: SocketAddr,
) -> Result<Option<HttpHolders>, ConfigError> {
    let Some(text) = url else {
        return match token {
            Some(_) => Err(ConfigError::new(
                "holders_token",
                "is given without holders: name their server with --holders",
            )),
            None => Ok(None),
        };
    };
    let refused = |problem: String| ConfigError::new("holders", problem);
    let base = durably_native::http::address(&text)?;
    let itself = listen.port() != 0
        && base.port_or_known_default() == Some(listen.port())
        && base.host_str() == Some(&*listen.ip().to_string());
    if itself {
        return Err(refused(format!(
            "must be another server: {listen} is where this one listens"
        )));
    }
    let client = runner::client(&base).map_err(|error| refused(error.to_string()))?;
    let holders = HttpHolders::with_client(client, base.as_str(), token.as_deref())?;
    Ok(Some(holders.without_forwarding()))
}

fn job_endpoint(text: String) -> Result<Url, ConfigError> {
    let refused = |problem: String| ConfigError::new("job_endpoint", problem);
    let url = Url::parse(&text).map_err(|error| refused(format!("is not a URL: {error}")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(refused(format!("must be http or https, not {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_toml(text: &str) -> Result<Settings, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
    }

    fn blamed(settings: Settings) -> String {
        settings
            .resolve()
            .expect_err("must be refused")
            .field()
            .to_owned()
    }

    fn with_endpoint() -> Settings {
        Settings {
            job_endpoint: Some("http://127.0.0.1:1/run".to_owned()),
            ..Settings::default()
        }
    }

    #[test]
    fn a_file_names_settings_as_the_flags_do() {
        let settings = from_toml(
            "listen = \"127.0.0.1:0\"\nround_wait = \"250ms\"\ndefault_limit = 3\nlog_format = \"json\"",
        )
        .unwrap();
        assert_eq!(
            settings.round_wait.unwrap().duration(),
            Duration::from_millis(250)
        );
        assert_eq!(settings.default_limit, Some(3));
        assert_eq!(settings.log_format, Some(LogFormat::Json));
    }

    #[test]
    fn an_unknown_or_wrong_key_is_named() {
        for (text, named) in [
            ("rond_wait = \"1s\"", "rond_wait"),
            ("default_limit = -1", "default_limit"),
            ("default_limit = 99999999999999999999999", "default_limit"),
            ("round_wait = \"soon\"", "round_wait"),
            ("listen = 7070", "listen"),
        ] {
            let error = from_toml(text).expect_err(text);
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn what_is_set_first_wins() {
        let flags = Settings {
            default_limit: Some(1),
            ..Settings::default()
        };
        let file = from_toml("default_limit = 2\nthreads = 3").unwrap();
        let settings = flags.or(file);
        assert_eq!(
            (settings.default_limit, settings.threads),
            (Some(1), Some(3))
        );
    }

    #[test]
    fn wrong_values_are_blamed_by_field() {
        for url in ["here", "ftp://example.com/"] {
            let settings = Settings {
                job_endpoint: Some(url.to_owned()),
                ..Settings::default()
            };
            assert_eq!(blamed(settings), "job_endpoint");
        }
        for token in ["", "two words", "\n"] {
            let settings = Settings {
                token: Some(token.to_owned()),
                ..with_endpoint()
            };
            assert_eq!(blamed(settings), "token");
        }
        for (permits, ttl, field) in [
            (None, Some("1m"), "lease_ttl"),
            (Some(0), Some("1m"), "lease_ttl"),
            (Some(u64::MAX), None, "lease_permits"),
        ] {
            let settings = Settings {
                lease_permits: permits,
                lease_ttl: ttl.map(|ttl| ttl.parse().unwrap()),
                ..with_endpoint()
            };
            assert_eq!(blamed(settings), field);
        }
        let settings = Settings {
            max_body_bytes: Some(0),
            ..with_endpoint()
        };
        assert_eq!(blamed(settings), "max_body_bytes");
    }

    #[test]
    fn defaults_are_those_that_the_help_names() {
        let config = with_endpoint().resolve().unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:7070");
        assert_eq!(config.data_dir, Path::new("durably-data"));
        assert_eq!(config.http.max_body_bytes, 131_072);
        assert_eq!(config.jobs.default_limit, 10);
        assert_eq!(config.jobs.job_concurrency, 256);
    }
}
