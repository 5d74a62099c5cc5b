//! Whoever changes groups: members come, go, drain and come back, values change, groups are deleted
//! and made again.

use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::topology::{
    Audience, Current, Draft, DrainEnd, Edition, MemberState, NewMember, Topology, TopologyError,
};
use serde_json::{Value, json};

use super::Region;
use super::coordinator::{CoordinatorSide, channels};

/// What a client wants.
enum Wish {
    Change(Plan),
    /// A change of what may not be the newest version any more.
    ChangeVersion(Option<u64>, Plan),
    Delete,
    Wait(Audience),
}

/// A change of a group.
#[derive(Clone)]
struct Plan {
    action: Action,
    /// Which member it concerns, by its place.
    member: u64,
    /// Sets a channel to a value.
    state: Option<(String, Value)>,
}

#[derive(Clone)]
enum Action {
    Nothing,
    Join(String, Value),
    Leave,
    Drain(Option<DrainEnd>),
    Activate,
    Only(String),
}

/// Does something to a group, and perhaps something else at once.
pub(super) async fn act(region: Rc<Region>) {
    let groups = region.groups();
    let group = groups[region.dice.below(groups.len() as u64) as usize].clone();
    let Some(side) = region.owner(&group) else {
        return;
    };
    let weak = Rc::downgrade(&region);
    drop(region);
    for _ in 0..3 {
        let Some(region) = weak.upgrade() else { return };
        let more = region.dice.below(100) < 30;
        let wish = wish(&region, &side, &group);
        drop(region);
        carry_out(&weak, &side, &group, wish).await;
        if !more {
            return;
        }
    }
}

fn wish(region: &Region, side: &CoordinatorSide, group: &str) -> Wish {
    let plan = plan(region);
    match region.dice.below(100) {
        0..72 => Wish::Change(plan),
        72..80 => {
            let view = side.view.borrow();
            let known = view.groups.get(group).filter(|group| !group.deleted);
            let version = known.map(|group| group.version);
            let is_old = region.dice.below(4) == 0;
            let version = version.map(|version| version.saturating_sub(u64::from(is_old)));
            Wish::ChangeVersion(version, plan)
        }
        80..90 => Wish::Delete,
        90..94 => Wish::Wait(Audience::Published),
        94..97 => Wish::Wait(Audience::Quorum),
        _ => Wish::Wait(Audience::All),
    }
}

fn plan(region: &Region) -> Plan {
    let dice = &region.dice;
    let stamp = region.next_stamp();
    let id = format!("m-{}", dice.below(region.run.knob("members")));
    let action = match dice.below(100) {
        0..30 => Action::Join(id, json!({ "stamp": stamp })),
        30..45 => Action::Leave,
        45..60 => Action::Drain(match dice.below(4) {
            0 => None,
            1 => Some(DrainEnd::when_drained()),
            _ => {
                let mut end = DrainEnd::within(Duration::from_millis(1 + dice.below(20_000)));
                end.when_drained = dice.below(3) == 0;
                Some(end)
            }
        }),
        60..68 => Action::Activate,
        68..72 => Action::Only(id),
        _ => Action::Nothing,
    };
    let channels = channels(&region.run);
    let state = match (channels.len() as u64, dice.below(100)) {
        (0, _) | (_, 60..) => None,
        (count, _) => {
            let (name, _) = channels[dice.below(count) as usize];
            Some((name.to_owned(), json!(stamp)))
        }
    };
    Plan {
        action,
        member: dice.below(1_000),
        state,
    }
}

/// What a group is to be.
fn draft(plan: &Plan, current: &Current) -> Draft {
    let mut members: Vec<NewMember> = current.members.iter().map(NewMember::from).collect();
    let count = members.len() as u64;
    let place = usize::try_from(plan.member % count.max(1)).unwrap_or(0);
    match &plan.action {
        Action::Nothing => {}
        Action::Join(id, meta) => {
            members.retain(|member| member.id != *id);
            members.push(NewMember::active(id).meta(meta.clone()));
        }
        Action::Leave if count > 1 => {
            members.remove(place);
        }
        Action::Drain(end) if count > 0 => {
            let member = &mut members[place];
            member.state = MemberState::Draining;
            member.drain = *end;
        }
        Action::Activate if count > 0 => members[place].state = MemberState::Active,
        Action::Only(id) => members = vec![NewMember::active(id)],
        _ => {}
    }
    if members.is_empty() {
        members.push(NewMember::active("m-0"));
    }
    let draft = Draft::members(members);
    match &plan.state {
        Some((channel, value)) => draft.state(channel, value.clone()),
        None => draft,
    }
}

/// Changes a group for certain, once.
pub(super) async fn change(region: &Weak<Region>, side: &Rc<CoordinatorSide>, group: &str) {
    let Some(known) = region.upgrade() else {
        return;
    };
    let plan = Plan {
        action: Action::Join("m-0".to_owned(), json!({ "stamp": known.next_stamp() })),
        member: 0,
        state: None,
    };
    drop(known);
    carry_out(region, side, group, Wish::Change(plan)).await;
}

async fn carry_out(region: &Weak<Region>, side: &Rc<CoordinatorSide>, group: &str, wish: Wish) {
    let (of, object) = (group.to_owned(), side.object.clone());
    let answer = object
        .call(move |coordinator| async move {
            let topology = &coordinator.topology;
            let before = topology.incarnation();
            let told = fulfil(topology, &of, wish).await?;
            // If another has begun meanwhile, it is not known which one is told of.
            let incarnation = topology
                .incarnation()
                .filter(|now| Some(now) == before.as_ref());
            Ok::<_, TopologyError>((told, incarnation))
        })
        .await;
    let Some(region) = region.upgrade() else {
        return;
    };
    let run = &region.run;
    let (told, incarnation) = match answer {
        Ok(Ok((Some(told), Some(incarnation)))) => (told, incarnation),
        Ok(Ok(_)) => return,
        Ok(Err(error)) => {
            run.note(group, format_args!("refused: {error}"));
            if error.code() == "version_conflict" {
                run.cover("version conflict");
            }
            return;
        }
        Err(ended) => {
            run.note(group, format_args!("cut off: {ended}"));
            run.cover("change cut off by a death");
            return;
        }
    };
    let Told {
        version,
        members,
        published,
    } = told;
    let state = if published {
        "published"
    } else {
        "not published yet"
    };
    run.note(group, format_args!("told to be at {version}, {state}"));
    if published {
        run.cover("told to be published");
        let edition = Edition {
            coordinator: side.id.clone(),
            incarnation,
            version,
        };
        let members = members.as_deref();
        region.store.published.told(run, group, &edition, members);
    } else {
        run.cover("told not to be published yet");
    }
}

/// What a client is told of a change.
struct Told {
    version: u64,
    members: Option<Vec<durably::topology::Member>>,
    published: bool,
}

async fn fulfil(
    topology: &Topology,
    group: &str,
    wish: Wish,
) -> Result<Option<Told>, TopologyError> {
    let updated = match wish {
        Wish::Change(plan) => {
            let updater = move |current: &Current| Ok(draft(&plan, current));
            topology.update(group, updater).await?
        }
        Wish::ChangeVersion(expected, plan) => {
            let Some(snapshot) = topology.snapshot(group).await? else {
                let draft = draft(&plan, &Current::default());
                topology.apply(group, Some(None), draft).await?;
                return Ok(None);
            };
            let mut current = Current::default();
            current.members = snapshot.members;
            topology
                .apply(group, Some(expected), draft(&plan, &current))
                .await?
        }
        Wish::Delete => {
            let deleted = topology.delete(group, None).await?;
            return Ok(deleted.version.map(|version| Told {
                version,
                members: None,
                published: deleted.published,
            }));
        }
        Wish::Wait(audience) => {
            let Some(snapshot) = topology.snapshot(group).await? else {
                return Ok(None);
            };
            let timeout = Duration::from_secs(5);
            topology
                .wait_until(group, snapshot.version, audience, timeout)
                .await?;
            return Ok(None);
        }
    };
    Ok(Some(Told {
        version: updated.snapshot.version,
        members: Some(updated.snapshot.members),
        published: updated.published,
    }))
}
