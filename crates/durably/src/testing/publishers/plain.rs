//! Cases for stores without conditions: they do as they are told, in the order in which they are.

use futures::future::join;

use super::{Exam, Verdict, delete, demand, demand_eq, exam_cases, publish, version, write};
use crate::topology::Landing;

exam_cases![
    the_last_settled_call_wins,
    overlapping_calls_end_with_one_of_the_texts,
    overlapping_deletions_end_with_the_text_or_without,
];

const ROUNDS: u64 = 20;

async fn the_last_settled_call_wins(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    // An older one too: the coordinator repairs such a store by writing again.
    for number in [1, 2, 1, 3] {
        let snapshot = write(&group, &version(number));
        exam.store(&snapshot).await?;
        exam.holds(&snapshot).await?;
    }
    exam.store(&delete(&group, &version(2))).await?;
    exam.misses(&group).await?;
    let snapshot = write(&group, &version(1));
    exam.store(&snapshot).await?;
    exam.holds(&snapshot).await
}

async fn overlapping_calls_end_with_one_of_the_texts(exam: &Exam<'_>) -> Verdict {
    let another = exam.examinee.publisher();
    for round in 0..ROUNDS {
        let group = exam.group(round);
        let (one, other) = (write(&group, &version(1)), write(&group, &version(2)));
        let landings = join(exam.publish(&one), publish(&another, &other)).await;
        demand_eq!(landings.0?, Landing::Stored, "of the older");
        demand_eq!(landings.1?, Landing::Stored, "of the newer");
        let stored = exam.read(&group).await?.unwrap_or_default();
        demand!(
            [one.text(), other.text()]
                .map(str::as_bytes)
                .contains(&&*stored),
            "{group:?}: two calls overlapped, and what is stored is neither text: {:?}",
            String::from_utf8_lossy(&stored)
        );
        let newer = write(&group, &version(3));
        exam.store(&newer).await?;
        exam.holds(&newer).await?;
    }
    Ok(())
}

async fn overlapping_deletions_end_with_the_text_or_without(exam: &Exam<'_>) -> Verdict {
    let another = exam.examinee.publisher();
    for round in 0..ROUNDS {
        let group = exam.group(round);
        exam.store(&write(&group, &version(1))).await?;
        let (written, deleted) = (write(&group, &version(2)), delete(&group, &version(3)));
        let landings = join(exam.publish(&written), publish(&another, &deleted)).await;
        demand_eq!(landings.0?, Landing::Stored, "of the snapshot");
        demand_eq!(landings.1?, Landing::Stored, "of the deletion");
        let found = exam.edition(&group).await?.map(|edition| edition.version);
        demand!(
            found.is_none_or(|version| version == 2),
            "{group:?}: a snapshot and a deletion overlapped, and version {found:?} is stored"
        );
        exam.store(&deleted).await?;
        exam.misses(&group).await?;
    }
    Ok(())
}
