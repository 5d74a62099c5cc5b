//! The network between processes: it loses, duplicates, delays and reorders messages, and cuts
//! processes off from each other.
//!
//! Decided here: what becomes of a message and of its answer. A message that arrives is handled to
//! its end whatever becomes of who sent it, as by a server whose client has hung up.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use durably::host::LocalFuture;
use futures::channel::oneshot;

use super::knobs::Knobs;
use super::run::Run;
use crate::executor::World;
use crate::node::Node;
use crate::random::Random;

/// Who learns that a message did not get through, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

/// What a message does when it arrives; called once for each copy.
pub type Deliver<T> = Rc<dyn Fn() -> LocalFuture<T>>;

/// One copy of a message on its way.
struct Carried {
    number: u64,
    /// 0 is the message itself.
    copy: u64,
    about: String,
    /// In ms.
    delay: u64,
}

/// The network of a run.
pub struct Network {
    world: World,
    random: RefCell<Random>,
    lost: Cell<u64>,
    answer_lost: Cell<u64>,
    broken: Cell<u64>,
    twice: Cell<u64>,
    copy_late: Cell<u64>,
    delay: Cell<u64>,
    /// Pairs of processes, in order of names, and how many partitions lie between them.
    cut: RefCell<BTreeMap<(String, String), u64>>,
    in_flight: Cell<u64>,
    messages: Cell<u64>,
}

impl Network {
    pub(super) fn new(world: &World, knobs: &Knobs, random: Random) -> Network {
        Network {
            world: world.clone(),
            random: RefCell::new(random),
            lost: Cell::new(knobs.get("lost-percent")),
            answer_lost: Cell::new(knobs.get("answer-lost-percent")),
            broken: Cell::new(knobs.get("broken-percent")),
            twice: Cell::new(knobs.get("twice-percent")),
            copy_late: Cell::new(knobs.get("copy-late-ms")),
            delay: Cell::new(knobs.get("delay-ms")),
            cut: RefCell::default(),
            in_flight: Cell::new(0),
            messages: Cell::new(0),
        }
    }

    /// Messages that are under way or being handled.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.get()
    }

    /// From now on every message arrives, once and at once. Copies that are under way still arrive.
    pub(super) fn calm(&self) {
        for rate in [
            &self.lost,
            &self.answer_lost,
            &self.broken,
            &self.twice,
            &self.copy_late,
            &self.delay,
        ] {
            rate.set(0);
        }
        self.cut.borrow_mut().clear();
    }

    /// Cuts two processes off from each other until [`join`](Self::join) was called as often.
    pub(super) fn part(&self, left: &Node, right: &Node) {
        *self.cut.borrow_mut().entry(pair(left, right)).or_default() += 1;
    }

    /// Takes one cut back.
    pub(super) fn join(&self, left: &Node, right: &Node) {
        let mut cut = self.cut.borrow_mut();
        if let Some(cuts) = cut.get_mut(&pair(left, right)) {
            *cuts -= 1;
            if *cuts == 0 {
                cut.remove(&pair(left, right));
            }
        }
    }

    fn is_cut(&self, left: &Node, right: &Node) -> bool {
        self.cut.borrow().contains_key(&pair(left, right))
    }

    /// Sends a message and waits for its answer, for ever if that is lost in silence. `what` says
    /// what it is, and `about` for whom, for the history.
    ///
    /// # Errors
    ///
    /// [`Disconnected`] if the connection breaks noticeably.
    pub async fn send<T: Display + 'static>(
        self: Rc<Self>,
        run: Rc<Run>,
        from: Node,
        to: Node,
        (about, what): (String, String),
        deliver: Deliver<T>,
    ) -> Result<T, Disconnected> {
        let number = self.messages.get() + 1;
        self.messages.set(number);
        run.note(
            from.name(),
            format_args!("#{number} to {about} at {}: {what}", to.name()),
        );
        if from.name() == to.name() {
            // Within a process nothing is lost but with the process.
            return Ok(deliver().await);
        }
        if self.is_cut(&from, &to) || self.percent(&self.lost) {
            run.cover("message lost");
            run.note(from.name(), format_args!("#{number} to {about} is lost"));
            return self.lose().await;
        }
        let (answer, answered) = oneshot::channel();
        let answer = Rc::new(Cell::new(Some(answer)));
        let copies = match self.percent(&self.twice) {
            true => 2 + self.below(2),
            false => 1,
        };
        for copy in 0..copies {
            let delay = match copy {
                0 => self.below(self.delay.get() + 1),
                _ => self.below(self.copy_late.get().max(self.delay.get()) + 1),
            };
            if copy > 0 {
                run.cover("message repeated by the network");
            }
            let carried = self.clone().carry(
                run.clone(),
                (from.clone(), to.clone()),
                Carried {
                    number,
                    copy,
                    about: about.clone(),
                    delay,
                },
                deliver.clone(),
                answer.clone(),
            );
            self.in_flight.set(self.in_flight.get() + 1);
            self.world.spawn(carried);
        }
        drop(answer);
        match answered.await {
            Ok(answer) => Ok(answer),
            Err(oneshot::Canceled) => self.lose().await,
        }
    }

    async fn carry<T: Display + 'static>(
        self: Rc<Self>,
        run: Rc<Run>,
        (from, to): (Node, Node),
        message: Carried,
        deliver: Deliver<T>,
        answer: Rc<Cell<Option<oneshot::Sender<T>>>>,
    ) {
        let Carried {
            number,
            copy,
            about,
            delay,
        } = message;
        if delay > 0 {
            self.world.sleep(Duration::from_millis(delay)).await;
        }
        let copied = if copy > 0 { ", a copy" } else { "" };
        run.note(
            to.name(),
            format_args!("#{number} for {about} from {}{copied}", from.name()),
        );
        let told = deliver().await;
        run.note(
            to.name(),
            format_args!("{about} answers #{number}{copied}: {told}"),
        );
        self.in_flight.set(self.in_flight.get() - 1);
        if self.is_cut(&from, &to) || self.percent(&self.answer_lost) {
            run.cover("answer lost");
            run.note(
                to.name(),
                format_args!("the answer of {about} to #{number} is lost"),
            );
            return;
        }
        let delay = self.below(self.delay.get() + 1);
        if delay > 0 {
            self.world.sleep(Duration::from_millis(delay)).await;
        }
        if let Some(answer) = answer.take() {
            // Who asked may have given up.
            let _ = answer.send(told);
        }
    }

    async fn lose<T>(&self) -> Result<T, Disconnected> {
        match self.percent(&self.broken) {
            true => Err(Disconnected),
            false => pending().await,
        }
    }

    fn percent(&self, percent: &Cell<u64>) -> bool {
        self.random.borrow_mut().percent(percent.get())
    }

    fn below(&self, end: u64) -> u64 {
        match end {
            0 | 1 => 0,
            end => self.random.borrow_mut().below(end),
        }
    }
}

fn pair(left: &Node, right: &Node) -> (String, String) {
    let (left, right) = (left.name().to_owned(), right.name().to_owned());
    if left <= right {
        (left, right)
    } else {
        (right, left)
    }
}
