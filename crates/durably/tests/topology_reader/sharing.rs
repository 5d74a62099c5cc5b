//! One read for all who want a group at once, whoever of them stays.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use durably::Timestamp;
use durably::layers::Timer;
use durably::topology::{Origin, ReaderOptions, TopologyReader};
use futures::FutureExt;
use futures::future::{Pending, join_all, pending, poll_fn};

use crate::setup::{Answer, Stand, edition, ms, text, version};

#[test]
fn a_thousand_callers_on_a_cold_group_cause_one_read() {
    let stand = Stand::new(|_| {});
    stand.store.set(version(1));
    stand.store.takes(20);
    let callers = (0..1_000).map(|_| stand.reader.get("g"));
    let readings = stand.world.block_on(join_all(callers));
    for reading in readings {
        let reading = reading.expect("published");
        assert_eq!((reading.version(), reading.origin()), (1, Origin::Fresh));
    }
    assert_eq!(stand.store.reads(), 1);
}

#[test]
fn groups_are_read_apart() {
    let stand = Stand::new(|_| {});
    stand.store.takes(20);
    for group in ["a", "b"] {
        stand.store.set_of(group, text(group, &edition("c", 1, 1)));
    }
    let callers = ["a", "b", "a"].map(|group| stand.reader.get(group));
    let readings = stand.world.block_on(join_all(callers));
    assert!(readings.iter().all(Result::is_ok));
    assert_eq!(stand.store.reads(), 2);
}

#[test]
fn a_failed_read_fails_for_all_once() {
    let stand = Stand::new(|_| {});
    stand.store.set(Answer::Never);
    let callers = (0..100).map(|_| stand.reader.get("g"));
    let readings = stand.world.block_on(join_all(callers));
    assert!(readings.iter().all(Result::is_err));
    assert_eq!((stand.store.reads(), stand.store.abandoned()), (1, 1));
}

#[test]
fn a_handle_with_reads_of_its_own_waits_for_nobody_and_shares_what_was_read() {
    let stand = Stand::new(|_| {});
    stand.store.set(Answer::Never);
    let own = stand.reader.with_own_reads();
    let mut stuck = Box::pin(stand.reader.get("g"));
    assert!((&mut stuck).now_or_never().is_none());
    stand.store.set(version(2));
    let reading = stand.world.block_on(own.get("g")).expect("published");
    assert_eq!((reading.version(), reading.origin()), (2, Origin::Fresh));
    drop(stuck);
    let cached = stand.reader.cached("g").expect("the other has read it");
    assert_eq!(cached.version(), 2);
    // Whoever passes it on passes on what was published.
    let Answer::Text(published) = version(2) else {
        unreachable!("a text");
    };
    assert_eq!(cached.to_text(), Some(published));
    assert_eq!(cached.edition(), Some(&edition("c", 1, 2)));
}

/// Callers in tasks of their own, each of whom may leave.
struct Callers {
    stand: Stand,
    versions: Rc<RefCell<Vec<u64>>>,
}

impl Callers {
    fn call(&self) -> futures::future::AbortHandle {
        let (reader, versions) = (self.stand.reader.clone(), self.versions.clone());
        let (task, handle) = futures::future::abortable(async move {
            let reading = reader.get("g").await.expect("published");
            versions.borrow_mut().push(reading.version());
        });
        self.stand.world.spawn(task.map(drop));
        handle
    }
}

#[test]
fn who_leaves_takes_nothing_along_not_even_who_came_first() {
    let callers = Callers {
        stand: Stand::new(|_| {}),
        versions: Rc::default(),
    };
    let stand = &callers.stand;
    stand.store.set(version(1));
    stand.store.takes(100);
    let first = callers.call();
    stand.at(10);
    let second = callers.call();
    let _third = callers.call();
    stand.at(20);
    first.abort();
    stand.at(50);
    second.abort();
    stand.at(99);
    assert!(callers.versions.borrow().is_empty());
    stand.at(100);
    assert_eq!(*callers.versions.borrow(), [1]);
    assert_eq!((stand.store.reads(), stand.store.abandoned()), (1, 0));
}

#[test]
fn a_read_that_nobody_waits_for_is_given_up_and_never_answers_later_callers() {
    let callers = Callers {
        stand: Stand::new(|_| {}),
        versions: Rc::default(),
    };
    let stand = &callers.stand;
    stand.store.set(version(1));
    stand.store.takes(100);
    let only = callers.call();
    stand.at(50);
    only.abort();
    stand.at(60);
    assert_eq!((stand.store.reads(), stand.store.abandoned()), (1, 1));
    // It is not a failure that would be remembered.
    stand.store.set(version(2));
    callers.call();
    stand.at(200);
    assert_eq!(*callers.versions.borrow(), [2]);
    assert_eq!(stand.store.reads(), 2);
}

#[test]
fn dropping_a_reader_drops_all_of_it() {
    let stand = Stand::new(|_| {});
    stand.store.set(Answer::Never);
    let reader = stand.reader.clone();
    {
        let waiting = reader.get("g");
        futures::pin_mut!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
    }
    assert_eq!(stand.store.abandoned(), 1);
}

#[derive(Clone)]
struct Standing;

impl Timer for Standing {
    type Sleep = Pending<()>;

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_000)
    }

    fn sleep(&self, _: std::time::Duration) -> Pending<()> {
        pending()
    }
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "it is about threads, and waits for none of them"
)]
fn threads_share_a_reader_whose_parts_are_send_and_one_read() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let Answer::Text(text) = version(1) else {
        unreachable!("a text")
    };
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let source = move |_: &str| {
        counted.fetch_add(1, Ordering::Relaxed);
        let text = text.clone();
        // Not at once, so that others come while it is under way.
        let mut turns = 100;
        poll_fn(move |context| {
            if turns == 0 {
                return Poll::Ready(Ok::<_, std::io::Error>(Some(text.clone())));
            }
            turns -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        })
    };
    let options = ReaderOptions::default();
    let reader = TopologyReader::new(options, source, Standing, || 7).expect("options");
    let _changes = is_send(reader.changes("g"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let reader = &reader;
            scope.spawn(move || {
                let reading = is_send(reader.get("g"));
                let reading = is_send(futures::executor::block_on(reading));
                assert_eq!(reading.expect("published").version(), 1);
            });
        }
    });
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    assert_eq!(ms(0), reader.cached("g").expect("cached").age());
}
