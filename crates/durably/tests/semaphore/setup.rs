//! An object that holds an account's limit, in a world of its own, and messages to it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use durably::Scheduler;
use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::semaphore::ledger::Ledger;
use durably::semaphore::protocol::{GrantReply, Reply, SyncReply};
use durably::semaphore::{Semaphore, SemaphoreBuilder, SemaphoreError, SemaphoreEvent, Usage};
use durably_sim::{Alarms, VirtualObject, World};
use serde_json::{Value, json};

/// What the world's clock shows at first, in ms.
pub(crate) const START: u64 = 1_000_000;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) struct AccountLimit {
    pub(crate) scheduler: Scheduler,
    pub(crate) semaphore: Semaphore,
}

impl Object for AccountLimit {
    const CLASS: &'static str = "account-limit";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

pub(crate) struct Setup {
    pub(crate) world: World,
    pub(crate) object: VirtualObject<AccountLimit>,
    events: Rc<RefCell<Vec<SemaphoreEvent>>>,
}

/// A message that was sent, and its answer once there is one.
pub(crate) struct Sent(Rc<RefCell<Option<Result<Reply, String>>>>);

impl Setup {
    /// Rounds wait 100 ms and are 200 ms apart, permits may be claimed for 1 s; `configure` has the
    /// last word.
    pub(crate) fn new(configure: impl Fn(SemaphoreBuilder) -> SemaphoreBuilder + 'static) -> Setup {
        Setup::in_world(World::new(START), configure)
    }

    pub(crate) fn in_world(
        world: World,
        configure: impl Fn(SemaphoreBuilder) -> SemaphoreBuilder + 'static,
    ) -> Setup {
        let events: Rc<RefCell<Vec<SemaphoreEvent>>> = Rc::default();
        let heard = events.clone();
        let object = world.object("acme", Alarms::Automatic, move |host| {
            let opened = (|| {
                let scheduler = Scheduler::of(host)?;
                let heard = heard.clone();
                let builder = Semaphore::builder(&scheduler)
                    .round_wait(ms(100))
                    .round_period(ms(200))
                    .grant_timeout(ms(1_000))
                    .on_event(move |event| heard.borrow_mut().push(event.clone()));
                let semaphore = configure(builder).build()?;
                Ok::<_, BoxError>(AccountLimit {
                    scheduler,
                    semaphore,
                })
            })();
            async move {
                let opened = opened?;
                opened.scheduler.open().await?;
                Ok(Rc::new(opened))
            }
        });
        Setup {
            world,
            object,
            events,
        }
    }

    /// An object of the test's own, whose events are not heard.
    pub(crate) fn of(world: World, object: VirtualObject<AccountLimit>) -> Setup {
        Setup {
            world,
            object,
            events: Rc::default(),
        }
    }

    /// Sends a message as JSON, and lets happen what happens at once.
    pub(crate) fn send(&self, message: Value) -> Sent {
        let slot = Rc::new(RefCell::new(None));
        let answer = slot.clone();
        let json = message.to_string().into_bytes();
        let call = self
            .object
            .call(move |object| async move { object.semaphore.handle_json(&json).await });
        self.world.spawn(async move {
            let result = match call.await {
                Ok(result) => result.map_err(|error| error.code().to_owned()),
                Err(_) => Err("ended".to_owned()),
            };
            *answer.borrow_mut() = Some(result);
        });
        self.world.run_until_idle();
        Sent(slot)
    }

    /// Sends a sync, which is answered at once.
    pub(crate) fn sync(&self, message: Value) -> SyncReply {
        let sent = self.send(message);
        match sent.answer() {
            Ok(Reply::Synced(reply)) => reply,
            other => panic!("no answer to a sync: {other:?}"),
        }
    }

    pub(crate) fn usage(&self) -> Result<Usage, SemaphoreError> {
        let call = self
            .object
            .call(|object| async move { object.semaphore.usage().await });
        self.world.block_on(call).expect("the object is open")
    }

    /// The sums in memory and those of a full scan.
    pub(crate) fn compare_sums(&self) -> (Ledger, Ledger) {
        let call = self
            .object
            .call(|object| async move { object.semaphore.compare_sums().await });
        let compared = self.world.block_on(call).expect("the object is open");
        compared.expect("storage works")
    }

    /// The events since the last call.
    pub(crate) fn events(&self) -> Vec<SemaphoreEvent> {
        self.events.take()
    }

    /// How many rows were changed since the database was opened.
    pub(crate) fn rows_changed(&self) -> u64 {
        let changed = self.object.storage().transaction(|transaction| {
            let sql = transaction.sql();
            sql.first("SELECT total_changes()", &[], |row| row.count(0))
        });
        changed.expect("storage works").expect("one row")
    }
}

impl Sent {
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.borrow().is_none()
    }

    fn answer(&self) -> Result<Reply, String> {
        self.0.borrow().clone().expect("it is answered")
    }

    /// The answer, if there is one and it is none of failure.
    pub(crate) fn reply(&self) -> Option<Reply> {
        self.0.borrow().clone().and_then(Result::ok)
    }

    /// The answer to a request, if it was not refused.
    pub(crate) fn grant(&self) -> Option<GrantReply> {
        match self.reply() {
            Some(Reply::Grant(reply)) => Some(reply),
            _ => None,
        }
    }

    pub(crate) fn granted(&self) -> GrantReply {
        match self.answer() {
            Ok(Reply::Grant(reply)) => reply,
            other => panic!("no answer to a request: {other:?}"),
        }
    }

    pub(crate) fn failure(&self) -> String {
        self.answer().expect_err("it must fail")
    }
}

/// A request for permits of these groups, all waiting since the start.
pub(crate) fn request(client: &str, demand: &[(&str, u64)]) -> Value {
    let demand: Vec<Value> = demand
        .iter()
        .map(|(group, count)| json!({"group": group, "count": count, "oldestAt": START}))
        .collect();
    json!({"type": "request", "v": 1, "clientId": client, "demand": demand, "grants": []})
}

/// A sync that reports nothing.
pub(crate) fn sync(client: &str) -> Value {
    json!({"type": "sync", "v": 1, "clientId": client, "grants": []})
}

/// A sync that reports one grant.
pub(crate) fn claim(client: &str, grant_id: &str, claimed: u64, released: u64) -> Value {
    json!({"type": "sync", "v": 1, "clientId": client,
           "grants": [{"grantId": grant_id, "claimed": claimed, "released": released}]})
}
