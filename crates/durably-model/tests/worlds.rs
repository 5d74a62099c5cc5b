//! A short look at every world; `durably-model` takes the long one.

use durably_model::{check, worlds};

#[test]
fn every_world_holds_for_as_long_as_no_time_passes_and_nothing_is_lost() {
    for world in worlds() {
        let name = world.name;
        let verdict = check(world.briefly());
        if let Some(broken) = verdict.broken {
            panic!("{name}: {}\n{}", broken.property, broken.steps.join("\n"));
        }
        assert!(verdict.unique > 50, "{name}: {} states", verdict.unique);
    }
}
