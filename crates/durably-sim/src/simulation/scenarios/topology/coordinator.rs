//! A coordinator of the region, and what was heard and seen of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::outbox::{Backoff, Outbox, OutboxEvent, OutboxEventKind, Overlap};
use durably::topology::{
    Member, PublisherConfig, Role, StateChannelConfig, StateUpdate, Topology, TopologyEvent,
    TopologyEventKind,
};
use durably::{Scheduler, SchedulerConfig};

use super::Region;
use super::member::deliver;
use super::restore::Restored;
use super::store::StorePublisher;
use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::invariants::coordinated::View;
use crate::simulation::invariants::roles::Roles;
use crate::simulation::invariants::versions;
use crate::simulation::run::Run;

/// The state channels, with whom they reach.
pub(super) const CHANNELS: &[(&str, Role)] = &[("limits", Role::Write), ("flags", Role::Read)];

pub(super) struct Coordinator {
    pub(super) scheduler: Scheduler,
    pub(super) topology: Topology,
}

impl Object for Coordinator {
    const CLASS: &'static str = "coordinator";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

pub(super) struct CoordinatorSide {
    /// Its name, which the names of its groups begin with.
    pub(super) name: String,
    /// By which readers know it.
    pub(super) id: String,
    pub(super) node: Node,
    pub(super) object: VirtualObject<Coordinator>,
    commits: Cell<u64>,
    pub(super) view: RefCell<View>,
    roles: Roles,
    pub(super) restored: Restored,
    /// Its storage was replaced by an older copy since the last look.
    is_put_back: Cell<bool>,
}

impl CoordinatorSide {
    /// Whether a group is its.
    pub(super) fn owns(&self, group: &str) -> bool {
        group.split('-').next() == Some(&*self.name)
    }

    /// Its storage is an older copy from now on.
    pub(super) fn put_back(&self) {
        self.is_put_back.set(true);
        let incarnation = self.object.storage().read(View::read);
        self.restored
            .begin(incarnation.ok().and_then(|view| view.incarnation));
    }

    /// Reads what was committed since the last call, and compares it with what was there.
    pub(super) fn follow(&self, region: &Region) {
        let storage = self.object.storage();
        if self.commits.replace(storage.commits()) == storage.commits() {
            return;
        }
        // Before the first commit there are no tables.
        let after = storage.read(View::read).unwrap_or_default();
        let run = &region.run;
        let before = self.view.replace(after);
        let after = self.view.borrow();
        if !self.is_put_back.replace(false) {
            versions::check(run, &before.groups, &after.groups);
        }
        self.restored.follow(after.incarnation.as_ref());
        self.roles.follow(run, inside(run, &after));
        for group in after.groups.keys() {
            let is_out = |view: &View| {
                let publication = view.publication(group);
                publication.is_some_and(|entry| entry.ended.as_deref() == Some("delivered"))
            };
            let edition = after.edition(&self.id, group);
            if is_out(&after)
                && (!is_out(&before) || before.edition(&self.id, group) != edition)
                && let Some(edition) = edition
            {
                region.store.published.promised(run, group, &edition);
            }
        }
    }
}

/// How many channels a run has.
pub(super) fn channels(run: &Run) -> &'static [(&'static str, Role)] {
    let count = usize::try_from(run.knob("channels")).unwrap_or(0);
    &CHANNELS[..count.min(CHANNELS.len())]
}

/// Which members a value of which channel is for.
fn inside(run: &Run, view: &View) -> BTreeSet<(String, String, String)> {
    let mut inside = BTreeSet::new();
    for (name, role) in channels(run) {
        for (group, of) in &view.groups {
            if !view
                .states
                .contains_key(&(group.clone(), (*name).to_owned()))
            {
                continue;
            }
            for (id, member) in &of.members {
                let member = Member::new(id.clone(), member.state, durably::Timestamp::ZERO);
                if role.includes(&member) {
                    inside.insert((group.clone(), id.clone(), (*name).to_owned()));
                }
            }
        }
    }
    inside
}

impl CoordinatorSide {
    /// The first thing that has not come where it belongs.
    pub(super) fn left(&self, region: &Region) -> Option<(String, String)> {
        let run = &region.run;
        let view = self.view.borrow();
        for (group, of) in &view.groups {
            let left = |text: String| Some((group.clone(), text));
            let publication = view.publication(group);
            if publication.is_none_or(|entry| entry.ended.as_deref() != Some("delivered")) {
                return left(format!("its publication is {publication:?}"));
            }
            let stored = region.store.published.current(group);
            let ours = view.edition(&self.id, group);
            if stored.as_ref().map(|stored| &stored.edition) != ours.as_ref() {
                let stored = stored.map(|stored| stored.edition);
                return left(format!(
                    "the store has {stored:?}, the coordinator {ours:?}"
                ));
            }
            let drains = view.drains.iter().filter(|(of, _)| of == group).count();
            if drains > 0 && of.members.len() > 1 {
                return left(format!("{drains} drains have not ended"));
            }
        }
        // Members take what a coordinator sends that does not know it was put back for what they have.
        let targets = match self.restored.is_unnoticed() {
            true => BTreeSet::new(),
            false => inside(run, &view),
        };
        for (group, id, channel) in targets {
            let delivery = view.delivery(&group, &channel, &id);
            if delivery.is_none_or(|entry| entry.ended.as_deref() != Some("delivered")) {
                let text = format!("{channel} of {group} for {id} is {delivery:?}");
                return Some((group, text));
            }
            let value = view.states.get(&(group.clone(), channel.clone()));
            let applied = region
                .member(&id)
                .and_then(|side| side.applied.value(&group, &channel));
            if applied.as_ref() != value {
                let text = format!("{channel} of {group} is {value:?}, and {id} has {applied:?}");
                return Some((group, text));
            }
        }
        None
    }
}

pub(super) fn open(region: &Rc<Region>, index: usize) -> Rc<CoordinatorSide> {
    let run = &region.run;
    let node = region.nodes[index % region.nodes.len()].clone();
    let name = format!("c{index}");
    let (weak, of) = (Rc::downgrade(region), node.clone());
    let object = run.world.object_in(&node, &name, move |host| {
        let (weak, node) = (weak.clone(), of.clone());
        async move {
            let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
            let topology = build(&scheduler, &weak, index, &node)?;
            scheduler.open().await?;
            Ok(Rc::new(Coordinator {
                scheduler,
                topology,
            }))
        }
    });
    Rc::new(CoordinatorSide {
        id: format!("{}/{name}", Coordinator::CLASS),
        name,
        node,
        object,
        commits: Cell::new(0),
        view: RefCell::default(),
        roles: Roles::default(),
        restored: Restored::default(),
        is_put_back: Cell::new(false),
    })
}

fn build(
    scheduler: &Scheduler,
    region: &Weak<Region>,
    place: usize,
    node: &Node,
) -> Result<Topology, BoxError> {
    let store = region.upgrade().ok_or("the run is over")?.store.clone();
    let run = region.upgrade().ok_or("the run is over")?.run.clone();
    let outbox = Outbox::new(scheduler)?;
    let heard = run.clone();
    outbox.on_event(Rc::new(move |event: &OutboxEvent| {
        hear_outbox(&heard, event)
    }));
    let backoff = Backoff::Exponential {
        base: run.knob_ms("backoff-ms"),
        max: Duration::from_secs(30),
    };
    let overlap = match run.knob("overlap-never") {
        0 => Overlap::PerKey,
        _ => Overlap::Never,
    };
    let mut config = PublisherConfig::default();
    config.calls.attempt_timeout = run.knob_ms("attempt-ms");
    config.landing_window = run.knob_ms("landing-ms");
    config.calls.backoff = backoff.clone();
    config.calls.overlap = overlap;
    config.calls.max_in_flight = run.knob("in-flight");
    // The window is counted from before the record of the write is committed.
    let committed = run.knob_ms("commit-ms") * 2;
    let window = (config.calls.attempt_timeout + config.landing_window).saturating_sub(committed);
    let publisher = StorePublisher {
        store,
        node: node.clone(),
        window,
    };
    let mut builder = Topology::builder(&outbox).publish(publisher, config);
    for (name, role) in channels(&run) {
        let mut config = StateChannelConfig::default();
        config.members = *role;
        config.calls.attempt_timeout = run.knob_ms("attempt-ms");
        config.calls.backoff = backoff.clone();
        config.calls.overlap = overlap;
        config.calls.max_in_flight = run.knob("in-flight");
        let (region, node) = (region.clone(), node.clone());
        builder = builder.channel(*name, config, move |member: Member, update: StateUpdate| {
            let (region, node) = (region.clone(), node.clone());
            async move {
                let known = region.upgrade();
                if let Some(side) = known.as_ref().and_then(|region| region.coordinator(place)) {
                    let (group, channel) = (update.group.clone(), update.channel.clone());
                    let target = (group, member.id.clone(), channel);
                    let run = known.as_ref().map(|region| region.run.clone());
                    run.iter().for_each(|run| side.roles.check(run, &target));
                }
                deliver(region, node, member.id, update).await
            }
        });
    }
    let asked = region.clone();
    let topology = builder
        .drained(move |_, _| {
            let asked = asked.clone();
            async move {
                let region = asked.upgrade().ok_or("the run is over")?;
                region.dice.linger("member-ms").await;
                if region.dice.fails("member-fails-percent") {
                    return Err("it cannot be asked".into());
                }
                Ok(region.run.is_healed() || region.dice.below(3) == 0)
            }
        })
        .drain_check_period(Duration::from_secs(10))
        .on_event(Rc::new(move |event: &TopologyEvent| hear(&run, event)))
        .build()?;
    Ok(topology)
}

fn hear(run: &Run, event: &TopologyEvent) {
    run.note(&event.group, format_args!("{:?}", event.kind));
    match &event.kind {
        TopologyEventKind::Deleted { .. } => run.cover("group deleted"),
        TopologyEventKind::Drained {
            by_deadline: true, ..
        } => run.cover("member removed by the end of its time"),
        TopologyEventKind::Drained { .. } => run.cover("member removed as drained"),
        TopologyEventKind::Incarnation(_) => {
            run.cover("incarnation begun");
            if run.knob("operator") == 0 {
                run.cover("restored copy found by its store");
            }
        }
        _ => {}
    }
}

pub(in super::super) fn hear_outbox(run: &Run, event: &OutboxEvent) {
    let OutboxEvent {
        channel,
        key,
        version,
        attempt,
        ..
    } = event;
    let kind = &event.kind;
    run.note(
        key,
        format_args!("{channel} {version}, attempt {attempt}: {kind:?}"),
    );
    match kind {
        OutboxEventKind::Retrying {
            error: Some(error), ..
        } => {
            if error.contains("older write may still land") {
                run.cover("publication waits for an older write");
            } else if error.contains("write took longer") {
                run.cover("write out of time");
            } else if error.contains("attempt took longer") {
                run.cover("call out of time");
            } else if error.contains("delivery took longer") {
                run.cover("delivery out of time");
            }
        }
        OutboxEventKind::Superseded => run.cover("value superseded"),
        OutboxEventKind::Discarded => run.cover("value taken back"),
        OutboxEventKind::Delivered if *attempt > 1 => run.cover("arrived at a later attempt"),
        _ => {}
    }
}
