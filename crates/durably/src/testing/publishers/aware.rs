//! Cases for version-aware stores, one call after the other: what is older is refused, and nothing
//! else is.

use super::{Exam, Verdict, delete, demand_eq, exam_cases, publish, published, version, write};
use crate::time::Timestamp;
use crate::topology::{Edition, Landing};

exam_cases![
    an_older_snapshot_is_refused_and_told_why,
    an_older_deletion_is_refused_and_told_why,
    after_a_deletion_an_older_snapshot_does_not_come_back,
    after_the_deletion_of_a_missing_group_an_older_snapshot_does_not_come,
    another_coordinator_replaces,
    an_older_incarnation_does_not_replace,
    a_newer_incarnation_replaces,
    a_damaged_text_is_replaced,
];

async fn refused(
    exam: &Exam<'_>,
    old: &std::rc::Rc<crate::topology::Publication>,
    by: &Edition,
) -> Verdict {
    let expected = Landing::Superseded(by.clone());
    for publisher in [exam.publisher.clone(), exam.examinee.publisher()] {
        let landing = publish(&publisher, old).await?;
        demand_eq!(landing, expected, super::called(old));
    }
    Ok(())
}

async fn an_older_snapshot_is_refused_and_told_why(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    let stored = write(&group, &version(5));
    exam.store(&stored).await?;
    for number in [4, 1] {
        refused(exam, &write(&group, &version(number)), stored.edition()).await?;
        exam.holds(&stored).await?;
    }
    Ok(())
}

async fn an_older_deletion_is_refused_and_told_why(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    let stored = write(&group, &version(5));
    exam.store(&stored).await?;
    refused(exam, &delete(&group, &version(4)), stored.edition()).await?;
    exam.holds(&stored).await
}

async fn after_a_deletion_an_older_snapshot_does_not_come_back(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    exam.store(&write(&group, &version(1))).await?;
    exam.store(&delete(&group, &version(3))).await?;
    for number in [1, 2] {
        refused(exam, &write(&group, &version(number)), &version(3)).await?;
        exam.misses(&group).await?;
    }
    let newer = write(&group, &version(4));
    exam.store(&newer).await?;
    exam.holds(&newer).await
}

async fn after_the_deletion_of_a_missing_group_an_older_snapshot_does_not_come(
    exam: &Exam<'_>,
) -> Verdict {
    let group = exam.group("one");
    exam.store(&delete(&group, &version(2))).await?;
    refused(exam, &write(&group, &version(1)), &version(2)).await?;
    exam.misses(&group).await
}

async fn another_coordinator_replaces(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    exam.store(&write(&group, &version(9))).await?;
    // Of an earlier incarnation and a lower version: both compare within one coordinator only.
    let other = published::edition("coordinator-2", Timestamp::from_millis(1), 1);
    let snapshot = write(&group, &other);
    exam.store(&snapshot).await?;
    exam.holds(&snapshot).await?;
    exam.store(&delete(&group, &version(10))).await?;
    exam.misses(&group).await?;
    exam.store(&snapshot).await?;
    exam.holds(&snapshot).await
}

async fn an_older_incarnation_does_not_replace(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    let stored = write(&group, &version(3));
    exam.store(&stored).await?;
    let older = published::edition("coordinator-1", Timestamp::from_millis(999), 100);
    refused(exam, &write(&group, &older), stored.edition()).await?;
    refused(exam, &delete(&group, &older), stored.edition()).await?;
    // One that began at the same time is told by its random part.
    let mut twin = version(100);
    twin.incarnation.nonce = "/".to_owned();
    refused(exam, &write(&group, &twin), stored.edition()).await?;
    exam.holds(&stored).await
}

async fn a_newer_incarnation_replaces(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    exam.store(&write(&group, &version(9))).await?;
    let newer = published::edition("coordinator-1", Timestamp::from_millis(1_001), 1);
    let snapshot = write(&group, &newer);
    exam.store(&snapshot).await?;
    exam.holds(&snapshot).await?;
    refused(exam, &write(&group, &version(10)), &newer).await?;
    exam.holds(&snapshot).await
}

async fn a_damaged_text_is_replaced(exam: &Exam<'_>) -> Verdict {
    let stored = write(&exam.group("good"), &version(9));
    let good = stored.text().as_bytes();
    let flipped = {
        let mut text = good.to_vec();
        // A digit of the checksum or of the content: either way it no longer fits.
        if let Some(byte) = text.iter_mut().rev().find(|byte| byte.is_ascii_digit()) {
            *byte = if *byte == b'7' { b'8' } else { b'7' };
        }
        text
    };
    let damaged: [&[u8]; 7] = [
        b"",
        b"\0\0\0\0\0\0\0\0",
        &[0xff, 0xfe, 0xc0],
        b"{\"schema\":1}",
        &good[..good.len() / 2],
        &good[..good.len() - 1],
        &flipped,
    ];
    for (index, text) in damaged.into_iter().enumerate() {
        let group = exam.group(index);
        exam.store(&write(&group, &version(9))).await?;
        let done = exam.examinee.damage(&group, text).await;
        if !done.map_err(|problem| format!("damaging {group:?}: {problem}"))? {
            return Ok(());
        }
        let snapshot = write(&group, &version(9));
        exam.store(&snapshot).await?;
        exam.holds(&snapshot).await?;
    }
    Ok(())
}
