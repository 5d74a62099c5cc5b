//! A member's side of state channels.

use std::rc::Rc;

use durably::error::BoxError;
use durably::host::{LocalFuture, Object};
use durably::topology::{StateReceiver, StateUpdate};
use durably::{Scheduler, StorageError};
use durably_sim::{Alarms, VirtualObject, World};
use serde_json::json;

pub(crate) struct Shard {
    pub(crate) states: StateReceiver,
}

impl Object for Shard {
    const CLASS: &'static str = "shard";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async { Ok(()) })
    }
}

/// A member that keeps what it is told.
pub(crate) fn shard(world: &World) -> VirtualObject<Shard> {
    world.object("s", Alarms::Automatic, |host| async move {
        let scheduler = Scheduler::of(host)?;
        let states = StateReceiver::new(&scheduler)?;
        scheduler.open().await?;
        Ok(Rc::new(Shard { states }))
    })
}

/// An update as it comes over a wire.
fn update(coordinator: &str, incarnation: u64, version: u64) -> StateUpdate {
    let update = json!({
        "group": "g",
        "channel": "limits",
        "version": version,
        "topologyVersion": 1,
        "coordinator": coordinator,
        "incarnation": {"createdAt": incarnation, "nonce": "00"},
        "value": [coordinator, incarnation, version],
    });
    serde_json::from_value(update).expect("an update")
}

#[test]
fn only_what_is_newer_is_applied() {
    let world = World::new(1_700_000_000_000);
    let shard = shard(&world);
    let apply = |update: StateUpdate| {
        let applied = shard.call(|shard| async move {
            shard
                .states
                .apply(update, |_, _| Ok::<_, StorageError>(()))
                .await
        });
        world
            .block_on(applied)
            .expect("the shard answers")
            .expect("storage answers")
    };
    let value = || {
        let value = shard.call(|shard| async move { shard.states.value("g", "limits").await });
        world
            .block_on(value)
            .expect("the shard answers")
            .expect("storage answers")
    };
    assert_eq!(value(), None);
    assert!(apply(update("one", 5, 3)));
    assert!(!apply(update("one", 5, 3)), "repeated");
    assert!(!apply(update("one", 5, 2)), "overtaken");
    shard.crash();
    assert!(
        !apply(update("one", 4, 99)),
        "of a life before the restored one"
    );
    assert_eq!(value(), Some(json!(["one", 5, 3])));
    assert!(apply(update("one", 6, 1)));
    assert!(apply(update("two", 1, 1)), "the group has moved");
    assert_eq!(value(), Some(json!(["two", 1, 1])));
    let applied = shard.call(|shard| async move { shard.states.applied("g", 10).await });
    let applied = world.block_on(applied).expect("the shard answers");
    let shown = serde_json::to_value(applied.expect("storage answers")).expect("it has a text");
    assert_eq!(
        shown,
        json!([{
            "group": "g",
            "channel": "limits",
            "version": 1,
            "coordinator": "two",
            "incarnation": {"createdAt": 1, "nonce": "00"},
            "value": ["two", 1, 1],
        }])
    );
}

#[test]
fn what_the_application_refuses_is_not_taken_for_applied() {
    let world = World::new(1_700_000_000_000);
    let shard = shard(&world);
    let apply = |refuse: bool| {
        let applied = shard.call(move |shard| async move {
            let refused = StorageError::Failed("not now".into());
            let apply = move |_: &dyn durably::host::Transaction, _: &StateUpdate| match refuse {
                true => Err(refused),
                false => Ok(()),
            };
            shard.states.apply(update("one", 5, 3), apply).await
        });
        world.block_on(applied).expect("the shard answers")
    };
    assert!(apply(true).is_err());
    assert_eq!(apply(false), Ok(true));
}
