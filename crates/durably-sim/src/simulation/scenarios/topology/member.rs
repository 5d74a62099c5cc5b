//! A member of groups: applies what it is told, in its own transaction, or fails, or takes its time.

use std::fmt;
use std::rc::{Rc, Weak};

use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::topology::{StateReceiver, StateUpdate};
use durably::{Scheduler, SchedulerConfig, StorageError};

use super::Region;
use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::invariants::applied::{Applied, FOLLOWING};

pub(super) struct Member {
    scheduler: Scheduler,
    states: StateReceiver,
}

impl Object for Member {
    const CLASS: &'static str = "member";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

impl Member {
    async fn apply(&self, update: StateUpdate) -> Result<bool, StorageError> {
        let applied = self.states.apply(update, |transaction, update| {
            transaction.sql().execute(
                "INSERT INTO following (group_id, channel, value) VALUES (?, ?, ?)
                 ON CONFLICT (group_id, channel) DO UPDATE SET value = excluded.value",
                &[
                    (&update.group).into(),
                    (&update.channel).into(),
                    (&update.value.to_string()).into(),
                ],
            )?;
            Ok(())
        });
        applied.await
    }
}

pub(super) struct MemberSide {
    pub(super) id: String,
    pub(super) node: Node,
    pub(super) object: VirtualObject<Member>,
    pub(super) applied: Applied,
}

pub(super) fn open(region: &Rc<Region>, index: usize) -> Rc<MemberSide> {
    let node = region.nodes[(index + 1) % region.nodes.len()].clone();
    let id = format!("m-{index}");
    let object = region
        .run
        .world
        .object_in(&node, &id, move |host| async move {
            let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
            let states = StateReceiver::new(&scheduler)?;
            scheduler.open().await?;
            let prepared = scheduler.transaction(|transaction| transaction.sql().script(FOLLOWING));
            prepared.await?;
            Ok(Rc::new(Member { scheduler, states }))
        });
    Rc::new(MemberSide {
        id,
        node,
        object,
        applied: Applied::default(),
    })
}

/// What a member answers.
pub(super) struct Told(Result<bool, String>);

impl fmt::Display for Told {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(true) => formatter.write_str("applied"),
            Ok(false) => formatter.write_str("known"),
            Err(error) => formatter.write_str(error),
        }
    }
}

/// Brings an update from a coordinator's process to a member.
pub(super) async fn deliver(
    region: Weak<Region>,
    from: Node,
    member: String,
    update: StateUpdate,
) -> Result<(), BoxError> {
    let region = region.upgrade().ok_or("the run is over")?;
    let side = region.member(&member).ok_or("there is no such member")?;
    let (run, to) = (region.run.clone(), side.node.clone());
    let what = format!(
        "{} of {} is {}, version {}",
        update.channel, update.group, update.value, update.version
    );
    let weak = Rc::downgrade(&region);
    let arrives = Rc::new(move || -> LocalFuture<Told> {
        Box::pin(arrive(weak.clone(), side.clone(), update.clone()))
    });
    let network = run.network.clone();
    match network.send(run, from, to, (member, what), arrives).await {
        Ok(Told(Ok(_))) => Ok(()),
        Ok(Told(Err(error))) => Err(error.into()),
        Err(_) => Err("the connection broke".into()),
    }
}

async fn arrive(region: Weak<Region>, side: Rc<MemberSide>, update: StateUpdate) -> Told {
    let Some(region) = region.upgrade() else {
        return Told(Err("the run is over".to_owned()));
    };
    if region.dice.fails("member-fails-percent") {
        region.run.cover("member failed");
        return Told(Err("not this time".to_owned()));
    }
    if region.dice.fails("member-hangs-percent") {
        region.run.cover("member took its time");
        region.dice.linger("member-ms").await;
    }
    let applied = side
        .object
        .call(|member| async move { member.apply(update).await });
    Told(match applied.await {
        Ok(Ok(applied)) => {
            if !applied {
                region.run.cover("older or known value passed over");
            }
            Ok(applied)
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(ended) => Err(ended.to_string()),
    })
}
