//! A coordinator that publishes into memory.

use std::path::Path;
use std::rc::Rc;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::outbox::Outbox;
use durably::topology::{
    Draft, MemoryPublisher, NewMember, PublisherConfig, Topology, TopologyError,
};
use durably::{OpenError, Scheduler, SchedulerConfig};
use durably_native::{System, SystemConfig};
use futures::future::try_join_all;

struct Coordinator {
    scheduler: Scheduler,
    topology: Topology,
}

impl Coordinator {
    async fn open(host: Rc<dyn Host>, store: MemoryPublisher) -> Result<Coordinator, OpenError> {
        let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
        let outbox = Outbox::new(&scheduler)?;
        let topology = Topology::builder(&outbox)
            .publish(store, PublisherConfig::default())
            .build()?;
        scheduler.open().await?;
        Ok(Coordinator {
            scheduler,
            topology,
        })
    }
}

impl Object for Coordinator {
    const CLASS: &'static str = "bench-coordinator";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// A store in which groups of these names are published, each with eight members.
pub(super) async fn store(folder: &Path, names: &[String]) -> Result<MemoryPublisher, BoxError> {
    let store = MemoryPublisher::default();
    let published = store.clone();
    let system = System::builder(folder)
        .config(SystemConfig::default())
        .class::<Coordinator>(move |host| {
            let opening = Coordinator::open(host, published.clone());
            Box::pin(async move { Ok(Rc::new(opening.await?)) })
        })
        .open()?;
    let coordinator = system.object::<Coordinator>("coordinator");
    let updates = names.iter().map(|name| {
        let (coordinator, name) = (coordinator.clone(), name.clone());
        async move {
            let update = coordinator.call(move |coordinator| async move {
                let members = (0..8).map(|index| NewMember::active(format!("{name}-{index}")));
                let draft = Draft::members(members);
                let updated = coordinator
                    .topology
                    .update(&name, move |_| Ok(draft))
                    .await?;
                Ok::<bool, TopologyError>(updated.published)
            });
            if update.await?? {
                Ok(())
            } else {
                Err(BoxError::from("a group was not published"))
            }
        }
    });
    try_join_all(updates).await?;
    system.shutdown().await;
    Ok(store)
}
