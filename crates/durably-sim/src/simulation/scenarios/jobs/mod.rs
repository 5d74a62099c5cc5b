//! The whole account-concurrency application: accounts with their limits and lists of shards, shards
//! that run jobs as durable calls, and the endpoint that does the work.

mod account;
mod client;
mod endpoint;
mod routing;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use durably::host::Host;
use durably::jobs::{JobShard, ShardConfig};
use durably::layers::HostTimer;
use durably::operations::{Backoff, HandlerConfig};
use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
use durably::topology::MemoryPublisher;
use durably::{OpenError, SchedulerConfig};

use super::wire;
use super::{Plan, Scenario, leases};
use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::dice::Dice;
use crate::simulation::invariants::books::Books;
use crate::simulation::invariants::{awake, returned, running, sums};
use crate::simulation::knobs::Knob;
use crate::simulation::run::Run;
use crate::simulation::troubles;

use account::{AccountSide, open_account};
use client::Submitted;
use endpoint::{Endpoint, Runner};
use routing::Router;

/// The application.
pub(super) const JOBS: Plan = Plan {
    name: "jobs",
    about: "the account-concurrency application with its endpoint",
    knobs: &[
        Knob::scale("jobs", 1, 80, "jobs that are submitted"),
        Knob::range("accounts", 1, 2, "accounts"),
        Knob::range("shards", 1, 3, "shards of every account"),
        Knob::range("groups", 1, 3, "groups of every account"),
        Knob::scale("limit", 1, 12, "permits of every account"),
        Knob::choice(
            "ceiling",
            &[0, 1, 2, 5],
            "the ceiling of every group; 0 for none",
        ),
        Knob::range("slots", 1, 6, "jobs of a shard that run at once"),
        Knob::range("attempts", 1, 4, "attempts after which a job has failed"),
        Knob::scale(
            "attempt-ms",
            500,
            20_000,
            "how long an attempt may take, in ms",
        ),
        Knob::scale("work-ms", 1, 8_000, "how long a job takes at most, in ms"),
        Knob::scale(
            "round-wait-ms",
            1,
            1_000,
            "how long a round waits for others, in ms",
        ),
        Knob::scale("round-period-ms", 50, 3_000, "time between rounds, in ms"),
        Knob::scale(
            "grant-timeout-ms",
            200,
            10_000,
            "until a claim is too late, in ms",
        ),
        Knob::choice(
            "lease-mode",
            &[0, 1, 2, 3],
            "0 no leases, 1 strict, 2 under, 3 over",
        ),
        Knob::range("lease-permits", 1, 8, "the most permits of a lease"),
        Knob::scale(
            "lease-ttl-ms",
            1_000,
            120_000,
            "how long a lease lasts, in ms",
        ),
        Knob::range(
            "lease-part",
            0,
            8,
            "the reserve, or the permits above the limit",
        ),
        Knob::range("limit-moves", 0, 8, "how many times a limit is set"),
        Knob::range(
            "list-changes",
            0,
            3,
            "how many times a list of shards is set",
        ),
        Knob::scale(
            "list-ttl-ms",
            100,
            60_000,
            "how long a published list of shards is gone by, in ms",
        ),
        Knob::scale(
            "store-ms",
            1,
            500,
            "how long publishing and reading take at most, in ms",
        ),
        Knob::fault(
            "store-fails-percent",
            50,
            "of 100 times, how often publishing or reading fails",
        ),
        Knob::range("cancels", 0, 10, "jobs that are cancelled, running or not"),
        Knob::range("repeats", 0, 10, "jobs that are submitted again"),
        Knob::fault(
            "fails-percent",
            60,
            "of 100 runs, how many the endpoint fails",
        ),
        Knob::fault(
            "hopeless-percent",
            20,
            "of 100 failures, how many are final",
        ),
        Knob::fault(
            "lies-percent",
            40,
            "of 100 runs, how many are done and said to have failed",
        ),
        Knob::fault(
            "hangs-percent",
            30,
            "of 100 runs, how many take longer than they may",
        ),
    ],
    expects: &[
        "object evicted",
        "process killed",
        "message lost",
        "job completed",
        "job failed",
        "job cancelled",
        "job stopped",
        "job known before",
        "job sent to its endpoint again",
        "limit set",
        "list of shards set",
        "former list forgotten",
        "job asked of a former shard",
        "list of shards read",
        "list of shards not published",
        "old list of shards refused",
    ],
    short: &[
        ("duration-s", 5),
        ("shuffled-percent", 0),
        ("jobs", 3),
        ("accounts", 1),
        ("shards", 1),
        ("groups", 1),
        ("limit", 2),
        ("cancels", 0),
        ("repeats", 1),
        ("limit-moves", 0),
        ("list-changes", 1),
    ],
    start: Application::start,
};

struct ShardSide {
    name: String,
    object: VirtualObject<JobShard>,
    open: RefCell<Weak<JobShard>>,
}

/// Everything of the scenario.
pub(super) struct Application {
    run: Rc<Run>,
    nodes: Vec<Node>,
    accounts: RefCell<Vec<Rc<AccountSide>>>,
    /// By name; they come into being when a list names them.
    shards: RefCell<BTreeMap<String, Rc<ShardSide>>>,
    endpoint: Endpoint,
    /// What accounts publish.
    published: MemoryPublisher,
    routers: RefCell<Vec<Router>>,
    submitted: RefCell<BTreeMap<(String, String), Submitted>>,
    books: Rc<Books>,
    dice: Dice,
    lists: Cell<u64>,
}

type WeakApplication = Weak<Application>;

impl Application {
    fn start(run: &Rc<Run>) -> Box<dyn Scenario> {
        let nodes: Vec<Node> = ["accounts", "shards", "other-shards", "endpoint"]
            .iter()
            .map(|name| run.world.node(name))
            .collect();
        let application = Rc::new(Application {
            run: run.clone(),
            nodes,
            accounts: RefCell::default(),
            shards: RefCell::default(),
            endpoint: Endpoint::default(),
            published: MemoryPublisher::default(),
            routers: RefCell::default(),
            submitted: RefCell::default(),
            books: Rc::default(),
            dice: Dice::new(run, "application"),
            lists: Cell::new(0),
        });
        endpoint::serve(&application);
        for index in 0..run.knob("accounts") {
            let account = open_account(&application, index);
            application.accounts.borrow_mut().push(account);
        }
        for node in &application.nodes[1..3] {
            let router = routing::router(&application, node.clone());
            application.routers.borrow_mut().push(router);
        }
        // The endpoint is not ours, so nothing happens to its process.
        troubles::trouble(run, &application.nodes[..3]);
        client::start(&application);
        Box::new(Running(application))
    }

    fn account(&self, key: &str) -> Option<Rc<AccountSide>> {
        let accounts = self.accounts.borrow();
        accounts.iter().find(|account| account.key == key).cloned()
    }

    /// The shard of that name.
    fn shard(self: &Rc<Self>, name: &str) -> Rc<ShardSide> {
        if let Some(shard) = self.shards.borrow().get(name) {
            return shard.clone();
        }
        let shard = open_shard(self, name);
        let mut shards = self.shards.borrow_mut();
        shards.insert(name.to_owned(), shard.clone());
        shard
    }

    fn node_of(&self, shard: &str) -> Node {
        let place = shard.bytes().map(usize::from).sum::<usize>() % 2;
        self.nodes[1 + place].clone()
    }

    /// Where a job stands as a durable call: its state, and whether it has ended.
    fn state_of(&self, key: &str) -> Option<(String, bool)> {
        let shards = self.shards.borrow();
        let states = shards
            .values()
            .filter_map(|shard| state_at(&shard.object, key));
        // One that is running somewhere is running.
        states.min_by_key(|(_, has_ended)| *has_ended)
    }

    fn has_ended(&self, shard: &str, key: &str) -> bool {
        let shards = self.shards.borrow();
        let state = shards
            .get(shard)
            .and_then(|shard| state_at(&shard.object, key));
        state.is_some_and(|(_, has_ended)| has_ended)
    }
}

fn state_at(shard: &VirtualObject<JobShard>, key: &str) -> Option<(String, bool)> {
    let key = key.to_owned();
    let state = shard.storage().read(move |sql| {
        sql.first(
            "SELECT state, ended_at FROM durability_operations WHERE id = ?",
            &[(&key).into()],
            |row| Ok((row.string(0)?, row.optional_time(1)?.is_some())),
        )
    });
    state.ok().flatten()
}

fn open_shard(application: &Rc<Application>, name: &str) -> Rc<ShardSide> {
    let run = &application.run;
    let node = application.node_of(name);
    let weak = Rc::downgrade(application);
    let from = node.clone();
    let object = run.world.object_in(&node, name, move |host| {
        let (weak, from) = (weak.clone(), from.clone());
        async move {
            let name = host.name().to_owned();
            let shard = Rc::new(build_shard(host, &weak, from).await?);
            let application = weak.upgrade();
            let side = application.and_then(|application| {
                let shards = application.shards.borrow();
                shards.get(&name).cloned()
            });
            if let Some(side) = side {
                *side.open.borrow_mut() = Rc::downgrade(&shard);
            }
            Ok(shard)
        }
    });
    Rc::new(ShardSide {
        name: name.to_owned(),
        object,
        open: RefCell::default(),
    })
}

async fn build_shard(
    host: Rc<dyn Host>,
    application: &WeakApplication,
    from: Node,
) -> Result<JobShard, OpenError> {
    let mut config = ShardConfig {
        scheduler: SchedulerConfig::default(),
        attempts: HandlerConfig::default(),
        max_body_bytes: 1_024,
        max_queue_length: 1_000,
        retention: Duration::from_secs(24 * 60 * 60),
    };
    if let Some(application) = application.upgrade() {
        let run = &application.run;
        config.scheduler.alarm_concurrency = run.knob("slots");
        config.attempts.max_attempts = run.knob("attempts");
        config.attempts.attempt_timeout = run.knob_ms("attempt-ms");
        config.attempts.max_interruptions = 100_000;
        config.attempts.backoff = Backoff::Exponential {
            base: Duration::from_millis(500),
            max: Duration::from_secs(10),
        };
    }
    let asking = application.clone();
    let transport = holder_fn(move |call: HolderCall| {
        let (application, from) = (asking.clone(), from.clone());
        async move {
            let gone = || ClientError::unreachable("there is no such account");
            let application = application.upgrade().ok_or_else(gone)?;
            let account = application.account(&call.key).ok_or_else(gone)?;
            let json = serde_json::to_vec(&call.message).map_err(ClientError::unreachable)?;
            let (run, books) = (application.run.clone(), application.books.clone());
            drop(application);
            wire::send(run, books, from, account.address(), json).await
        }
    });
    let timer = HostTimer::new(host.clone());
    let runner = Arc::new(Runner::new(host.name()));
    JobShard::open(host, config, SemaphoreClient::new(transport, timer), runner).await
}

/// The application as the run sees it.
struct Running(Rc<Application>);

impl Scenario for Running {
    fn check(&self) {
        let Running(application) = self;
        let run = &application.run;
        let has_worked = application.endpoint.has_worked();
        for account in application.accounts.borrow().iter() {
            account.look(run, run.knob("groups"));
            let allowed = || account.allowed(leases(run));
            let storage = account.object.storage();
            let has_changed = application
                .books
                .follow(run, &account.key, storage, allowed);
            if !has_changed && !has_worked {
                continue;
            }
            let client = |shard: &str| format!("job-shard/{shard}");
            let books = &application.books;
            let runs = application.endpoint.running(&account.key, |_, _| false);
            if running::excess(books, &account.key, &runs, client).is_some() {
                // Work that goes on after its job has ended, because it was cancelled or its time was
                // up, is counted by nobody.
                let runs = application
                    .endpoint
                    .running(&account.key, |shard, key| application.has_ended(shard, key));
                running::check(run, books, &account.key, &runs, client);
            }
        }
    }

    fn scan(&self) {
        let Running(application) = self;
        let run = &application.run;
        for account in application.accounts.borrow().iter() {
            let storage = account.object.storage();
            if let Some(open) = account.open.borrow().upgrade() {
                sums::check_holder(run, storage, open.semaphore().clone(), &account.key);
            }
            awake::check_holder(run, &account.node, storage, &account.key);
        }
        for shard in application.shards.borrow().values() {
            let storage = shard.object.storage();
            if let Some(open) = shard.open.borrow().upgrade() {
                sums::check_queue(run, storage, open.queue().clone(), &shard.name);
            }
            awake::check_queue(run, storage, &shard.name);
        }
    }

    fn heal(&self) {
        let Running(application) = self;
        troubles::mend(&application.nodes);
        client::heal(application);
    }

    fn left_to_do(&self) -> Option<(String, String)> {
        let Running(application) = self;
        if let Some(left) = client::left(application) {
            return Some(left);
        }
        for account in application.accounts.borrow().iter() {
            if let Some(left) = returned::left_at_holder(account.object.storage()) {
                return Some((account.key.clone(), left));
            }
        }
        for shard in application.shards.borrow().values() {
            if let Some(left) = returned::left_at_queue(shard.object.storage()) {
                return Some((shard.name.clone(), left));
            }
        }
        None
    }

    fn finish(&self) {
        client::finish(&self.0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.accounts.take();
        self.0.routers.take();
        self.0.shards.take();
    }
}
