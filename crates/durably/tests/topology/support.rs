//! A coordinator in a virtual world, a store outside of it, and members that do as they are told.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::outbox::{Backoff, Outbox};
use durably::topology::{
    Convergence, Current, Draft, Landing, Member, MemoryPublisher, Publication, Publisher,
    PublisherConfig, Snapshot, StateChannelConfig, StateUpdate, Topology, TopologyBuilder,
    TopologyError, TopologyEventKind, Updated, decode,
};
use durably::{OpenError, Scheduler, SchedulerConfig};
use durably_sim::{Alarms, VirtualObject, World};
use futures::channel::oneshot;
use serde_json::Value;

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How long the attempts of these tests may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

fn every_second() -> Backoff {
    Backoff::Delay(Arc::new(|_| seconds(1)))
}

/// When a write lands in a plain store, and when its caller hears of it.
#[derive(Clone, Copy)]
pub(crate) struct Course {
    pub(crate) lands_after: Option<Duration>,
    pub(crate) answers_after: Option<Duration>,
}

/// A store in its own part of the world, which outlives the coordinator. It takes what comes last, or
/// is version-aware.
#[derive(Clone)]
pub(crate) struct Store {
    world: World,
    aware: bool,
    pub(crate) texts: Rc<RefCell<BTreeMap<String, String>>>,
    courses: Rc<RefCell<VecDeque<Course>>>,
    /// Versions in the order in which they landed.
    pub(crate) landed: Rc<RefCell<Vec<u64>>>,
    pub(crate) calls: Rc<Cell<u64>>,
    /// The next call panics, when it has sent what it was to send.
    pub(crate) panics: Rc<Cell<bool>>,
}

impl Store {
    pub(crate) fn new(world: &World, aware: bool) -> Self {
        Store {
            world: world.clone(),
            aware,
            texts: Rc::default(),
            courses: Rc::default(),
            landed: Rc::default(),
            calls: Rc::default(),
            panics: Rc::default(),
        }
    }

    /// What the next writes do.
    pub(crate) fn courses(&self, courses: impl IntoIterator<Item = Course>) {
        self.courses.borrow_mut().extend(courses);
    }

    fn land(&self, publication: &Publication) {
        let mut texts = self.texts.borrow_mut();
        let group = publication.group().to_owned();
        if self.aware {
            let stored = texts.get(&group).map(String::as_bytes);
            if publication.against(stored) != durably::topology::Verdict::Write {
                return;
            }
        }
        self.landed.borrow_mut().push(publication.edition().version);
        match (publication, self.aware) {
            (Publication::Deletion { .. }, false) => texts.remove(&group),
            (publication, _) => texts.insert(group, publication.text().to_owned()),
        };
    }

    /// The version of the group that readers find.
    pub(crate) fn version(&self, group: &str) -> Option<u64> {
        let text = self.texts.borrow().get(group).cloned()?;
        let read = decode(group, text.as_bytes()).expect("a published text");
        read.into_snapshot().map(|snapshot| snapshot.version)
    }
}

impl Publisher for Store {
    fn is_version_aware(&self) -> bool {
        self.aware
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        self.calls.set(self.calls.get() + 1);
        let course = self.courses.borrow_mut().pop_front();
        let Course {
            lands_after,
            answers_after,
        } = course.unwrap_or(Course {
            lands_after: Some(Duration::ZERO),
            answers_after: Some(Duration::ZERO),
        });
        let (answer, answered) = oneshot::channel();
        let (store, world) = (self.clone(), self.world.clone());
        // It goes on when the coordinator dies.
        self.world.spawn(async move {
            let mut passed = Duration::ZERO;
            if let Some(after) = lands_after {
                if !after.is_zero() {
                    world.sleep(after).await;
                }
                passed = after;
                store.land(&publication);
            }
            if let Some(after) = answers_after {
                if after > passed {
                    world.sleep(after - passed).await;
                }
                let _ = answer.send(());
            } else {
                std::mem::forget(answer);
            }
        });
        let panics = self.panics.take();
        Box::pin(async move {
            assert!(!panics, "a store that fails");
            answered.await?;
            Ok(Landing::Stored)
        })
    }
}

pub(crate) struct CoordinatorObject {
    pub(crate) scheduler: Scheduler,
    pub(crate) topology: Topology,
}

impl Object for CoordinatorObject {
    const CLASS: &'static str = "coordinator";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// What members do with a delivery.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Reaction {
    Take,
    Fail,
    Hang,
}

type Configure = Rc<dyn Fn(TopologyBuilder) -> TopologyBuilder>;

/// Gives a builder its publisher.
type Publish = Box<dyn FnOnce(TopologyBuilder) -> TopologyBuilder>;

/// What surrounds the coordinator.
#[derive(Clone)]
pub(crate) struct Around {
    pub(crate) reactions: Rc<RefCell<BTreeMap<String, Reaction>>>,
    pub(crate) delivered: Rc<RefCell<Vec<(Member, StateUpdate)>>>,
    pub(crate) events: Rc<RefCell<Vec<(String, TopologyEventKind)>>>,
    publisher: Rc<dyn Fn() -> Option<Publish>>,
    configure: Rc<RefCell<Configure>>,
}

pub(crate) struct Fixture {
    pub(crate) world: World,
    pub(crate) object: VirtualObject<CoordinatorObject>,
    pub(crate) around: Around,
}

fn publisher_config() -> PublisherConfig {
    let mut config = PublisherConfig::default();
    config.calls.attempt_timeout = TIMEOUT;
    config.calls.backoff = every_second();
    config
}

fn build(host: Rc<dyn Host>, around: &Around) -> Result<CoordinatorObject, OpenError> {
    let scheduler = Scheduler::new(host.clone(), SchedulerConfig::default())?;
    let outbox = Outbox::new(&scheduler)?;
    let mut builder = Topology::builder(&outbox);
    if let Some(publish) = (around.publisher)() {
        builder = publish(builder);
    }
    let mut config = StateChannelConfig::default();
    config.calls.attempt_timeout = TIMEOUT;
    config.calls.backoff = every_second();
    let (reactions, delivered) = (around.reactions.clone(), around.delivered.clone());
    builder = builder.channel("limits", config, move |member, update| {
        let reaction = reactions.borrow().get(&member.id).copied();
        let (delivered, host) = (delivered.clone(), host.clone());
        async move {
            match reaction.unwrap_or(Reaction::Take) {
                Reaction::Take => {
                    delivered.borrow_mut().push((member, update));
                    Ok(())
                }
                Reaction::Fail => Err("the member is away".into()),
                Reaction::Hang => {
                    host.sleep(seconds(1 << 20)).await;
                    Ok(())
                }
            }
        }
    });
    let events = around.events.clone();
    builder = builder.on_event(Rc::new(move |event| {
        events
            .borrow_mut()
            .push((event.group.clone(), event.kind.clone()));
    }));
    let configure = around.configure.borrow().clone();
    let topology = configure(builder).build()?;
    Ok(CoordinatorObject {
        scheduler,
        topology,
    })
}

impl Fixture {
    /// A coordinator that publishes into a store of its own part of the world.
    pub(crate) fn with_store(aware: bool) -> (Fixture, Store) {
        let world = World::new(1_700_000_000_000);
        let store = Store::new(&world, aware);
        let publisher = store.clone();
        let fixture = Fixture::build(world, move || {
            let publisher = publisher.clone();
            Some(Box::new(move |builder| {
                builder.publish(publisher, publisher_config())
            }))
        });
        (fixture, store)
    }

    pub(crate) fn with_memory() -> (Fixture, MemoryPublisher) {
        let memory = MemoryPublisher::default();
        let publisher = memory.clone();
        let fixture = Fixture::build(World::new(1_700_000_000_000), move || {
            let publisher = publisher.clone();
            Some(Box::new(move |builder| {
                builder.publish(publisher, publisher_config())
            }))
        });
        (fixture, memory)
    }

    fn build(world: World, publisher: impl Fn() -> Option<Publish> + 'static) -> Fixture {
        let unchanged: Configure = Rc::new(|builder| builder);
        let around = Around {
            reactions: Rc::default(),
            delivered: Rc::default(),
            events: Rc::default(),
            publisher: Rc::new(publisher),
            configure: Rc::new(RefCell::new(unchanged)),
        };
        let building = around.clone();
        let object = world.object("c", Alarms::Automatic, move |host| {
            let built = build(host, &building);
            async move {
                let object = Rc::new(built?);
                object.scheduler.open().await?;
                Ok(object)
            }
        });
        Fixture {
            world,
            object,
            around,
        }
    }

    /// Further settings of the next instance.
    pub(crate) fn configure(
        &self,
        configure: impl Fn(TopologyBuilder) -> TopologyBuilder + 'static,
    ) {
        *self.around.configure.borrow_mut() = Rc::new(configure);
    }

    /// Why an instance with the present settings cannot be built.
    pub(crate) fn build_error(&self) -> OpenError {
        let told = Rc::new(RefCell::new(None));
        let (tell, around) = (told.clone(), self.around.clone());
        let object = self.world.object("refused", Alarms::Manual, move |host| {
            let error = build(host, &around).err().expect("refused");
            *tell.borrow_mut() = Some(error.clone());
            async move { Err::<Rc<CoordinatorObject>, BoxError>(error.into()) }
        });
        assert!(self.world.block_on(object.open()).is_err());
        told.borrow_mut().take().expect("an error")
    }

    pub(crate) fn call<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        call: impl FnOnce(Topology) -> F + 'static,
    ) -> T {
        self.world
            .block_on(self.object.call(|object| call(object.topology.clone())))
            .expect("the object answers")
    }

    /// Starts a call that nobody waits for.
    pub(crate) fn start<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        call: impl FnOnce(Topology) -> F + 'static,
    ) {
        let called = self.object.call(|object| call(object.topology.clone()));
        self.world.spawn(async move {
            let _ = called.await;
        });
        self.world.run_until_idle();
    }

    pub(crate) fn update(
        &self,
        updater: impl FnOnce(&Current) -> Result<Draft, TopologyError> + 'static,
    ) -> Result<Updated, TopologyError> {
        let updated = self.call(|topology| async move { topology.update("g", updater).await });
        self.world.run_until_idle();
        updated
    }

    pub(crate) fn draft(&self, draft: Draft) -> Result<Updated, TopologyError> {
        self.update(move |_| Ok(draft))
    }

    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.call(|topology| async move { topology.snapshot("g").await })
            .expect("storage answers")
    }

    pub(crate) fn members(&self) -> Vec<String> {
        let snapshot = self.snapshot().expect("the group exists");
        snapshot
            .members
            .into_iter()
            .map(|member| member.id)
            .collect()
    }

    pub(crate) fn convergence(&self) -> Convergence {
        self.call(|topology| async move { topology.convergence("g").await })
            .expect("the group exists")
    }

    /// Who was sent what, in order.
    pub(crate) fn delivered(&self) -> Vec<(String, u64, Value)> {
        let delivered = self.around.delivered.take();
        let told =
            |(member, update): (Member, StateUpdate)| (member.id, update.version, update.value);
        delivered.into_iter().map(told).collect()
    }

    pub(crate) fn react(&self, member: &str, reaction: Reaction) {
        self.around
            .reactions
            .borrow_mut()
            .insert(member.to_owned(), reaction);
    }
}
