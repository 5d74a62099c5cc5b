//! A coordinator whose storage is put back to an older copy.

use durably::StorageError;
use durably::topology::{Draft, NewMember};
use serde_json::{Value, json};

use crate::receiving::shard;
use crate::support::{Fixture, seconds};

fn group(members: &[&str]) -> Draft {
    Draft::members(members.iter().copied().map(NewMember::active))
}

/// What a member has that was told all this, if it keeps the newest.
fn told(fixture: &Fixture, member: &str) -> Option<Value> {
    let delivered = fixture.around.delivered.borrow().clone();
    let receiver = shard(&fixture.world);
    for (_, update) in delivered.into_iter().filter(|(to, _)| to.id == member) {
        let applied = receiver.call(|receiver| async move {
            let apply = |_: &dyn durably::host::Transaction, _: &_| Ok::<_, StorageError>(());
            receiver.states.apply(update, apply).await
        });
        let applied = fixture.world.block_on(applied).expect("it answers");
        applied.expect("storage answers");
    }
    let value = receiver.call(|receiver| async move { receiver.states.value("g", "limits").await });
    let value = fixture.world.block_on(value).expect("it answers");
    value.expect("storage answers")
}

#[test]
fn a_new_incarnation_brings_members_back_to_the_values_of_the_copy() {
    for is_asked in [true, false] {
        let (fixture, _) = Fixture::with_memory();
        let first = group(&["m0"]).state("limits", 1);
        fixture.draft(first).expect("a good draft");
        let copy = fixture.object.storage().copy().expect("it is copied");
        let then = group(&["m0", "m1"]).state("limits", 2);
        fixture.draft(then).expect("a good draft");
        assert_eq!(told(&fixture, "m0"), Some(json!(2)));

        fixture.object.crash();
        let storage = fixture.object.storage();
        storage.restore(&copy).expect("it is put back");
        if is_asked {
            fixture
                .call(|topology| async move { topology.new_incarnation().await })
                .expect("storage answers");
        } else {
            // What it publishes has a version that the store knows with other members.
            fixture.draft(group(&["m0", "m2"])).expect("a good draft");
        }
        fixture.world.advance(seconds(60));
        assert!(fixture.convergence().converged);
        assert_eq!(told(&fixture, "m0"), Some(json!(1)), "{is_asked}");
    }
}
