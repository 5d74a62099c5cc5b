//! The exam for publishers: what every store of topology snapshots must do, as one suite for whoever
//! writes one.
//!
//! A publisher takes it through an [`Examinee`], on a store that is empty to begin with. [`run_all`]
//! gives the verdict on each case. What the cases demand is written at [`Publisher`]: of every one that
//! its readers find what was published last, whole and under its own name; of version-aware ones also
//! that nothing older ever comes back. Stores that show a write only after a while are read by an
//! [`Examinee::read`] that waits for as long.
//!
//! ```
//! use std::rc::Rc;
//!
//! use durably::testing::publishers::{Examinee, run_all};
//! use durably::topology::{MemoryPublisher, Publisher};
//! use futures::future::{FutureExt, LocalBoxFuture, ready};
//!
//! struct Memory(MemoryPublisher);
//!
//! impl Examinee for Memory {
//!     fn publisher(&self) -> Rc<dyn Publisher> {
//!         Rc::new(self.0.clone())
//!     }
//!
//!     fn read<'a>(&'a self, group: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, String>> {
//!         let text = self.0.read(group).map(|text| text.as_bytes().to_vec());
//!         ready(Ok(text)).boxed_local()
//!     }
//! }
//!
//! let memory = Memory(MemoryPublisher::default());
//! for (case, verdict) in futures::executor::block_on(run_all(&memory)) {
//!     assert_eq!(verdict, Ok(()), "{case}");
//! }
//! ```

mod aware;
mod names;
mod overlaps;
mod plain;
mod texts;

use std::rc::Rc;
use std::task::Poll;

use futures::future::{FutureExt, LocalBoxFuture, poll_fn, ready};

use super::published;
use super::{demand, demand_eq, exam_cases};
use crate::time::Timestamp;
use crate::topology::{self, Edition, Landing, Member, MemberState, Publication, Publisher};

/// A publisher taking the exam, and the readers' side of its store.
///
/// Groups are used by one case each, so the store must be empty at the start and is never cleared.
pub trait Examinee {
    /// A publisher on the store. Each call may open another one, as a second process would: cases
    /// in which calls overlap make them through two.
    fn publisher(&self) -> Rc<dyn Publisher>;

    /// What readers find of a group: the stored text, or nothing. Whether that is a tombstone is for
    /// readers to tell, and so for the exam.
    fn read<'a>(&'a self, group: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, String>>;

    /// Puts `text` in the place of the group's stored text, past the publisher, as a broken disk or a
    /// careless hand would, and answers `true`. `false` says that this cannot be done here; the
    /// case about damage then demands nothing.
    fn damage<'a>(
        &'a self,
        group: &'a str,
        text: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<bool, String>> {
        let _ = (group, text);
        ready(Ok(false)).boxed_local()
    }

    /// The longest name of a group that the publisher documents, in bytes.
    fn longest_group(&self) -> usize {
        512
    }

    /// The largest text that the publisher documents, in bytes; the exam tries no more than 4 MiB.
    fn largest_text(&self) -> usize {
        4 << 20
    }
}

/// One case of the exam.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name; the groups that it uses are named after it.
    pub name: &'static str,
    run: for<'a> fn(&'a Exam<'a>) -> LocalBoxFuture<'a, Verdict>,
}

impl Case {
    /// Examines one publisher in this one case.
    ///
    /// # Errors
    ///
    /// What the publisher did wrong.
    pub async fn run(&self, examinee: &dyn Examinee) -> Result<(), String> {
        let exam = Exam {
            examinee,
            publisher: examinee.publisher(),
            case: self.name,
        };
        (self.run)(&exam).await
    }
}

type Verdict = Result<(), String>;

/// The cases for publishers that are version-aware, or for those that are not.
pub fn cases(version_aware: bool) -> Vec<Case> {
    let kind = if version_aware {
        [aware::CASES, overlaps::CASES].concat()
    } else {
        plain::CASES.to_vec()
    };
    [texts::CASES, names::CASES, &kind].concat()
}

/// Runs all cases that apply, one after the other, and gives the verdict on each.
pub async fn run_all(examinee: &dyn Examinee) -> Vec<(&'static str, Result<(), String>)> {
    let mut verdicts = Vec::new();
    for case in cases(examinee.publisher().is_version_aware()) {
        verdicts.push((case.name, case.run(examinee).await));
    }
    verdicts
}

/// What a case works with.
struct Exam<'a> {
    examinee: &'a dyn Examinee,
    publisher: Rc<dyn Publisher>,
    case: &'static str,
}

impl Exam<'_> {
    /// A group of this case alone.
    fn group(&self, name: impl std::fmt::Display) -> String {
        format!("{} {name}", self.case)
    }

    async fn publish(&self, publication: &Rc<Publication>) -> Result<Landing, String> {
        publish(&self.publisher, publication).await
    }

    /// Publishes what must become what the store holds.
    async fn store(&self, publication: &Rc<Publication>) -> Verdict {
        let landing = self.publish(publication).await?;
        demand_eq!(landing, Landing::Stored, called(publication));
        Ok(())
    }

    async fn read(&self, group: &str) -> Result<Option<Vec<u8>>, String> {
        let read = self.examinee.read(group).await;
        read.map_err(|problem| format!("reading {group:?}: {problem}"))
    }

    /// What a reader makes of the stored text: the edition of its snapshot; none of a missing group.
    async fn edition(&self, group: &str) -> Result<Option<Edition>, String> {
        let Some(text) = self.read(group).await? else {
            return Ok(None);
        };
        let read = topology::decode(group, &text)
            .map_err(|error| format!("what is stored of {group:?}: {error}"))?;
        Ok(read.members.is_some().then_some(read.edition))
    }

    /// The group must read as what was published, byte for byte; as missing after a deletion.
    async fn holds(&self, publication: &Publication) -> Verdict {
        let group = publication.group();
        match publication {
            Publication::Write { encoded, .. } => match self.read(group).await? {
                Some(text) if text == encoded.as_bytes() => Ok(()),
                Some(text) => Err(format!(
                    "{} must be stored as it is; {}",
                    called(publication),
                    difference(group, &text, encoded)
                )),
                None => Err(format!(
                    "{} was published, and nothing is stored",
                    called(publication)
                )),
            },
            Publication::Deletion { .. } => self.misses(group).await,
        }
    }

    /// The group must read as missing.
    async fn misses(&self, group: &str) -> Verdict {
        let found = self.edition(group).await?;
        demand!(
            found.is_none(),
            "{group:?} must be missing, and {} is stored",
            found.map_or(String::new(), |edition| edition.to_string())
        );
        Ok(())
    }
}

async fn publish(
    publisher: &Rc<dyn Publisher>,
    publication: &Rc<Publication>,
) -> Result<Landing, String> {
    let publishing = publisher.publish(publication.clone());
    publishing
        .await
        .map_err(|error| format!("{}: {error}", called(publication)))
}

/// The edition of the exam's usual coordinator.
fn version(version: u64) -> Edition {
    published::edition("coordinator-1", Timestamp::from_millis(1_000), version)
}

/// A snapshot of `group`, one that differs from those of other editions.
fn write(group: &str, edition: &Edition) -> Rc<Publication> {
    let member = |number| {
        let id = format!("{}-{}-{number}", edition.coordinator, edition.version);
        Member::new(id, MemberState::Active, edition.incarnation.created_at)
    };
    let members = (0..1 + edition.version % 3).map(member).collect();
    Rc::new(published::write(group, edition, members))
}

fn delete(group: &str, edition: &Edition) -> Rc<Publication> {
    Rc::new(published::deletion(group, edition))
}

/// How a verdict names a publication.
fn called(publication: &Publication) -> String {
    let kind = match publication {
        Publication::Write { .. } => "a snapshot",
        Publication::Deletion { .. } => "the deletion",
    };
    let group: String = publication.group().chars().take(80).collect();
    format!("{kind} of {group:?}, {}", publication.edition())
}

/// How a verdict names the difference between texts that may be large.
fn difference(group: &str, found: &[u8], expected: &str) -> String {
    let same = found
        .iter()
        .zip(expected.as_bytes())
        .take_while(|(found, expected)| found == expected)
        .count();
    let reads = match topology::decode(group, found) {
        Ok(read) => format!("reads as {}", read.edition),
        Err(error) => format!("cannot be read: {error}"),
    };
    format!(
        "what is stored has {} bytes instead of {}, differs after {same} and {reads}",
        found.len(),
        expected.len()
    )
}

/// Lets other futures of the task go on.
async fn turn() {
    let mut turned = false;
    poll_fn(|context| {
        if turned {
            return Poll::Ready(());
        }
        turned = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
