//! A holder of the fleet, whose limits are callbacks that fail, hang and change their mind.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::semaphore::{LeaseOptions, Semaphore, SemaphoreEvent};
use durably::{Scheduler, SchedulerConfig};

use super::super::leases;
use super::super::wire::Address;
use super::{Fleet, WeakFleet};
use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::invariants::books::Allowed;

pub(super) struct Holder {
    pub(super) scheduler: Scheduler,
    pub(super) semaphore: Semaphore,
}

impl Object for Holder {
    const CLASS: &'static str = "holder";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// A holder, and what it is told.
pub(super) struct HolderSide {
    pub(super) key: String,
    pub(super) node: Node,
    pub(super) object: VirtualObject<Holder>,
    /// Its newest instance.
    pub(super) open: RefCell<Weak<Holder>>,
    settings: Rc<Settings>,
}

/// What the callbacks answer, and what they answered last: that is what a round goes by.
struct Settings {
    limit: Cell<u64>,
    limit_in_force: Cell<u64>,
    ceiling: Cell<Option<u64>>,
    closed: Cell<bool>,
    ceilings_in_force: RefCell<BTreeMap<String, Option<u64>>>,
    leases: RefCell<Option<LeaseOptions>>,
    /// Every way in which leases were given: a round may go by the one before.
    ever: RefCell<Vec<Option<LeaseOptions>>>,
}

impl HolderSide {
    /// What its rounds may give out.
    pub(super) fn allowed(&self) -> Allowed {
        Allowed {
            limit: self.settings.limit_in_force.get(),
            ceilings: self.settings.ceilings_in_force.borrow().clone(),
            leases: self.settings.ever.borrow().clone(),
        }
    }

    /// Where messages to it go.
    pub(super) fn address(&self) -> Address<Holder> {
        Address {
            key: self.key.clone(),
            node: self.node.clone(),
            object: self.object.clone(),
            handle: |holder, json| {
                Box::pin(async move { holder.semaphore.handle_json(&json).await })
            },
        }
    }

    /// Lets work pass.
    pub(super) fn heal(&self) {
        let settings = &self.settings;
        settings.limit.set(settings.limit.get().max(1));
        settings
            .ceiling
            .set(settings.ceiling.get().map(|ceiling| ceiling.max(1)));
        settings.closed.set(false);
        self.tell();
    }

    /// Limits have changed, and an instance that lives is told so.
    fn tell(&self) {
        if let Some(holder) = self.open.borrow().upgrade() {
            holder.semaphore.limits_changed();
        }
    }
}

/// A holder on one of the nodes.
pub(super) fn open_holder(fleet: &Rc<Fleet>, index: u64) -> Rc<HolderSide> {
    let run = &fleet.run;
    let key = format!("key-{index}");
    let node = fleet.nodes[0].clone();
    let ceiling = match run.knob("ceiling") {
        0 => None,
        ceiling => Some(ceiling),
    };
    let leases = leases(run);
    let settings = Rc::new(Settings {
        limit: Cell::new(run.knob("limit")),
        limit_in_force: Cell::new(0),
        ceiling: Cell::new(ceiling),
        closed: Cell::new(false),
        ceilings_in_force: RefCell::default(),
        leases: RefCell::new(leases.clone()),
        ever: RefCell::new(vec![leases]),
    });
    let (weak, told) = (Rc::downgrade(fleet), settings.clone());
    let object = run.world.object_in(&node, &key, move |host| {
        let (weak, told) = (weak.clone(), told.clone());
        async move {
            let key = host.name().to_owned();
            let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
            let semaphore = build(&scheduler, &key, &weak, &told)?;
            scheduler.open().await?;
            let holder = Rc::new(Holder {
                scheduler,
                semaphore,
            });
            if let Some(side) = weak.upgrade().and_then(|fleet| fleet.holder(&key)) {
                *side.open.borrow_mut() = Rc::downgrade(&holder);
            }
            Ok(holder)
        }
    });
    Rc::new(HolderSide {
        key,
        node,
        object,
        open: RefCell::default(),
        settings,
    })
}

fn build(
    scheduler: &Scheduler,
    key: &str,
    fleet: &WeakFleet,
    settings: &Rc<Settings>,
) -> Result<Semaphore, BoxError> {
    let run = fleet.upgrade().ok_or(GONE)?.run.clone();
    let (limit, ceilings, gate) = (
        (fleet.clone(), settings.clone()),
        (fleet.clone(), settings.clone()),
        (fleet.clone(), settings.clone()),
    );
    let mut builder = Semaphore::builder(scheduler)
        .limit_with(move || {
            let (fleet, settings) = limit.clone();
            async move {
                answer(&fleet).await?;
                if lies(&fleet) {
                    return Ok(u64::MAX);
                }
                let limit = settings.limit.get();
                settings.limit_in_force.set(limit);
                Ok(limit)
            }
        })
        .group_limit(move |group| {
            let (fleet, settings) = ceilings.clone();
            async move {
                answer(&fleet).await?;
                if lies(&fleet) {
                    return Ok(Some(u64::MAX));
                }
                let ceiling = settings.ceiling.get();
                let mut in_force = settings.ceilings_in_force.borrow_mut();
                in_force.insert(group, ceiling);
                Ok(ceiling)
            }
        })
        .can_grant(move |_| {
            let (fleet, settings) = gate.clone();
            async move {
                answer(&fleet).await?;
                Ok(!settings.closed.get())
            }
        })
        .answer_timeout(Duration::from_secs(2))
        .round_wait(run.knob_ms("round-wait-ms"))
        .round_period(run.knob_ms("round-period-ms"))
        .grant_timeout(run.knob_ms("grant-timeout-ms"));
    if let Some(leases) = settings.leases.borrow().clone() {
        builder = builder.leases(leases);
    }
    let key = key.to_owned();
    let builder = builder.on_event(move |event| {
        let told = serde_json::to_string(event).unwrap_or_default();
        run.note(&key, format_args!("{told}"));
        match event {
            SemaphoreEvent::GrantReclaimed { .. } => run.cover("grant reclaimed"),
            SemaphoreEvent::LeaseGranted { .. } => run.cover("lease given"),
            SemaphoreEvent::LeaseRetired { .. } => run.cover("lease retired"),
            SemaphoreEvent::ClientExpired { .. } => {
                run.cover("permits of a silent client taken back");
            }
            SemaphoreEvent::ForceReleased { .. } => run.cover("permits taken away by an operator"),
            _ => {}
        }
    });
    Ok(builder.build()?)
}

const GONE: &str = "the run is over";

/// An answer that may come late or not at all.
async fn answer(fleet: &WeakFleet) -> Result<(), BoxError> {
    let fleet = fleet.upgrade().ok_or(GONE)?;
    fleet.dice.linger("limit-ms").await;
    if fleet.dice.fails("limit-fails-percent") {
        fleet.run.cover("limit unreadable");
        return Err("the limits cannot be read".into());
    }
    Ok(())
}

/// Whether the answer makes no sense.
fn lies(fleet: &WeakFleet) -> bool {
    let Some(fleet) = fleet.upgrade() else {
        return false;
    };
    let lies = fleet.dice.fails("limit-lies-percent");
    if lies {
        fleet.run.cover("limit without sense");
    }
    lies
}

/// Moves a limit, a ceiling or a gate of any holder.
pub(super) fn move_limit(fleet: &Fleet) {
    let run = &fleet.run;
    if run.is_healed() {
        return;
    }
    let holders = fleet.holders.borrow();
    let holder = &holders[fleet.dice.below(holders.len() as u64) as usize];
    let settings = &holder.settings;
    match fleet.dice.below(4) {
        0 => {
            let ceiling = fleet.dice.below(6);
            settings.ceiling.set((ceiling < 5).then_some(ceiling));
            run.cover("ceiling moved");
            run.note(
                &holder.key,
                format_args!("its ceilings become {:?}", settings.ceiling.get()),
            );
        }
        1 => {
            settings.closed.set(!settings.closed.get());
            run.cover("gate moved");
            run.note(
                &holder.key,
                format_args!("its gate is closed: {}", settings.closed.get()),
            );
        }
        _ => {
            let before = settings.limit.get();
            let limit = fleet.dice.below(run.knob("limit") + 2);
            settings.limit.set(limit);
            match limit {
                0 => run.cover("limit zero"),
                limit if limit > before => run.cover("limit raised"),
                limit if limit < before => run.cover("limit lowered"),
                _ => {}
            }
            run.note(&holder.key, format_args!("its limit becomes {limit}"));
        }
    }
    if fleet.dice.below(2) == 0 {
        holder.tell();
    }
}

/// Switches leases off or on again.
pub(super) fn switch_leases(fleet: &Fleet, on: bool) {
    let holders = fleet.holders.borrow();
    let holder = &holders[fleet.dice.below(holders.len() as u64) as usize];
    let leases = if on { leases(&fleet.run) } else { None };
    let settings = &holder.settings;
    let mut ever = settings.ever.borrow_mut();
    if !ever.contains(&leases) {
        ever.push(leases.clone());
    }
    drop(ever);
    fleet.run.cover("leases switched");
    fleet.run.note(
        &holder.key,
        format_args!("gives leases: {}", leases.is_some()),
    );
    *settings.leases.borrow_mut() = leases.clone();
    if let Some(open) = holder.open.borrow().upgrade() {
        // The options were taken when the holder was built.
        let _ = open.semaphore.set_leases(leases);
    }
}
