//! What a cached read costs in memory, exactly: nothing.

use allocation_counter::measure;
use durably::topology::Origin;
use futures::FutureExt;

use crate::setup::{Stand, version};

#[test]
fn a_cached_read_allocates_nothing() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(1));
    let cold = measure(|| drop(stand.get("g").expect("published")));
    assert!(cold.count_total > 0, "it is counted");
    let cached = measure(|| {
        for _ in 0..100 {
            let reading = stand.reader.get("g").now_or_never();
            let reading = reading.expect("at once").expect("published");
            assert_eq!((reading.version(), reading.origin()), (1, Origin::Cached));
            assert!(reading.writable().count() == 1 && reading.shard_for("key").is_some());
            assert!(stand.reader.cached("g").is_some());
        }
        assert!(stand.reader.cached("other").is_none());
    });
    assert_eq!(cached.count_total, 0);
}

#[test]
fn many_readings_may_be_held_at_once() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(1));
    stand.get("g").expect("published");
    let held: Vec<_> = (0..100)
        .map(|_| stand.reader.cached("g").expect("cached"))
        .collect();
    stand.store.set(version(2));
    stand.at(30_000);
    assert_eq!(stand.get("g").expect("published").version(), 2);
    assert!(held.iter().all(|reading| reading.version() == 1));
}
