//! Cases about what is stored: it is what was published, whole, and gone when it was deleted.

use std::cell::Cell;
use std::rc::Rc;

use futures::future::join;
use serde_json::Value;

use super::{
    Exam, Verdict, delete, demand, demand_eq, exam_cases, publish, published, turn, version, write,
};
use crate::topology::{Landing, Member, MemberState};

exam_cases![
    a_group_that_nobody_published_is_missing,
    what_is_published_is_read_byte_for_byte,
    a_newer_snapshot_replaces_an_older_one,
    a_repeated_call_has_the_same_result,
    a_deleted_group_is_missing,
    the_deletion_of_a_group_that_is_not_there_succeeds,
    a_group_that_comes_back_is_found_again,
    large_texts_are_whole,
    readers_see_whole_texts_only,
];

async fn a_group_that_nobody_published_is_missing(exam: &Exam<'_>) -> Verdict {
    let stored = exam.read(&exam.group("never")).await?;
    demand_eq!(
        stored.map(|text| text.len()),
        None,
        "what is stored before anything was published"
    );
    Ok(())
}

async fn what_is_published_is_read_byte_for_byte(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    let mut member = Member::new(
        "é\u{301} ß 漢字 🦀 \"quoted\\\" \u{0} \r\n\t\u{7f}\u{10ffff}",
        MemberState::Draining,
        version(1).incarnation.created_at,
    );
    member.meta = Some(serde_json::json!({"a": [0.1, null, "  ", {"b": -1}], "": ""}));
    member.location_hint = Some("weur".to_owned());
    let snapshot = Rc::new(published::write(&group, &version(1), vec![member]));
    exam.store(&snapshot).await?;
    exam.holds(&snapshot).await
}

async fn a_newer_snapshot_replaces_an_older_one(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    for number in 1..=10 {
        let snapshot = write(&group, &version(number));
        exam.store(&snapshot).await?;
        exam.holds(&snapshot).await?;
    }
    Ok(())
}

async fn a_repeated_call_has_the_same_result(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    for publication in [
        write(&group, &version(1)),
        delete(&group, &version(2)),
        write(&group, &version(3)),
    ] {
        for _ in 0..3 {
            exam.store(&publication).await?;
            exam.holds(&publication).await?;
        }
        let another = exam.examinee.publisher();
        let landing = publish(&another, &publication).await?;
        demand_eq!(landing, Landing::Stored, "repeated by another publisher");
        exam.holds(&publication).await?;
    }
    Ok(())
}

async fn a_deleted_group_is_missing(exam: &Exam<'_>) -> Verdict {
    let (group, neighbour) = (exam.group("one"), write(&exam.group("two"), &version(1)));
    exam.store(&neighbour).await?;
    exam.store(&write(&group, &version(1))).await?;
    exam.store(&delete(&group, &version(2))).await?;
    exam.misses(&group).await?;
    exam.holds(&neighbour).await
}

async fn the_deletion_of_a_group_that_is_not_there_succeeds(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    exam.store(&delete(&group, &version(5))).await?;
    exam.misses(&group).await
}

async fn a_group_that_comes_back_is_found_again(exam: &Exam<'_>) -> Verdict {
    let group = exam.group("one");
    for number in [1, 3, 5] {
        let snapshot = write(&group, &version(number));
        exam.store(&snapshot).await?;
        exam.holds(&snapshot).await?;
        exam.store(&delete(&group, &version(number + 1))).await?;
        exam.misses(&group).await?;
    }
    Ok(())
}

/// A member whose metadata has about so many bytes.
fn large_member(bytes: usize, filling: char) -> Member {
    let mut member = Member::new(
        "large",
        MemberState::Active,
        version(1).incarnation.created_at,
    );
    member.meta = Some(Value::String(filling.to_string().repeat(bytes)));
    member
}

/// How large a case's texts are: a power of two, with room for what surrounds the metadata.
fn large(exam: &Exam<'_>) -> usize {
    exam.examinee.largest_text().min(4 << 20)
}

async fn large_texts_are_whole(exam: &Exam<'_>) -> Verdict {
    const AROUND: usize = 1_024;
    let group = exam.group("one");
    let large = large(exam).saturating_sub(AROUND);
    let small = 10;
    for (number, (bytes, filling)) in [(large, 'a'), (small, 'b'), (large, 'c'), (small, 'd')]
        .into_iter()
        .enumerate()
    {
        let edition = version(number as u64 + 1);
        let members = vec![large_member(bytes, filling)];
        let snapshot = Rc::new(published::write(&group, &edition, members));
        exam.store(&snapshot).await?;
        exam.holds(&snapshot).await?;
    }
    Ok(())
}

async fn readers_see_whole_texts_only(exam: &Exam<'_>) -> Verdict {
    const WRITES: u64 = 20;
    const MOST_READS: usize = 1_000;
    let group = exam.group("one");
    let bytes = (large(exam) / 2).min(1 << 18);
    let done = Cell::new(false);
    let writing = async {
        for number in 1..=WRITES {
            let filling = if number.is_multiple_of(2) { 'a' } else { 'b' };
            let bytes = bytes / (1 + number as usize % 3);
            let members = vec![large_member(bytes, filling)];
            let snapshot = Rc::new(published::write(&group, &version(number), members));
            let stored = exam.store(&snapshot).await;
            if stored.is_err() {
                done.set(true);
            }
            stored?;
            turn().await;
        }
        done.set(true);
        Ok(())
    };
    let reading = async {
        let mut newest = None;
        for _ in 0..MOST_READS {
            if done.get() {
                break;
            }
            // Damage, of a text cut off or mixed of two, is a problem of reading it.
            let found = exam.edition(&group).await?.map(|edition| edition.version);
            demand!(
                found >= newest,
                "version {found:?} was read after {newest:?}, although all were written in order"
            );
            newest = found;
            turn().await;
        }
        Ok(())
    };
    let (written, read) = join(writing, reading).await;
    written.and(read)
}
