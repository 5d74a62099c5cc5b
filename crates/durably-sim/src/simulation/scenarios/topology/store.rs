//! The store that groups are published in. A write may be lost, land late or after others, hang, or be
//! answered with an error; a read may fail, hang, or have an older or a damaged copy.
//!
//! Without conditions it takes whatever comes last, and a write lands within its landing window. With
//! conditions it keeps the newest edition, however late a write lands.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use durably::Timestamp;
use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{Landing, Publication, Publisher, Verdict};
use futures::channel::oneshot;

use crate::node::Node;
use crate::simulation::dice::Dice;
use crate::simulation::invariants::published::{Copy, Published};
use crate::simulation::run::Run;

/// How long after everything a write may land in a store with conditions.
const LATEST: Duration = Duration::from_secs(10 * 60);

pub(super) struct Store {
    run: Rc<Run>,
    dice: Dice,
    has_conditions: bool,
    /// What it holds.
    pub(super) published: Published,
    under_way: Cell<u64>,
    down_until: Cell<Timestamp>,
    writes: Cell<u64>,
}

/// What becomes of a write.
struct Fate {
    /// When it lands, after it was sent.
    lands: Option<Duration>,
    answer: Answer,
}

enum Answer {
    /// So long after it has landed.
    Landing(Duration),
    /// So long after it was sent, and without saying whether it lands.
    Error(Duration),
    Never,
}

impl Store {
    pub(super) fn new(run: &Rc<Run>, has_conditions: bool) -> Rc<Store> {
        Rc::new(Store {
            run: run.clone(),
            dice: Dice::new(run, "store"),
            has_conditions,
            published: Published::default(),
            under_way: Cell::new(0),
            down_until: Cell::new(Timestamp::ZERO),
            writes: Cell::new(0),
        })
    }

    /// Writes that have not landed, and may.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way.get()
    }

    /// Nothing is written or read for a while.
    pub(super) fn go_down(&self, lasts: Duration) {
        self.run.cover("store out of reach");
        let ms = lasts.as_millis();
        self.run
            .note("store", format_args!("is out of reach for {ms} ms"));
        self.down_until.set(self.run.world.now() + lasts);
    }

    fn is_down(&self) -> bool {
        !self.run.is_healed() && self.run.world.now() < self.down_until.get()
    }

    fn some(&self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.dice.below(most.saturating_add(1)))
    }

    /// What becomes of a write that may land within `window`.
    fn fate(&self, window: Duration) -> Fate {
        let usual = match self.run.is_healed() {
            true => Duration::ZERO,
            false => self.run.knob_ms("store-ms"),
        };
        let late = match self.has_conditions {
            true => LATEST,
            false => window,
        };
        if self.is_down() || self.dice.fails("write-fails-percent") {
            // An error means that nothing was stored, where it could do harm.
            let lands = self.has_conditions && self.dice.below(2) == 0;
            return Fate {
                lands: lands.then(|| self.some(late)),
                answer: Answer::Error(self.some(usual * 2)),
            };
        }
        if self.dice.fails("write-lost-percent") {
            return Fate {
                lands: None,
                answer: Answer::Never,
            };
        }
        if self.dice.fails("write-late-percent") {
            let is_answered = self.dice.below(2) == 0;
            return Fate {
                lands: Some(self.some(late)),
                answer: match is_answered {
                    true => Answer::Landing(self.some(usual)),
                    false => Answer::Never,
                },
            };
        }
        Fate {
            lands: Some(self.some(usual)),
            answer: Answer::Landing(self.some(usual)),
        }
    }

    /// A write reaches the store.
    fn land(&self, number: u64, publication: &Publication) -> Landing {
        let (group, edition) = (publication.group(), publication.edition());
        let held = self.published.current(group);
        let held = held.and_then(|held| held.text);
        let verdict = match self.has_conditions {
            true => publication.against(held.as_deref().map(str::as_bytes)),
            false => Verdict::Write,
        };
        self.run.note(
            group,
            format_args!("write {number} of {edition}: {verdict:?}"),
        );
        let (text, members) = match publication {
            Publication::Write {
                snapshot, encoded, ..
            } => (Some(encoded.clone()), Some(snapshot.members.clone())),
            Publication::Deletion { tombstone, .. } => {
                (self.has_conditions.then(|| tombstone.clone()), None)
            }
        };
        match verdict {
            Verdict::Write => {
                let copy = Copy {
                    since: self.run.world.now(),
                    edition: edition.clone(),
                    text,
                    members,
                };
                self.published.landed(&self.run, group, copy);
                Landing::Stored
            }
            Verdict::Stored => Landing::Stored,
            Verdict::Superseded(by) => {
                self.run.cover("older write refused");
                Landing::Superseded(by)
            }
        }
    }

    /// What is read of a group.
    pub(super) async fn read(self: Rc<Self>, group: String) -> Result<Option<String>, BoxError> {
        self.dice.linger("read-ms").await;
        if self.is_down() || self.dice.fails("read-fails-percent") {
            self.run.cover("read failed");
            if self.dice.below(4) == 0 {
                return pending().await;
            }
            return Err("the store cannot be read".into());
        }
        let now = self.run.world.now();
        let copy = match self.dice.fails("read-old-percent") {
            false => self.published.current(&group),
            true => {
                self.run.cover("older copy read");
                let age = self.dice.below(60_000);
                let then = now.as_millis().saturating_sub(age);
                self.published.at(&group, Timestamp::from_millis(then))
            }
        };
        let mut text = copy.and_then(|copy| copy.text);
        if let Some(text) = &mut text
            && self.dice.fails("read-damaged-percent")
        {
            self.run.cover("damaged copy read");
            text.truncate(self.dice.below(text.len() as u64) as usize);
        }
        Ok(text)
    }
}

/// A coordinator's way to the store.
pub(super) struct StorePublisher {
    pub(super) store: Rc<Store>,
    /// Whose clock the landing window is counted by.
    pub(super) node: Node,
    /// How long after it was sent a write may land.
    pub(super) window: Duration,
}

impl Publisher for StorePublisher {
    fn is_version_aware(&self) -> bool {
        self.store.has_conditions
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        let (store, node) = (self.store.clone(), self.node.clone());
        let number = store.writes.get() + 1;
        store.writes.set(number);
        let run = store.run.clone();
        let (group, edition) = (publication.group().to_owned(), publication.edition());
        run.note(&group, format_args!("write {number} of {edition} begins"));
        let Fate { lands, answer } = store.fate(self.window);
        let land_before = node.now() + self.window;
        let (landed, landing) = oneshot::channel();
        if let Some(after) = lands {
            store.under_way.set(store.under_way.get() + 1);
            let (world, store) = (run.world.clone(), store.clone());
            run.world.spawn(async move {
                world.sleep(after).await;
                store.under_way.set(store.under_way.get() - 1);
                if store.has_conditions || !node.has_shown(land_before) {
                    // Whoever sent it may have gone.
                    let _ = landed.send(store.land(number, &publication));
                }
            });
        }
        Box::pin(async move {
            match answer {
                Answer::Landing(after) => match landing.await {
                    Ok(landing) => {
                        run.world.sleep(after).await;
                        Ok(landing)
                    }
                    Err(_) => pending().await,
                },
                Answer::Error(after) => {
                    run.world.sleep(after).await;
                    run.cover("write failed");
                    Err("the store refused it".into())
                }
                Answer::Never => {
                    run.cover("write without an answer");
                    pending().await
                }
            }
        })
    }
}
