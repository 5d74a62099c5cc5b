//! Topology coordinators on this host: their class of objects, the folder that they publish into, and
//! the door to them for everybody outside.
//!
//! Decided here: nothing about groups, see [`durably::topology`]; only that a topology is one object,
//! named like it, that publishes into a folder of its own, and what a call that failed means.

mod config;
mod coordinator;
mod error;
mod news;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use durably::ConfigError;
use durably::error::BoxError;
use durably::host::{Host, LocalFuture};
use durably::names::safe_name;
use durably::topology::{
    Audience, Convergence, Deleted, Edition, Expected, GroupChange, Incarnation, Member, Snapshot,
    StateUpdate, TopologyError, TopologyNameError, Updated, check_group, decode,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

pub use config::TopologiesConfig;
use coordinator::Coordinator;
pub use error::TopologiesError;
use news::News;
pub use news::Watching;

use crate::publishers::FolderReader;
use crate::{ObjectHandle, SystemBuilder, SystemRef};

/// The way to the members of groups.
pub trait Members: Send + Sync + 'static {
    /// Hands a value to a member, which applies it if it is newer than what it has. It may be called
    /// again with the same.
    fn deliver(
        &self,
        topology: &str,
        member: &Member,
        update: &StateUpdate,
    ) -> LocalFuture<Result<(), BoxError>>;

    /// Asks whether a draining member holds nothing any more.
    fn drained(
        &self,
        topology: &str,
        group: &str,
        member: &Member,
    ) -> LocalFuture<Result<bool, BoxError>>;
}

/// A published text and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedGroup {
    /// The text, as readers read it.
    pub text: Vec<u8>,
    /// Which edition of the group it is.
    pub edition: Edition,
    /// Whether it says that the group was deleted.
    pub deleted: bool,
}

/// The topologies of one system. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Topologies(Arc<Inner>);

struct Inner {
    system: SystemRef,
    publish_dir: PathBuf,
    /// Names of the state channels.
    channels: Vec<String>,
    news: News,
}

impl Topologies {
    /// Adds the class of coordinators to a system that is to be opened.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] naming the setting that cannot be.
    pub fn register(
        builder: SystemBuilder,
        config: TopologiesConfig,
        members: Arc<dyn Members>,
    ) -> Result<(SystemBuilder, Topologies), ConfigError> {
        config.check()?;
        let topologies = Topologies(Arc::new(Inner {
            system: builder.system(),
            publish_dir: config.publish_dir.clone(),
            channels: config.channels.keys().cloned().collect(),
            news: News::default(),
        }));
        let (config, inner) = (Arc::new(config), Arc::downgrade(&topologies.0));
        let builder = builder.class::<Coordinator>(move |host: Rc<dyn Host>| {
            let (config, members, inner) = (config.clone(), members.clone(), inner.clone());
            Box::pin(async move {
                let inner = inner.upgrade().ok_or("the server is stopping")?;
                let folder = Topologies(inner.clone()).folder(host.name());
                let opening = Coordinator::open(host, &config, members, folder, inner.news.clone());
                Ok(Rc::new(opening.await?))
            })
        });
        Ok((builder, topologies))
    }

    /// Where a topology is published: a folder for [`FolderReader`].
    pub fn folder(&self, topology: &str) -> PathBuf {
        let digest = Sha256::digest(topology);
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        self.0.publish_dir.join(safe_name(topology, &hash))
    }

    /// Changes a group, or creates it; the topology comes to be with its first one.
    ///
    /// # Errors
    ///
    /// [`TopologiesError`]; nothing of the group is changed then.
    pub async fn update(
        &self,
        topology: &str,
        group: &str,
        expected: Expected,
        change: GroupChange,
    ) -> Result<Updated, TopologiesError> {
        check_group(group)?;
        let coordinator = self.coordinator(topology)?;
        if !coordinator.exists()? {
            // What is refused leaves no coordinator without a group behind.
            let channels: Vec<&str> = self.0.channels.iter().map(String::as_str).collect();
            change.check_first(group, expected, &channels)?;
        }
        let of = group.to_owned();
        self.call(&coordinator, move |coordinator| async move {
            coordinator.topology().change(&of, expected, change).await
        })
        .await
    }

    /// Deletes a group.
    ///
    /// # Errors
    ///
    /// [`TopologyError::UnknownGroup`] if there is none, also when it was expected to have a version.
    pub async fn delete(
        &self,
        topology: &str,
        group: &str,
        expected: Expected,
    ) -> Result<Deleted, TopologiesError> {
        self.of_group(topology, group, move |coordinator, group| async move {
            coordinator.topology().remove(&group, expected).await
        })
        .await
    }

    /// A group as its coordinator has it; readers read what is published.
    ///
    /// # Errors
    ///
    /// [`TopologiesError`].
    pub async fn snapshot(&self, topology: &str, group: &str) -> Result<Snapshot, TopologiesError> {
        let snapshot = self
            .of_group(topology, group, |coordinator, group| async move {
                coordinator.topology().snapshot(&group).await
            })
            .await?;
        snapshot.ok_or_else(|| unknown(group))
    }

    /// The values of a group's state channels.
    ///
    /// # Errors
    ///
    /// [`TopologiesError`].
    pub async fn states(
        &self,
        topology: &str,
        group: &str,
    ) -> Result<BTreeMap<String, Value>, TopologiesError> {
        self.of_group(topology, group, |coordinator, group| async move {
            coordinator.topology().states(&group).await
        })
        .await
    }

    /// Names of groups in order, at most `limit` after `after`; an empty list is the end.
    ///
    /// # Errors
    ///
    /// [`TopologiesError`].
    pub async fn groups(
        &self,
        topology: &str,
        after: &str,
        limit: u64,
    ) -> Result<Vec<String>, TopologiesError> {
        let Some(coordinator) = self.known(topology)? else {
            return Ok(Vec::new());
        };
        let after = after.to_owned();
        self.call(&coordinator, move |coordinator| async move {
            coordinator.topology().groups(&after, limit).await
        })
        .await
    }

    /// How far a group's newest snapshot and values have come.
    ///
    /// # Errors
    ///
    /// [`TopologiesError`].
    pub async fn convergence(
        &self,
        topology: &str,
        group: &str,
    ) -> Result<Convergence, TopologiesError> {
        self.of_group(topology, group, |coordinator, group| async move {
            coordinator.topology().convergence(&group).await
        })
        .await
    }

    /// Waits until a version, or a later one, has reached an audience, for `timeout` at most.
    ///
    /// # Errors
    ///
    /// [`TopologiesError`].
    pub async fn wait_until(
        &self,
        topology: &str,
        group: &str,
        version: u64,
        audience: Audience,
        timeout: Duration,
    ) -> Result<Convergence, TopologiesError> {
        self.of_group(topology, group, move |coordinator, group| async move {
            let topology = coordinator.topology();
            topology
                .wait_until(&group, version, audience, timeout)
                .await
        })
        .await
    }

    /// Begins a new incarnation of a topology's coordinator; see
    /// [`Topology::new_incarnation`](durably::topology::Topology::new_incarnation).
    ///
    /// # Errors
    ///
    /// [`TopologyNameError::Unknown`] and others.
    pub async fn new_incarnation(&self, topology: &str) -> Result<Incarnation, TopologiesError> {
        let Some(coordinator) = self.known(topology)? else {
            return Err(TopologyNameError::Unknown(topology.to_owned()).into());
        };
        self.call(&coordinator, |coordinator| async move {
            coordinator.topology().new_incarnation().await
        })
        .await
    }

    /// What is published of a group, tombstones included; the coordinator is not asked. `None` if
    /// nothing was ever published.
    ///
    /// # Errors
    ///
    /// [`TopologiesError::Read`] and [`TopologiesError::Damaged`].
    pub async fn published(
        &self,
        topology: &str,
        group: &str,
    ) -> Result<Option<PublishedGroup>, TopologiesError> {
        check_group(group)?;
        if self.known(topology)?.is_none() {
            return Ok(None);
        }
        let reader = FolderReader::new(self.folder(topology));
        let Some(text) = reader.read(group).await? else {
            return Ok(None);
        };
        let read = decode(group, &text)?;
        Ok(Some(PublishedGroup {
            text,
            deleted: read.members.is_none(),
            edition: read.edition,
        }))
    }

    /// Tells when a group may have been published anew by this system.
    pub fn watch(&self, topology: &str, group: &str) -> Watching {
        self.0.news.watch(topology, group)
    }

    fn coordinator(&self, topology: &str) -> Result<ObjectHandle<Coordinator>, TopologiesError> {
        TopologyNameError::check(topology)?;
        Ok(self.0.system.object(topology))
    }

    /// A topology's coordinator, if there is one: asking does not make it.
    fn known(&self, topology: &str) -> Result<Option<ObjectHandle<Coordinator>>, TopologiesError> {
        let coordinator = self.coordinator(topology)?;
        Ok(coordinator.exists()?.then_some(coordinator))
    }

    async fn call<T, F, Turn>(
        &self,
        coordinator: &ObjectHandle<Coordinator>,
        turn: F,
    ) -> Result<T, TopologiesError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Coordinator>) -> Turn + Send + 'static,
        Turn: Future<Output = Result<T, TopologyError>> + 'static,
    {
        Ok(coordinator.call(turn).await??)
    }

    /// Asks a coordinator about a group; without a coordinator there is none.
    async fn of_group<T, F, Turn>(
        &self,
        topology: &str,
        group: &str,
        turn: F,
    ) -> Result<T, TopologiesError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Coordinator>, String) -> Turn + Send + 'static,
        Turn: Future<Output = Result<T, TopologyError>> + 'static,
    {
        check_group(group)?;
        let Some(coordinator) = self.known(topology)? else {
            return Err(unknown(group));
        };
        let group = group.to_owned();
        self.call(&coordinator, move |coordinator| turn(coordinator, group))
            .await
    }
}

fn unknown(group: &str) -> TopologiesError {
    TopologyError::UnknownGroup(group.to_owned()).into()
}
