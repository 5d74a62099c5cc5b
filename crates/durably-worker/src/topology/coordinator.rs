//! The object behind a topology; its name is the topology's.

use std::rc::Rc;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::outbox::Outbox;
use durably::topology::Topology;
use durably::{OpenError, Scheduler};
use durably_http::ApiError;
use durably_http::topology::{Changed, Groups, Removed, States, version_tag};

use super::asked::Asked;
use super::settings::TopologySettings;
use super::store::TopologyPublisher;
use super::way::Members;
use crate::answer::Answer;
use crate::settings::Environment;

/// The coordinator of one topology.
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
    /// Opens the coordinator of the topology that `host` is named after.
    pub(super) async fn open(
        host: Rc<dyn Host>,
        environment: &Environment,
    ) -> Result<Self, BoxError> {
        let topology = host.name();
        let settings = environment.topology()?;
        let members = Members::new(environment, topology)?;
        let publisher = TopologyPublisher::new(environment, topology)?;
        let scheduler = Scheduler::new(host, environment.scheduler()?)?;
        let outbox = Outbox::new(&scheduler)?;
        let topology = build(&outbox, settings, members, publisher)?;
        scheduler.open().await?;
        Ok(Coordinator {
            scheduler,
            topology,
        })
    }

    /// Answers what is asked.
    pub(super) async fn answer(&self, asked: Asked) -> Result<Answer, ApiError> {
        let topology = &self.topology;
        let unknown = |group| durably::topology::TopologyError::UnknownGroup(group);
        match asked {
            Asked::Change(group, expected, change) => {
                let updated = topology.change(&group, expected, change).await?;
                let answer = Answer::ok(&Changed {
                    snapshot: &updated.snapshot,
                    published: updated.published,
                });
                Ok(tagged(answer, updated.snapshot.version))
            }
            Asked::Delete(group, expected) => {
                let deleted = topology.remove(&group, expected).await?;
                Ok(Answer::ok(&Removed {
                    version: deleted.version,
                    published: deleted.published,
                }))
            }
            Asked::Group(group) => {
                let snapshot = topology.snapshot(&group).await?;
                let snapshot = snapshot.ok_or_else(|| unknown(group))?;
                Ok(tagged(Answer::ok(&snapshot), snapshot.version))
            }
            Asked::States(group) => {
                let states = topology.states(&group).await?;
                Ok(Answer::ok(&States { states }))
            }
            Asked::Convergence(group, query) => {
                let wait = query.wait()?;
                let convergence = if wait.is_zero() {
                    topology.convergence(&group).await?
                } else {
                    let (version, audience) = (query.version(), query.audience());
                    topology.wait_until(&group, version, audience, wait).await?
                };
                Ok(Answer::ok(&query.reached(convergence)))
            }
            Asked::Groups(query, limit) => {
                let groups = topology.groups(&query.after, limit).await?;
                Ok(Answer::ok(&Groups { groups }))
            }
            Asked::NewIncarnation => {
                tracing::warn!("an operator begins a new incarnation");
                Ok(Answer::ok(&topology.new_incarnation().await?))
            }
        }
    }
}

fn tagged(mut answer: Answer, version: u64) -> Answer {
    answer.headers.push(("etag", version_tag(version)));
    answer
}

fn build(
    outbox: &Outbox,
    settings: TopologySettings,
    members: Members,
    publisher: TopologyPublisher,
) -> Result<Topology, OpenError> {
    let mut builder = Topology::builder(outbox)
        .publish(publisher, settings.publisher)
        .max_snapshot_bytes(settings.max_snapshot_bytes)
        .drain_check_period(settings.drain_check_period);
    if let Some(guard) = settings.removal_guard {
        builder = builder.removal_guard(guard);
    }
    for (channel, config) in settings.channels {
        let members = members.clone();
        builder = builder.channel(channel, config, move |member, update| {
            members.deliver(&member, update)
        });
    }
    builder
        .drained(move |group, member| members.drained(&group, &member))
        .build()
}
