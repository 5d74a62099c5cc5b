//! A shard that is nothing but the library's [`SemaphoreQueue`]: what it admits has ended at once. It
//! asks a holder of its own system, or a gate within itself that always says yes.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::layers::HostTimer;
use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
use durably::semaphore::protocol::{
    Grant, GrantReply, GrantReport, GrantResult, GrantStatus, Message, Reply, SyncReply,
};
use durably::semaphore::queue::{NewItem, Outcome, SemaphoreQueue, WeakSemaphoreQueue};
use durably::{OpenError, Scheduler, SchedulerConfig};
use durably_native::{ObjectHandle, System, SystemConfig, SystemRef};
use tokio::sync::Notify;

use super::objects::{Holder, HolderConfig, now};

/// The holder's name.
pub(super) const KEY: &str = "account";

/// Who gives permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// The holder [`KEY`], an object of the same system.
    Holder,
    /// The shard itself, everything at once and without a note of it.
    Yes,
}

/// How shards are set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardConfig {
    pub(super) gate: Gate,
    /// How many items may hold permits at once.
    pub(super) max_admitted: u64,
    /// How long finished items are known.
    pub(super) retention: Duration,
    /// Admission never succeeds, so that nothing follows what was given.
    pub(super) holds_admissions: bool,
}

/// What shards have done, for whoever waits for it.
#[derive(Default)]
pub(super) struct Done {
    released: AtomicUsize,
    changed: Notify,
    grants: AtomicU64,
    permits: AtomicU64,
}

impl Done {
    /// Resolves when so many items in all have been released, their releases durable.
    pub(super) async fn released(&self, items: usize) -> Result<(), BoxError> {
        let all = async {
            loop {
                let changed = self.changed.notified();
                if self.released.load(SeqCst) >= items {
                    return;
                }
                changed.await;
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(300), all).await;
        Ok(all.map_err(|_| "not every item was admitted and released")?)
    }

    /// Permits of a grant on average, as holders gave them.
    pub(super) fn permits_per_grant(&self) -> f64 {
        self.permits.load(SeqCst) as f64 / self.grants.load(SeqCst).max(1) as f64
    }

    /// Permits that came as grants.
    pub(super) fn granted(&self) -> u64 {
        self.permits.load(SeqCst)
    }

    fn saw(&self, reply: &Reply) {
        if let Reply::Grant(reply) = reply {
            let permits = reply.grants.iter().map(|grant| grant.permits).sum();
            self.grants.fetch_add(reply.grants.len() as u64, SeqCst);
            self.permits.fetch_add(permits, SeqCst);
        }
    }
}

pub(super) struct Shard {
    scheduler: Scheduler,
    pub(super) queue: SemaphoreQueue,
}

impl Object for Shard {
    const CLASS: &'static str = "bench-shard";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

impl Shard {
    async fn open(
        host: Rc<dyn Host>,
        config: ShardConfig,
        system: SystemRef,
        done: Arc<Done>,
    ) -> Result<Shard, OpenError> {
        let scheduler = Scheduler::new(host.clone(), SchedulerConfig::default())?;
        let gates = Rc::new(Gates {
            gate: config.gate,
            system,
            done: done.clone(),
            given: RefCell::default(),
        });
        let transport = holder_fn(move |call| {
            let gates = gates.clone();
            async move { gates.ask(call).await }
        });
        // The callback lives in the queue, so it must not own it.
        let itself: Rc<RefCell<Option<WeakSemaphoreQueue>>> = Rc::default();
        let known = itself.clone();
        let spawner = Rc::downgrade(&host);
        let queue = SemaphoreQueue::builder(&scheduler)
            .holder(SemaphoreClient::new(transport, HostTimer::new(host)))
            .max_admitted(config.max_admitted)
            .max_admit_items(1_000)
            .retention(config.retention)
            .admit(move |items| {
                let queue = known
                    .borrow()
                    .as_ref()
                    .and_then(WeakSemaphoreQueue::upgrade);
                let done = done.clone();
                if let (Some(queue), Some(host)) = (queue, spawner.upgrade()) {
                    host.spawn(Box::pin(async move {
                        let ids: Vec<String> = items.into_iter().map(|item| item.id).collect();
                        let count = ids.len();
                        // The instance ends with its storage, and then the measurement fails.
                        if queue.release_all(ids).await.is_ok() {
                            done.released.fetch_add(count, SeqCst);
                            done.changed.notify_waiters();
                        }
                    }));
                }
                async move {
                    if config.holds_admissions {
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                }
            })
            .build()?;
        *itself.borrow_mut() = Some(queue.downgrade());
        scheduler.open().await?;
        Ok(Shard { scheduler, queue })
    }
}

/// Brings a message to whoever gives permits.
struct Gates {
    gate: Gate,
    system: SystemRef,
    done: Arc<Done>,
    given: RefCell<u64>,
}

impl Gates {
    async fn ask(&self, call: HolderCall) -> Result<Reply, ClientError> {
        let HolderCall { key, message } = call;
        match self.gate {
            Gate::Yes => Ok(self.say_yes(message)),
            Gate::Holder => {
                let answer = self.system.object::<Holder>(&key);
                let answer = answer
                    .call(move |holder| async move { holder.handle(message).await })
                    .await;
                let reply = answer.map_err(ClientError::unreachable)??;
                self.done.saw(&reply);
                Ok(reply)
            }
        }
    }

    fn say_yes(&self, message: Message) -> Reply {
        let confirm = |reports: Vec<GrantReport>| {
            let results = reports.into_iter().map(|report| GrantResult {
                grant_id: report.grant_id,
                claimed: report.claimed,
                status: GrantStatus::Ok,
            });
            results.collect()
        };
        let now = now();
        match message {
            Message::Request(request) => {
                let mut given = self.given.borrow_mut();
                let grants = request.demand.into_iter().map(|demand| {
                    *given += 1;
                    Grant {
                        grant_id: format!("grant-{given:012}"),
                        group: demand.group,
                        permits: demand.count,
                    }
                });
                Reply::Grant(GrantReply {
                    grants: grants.collect(),
                    blocked: Vec::new(),
                    grant_results: confirm(request.grants),
                    next_request_at: now,
                    leases: None,
                    contended: false,
                    request_number: None,
                    now: Some(now),
                })
            }
            Message::Sync(sync) => Reply::Synced(SyncReply {
                grant_results: confirm(sync.grants),
                leases: None,
                contended: false,
                now: Some(now),
            }),
        }
    }
}

/// A system of such shards and their holder.
pub(super) fn open(
    folder: &Path,
    system: SystemConfig,
    holder: HolderConfig,
    shard: ShardConfig,
) -> Result<(System, Arc<Done>), BoxError> {
    let done: Arc<Done> = Arc::default();
    let builder = System::builder(folder).config(system);
    let (system, told) = (builder.system(), done.clone());
    let system = builder
        .class::<Holder>(move |host| {
            let opening = Holder::open(host, holder.clone());
            Box::pin(async move { Ok(Rc::new(opening.await?)) })
        })
        .class::<Shard>(move |host| {
            let opening = Shard::open(host, shard, system.clone(), told.clone());
            Box::pin(async move { Ok(Rc::new(opening.await?)) })
        })
        .open()?;
    Ok((system, done))
}

/// Enqueues so many items, each of the group that `group` names for its number; all must be taken.
pub(super) async fn enqueue(
    shard: &ObjectHandle<Shard>,
    first: usize,
    count: usize,
    group: impl Fn(usize) -> String,
) -> Result<(), BoxError> {
    let items = (first..first + count).map(|number| {
        let id = format!("item-{number:08}");
        NewItem::new(id, KEY, group(number), &number)
    });
    let items: Vec<NewItem> = items.collect::<Result<_, _>>()?;
    let outcomes = shard
        .call(move |shard| async move { shard.queue.enqueue(items).await })
        .await??;
    if outcomes.iter().any(|outcome| *outcome != Outcome::Queued) {
        return Err("an item was not taken".into());
    }
    Ok(())
}
