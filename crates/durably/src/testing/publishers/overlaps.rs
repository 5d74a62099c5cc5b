//! Cases for version-aware stores, with calls that overlap: whichever lands last, what is older never
//! replaces what is newer.

use std::cell::Cell;
use std::rc::Rc;

use futures::FutureExt;
use futures::future::{join, join_all};

use super::{Exam, Verdict, delete, demand, demand_eq, exam_cases, publish, turn, version, write};
use crate::topology::{Landing, Publication};

exam_cases![
    an_older_snapshot_never_lands_after_a_newer_one,
    an_older_snapshot_never_lands_after_a_deletion,
    of_many_at_once_the_newest_stays,
    the_same_call_twice_at_once_is_one,
    a_call_that_nobody_waits_for_does_no_harm,
];

const ROUNDS: u64 = 40;

/// Starts both calls before awaiting either, the older one first in every other round and through
/// another publisher in half of them.
async fn race(
    exam: &Exam<'_>,
    round: u64,
    older: &Rc<Publication>,
    newer: &Rc<Publication>,
) -> Verdict {
    let another = match round % 4 {
        0 | 1 => exam.publisher.clone(),
        _ => exam.examinee.publisher(),
    };
    let (of_older, of_newer) = (publish(&another, older), exam.publish(newer));
    let (of_older, of_newer) = if round.is_multiple_of(2) {
        join(of_older, of_newer).await
    } else {
        let (of_newer, of_older) = join(of_newer, of_older).await;
        (of_older, of_newer)
    };
    demand_eq!(of_newer?, Landing::Stored, super::called(newer));
    let of_older = of_older?;
    let superseded = Landing::Superseded(newer.edition().clone());
    demand!(
        of_older == Landing::Stored || of_older == superseded,
        "{}: beside a newer one it ended with {of_older:?}",
        super::called(older)
    );
    exam.holds(newer).await
}

async fn an_older_snapshot_never_lands_after_a_newer_one(exam: &Exam<'_>) -> Verdict {
    for round in 0..ROUNDS {
        // Half of the groups are new, the others have been published before.
        let group = exam.group(round);
        if round >= ROUNDS / 2 {
            exam.store(&write(&group, &version(1))).await?;
        }
        let (older, newer) = (write(&group, &version(2)), write(&group, &version(3)));
        race(exam, round, &older, &newer).await?;
    }
    Ok(())
}

async fn an_older_snapshot_never_lands_after_a_deletion(exam: &Exam<'_>) -> Verdict {
    for round in 0..ROUNDS {
        let group = exam.group(round);
        if round >= ROUNDS / 2 {
            exam.store(&write(&group, &version(1))).await?;
        }
        let (older, newer) = (write(&group, &version(2)), delete(&group, &version(3)));
        race(exam, round, &older, &newer).await?;
    }
    Ok(())
}

async fn of_many_at_once_the_newest_stays(exam: &Exam<'_>) -> Verdict {
    const CALLS: u64 = 8;
    for round in 0..ROUNDS / 4 {
        let group = exam.group(round);
        let snapshots: Vec<Rc<Publication>> = (0..CALLS)
            // Five and eight have no common factor: another order each round.
            .map(|call| write(&group, &version(1 + (call * 5 + round) % CALLS)))
            .collect();
        let publishers = [exam.publisher.clone(), exam.examinee.publisher()];
        let done = Cell::new(false);
        let publishing = async {
            let calls = snapshots
                .iter()
                .enumerate()
                .map(|(call, snapshot)| publish(&publishers[call % 2], snapshot));
            let landings = join_all(calls).await;
            done.set(true);
            landings.into_iter().collect::<Result<Vec<_>, _>>()
        };
        let reading = async {
            let mut newest = None;
            while !done.get() {
                let found = exam.edition(&group).await?.map(|edition| edition.version);
                demand!(
                    found >= newest,
                    "{group:?}: version {found:?} was read after {newest:?}"
                );
                newest = found;
                turn().await;
            }
            Ok(())
        };
        let (landings, read) = join(publishing, reading).await;
        read?;
        for (snapshot, landing) in snapshots.iter().zip(landings?) {
            let version = snapshot.edition().version;
            let right = match &landing {
                Landing::Stored => true,
                Landing::Superseded(by) => by.version > version && by.version <= CALLS,
            };
            demand!(right, "{}: ended with {landing:?}", super::called(snapshot));
        }
        exam.holds(&write(&group, &version(CALLS))).await?;
    }
    Ok(())
}

async fn the_same_call_twice_at_once_is_one(exam: &Exam<'_>) -> Verdict {
    for round in 0..ROUNDS {
        let group = exam.group(round);
        let snapshot = write(&group, &version(1));
        race(exam, round, &snapshot, &snapshot).await?;
    }
    Ok(())
}

async fn a_call_that_nobody_waits_for_does_no_harm(exam: &Exam<'_>) -> Verdict {
    for round in 0..ROUNDS {
        let group = exam.group(round);
        let (older, newer) = (write(&group, &version(1)), write(&group, &version(2)));
        let mut abandoned = exam.publisher.publish(older);
        // It starts and gets so far, more in later rounds, as when its attempt time-out ends it.
        for _ in 0..round % 5 {
            if (&mut abandoned).now_or_never().is_some() {
                break;
            }
            turn().await;
        }
        drop(abandoned);
        exam.store(&newer).await?;
        exam.holds(&newer).await?;
    }
    // What was still under way then has had time to land by now.
    for round in 0..ROUNDS {
        exam.holds(&write(&exam.group(round), &version(2))).await?;
    }
    Ok(())
}
