//! Following a group.

use std::cell::RefCell;
use std::rc::Rc;

use durably::topology::Change;
use futures::{FutureExt, StreamExt};

use crate::setup::{Answer, Stand, edition, text, tombstone, version};

/// Follows `g` in a task, noting the versions, 0 for its deletion.
fn follow(stand: &Stand) -> (Rc<RefCell<Vec<u64>>>, futures::future::AbortHandle) {
    let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
    let noted = seen.clone();
    let changes = stand.reader.changes("g");
    let (task, handle) = futures::future::abortable(changes.for_each(move |change| {
        noted.borrow_mut().push(match change {
            Change::Snapshot(snapshot) => snapshot.version,
            Change::Deleted => 0,
        });
        futures::future::ready(())
    }));
    stand.world.spawn(task.map(drop));
    (seen, handle)
}

#[test]
fn it_tells_each_newer_edition_and_the_deletion_once() {
    let stand = Stand::new(|_| {});
    let (seen, _handle) = follow(&stand);
    stand.at(4_000);
    assert!(
        seen.borrow().is_empty(),
        "it waits for a group that is missing"
    );
    let mut at = 5_000;
    for (answer, lasts) in [
        (version(3), 30_000),
        (version(3), 30_000),
        (Answer::Error, 5_000),
        (version(2), 5_000),
        (version(4), 30_000),
        (tombstone(5), 5_000),
        (version(4), 5_000),
        (Answer::Nothing, 5_000),
        (version(6), 30_000),
        (Answer::Nothing, 5_000),
        (version(6), 30_000),
        (text("g", &edition("d", 1, 2)), 30_000),
    ] {
        stand.store.set(answer);
        stand.at(at);
        at += lasts;
    }
    assert_eq!(*seen.borrow(), [3, 4, 0, 6, 0, 6, 2]);
}

#[test]
fn it_reads_no_more_than_others_do_and_not_when_it_is_dropped() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(1));
    let (seen, handle) = follow(&stand);
    let (also, other) = follow(&stand);
    stand.at(299_999);
    stand.get("g").expect("published");
    assert_eq!(stand.store.reads(), 10);
    assert_eq!((seen.borrow().len(), also.borrow().len()), (1, 1));
    handle.abort();
    other.abort();
    stand.at(2_000_000);
    assert_eq!(stand.store.reads(), 10);
    assert_eq!(stand.world.next_timer(), None);
}

#[test]
fn it_does_not_go_back_where_the_reader_has_forgotten() {
    let stand = Stand::new(|options| options.max_groups = 1);
    stand.store.set(version(5));
    let (seen, _handle) = follow(&stand);
    stand.at(1_000);
    stand.store.set(version(4));
    stand
        .store
        .set_of("other", text("other", &edition("c", 1, 1)));
    stand.get("other").expect("published");
    stand.at(31_000);
    assert_eq!(stand.get("g").expect("an older one").version(), 4);
    stand.store.set(version(6));
    stand.at(100_000);
    assert_eq!(*seen.borrow(), [5, 6]);
}
