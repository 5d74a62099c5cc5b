//! The worker's settings: its `vars`, as texts or numbers, with the defaults of `durably serve`.

use std::time::Duration;

use durably::jobs::{AccountConfig, ShardConfig};
use durably::operations::HandlerConfig;
use durably::semaphore::LeaseOptions;
use durably::time::{MAX_DURATION, MAX_SAFE_INTEGER};
use durably::{ConfigError, SchedulerConfig};
use wasm_bindgen::JsValue;
use worker::js_sys::Reflect;

/// How long a shard waits for a holder's answer beyond what a round may take.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);

/// The worker's environment: its vars, secrets and bindings.
#[derive(Clone)]
pub(crate) struct Environment(pub(crate) JsValue);

impl Environment {
    /// What is bound to a name; `undefined` if nothing is.
    pub(crate) fn get(&self, name: &str) -> JsValue {
        Reflect::get(&self.0, &name.into()).unwrap_or(JsValue::UNDEFINED)
    }

    /// A text; `None` if it is not set, or empty.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let value = self.get(name);
        let text = value
            .as_string()
            .or_else(|| value.as_f64().map(|number| number.to_string()));
        text.filter(|text| !text.is_empty())
    }

    fn number(
        &self,
        name: &'static str,
        least: u64,
        most: u64,
    ) -> Result<Option<u64>, ConfigError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text
            .parse()
            .ok()
            .filter(|number| (least..=most).contains(number));
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(ConfigError::new(
                name,
                format!(
                    "must be a whole number from {least} to {most}, not {text:?}: set it among the \
                     worker's vars"
                ),
            )),
        }
    }

    pub(crate) fn millis(
        &self,
        name: &'static str,
        default: Duration,
    ) -> Result<Duration, ConfigError> {
        let millis = self.number(name, 1, MAX_DURATION.as_millis() as u64)?;
        Ok(millis.map_or(default, Duration::from_millis))
    }

    pub(crate) fn count(&self, name: &'static str, default: u64) -> Result<u64, ConfigError> {
        Ok(self.number(name, 1, MAX_SAFE_INTEGER)?.unwrap_or(default))
    }

    fn permits(&self, name: &'static str) -> Result<Option<u64>, ConfigError> {
        self.number(name, 0, MAX_SAFE_INTEGER)
    }

    /// The token that requests must carry, if they must.
    pub(crate) fn api_token(&self) -> Option<String> {
        self.text("API_TOKEN")
    }

    /// Where objects that are not there yet should come to be, if anybody has a wish.
    pub(crate) fn location_hint(&self) -> Option<String> {
        self.text("LOCATION_HINT")
    }

    /// The limit of an account that was given none.
    pub(crate) fn default_limit(&self) -> Result<u64, ConfigError> {
        Ok(self.permits("DEFAULT_LIMIT")?.unwrap_or(10))
    }

    /// The ceiling of a group that was given none.
    pub(crate) fn default_group_limit(&self) -> Result<Option<u64>, ConfigError> {
        self.permits("DEFAULT_GROUP_LIMIT")
    }

    /// How many shards a new account is spread over.
    pub(crate) fn shards_per_account(&self) -> Result<u32, ConfigError> {
        let count = self.number("SHARDS_PER_ACCOUNT", 1, 1_000)?;
        Ok(count.map_or(4, |count| count as u32))
    }

    /// The largest body of a job, in bytes of JSON.
    pub(crate) fn max_body_bytes(&self) -> Result<u64, ConfigError> {
        // A row has at most 2 MB there.
        let bytes = self.number("MAX_BODY_BYTES", 1, 1 << 20)?;
        Ok(bytes.unwrap_or(128 << 10))
    }

    fn default_leases(&self) -> Result<Option<LeaseOptions>, ConfigError> {
        let Some(text) = self.text("DEFAULT_LEASES") else {
            return Ok(None);
        };
        serde_json::from_str(&text).map_err(|error| {
            let problem = format!(
                "must be JSON such as {{\"provisioning\": {{\"mode\": \"strict\"}}, \"permitsPerLease\": 16, \
                 \"ttlMs\": 600000}}: {error}"
            );
            ConfigError::new("DEFAULT_LEASES", problem)
        })
    }

    fn round_wait(&self) -> Result<Duration, ConfigError> {
        self.millis("ROUND_WAIT_MS", Duration::from_secs(1))
    }

    fn round_period(&self) -> Result<Duration, ConfigError> {
        self.millis("ROUND_PERIOD_MS", Duration::from_secs(2))
    }

    /// How long a shard waits for its holder's answer: a round waits, starts a period after the last one at
    /// worst, and may take a while.
    pub(crate) fn holder_timeout(&self) -> Result<Duration, ConfigError> {
        Ok(self.round_wait()?.max(self.round_period()?) + ANSWER_MARGIN)
    }

    pub(crate) fn scheduler(&self) -> Result<SchedulerConfig, ConfigError> {
        let mut scheduler = SchedulerConfig::default();
        scheduler.alarm_min_delay = self.millis("ALARM_MIN_DELAY_MS", scheduler.alarm_min_delay)?;
        Ok(scheduler)
    }

    pub(crate) fn account(&self) -> Result<AccountConfig, ConfigError> {
        Ok(AccountConfig {
            scheduler: self.scheduler()?,
            default_limit: self.default_limit()?,
            default_group_limit: self.default_group_limit()?,
            default_leases: self.default_leases()?,
            round_wait: self.round_wait()?,
            round_period: self.round_period()?,
            grant_timeout: self.millis("GRANT_TIMEOUT_MS", Duration::from_secs(10))?,
            recorder: None,
        })
    }

    pub(crate) fn shard(&self) -> Result<ShardConfig, ConfigError> {
        let mut scheduler = self.scheduler()?;
        scheduler.alarm_concurrency = self.count("JOB_CONCURRENCY", 256)?;
        let mut attempts = HandlerConfig::default();
        attempts.max_attempts = self.count("JOB_ATTEMPTS", 3)?;
        attempts.attempt_timeout = self.millis("JOB_TIMEOUT_MS", attempts.attempt_timeout)?;
        Ok(ShardConfig {
            scheduler,
            attempts,
            max_body_bytes: self.max_body_bytes()?,
            max_queue_length: self.count("MAX_QUEUE_LENGTH", 1_000_000)?,
            retention: self.millis("RETENTION_MS", Duration::from_secs(7 * 24 * 60 * 60))?,
        })
    }
}
