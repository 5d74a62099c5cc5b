//! The door for applications: building a coordinator, changing groups and reading them.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use super::convergence::{Audience, Convergence};
use super::delivery::{Deliver, StateChannel, StateUpdate};
use super::draft::{Current, Draft, RemovalGuard, Role};
use super::drain::Drained;
use super::driver::{Driver, Settings};
use super::error::TopologyError;
use super::event::TopologyEvent;
use super::publication::Publishing;
use super::publisher::Publisher;
use super::snapshot::{Incarnation, Member, Snapshot};
use crate::error::{BoxError, ConfigError, OpenError};
use crate::lifecycle::Hook;
use crate::outbox::{ChannelConfig, Outbox, Publish};
use crate::time::{MAX_DURATION, check_duration};

/// The outbox channel of publications; those of state channels are `durability.topology.NAME`.
pub(super) const PUBLICATIONS: &str = "durability.topology";

/// The outbox channel of a state channel.
pub(super) fn outbox_channel(state_channel: &str) -> String {
    format!("{PUBLICATIONS}.{state_channel}")
}

/// How publications are attempted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PublisherConfig {
    /// The time-out of a write, after which it is not waited for any more, the delay between attempts,
    /// and how many groups are published at once.
    pub calls: ChannelConfig,
    /// How long after its time-out a write may still land in a store that is not version-aware; 5 min by
    /// default.
    pub landing_window: Duration,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        PublisherConfig {
            calls: ChannelConfig::default(),
            landing_window: Duration::from_secs(5 * 60),
        }
    }
}

/// A state channel: whom it reaches, and how deliveries are attempted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StateChannelConfig {
    /// Which members it reaches; active ones by default.
    pub members: Role,
    /// The time-out of a delivery, the delay between attempts, and how many members are served at once.
    pub calls: ChannelConfig,
}

/// The settings of the outbox channel behind a publisher or state channel. The topology watches the
/// time of each call itself, since it goes on watching a write that it no longer waits for.
fn outbox_config(calls: ChannelConfig) -> Result<ChannelConfig, ConfigError> {
    calls.check()?;
    let attempt_timeout = calls.attempt_timeout.saturating_mul(2).min(MAX_DURATION);
    Ok(ChannelConfig {
        attempt_timeout,
        ..calls
    })
}

/// The groups of one coordinator. Clones are handles to the same ones.
///
/// Whatever changes a group runs to its end even if the future that waits for it is dropped.
#[derive(Clone)]
pub struct Topology(Rc<Driver>);

/// Settings of a [`Topology`].
///
/// Callbacks that need the object that owns the topology must hold it by [`Weak`](std::rc::Weak).
pub struct TopologyBuilder {
    outbox: Outbox,
    coordinator: String,
    publisher: Option<(Rc<dyn Publisher>, PublisherConfig)>,
    channels: Vec<(String, StateChannelConfig, Deliver)>,
    drained: Option<Drained>,
    drain_check_period: Duration,
    max_snapshot_bytes: usize,
    guard: Option<RemovalGuard>,
    hook: Option<Hook<TopologyEvent>>,
}

/// What an update made.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Updated {
    /// The group as it is after the update.
    pub snapshot: Snapshot,
    /// Whether the store has it for good: `false` means that the write failed or an older one may
    /// still land over it, and that the coordinator goes on until it is.
    pub published: bool,
}

/// What a deletion made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deleted {
    /// The version that the group was deleted with; `None` if there was no such group.
    pub version: Option<u64>,
    /// Whether the store has the deletion for good.
    pub published: bool,
}

impl TopologyBuilder {
    /// The id under which readers know this coordinator; the object's id by default. Versions compare
    /// only within one id.
    #[must_use]
    pub fn coordinator(mut self, id: impl Into<String>) -> Self {
        self.coordinator = id.into();
        self
    }

    /// Publishes every change to a store. Without one nothing is published.
    #[must_use]
    pub fn publish(mut self, publisher: impl Publisher, config: PublisherConfig) -> Self {
        self.publisher = Some((Rc::new(publisher), config));
        self
    }

    /// Adds a state channel: `deliver` hands a value to a member, which applies it if its version is
    /// newer than what it has. It may be called again with the same.
    #[must_use]
    pub fn channel<F, Answer>(
        mut self,
        name: impl Into<String>,
        config: StateChannelConfig,
        deliver: F,
    ) -> Self
    where
        F: Fn(Member, StateUpdate) -> Answer + 'static,
        Answer: Future<Output = Result<(), BoxError>> + 'static,
    {
        let deliver: Deliver = Rc::new(move |member, update| Box::pin(deliver(member, update)));
        self.channels.push((name.into(), config, deliver));
        self
    }

    /// Asks `drained` every `period` (30 s by default) whether a draining member holds nothing any
    /// more, if its draining is to end so.
    #[must_use]
    pub fn drained<F, Answer>(mut self, drained: F) -> Self
    where
        F: Fn(String, Member) -> Answer + 'static,
        Answer: Future<Output = Result<bool, BoxError>> + 'static,
    {
        self.drained = Some(Rc::new(move |group, member| {
            Box::pin(drained(group, member))
        }));
        self
    }

    /// How often `drained` is asked about a member.
    #[must_use]
    pub fn drain_check_period(mut self, period: Duration) -> Self {
        self.drain_check_period = period;
        self
    }

    /// The longest published text, in bytes; 8 MiB by default.
    #[must_use]
    pub fn max_snapshot_bytes(mut self, bytes: usize) -> Self {
        self.max_snapshot_bytes = bytes;
        self
    }

    /// Refuses updates that remove more than a share of a group's members, unless they name a guard of
    /// their own. Off by default.
    #[must_use]
    pub fn removal_guard(mut self, guard: RemovalGuard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Tells `hook` what happens to groups. What happens to publications and deliveries is told by the
    /// outbox.
    #[must_use]
    pub fn on_event(mut self, hook: Hook<TopologyEvent>) -> Self {
        self.hook = Some(hook);
        self
    }

    /// Makes the topology and attaches it to the outbox's scheduler.
    ///
    /// # Errors
    ///
    /// [`OpenError::Config`] for settings out of range, a channel's name that is empty or there twice,
    /// and an empty coordinator id; what [`Scheduler::attach`](crate::Scheduler::attach) answers.
    pub fn build(self) -> Result<Topology, OpenError> {
        if self.coordinator.is_empty() {
            return Err(ConfigError::new("coordinator", "must not be empty").into());
        }
        if self.max_snapshot_bytes == 0 {
            return Err(ConfigError::new("max_snapshot_bytes", "must not be 0").into());
        }
        check_duration("drain_check_period", self.drain_check_period)?;
        let settings = Settings {
            coordinator: self.coordinator,
            drained: self.drained,
            drain_check_period: self.drain_check_period,
            max_snapshot_bytes: self.max_snapshot_bytes,
            guard: self.guard,
            hook: self.hook,
        };
        let driver = Driver::new(&self.outbox, settings);
        if let Some((publisher, config)) = self.publisher {
            check_duration("landing_window", config.landing_window)?;
            let attempt_timeout = config.calls.attempt_timeout;
            let outbox = outbox_config(config.calls)?;
            let weak = Rc::downgrade(&driver);
            let publish = Publish::each(move |entry| Driver::publish(weak.clone(), entry));
            let channel = self.outbox.channel(PUBLICATIONS, outbox, publish)?;
            driver.observe(&channel);
            driver.set_publishing(Publishing {
                publisher,
                channel,
                attempt_timeout,
                landing_window: config.landing_window,
            });
        }
        let mut channels = Vec::with_capacity(self.channels.len());
        for (name, config, deliver) in self.channels {
            if name.is_empty() {
                return Err(ConfigError::new("channel", "must have a name").into());
            }
            let attempt_timeout = config.calls.attempt_timeout;
            let outbox = outbox_config(config.calls)?;
            let (weak, place) = (Rc::downgrade(&driver), channels.len());
            let publish = Publish::each(move |entry| Driver::deliver(weak.clone(), place, entry));
            let channel = self
                .outbox
                .channel(outbox_channel(&name), outbox, publish)?;
            driver.observe(&channel);
            channels.push(StateChannel {
                name,
                role: config.members,
                attempt_timeout,
                channel,
                deliver,
            });
        }
        driver.set_channels(channels);
        self.outbox.scheduler().attach(&driver)?;
        Ok(Topology(driver))
    }
}

impl Topology {
    /// Settings for the coordinator of the object that `outbox` belongs to. It is built before the
    /// scheduler is opened, and after the outbox.
    pub fn builder(outbox: &Outbox) -> TopologyBuilder {
        TopologyBuilder {
            outbox: outbox.clone(),
            coordinator: outbox.scheduler().host().id().to_owned(),
            publisher: None,
            channels: Vec::new(),
            drained: None,
            drain_check_period: Duration::from_secs(30),
            max_snapshot_bytes: 8 << 20,
            guard: None,
            hook: None,
        }
    }

    /// Changes a group, or creates it, in one transaction: members, state values, their deliveries and
    /// the publication. `updater` is shown the group and drafts what it is to be; what the draft
    /// leaves out stays, and a draft that changes nothing publishes and delivers nothing.
    ///
    /// After the commit one publication is attempted; see [`Updated::published`].
    ///
    /// # Errors
    ///
    /// What is wrong with the draft, the updater's own error, and what storage answers; nothing is
    /// stored then.
    #[tracing::instrument(
        name = "durability.topology.update",
        level = "debug",
        skip_all,
        fields(group)
    )]
    pub async fn update<F>(&self, group: &str, updater: F) -> Result<Updated, TopologyError>
    where
        F: FnOnce(&Current) -> Result<Draft, TopologyError> + 'static,
    {
        self.0.update(group, Box::new(updater)).await
    }

    /// Applies a draft to a group that is at version `expected`: `Some(None)` for a group that does not
    /// exist, `None` for any.
    ///
    /// # Errors
    ///
    /// As for [`update`](Self::update), and [`TopologyError::VersionConflict`].
    pub async fn apply(
        &self,
        group: &str,
        expected: Option<Option<u64>>,
        draft: Draft,
    ) -> Result<Updated, TopologyError> {
        self.update(group, move |current| match expected {
            Some(expected) if expected != current.version => Err(TopologyError::VersionConflict {
                expected,
                found: current.version,
            }),
            _ => Ok(draft),
        })
        .await
    }

    /// Deletes a group: its members and values go, what is on its way to members is taken back, and the
    /// store is told. A group that is created again goes on counting versions.
    ///
    /// # Errors
    ///
    /// [`TopologyError::InvalidGroup`], [`TopologyError::VersionConflict`] if the group is not at the
    /// `expected` version, and what storage answers.
    #[tracing::instrument(
        name = "durability.topology.delete",
        level = "debug",
        skip_all,
        fields(group)
    )]
    pub async fn delete(
        &self,
        group: &str,
        expected: Option<u64>,
    ) -> Result<Deleted, TopologyError> {
        self.0.delete(group, expected).await
    }

    /// A group as the coordinator has it; `None` if there is none. Readers elsewhere use the published
    /// copy.
    ///
    /// # Errors
    ///
    /// [`TopologyError::InvalidGroup`] and what storage answers.
    pub async fn snapshot(&self, group: &str) -> Result<Option<Snapshot>, TopologyError> {
        self.0.snapshot(group).await
    }

    /// The values of a group's state channels.
    ///
    /// # Errors
    ///
    /// [`TopologyError::UnknownGroup`] and what storage answers.
    pub async fn states(&self, group: &str) -> Result<BTreeMap<String, Value>, TopologyError> {
        self.0.states(group).await
    }

    /// Names of groups in order, at most `limit` after `after` (the empty string for the first),
    /// deleted ones left out. Fewer than `limit` may come before the last; an empty list is the end.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn groups(&self, after: &str, limit: u64) -> Result<Vec<String>, TopologyError> {
        self.0.groups(after, limit).await
    }

    /// How far a group's newest snapshot and values have come: what is published, and what each member
    /// has.
    ///
    /// # Errors
    ///
    /// [`TopologyError::UnknownGroup`] and what storage answers.
    pub async fn convergence(&self, group: &str) -> Result<Convergence, TopologyError> {
        self.0.convergence(group).await
    }

    /// Waits until the group is at `version` or a later one and that has reached `audience`, for
    /// `timeout` at most. Answers how far it has come; [`Convergence::reached`] says whether that is
    /// far enough.
    ///
    /// # Errors
    ///
    /// As for [`convergence`](Self::convergence).
    pub async fn wait_until(
        &self,
        group: &str,
        version: u64,
        audience: Audience,
        timeout: Duration,
    ) -> Result<Convergence, TopologyError> {
        self.0.wait_until(group, version, audience, timeout).await
    }

    /// The incarnation that this coordinator publishes with.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.0.incarnation()
    }

    /// Begins a new incarnation, publishes all groups again and sends all members their values again: for
    /// an operator who restored the coordinator's storage from an older copy, so that readers and members
    /// take its versions for newer than what they saw before.
    ///
    /// # Errors
    ///
    /// What storage answers.
    pub async fn new_incarnation(&self) -> Result<Incarnation, TopologyError> {
        self.0.new_incarnation(None).await
    }
}
