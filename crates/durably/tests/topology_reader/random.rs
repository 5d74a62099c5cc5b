//! Random answers, outages, leaps of time and callers that leave: what the reader answers is compared
//! with what follows from the reads that the store has seen.

use std::cell::RefCell;
use std::rc::Rc;

use durably::testing::published;
use durably::topology::{
    Change, Edition, Origin, Reading, SnapshotError, TopologyUnavailable, decode,
};
use futures::{FutureExt, StreamExt};
use proptest::prelude::*;

use crate::setup::{Answer, Read, START, Stand, edition, ms, text};

const TTL: u64 = 30_000;
const NEGATIVE: u64 = 5_000;
const TIMEOUT: u64 = 1_000;
const STALE: u64 = 40_000;

#[derive(Clone, Debug)]
enum Step {
    Answer(Answer, u64),
    Wait(u64),
    /// Calls at once, of whom each leaves after so long.
    Call(Vec<u64>),
}

/// Editions whose versions tell their incarnation.
fn editions() -> impl Strategy<Value = Edition> {
    let coordinators = prop_oneof![4 => Just("c"), 1 => Just("d")];
    (coordinators, 1..4u64, 0..6u64).prop_map(|(coordinator, incarnation, version)| {
        edition(coordinator, incarnation, 100 * (5 - incarnation) + version)
    })
}

fn answers() -> impl Strategy<Value = Answer> {
    let tombstone = |edition| Answer::Text(published::text("g", &edition, None));
    prop_oneof![
        8 => editions().prop_map(|edition| text("g", &edition)),
        1 => editions().prop_map(tombstone),
        1 => Just(Answer::Nothing),
        3 => Just(Answer::Error),
        1 => Just(Answer::Never),
        1 => Just(Answer::Text("{".to_owned())),
    ]
}

/// Even times for all but leaving, so that nobody leaves at the instant of an answer.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let takes = prop_oneof![3 => Just(0), 1 => Just(20), 1 => Just(998), 1 => Just(2_000)];
    let answer = (answers(), takes).prop_map(|(answer, takes)| Step::Answer(answer, takes));
    let wait = prop_oneof![
        prop::sample::select(vec![
            2, 20, 998, 4_998, 5_000, 24_998, 30_000, 34_998, 40_000
        ]),
        (1..20_000u64).prop_map(|half| 2 * half),
    ];
    let leaving = prop_oneof![Just(u64::MAX), (0..600u64).prop_map(|half| 2 * half + 1)];
    let call = prop::collection::vec(leaving, 1..4).prop_map(Step::Call);
    prop::collection::vec(prop_oneof![answer, wait.prop_map(Step::Wait), call], 1..60)
}

/// What follows from the reads that are over.
#[derive(Debug, Default)]
struct Known {
    /// The newest edition, and whether there is a group to use.
    newest: Option<Edition>,
    exists: bool,
    /// Until when a copy may be used without, and with errors.
    fresh_until: u64,
    /// Why there is nothing to use, if there is not.
    trouble: Option<&'static str>,
    /// Before when nothing is to be read again.
    stands_until: u64,
}

fn known(log: &[Read]) -> Known {
    let mut known = Known::default();
    for read in log {
        let at = read.ended;
        let trouble = match &read.answer {
            // Nobody waited for it any more.
            None if at < read.began + TIMEOUT => continue,
            None => Some("topology_slow"),
            Some(Answer::Error | Answer::Never) => Some("topology_failed"),
            Some(Answer::Nothing) => {
                known.exists = false;
                Some("topology_missing")
            }
            Some(Answer::Text(text)) => match decode("g", text.as_bytes()) {
                Err(SnapshotError::Malformed(_)) => Some("topology_invalid"),
                Err(error) => panic!("{error}"),
                Ok(published) => {
                    let older = known.newest.as_ref().is_some_and(|newest| {
                        let rank =
                            |edition: &Edition| (edition.incarnation.created_at, edition.version);
                        newest.coordinator == published.edition.coordinator
                            && rank(&published.edition) < rank(newest)
                    });
                    if !older {
                        known.exists = published.members.is_some();
                        known.newest = Some(published.edition);
                    }
                    if known.exists {
                        known.fresh_until = at + if older { NEGATIVE } else { TTL };
                    }
                    (!known.exists).then_some("topology_missing")
                }
            },
        };
        assert!(
            read.began >= known.stands_until,
            "read at {} although the last outcome stands until {}",
            read.began,
            known.stands_until
        );
        known.trouble = trouble;
        known.stands_until = match trouble {
            None => known.fresh_until,
            Some(_) => at + NEGATIVE,
        };
    }
    known
}

/// Compares an answer given at `now`.
fn check(log: &[Read], now: u64, answer: &Result<Reading, TopologyUnavailable>) {
    let known = known(log);
    assert!(now < known.stands_until, "answered by what stands no more");
    let stale = known.exists && now < known.fresh_until + STALE;
    match (answer, known.trouble) {
        (Ok(reading), trouble) => {
            let newest = known.newest.expect("an edition was read");
            assert!(known.exists);
            assert_eq!(reading.version(), newest.version);
            assert_eq!(reading.coordinator, newest.coordinator);
            match trouble {
                None => assert!(matches!(reading.origin(), Origin::Fresh | Origin::Cached)),
                Some(_) => {
                    assert!(stale, "used on for too long");
                    assert_eq!(reading.origin(), Origin::Stale);
                }
            }
        }
        (Err(error), trouble) => {
            assert!(
                trouble == Some("topology_missing") || !stale,
                "given up too soon"
            );
            assert_eq!(Some(error.code()), trouble);
        }
    }
}

fn run(steps: Vec<Step>, follow: bool) {
    let stand = Stand::new(|options| options.stale_if_error = Some(ms(STALE)));
    let told: Rc<RefCell<Vec<(String, u64)>>> = Rc::default();
    if follow {
        let told = told.clone();
        stand
            .world
            .spawn(stand.reader.changes("g").for_each(move |change| {
                told.borrow_mut().push(match change {
                    Change::Snapshot(snapshot) => (snapshot.coordinator.clone(), snapshot.version),
                    // What comes after it may be another coordinator's past.
                    Change::Deleted => (String::new(), 0),
                });
                futures::future::ready(())
            }));
    }
    for step in steps {
        match step {
            Step::Answer(answer, takes) => {
                stand.store.set(answer);
                stand.store.takes(takes);
            }
            Step::Wait(time) => stand.world.advance(ms(time)),
            Step::Call(leaving) => {
                for after in leaving {
                    let (reader, world) = (stand.reader.clone(), stand.world.clone());
                    let store = stand.store.clone();
                    let patience = stand.world.sleep(ms(after.min(10_000_001)));
                    let call = async move {
                        let answer = reader.get("g").await;
                        check(&store.log(), world.now().as_millis(), &answer);
                    };
                    let call = Box::pin(call);
                    stand
                        .world
                        .spawn(futures::future::select(call, Box::pin(patience)).map(drop));
                }
            }
        }
        stand.world.run_until_idle();
    }
    for pair in told.borrow().windows(2) {
        let rank = |version: u64| (5 - version / 100, version % 100);
        let ((before, old), (after, new)) = (&pair[0], &pair[1]);
        assert!(
            before != after || rank(*old) <= rank(*new),
            "{old} before {new}"
        );
    }
    assert!(stand.world.now().as_millis() >= START);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn it_never_goes_back_and_stops_serving_stale_when_told(steps in steps(), follow: bool) {
        run(steps, follow);
    }
}
