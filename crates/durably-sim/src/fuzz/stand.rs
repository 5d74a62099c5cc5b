//! The objects that inputs are tried on: an account that holds a limit and a shard that runs jobs, in a world of
//! their own, the same every time.

use std::cell::RefCell;
use std::fmt::Write;
use std::future::{Future, pending};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{LocalFuture, Object, Sql};
use durably::jobs::{
    AccountConfig, AccountLimit, JobRunner, JobShard, RunError, RunJob, ShardConfig,
};
use durably::layers::HostTimer;
use durably::operations::HandlerConfig;
use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
use durably::topology::MemoryPublisher;
use durably::{SchedulerConfig, StorageError};
use serde_json::Value;

use crate::executor::{Step, World};
use crate::host::VirtualStorage;
use crate::object::{Alarms, CallError, VirtualObject};

/// What the clock shows at first, in ms.
const START: u64 = 1_000_000_000_000;

/// The longest that an answer may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10 * 60);

/// More polls than any input is worth.
const MAX_POLLS: u64 = 200_000;

pub(super) struct Stand {
    pub(super) world: World,
    pub(super) account: VirtualObject<AccountLimit>,
    pub(super) shard: VirtualObject<JobShard>,
}

/// Settings of an account that does everything soon.
pub(super) fn account_config() -> AccountConfig {
    AccountConfig {
        scheduler: SchedulerConfig::default(),
        default_limit: 4,
        default_group_limit: None,
        default_leases: None,
        round_wait: Duration::from_millis(10),
        round_period: Duration::from_millis(20),
        grant_timeout: Duration::from_secs(1),
        recorder: None,
    }
}

pub(super) fn shard_config() -> ShardConfig {
    ShardConfig {
        scheduler: SchedulerConfig::default(),
        attempts: HandlerConfig::default(),
        max_body_bytes: 1_024,
        max_queue_length: 100,
        retention: Duration::from_secs(60 * 60),
    }
}

impl Stand {
    pub(super) fn new() -> Stand {
        Stand::with(account_config(), shard_config())
    }

    pub(super) fn with(account_config: AccountConfig, shard_config: ShardConfig) -> Stand {
        let world = World::new(START);
        let store = MemoryPublisher::default();
        let account = world.object("acme", Alarms::Automatic, move |host| {
            let opening = AccountLimit::open(host, account_config.clone(), store.clone());
            async move { Ok(Rc::new(opening.await?)) }
        });
        let holder = account.clone();
        let shard = world.object("acme-0", Alarms::Automatic, move |host| {
            let (config, holder) = (shard_config.clone(), holder.clone());
            let transport = holder_fn(move |call: HolderCall| {
                let holder = holder.clone();
                async move {
                    let answer =
                        holder.call(|account| async move { account.handle(call.message).await });
                    match answer.await {
                        Ok(reply) => Ok(reply?),
                        Err(error) => Err(ClientError::unreachable(error)),
                    }
                }
            });
            let client = SemaphoreClient::new(transport, HostTimer::new(host.clone()));
            async move {
                let shard = JobShard::open(host, config, client, Arc::new(Runner)).await;
                Ok::<_, BoxError>(Rc::new(shard?))
            }
        });
        Stand {
            world,
            account,
            shard,
        }
    }

    /// Has the account do something: its answer, or why the object has none.
    pub(super) fn account<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        call: impl FnOnce(Rc<AccountLimit>) -> F + 'static,
    ) -> Result<T, CallError> {
        self.answer(self.account.call(call))
    }

    /// The same of the shard.
    pub(super) fn shard<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        call: impl FnOnce(Rc<JobShard>) -> F + 'static,
    ) -> Result<T, CallError> {
        self.answer(self.shard.call(call))
    }

    fn answer<T: 'static>(&self, answer: impl Future<Output = T> + 'static) -> T {
        let slot: Rc<RefCell<Option<T>>> = Rc::default();
        let answered = slot.clone();
        self.world.spawn(async move {
            let value = answer.await;
            *answered.borrow_mut() = Some(value);
        });
        let end = self.world.now() + ANSWERS_WITHIN;
        for _ in 0..MAX_POLLS {
            if let Some(value) = slot.take() {
                self.check();
                return value;
            }
            let step = self.world.step(end);
            assert!(step != Step::Idle, "a call is not answered");
        }
        panic!("a call goes round in circles");
    }

    /// Lets time go by.
    pub(super) fn advance(&self, duration: Duration) {
        let end = self.world.now() + duration;
        for _ in 0..MAX_POLLS {
            if self.world.step(end) == Step::Idle {
                self.world.advance_to(end);
                self.check();
                return;
            }
        }
        panic!(
            "work goes round in circles: {:?} of {duration:?} are left",
            end.since(self.world.now())
        );
    }

    /// No instance has panicked.
    pub(super) fn check(&self) {
        let panics = self.world.panics();
        assert!(panics.is_empty(), "an object panicked: {panics:?}");
    }
}

impl Drop for Stand {
    /// Tasks keep the world that runs them, and jobs that hang would never end.
    fn drop(&mut self) {
        self.world.end();
    }
}

/// Everything that an object has stored.
pub(super) fn stored<C: Object>(object: &VirtualObject<C>) -> String {
    let dump = object.storage().read(|sql| {
        let mut text = String::new();
        for (table, columns) in columns_of(sql)? {
            let row = columns.iter().map(|column| format!("quote({column})"));
            let row = row.collect::<Vec<_>>().join(" || ', ' || ");
            let statement = format!("SELECT {row} FROM {table} ORDER BY 1");
            for row in sql.all(&statement, &[], |row| row.string(0))? {
                let _ = writeln!(text, "{table}: {row}");
            }
        }
        Ok(text)
    });
    dump.unwrap_or_else(|error| panic!("the rows cannot be read: {error}"))
}

/// All tables of capabilities, with their columns. The host's own is not to be seen from inside.
pub(super) fn columns_of(sql: &dyn Sql) -> Result<Vec<(String, Vec<String>)>, StorageError> {
    let tables = sql.all(
        "SELECT name, sql FROM sqlite_master
         WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name <> 'durability_object' ORDER BY name",
        &[],
        |row| Ok((row.string(0)?, row.string(1)?)),
    )?;
    let tables = tables.into_iter();
    Ok(tables.map(|(name, made)| (name, columns(&made))).collect())
}

/// The columns in a statement that makes a table.
fn columns(made: &str) -> Vec<String> {
    let body = made.split_once('(').map_or("", |(_, body)| body);
    let mut depth = 0;
    let parts = body.split(|sign| {
        depth += match sign {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        sign == ',' && depth == 0
    });
    let words = parts.filter_map(|part| part.split_whitespace().next());
    let constraints = ["PRIMARY", "CHECK", "UNIQUE", "FOREIGN", "CONSTRAINT"];
    let columns = words.filter(|word| !constraints.iter().any(|it| word.starts_with(it)));
    columns.map(str::to_owned).collect()
}

/// Changes what an object has stored, behind its back.
pub(super) fn tamper(storage: &VirtualStorage, statement: String, value: durably::host::Value<'_>) {
    // Owned, since the work outlives this call as far as its type says.
    let value = Owned::from(value);
    let _ = storage.transaction(move |transaction| {
        transaction
            .execute(&statement, &[value.borrow()])
            .map(|_| ())
    });
}

enum Owned {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl From<durably::host::Value<'_>> for Owned {
    fn from(value: durably::host::Value<'_>) -> Owned {
        use durably::host::Value;
        match value {
            Value::Null => Owned::Null,
            Value::Integer(value) => Owned::Integer(value),
            Value::Real(value) => Owned::Real(value),
            Value::Text(value) => Owned::Text(value.to_owned()),
            Value::Blob(value) => Owned::Blob(value.to_owned()),
        }
    }
}

impl Owned {
    fn borrow(&self) -> durably::host::Value<'_> {
        use durably::host::Value;
        match self {
            Owned::Null => Value::Null,
            Owned::Integer(value) => Value::Integer(*value),
            Owned::Real(value) => Value::Real(*value),
            Owned::Text(value) => Value::Text(value),
            Owned::Blob(value) => Value::Blob(value),
        }
    }
}

/// Runs a job as its body says: `"hang"` never ends, `"retry"` and `"fail"` fail, all others end at once.
struct Runner;

impl JobRunner for Runner {
    fn run(&self, job: RunJob) -> LocalFuture<Result<Value, RunError>> {
        Box::pin(async move {
            match job.body.as_str() {
                Some("hang") => pending().await,
                Some("retry") => Err(RunError::Retry("once more".into())),
                Some("fail") => Err(RunError::Permanent("not at all".into())),
                _ => Ok(job.body),
            }
        })
    }
}
