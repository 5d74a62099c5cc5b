//! The object behind a topology.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::outbox::Outbox;
use durably::topology::Topology;
use durably::{OpenError, Scheduler};

use super::news::{News, Telling};
use super::{Members, TopologiesConfig};
use crate::publishers::FolderPublisher;

/// The coordinator of one topology; its name is the topology's.
pub(super) struct Coordinator {
    scheduler: Scheduler,
    topology: Topology,
}

impl Object for Coordinator {
    const CLASS: &'static str = "topology";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

impl Coordinator {
    pub(super) async fn open(
        host: Rc<dyn Host>,
        config: &TopologiesConfig,
        members: Arc<dyn Members>,
        folder: PathBuf,
        news: News,
    ) -> Result<Self, BoxError> {
        // It looks through the folder, which objects of this thread should not wait for.
        let opening = tokio::task::spawn_blocking(move || FolderPublisher::open(folder));
        let publisher = opening.await??;
        let name: Rc<str> = host.name().into();
        let publisher = Telling::new(publisher, news, &name);
        let scheduler = Scheduler::new(host, config.scheduler())?;
        let outbox = Outbox::new(&scheduler)?;
        let topology = build(&outbox, config, members, publisher, name)?;
        scheduler.open().await?;
        Ok(Coordinator {
            scheduler,
            topology,
        })
    }

    /// A handle of its own, for turns that outlive a borrow.
    pub(super) fn topology(&self) -> Topology {
        self.topology.clone()
    }
}

fn build(
    outbox: &Outbox,
    config: &TopologiesConfig,
    members: Arc<dyn Members>,
    publisher: Telling,
    name: Rc<str>,
) -> Result<Topology, OpenError> {
    let mut builder = Topology::builder(outbox)
        .publish(publisher, config.publisher.clone())
        .max_snapshot_bytes(config.max_snapshot_bytes)
        .drain_check_period(config.drain_check_period);
    if let Some(guard) = config.removal_guard {
        builder = builder.removal_guard(guard);
    }
    for (channel, settings) in &config.channels {
        let (members, name) = (members.clone(), name.clone());
        builder = builder.channel(channel, settings.clone(), move |member, update| {
            members.deliver(&name, &member, &update)
        });
    }
    builder
        .drained(move |group, member| members.drained(&name, &group, &member))
        .build()
}
