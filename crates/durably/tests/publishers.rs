//! The publisher in memory takes the exam for publishers, and publishers with faults fail it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Poll;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::testing::publishers::{Examinee, cases, run_all};
use durably::topology::{Landing, MemoryPublisher, Publication, Publisher, Verdict};
use futures::executor::block_on;
use futures::future::{FutureExt, LocalBoxFuture, poll_fn, ready};

struct Memory(MemoryPublisher);

impl Examinee for Memory {
    fn publisher(&self) -> Rc<dyn Publisher> {
        Rc::new(self.0.clone())
    }

    fn read<'a>(&'a self, group: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, String>> {
        let text = self.0.read(group).map(|text| text.as_bytes().to_vec());
        ready(Ok(text)).boxed_local()
    }
}

#[test]
fn the_publisher_in_memory_passes_the_exam() {
    let verdicts = block_on(run_all(&Memory(MemoryPublisher::default())));
    assert_eq!(failures(verdicts), Vec::<String>::new());
}

#[test]
fn a_store_without_conditions_passes_the_exam() {
    let verdicts = block_on(run_all(&Faulty::new(Fault::None, false)));
    assert_eq!(failures(verdicts), Vec::<String>::new());
}

/// What a publisher may get wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    FoldsCase,
    JoinsPaths,
    DecodesPercents,
    CutsNames,
    CutsTexts,
    WritesInPlace,
    KeepsDeleted,
    ForgetsDeletions,
    RefusesRepetition,
    ReadsTooEarly,
    ComparesAcrossCoordinators,
    ComparesVersionsOnly,
    KeepsDamage,
    SaysStored,
    SaysSuperseded,
    NamesItself,
}

/// A store in memory with a fault, whose calls take a few turns.
#[derive(Clone)]
struct Faulty {
    fault: Fault,
    version_aware: bool,
    calls: Rc<Cell<u64>>,
    texts: Rc<RefCell<BTreeMap<String, Vec<u8>>>>,
}

impl Faulty {
    fn new(fault: Fault, version_aware: bool) -> Self {
        Faulty {
            fault,
            version_aware,
            calls: Rc::default(),
            texts: Rc::default(),
        }
    }

    fn key(&self, group: &str) -> String {
        match self.fault {
            Fault::FoldsCase => group.to_lowercase(),
            Fault::JoinsPaths => format!("folder/{group}").replace("//", "/"),
            Fault::DecodesPercents => group.replace("%2F", "/"),
            Fault::CutsNames => group.chars().take(255).collect(),
            _ => group.to_owned(),
        }
    }

    fn verdict(&self, publication: &Publication) -> Verdict {
        if !self.version_aware {
            return Verdict::Write;
        }
        let texts = self.texts.borrow();
        let stored = texts.get(&self.key(publication.group()));
        let stored = stored.map(|text| &text[..]);
        let verdict = publication.against(stored);
        let Some(Ok(found)) =
            stored.map(|text| durably::topology::decode(publication.group(), text))
        else {
            return match self.fault {
                Fault::KeepsDamage if stored.is_some() => Verdict::Stored,
                _ => verdict,
            };
        };
        let newer = found.edition.version > publication.edition().version;
        match self.fault {
            Fault::ComparesAcrossCoordinators if newer => Verdict::Superseded(found.edition),
            Fault::ComparesVersionsOnly if newer => Verdict::Superseded(found.edition),
            Fault::ComparesVersionsOnly => Verdict::Write,
            Fault::SaysStored if matches!(verdict, Verdict::Superseded(_)) => Verdict::Stored,
            Fault::NamesItself if matches!(verdict, Verdict::Superseded(_)) => {
                Verdict::Superseded(publication.edition().clone())
            }
            _ => verdict,
        }
    }

    fn write(&self, publication: &Publication) {
        let key = self.key(publication.group());
        let mut texts = self.texts.borrow_mut();
        let deleted = matches!(publication, Publication::Deletion { .. });
        if deleted && self.fault == Fault::KeepsDeleted {
            return;
        }
        if deleted && (!self.version_aware || self.fault == Fault::ForgetsDeletions) {
            texts.remove(&key);
            return;
        }
        let mut text = publication.text().as_bytes().to_vec();
        if self.fault == Fault::CutsTexts {
            text.truncate(1 << 20);
        }
        texts.insert(key, text);
    }

    async fn publish(self, publication: Rc<Publication>) -> Result<Landing, BoxError> {
        let call = self.calls.replace(self.calls.get() + 1);
        if self.fault == Fault::ReadsTooEarly {
            let verdict = self.verdict(&publication);
            turns(call % 3).await;
            return Ok(self.settle(verdict, &publication));
        }
        if self.fault == Fault::RefusesRepetition && self.verdict(&publication) == Verdict::Stored {
            return Err("it is there already".into());
        }
        if self.fault == Fault::WritesInPlace {
            let half = publication.text().len() / 2;
            let half = publication.text().as_bytes()[..half].to_vec();
            let key = self.key(publication.group());
            let old = self.texts.borrow_mut().insert(key.clone(), half);
            turns(call % 3).await;
            match old {
                Some(old) => self.texts.borrow_mut().insert(key, old),
                None => self.texts.borrow_mut().remove(&key),
            };
        }
        turns(call % 3).await;
        let verdict = self.verdict(&publication);
        Ok(self.settle(verdict, &publication))
    }

    fn settle(&self, verdict: Verdict, publication: &Publication) -> Landing {
        match verdict {
            Verdict::Write => {
                self.write(publication);
                match self.fault {
                    Fault::SaysSuperseded => Landing::Superseded(publication.edition().clone()),
                    _ => Landing::Stored,
                }
            }
            Verdict::Stored => Landing::Stored,
            Verdict::Superseded(by) => Landing::Superseded(by),
        }
    }
}

impl Publisher for Faulty {
    fn is_version_aware(&self) -> bool {
        self.version_aware
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        Box::pin(Faulty::publish(self.clone(), publication))
    }
}

impl Examinee for Faulty {
    fn publisher(&self) -> Rc<dyn Publisher> {
        Rc::new(self.clone())
    }

    fn read<'a>(&'a self, group: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, String>> {
        let text = self.texts.borrow().get(&self.key(group)).cloned();
        ready(Ok(text)).boxed_local()
    }

    fn damage<'a>(
        &'a self,
        group: &'a str,
        text: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<bool, String>> {
        let key = self.key(group);
        self.texts.borrow_mut().insert(key, text.to_vec());
        ready(Ok(true)).boxed_local()
    }
}

async fn turns(mut turns: u64) {
    poll_fn(|context| {
        if turns == 0 {
            return Poll::Ready(());
        }
        turns -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn failures(verdicts: Vec<(&'static str, Result<(), String>)>) -> Vec<String> {
    verdicts
        .into_iter()
        .filter_map(|(case, verdict)| Some(format!("{case}: {}", verdict.err()?)))
        .collect()
}

#[test]
fn a_version_aware_store_passes_the_exam() {
    let verdicts = block_on(run_all(&Faulty::new(Fault::None, true)));
    assert_eq!(failures(verdicts), Vec::<String>::new());
}

#[test]
fn every_fault_of_a_publisher_fails_the_exam() {
    const BOTH: &[bool] = &[true, false];
    const AWARE: &[bool] = &[true];
    const PLAIN: &[bool] = &[false];
    for (fault, kinds) in [
        (Fault::FoldsCase, BOTH),
        (Fault::JoinsPaths, BOTH),
        (Fault::DecodesPercents, BOTH),
        (Fault::CutsNames, BOTH),
        (Fault::CutsTexts, BOTH),
        (Fault::WritesInPlace, BOTH),
        (Fault::KeepsDeleted, BOTH),
        (Fault::ForgetsDeletions, AWARE),
        (Fault::RefusesRepetition, AWARE),
        (Fault::ReadsTooEarly, AWARE),
        (Fault::ComparesAcrossCoordinators, AWARE),
        (Fault::ComparesVersionsOnly, AWARE),
        (Fault::KeepsDamage, AWARE),
        (Fault::SaysStored, AWARE),
        (Fault::NamesItself, AWARE),
        (Fault::SaysSuperseded, PLAIN),
    ] {
        for version_aware in kinds {
            let faulty = Faulty::new(fault, *version_aware);
            let found = cases(*version_aware)
                .iter()
                .rev()
                .any(|case| block_on(case.run(&faulty)).is_err());
            assert!(found, "{fault:?} passes, version-aware: {version_aware}");
        }
    }
}
