//! How long what was read is used, and how much of it is kept.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use durably::Timestamp;
use durably::layers::Timer;
use durably::topology::{Origin, ReaderOptions, TopologyReader};

use crate::setup::{Answer, Stand, WorldTimer, edition, ms, text, version};

#[test]
fn a_copy_is_used_for_its_ttl_to_the_millisecond() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(1));
    stand.store.takes(10);
    let fresh = stand.get("g").expect("published");
    assert_eq!((fresh.origin(), fresh.age()), (Origin::Fresh, ms(0)));
    assert_eq!((fresh.version(), fresh.group.as_str()), (1, "g"));
    stand.store.set(version(2));
    stand.at(30_009);
    let cached = stand.get("g").expect("published");
    assert_eq!(
        (cached.origin(), cached.age()),
        (Origin::Cached, ms(29_999))
    );
    assert_eq!(cached.version(), 1);
    assert_eq!(stand.store.reads(), 1);
    stand.at(30_010);
    assert!(stand.reader.cached("g").is_none());
    let fresh = stand.get("g").expect("published");
    assert_eq!((fresh.origin(), fresh.version()), (Origin::Fresh, 2));
    assert_eq!(stand.reader.cached("g").expect("young").version(), 2);
    assert_eq!(stand.store.reads(), 2);
    // What was read before stays what it was.
    assert_eq!(cached.members[0].id, "member-of-1");
}

#[test]
fn each_copy_has_a_ttl_of_its_own() {
    for (draw, ttl) in [(0, 24_000), (u64::MAX, 36_000)] {
        let stand = Stand::new(|_| {});
        stand.store.set(version(1));
        stand.draw.0.set(draw);
        stand.get("g").expect("published");
        // It stays what it was drawn as.
        stand.draw.0.set(u64::MAX - draw);
        stand.at(ttl - 1);
        assert!(stand.reader.cached("g").is_some());
        stand.at(ttl);
        assert!(stand.reader.cached("g").is_none());
    }
}

#[test]
fn a_missing_group_and_a_failure_are_remembered_for_an_absolute_time() {
    for (answer, code) in [
        (Answer::Nothing, "topology_missing"),
        (Answer::Error, "topology_failed"),
    ] {
        let stand = Stand::new(|_| {});
        stand.store.set(answer);
        for at in [0, 2_000, 4_999] {
            stand.at(at);
            let error = stand.get("g").expect_err("nothing to use");
            assert_eq!((error.code(), error.group.as_str()), (code, "g"));
            assert_eq!(stand.store.reads(), 1);
        }
        stand.at(5_000);
        stand.get("g").expect_err("nothing to use");
        assert_eq!(stand.store.reads(), 2);
        stand.store.set(version(1));
        stand.at(9_999);
        stand.get("g").expect_err("remembered");
        stand.at(10_000);
        assert_eq!(stand.get("g").expect("back").origin(), Origin::Fresh);
    }
}

#[test]
fn no_more_groups_are_kept_than_allowed_and_those_in_use_stay() {
    let stand = Stand::new(|options| options.max_groups = 300);
    let group = |index: usize| format!("g{index}");
    for index in 0..2_000 {
        let name = group(index);
        let first = edition("c", 1, 1);
        stand.store.set_of(&name, text(&name, &first));
        stand.get(&name).expect("published");
        stand.get("g0").expect("published");
    }
    assert_eq!(stand.store.reads(), 2_000);
    let kept = (0..2_000).filter(|index| stand.reader.cached(&group(*index)).is_some());
    assert_eq!(kept.count(), 300);
}

#[test]
fn one_group_may_be_all_that_is_kept() {
    let stand = Stand::new(|options| options.max_groups = 1);
    for group in ["a", "b", "a"] {
        let first = edition("c", 1, 1);
        stand.store.set(text(group, &first));
        assert_eq!(stand.get(group).expect("published").origin(), Origin::Fresh);
        assert!(stand.reader.cached(group).is_some());
    }
    assert!(stand.reader.cached("b").is_none());
}

/// A clock that can be set back, which no timer of the world notices.
#[derive(Clone)]
struct SetBack(WorldTimer, Rc<Cell<u64>>);

impl Timer for SetBack {
    type Sleep = durably_sim::Sleep;

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.now().as_millis() - self.1.get())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }
}

#[test]
fn a_clock_that_is_set_back_prolongs_nothing_by_more_than_its_length() {
    let stand = Stand::new(|_| {});
    let back = Rc::default();
    let timer = SetBack(WorldTimer(stand.world.clone()), Rc::clone(&back));
    let draw = stand.draw.clone();
    let options = ReaderOptions::default();
    let reader = TopologyReader::new(options, stand.store.clone(), timer, draw).expect("options");
    stand.store.set(version(1));
    stand.world.block_on(reader.get("g")).expect("published");
    back.set(29_999);
    assert!(reader.cached("g").is_some());
    back.set(30_000);
    assert!(reader.cached("g").is_none());
}

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    let stand = Stand::new(|_| {});
    let mut options = ReaderOptions::default();
    options.stale_if_error = Some(ms(0));
    let timer = WorldTimer(stand.world.clone());
    let refused = TopologyReader::new(options, stand.store.clone(), timer, stand.draw.clone());
    assert_eq!(refused.expect_err("refused").field(), "stale_if_error");
}

#[test]
fn it_counts_what_it_does() {
    let stand = Stand::new(|options| options.stale_if_error = Some(ms(60_000)));
    stand.store.set(version(1));
    stand.get("g").expect("published");
    stand.get("g").expect("published");
    assert!(stand.reader.cached("g").is_some());
    stand.store.set(Answer::Error);
    stand.at(30_000);
    stand.get("g").expect("stale");
    stand.get("g").expect("stale");
    let counters = stand.reader.counters();
    assert_eq!((counters.cached, counters.reads), (2, 2));
    assert_eq!((counters.failures, counters.fallbacks), (1, 2));
}
