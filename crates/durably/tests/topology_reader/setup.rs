//! A store that answers what a test says, and readers of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use durably::Timestamp;
use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::layers::{Randomness, Timer};
use durably::testing::published;
use durably::topology::{
    Edition, Fallbacks, Incarnation, Member, MemberState, NoFallbacks, ReaderOptions, Reading,
    Source, TopologyReader, TopologyUnavailable,
};
use durably_sim::World;

pub(crate) const START: u64 = 1_000_000;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Clone)]
pub(crate) struct WorldTimer(pub(crate) World);

impl Timer for WorldTimer {
    type Sleep = durably_sim::Sleep;

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }
}

/// What the jitter is drawn from; at first so that it is none.
#[derive(Clone)]
pub(crate) struct Draw(pub(crate) Rc<Cell<u64>>);

impl Default for Draw {
    fn default() -> Self {
        Draw(Rc::new(Cell::new(u64::MAX / 2)))
    }
}

impl Randomness for Draw {
    fn next(&self) -> u64 {
        self.0.get()
    }
}

/// What a store answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Text(String),
    Nothing,
    Error,
    Never,
}

/// A store whose answers are set by tests, for all groups alike unless they are named.
#[derive(Clone)]
pub(crate) struct Store {
    world: World,
    state: Rc<RefCell<State>>,
}

struct State {
    answers: BTreeMap<String, Answer>,
    otherwise: Answer,
    takes: Duration,
    reads: usize,
    abandoned: usize,
    log: Vec<Read>,
}

/// A read that is over.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// What was answered; `None` if the reader gave it up.
    pub(crate) answer: Option<Answer>,
}

impl Store {
    pub(crate) fn new(world: &World) -> Store {
        Store {
            world: world.clone(),
            state: Rc::new(RefCell::new(State {
                answers: BTreeMap::new(),
                otherwise: Answer::Nothing,
                takes: Duration::ZERO,
                reads: 0,
                abandoned: 0,
                log: Vec::new(),
            })),
        }
    }

    pub(crate) fn set(&self, answer: Answer) {
        self.state.borrow_mut().otherwise = answer;
    }

    pub(crate) fn set_of(&self, group: &str, answer: Answer) {
        let mut state = self.state.borrow_mut();
        state.answers.insert(group.to_owned(), answer);
    }

    /// How long an answer takes from now on.
    pub(crate) fn takes(&self, millis: u64) {
        self.state.borrow_mut().takes = ms(millis);
    }

    pub(crate) fn reads(&self) -> usize {
        self.state.borrow().reads
    }

    /// The reads that are over, in order.
    pub(crate) fn log(&self) -> Vec<Read> {
        self.state.borrow().log.clone()
    }

    /// How many reads were dropped before their answer.
    pub(crate) fn abandoned(&self) -> usize {
        self.state.borrow().abandoned
    }
}

/// Notes how a read ends.
struct Ending {
    store: Store,
    began: u64,
    answer: Option<Answer>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.store.state.borrow_mut();
        state.abandoned += usize::from(self.answer.is_none());
        state.log.push(Read {
            began: self.began,
            ended: self.store.world.now().as_millis(),
            answer: self.answer.take(),
        });
    }
}

impl Source for Store {
    type Text = String;
    type Read = LocalFuture<Result<Option<String>, BoxError>>;

    fn read(&self, group: &str) -> Self::Read {
        let mut state = self.state.borrow_mut();
        state.reads += 1;
        let answer = state.answers.get(group).unwrap_or(&state.otherwise);
        let (answer, takes) = (answer.clone(), state.takes);
        drop(state);
        let store = self.clone();
        Box::pin(async move {
            let mut ending = Ending {
                began: store.world.now().as_millis(),
                store: store.clone(),
                answer: None,
            };
            if !takes.is_zero() {
                store.world.sleep(takes).await;
            }
            if matches!(answer, Answer::Never) {
                std::future::pending::<()>().await;
            }
            ending.answer = Some(answer.clone());
            match answer {
                Answer::Text(text) => Ok(Some(text)),
                Answer::Nothing | Answer::Never => Ok(None),
                Answer::Error => Err("the store is away".into()),
            }
        })
    }
}

pub(crate) type Reader<F = NoFallbacks> = TopologyReader<Store, WorldTimer, Draw, F>;

/// A world, a store in it, and a reader of that.
pub(crate) struct Stand<F: Fallbacks = NoFallbacks> {
    pub(crate) world: World,
    pub(crate) store: Store,
    pub(crate) draw: Draw,
    pub(crate) reader: Reader<F>,
}

impl Stand {
    pub(crate) fn new(change: impl FnOnce(&mut ReaderOptions)) -> Stand {
        Stand::with(NoFallbacks, change)
    }
}

impl<F: Fallbacks> Stand<F> {
    pub(crate) fn with(fallbacks: F, change: impl FnOnce(&mut ReaderOptions)) -> Stand<F> {
        let world = World::new(START);
        let (store, draw) = (Store::new(&world), Draw::default());
        let mut options = ReaderOptions::default();
        change(&mut options);
        let timer = WorldTimer(world.clone());
        let reader =
            TopologyReader::with_fallbacks(options, store.clone(), timer, draw.clone(), fallbacks);
        Stand {
            world,
            store,
            draw,
            reader: reader.expect("options that can be"),
        }
    }

    pub(crate) fn get(&self, group: &str) -> Result<Reading, TopologyUnavailable> {
        self.world.block_on(self.reader.get(group))
    }

    /// Moves the clock to so many milliseconds after the start.
    pub(crate) fn at(&self, millis: u64) {
        self.world
            .advance_to(Timestamp::from_millis(START + millis));
    }
}

pub(crate) fn edition(coordinator: &str, incarnation: u64, version: u64) -> Edition {
    Edition {
        coordinator: coordinator.to_owned(),
        incarnation: Incarnation {
            created_at: Timestamp::from_millis(incarnation),
            nonce: "n".to_owned(),
        },
        version,
    }
}

/// The published text of a group with one member, named after the version.
pub(crate) fn text(group: &str, edition: &Edition) -> Answer {
    let id = format!("member-of-{}", edition.version);
    let member = Member::new(id, MemberState::Active, Timestamp::ZERO);
    Answer::Text(published::text(group, edition, Some(&[member])))
}

/// The text of group `g` at a version of coordinator `c`.
pub(crate) fn version(version: u64) -> Answer {
    text("g", &edition("c", 1, version))
}

/// The text of the deleted group `g`.
pub(crate) fn tombstone(version: u64) -> Answer {
    Answer::Text(published::text("g", &edition("c", 1, version), None))
}
