//! The coordinator: which shards the tenant has, and how fast they may work.

use std::rc::Rc;
use std::time::Duration;

use durably::Scheduler;
use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::outbox::Outbox;
use durably::topology::{
    Current, Draft, DrainEnd, MemoryPublisher, NewMember, PublisherConfig, StateChannelConfig,
    Topology, TopologyError,
};
use durably_native::SystemRef;

use crate::shard::Shard;
use crate::{TENANT, quick};

pub(crate) struct Tenant {
    scheduler: Scheduler,
    pub(crate) topology: Topology,
}

impl Object for Tenant {
    const CLASS: &'static str = "tenant";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

impl Tenant {
    pub(crate) async fn open(
        host: Rc<dyn Host>,
        store: MemoryPublisher,
        system: SystemRef,
    ) -> Result<Tenant, BoxError> {
        let scheduler = Scheduler::new(host, quick())?;
        let outbox = Outbox::new(&scheduler)?;
        let shards = system.clone();
        let topology = Topology::builder(&outbox)
            .publish(store, PublisherConfig::default())
            .channel(
                "limits",
                StateChannelConfig::default(),
                move |member, update| {
                    let shard = system.object::<Shard>(&member.id);
                    async move {
                        shard
                            .call(|shard| async move { shard.apply(update).await })
                            .await??;
                        Ok(())
                    }
                },
            )
            .drained(move |_group, member| {
                let shard = shards.object::<Shard>(&member.id);
                async move {
                    Ok(shard
                        .call(|shard| async move { shard.close_if_empty().await })
                        .await??)
                }
            })
            .drain_check_period(Duration::from_millis(200))
            .build()?;
        scheduler.open().await?;
        Ok(Tenant {
            scheduler,
            topology,
        })
    }

    pub(crate) async fn change(
        &self,
        change: impl FnOnce(&Current) -> Draft + 'static,
    ) -> Result<u64, TopologyError> {
        let updated = self
            .topology
            .update(TENANT, |current| Ok(change(current)))
            .await?;
        Ok(updated.snapshot.version)
    }

    pub(crate) async fn join(&self, shard: String) -> Result<u64, TopologyError> {
        self.change(move |current| {
            let others = current.members.iter().filter(|member| member.id != shard);
            let others = others.map(NewMember::from);
            Draft::members(others.chain([NewMember::active(&shard)]))
        })
        .await
    }

    pub(crate) async fn drain(&self, shard: String) -> Result<u64, TopologyError> {
        self.change(move |current| {
            Draft::members(current.members.iter().map(|member| {
                if member.id == shard {
                    NewMember::from(member).drain(DrainEnd::when_drained())
                } else {
                    NewMember::from(member)
                }
            }))
        })
        .await
    }
}
