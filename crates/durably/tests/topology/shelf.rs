//! An object as a store of published texts.

use std::rc::Rc;

use durably::Timestamp;
use durably::testing::published;
use durably::topology::{Member, MemberState, ShelfObject, SnapshotError};
use durably_sim::{Alarms, World};

fn edition(version: u64) -> durably::topology::Edition {
    published::edition("one", Timestamp::from_millis(5), version)
}

/// A text of several pieces, if there are many members.
fn text(version: u64, members: usize) -> String {
    let member = |number| {
        let mut member = Member::new(
            format!("é-{number}"),
            MemberState::Active,
            Timestamp::from_millis(7),
        );
        member.meta = Some("x".repeat(10_000).into());
        member
    };
    let members: Vec<Member> = (0..members).map(member).collect();
    published::text("g", &edition(version), Some(&members))
}

#[test]
fn a_shelf_keeps_the_newest_text_whole_and_refuses_what_is_none() {
    let world = World::new(1_700_000_000_000);
    let object = world.object("s", Alarms::Automatic, |host| async move {
        Ok(Rc::new(ShelfObject::open(host).await?))
    });
    let publish = |text: &str| {
        let text = text.to_owned();
        let call = object.call(|object| async move { object.shelf().publish("g", text).await });
        let published = world.block_on(call).expect("the object answers");
        published.expect("storage answers")
    };
    let read = || {
        let call = object.call(|object| async move { object.shelf().read("g").await });
        let read = world.block_on(call).expect("the object answers");
        read.expect("storage answers")
    };
    assert_eq!(read(), None);
    let (small, large, old) = (text(2, 1), text(3, 400), text(1, 2));
    assert!(large.len() > 3 << 20);
    assert_eq!(publish(&small), Ok(small.clone()));
    assert_eq!(publish(&old), Ok(small.clone()), "what is newer stays");
    assert_eq!(publish(&large), Ok(large.clone()));
    object.crash();
    assert_eq!(read(), Some(large.clone()));
    assert!(matches!(publish("{}"), Err(SnapshotError::Malformed(_))));
    let tombstone = published::text("g", &edition(4), None);
    assert_eq!(publish(&tombstone), Ok(tombstone.clone()));
    assert_eq!(publish(&large), Ok(tombstone.clone()), "nothing comes back");
    object.crash();
    assert_eq!(read(), Some(tombstone), "without pieces of what was longer");
}
