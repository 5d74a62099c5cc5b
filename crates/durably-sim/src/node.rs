//! A process that objects live in: it has a clock of its own, which may be wrong, and can be killed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use durably::Timestamp;
use durably::layers::Timer;
use futures::channel::oneshot;

use crate::clock::Sleep;
use crate::executor::{Group, WeakGroup, WeakWorld, World};

/// A process. Clones are handles to the same one.
#[derive(Clone)]
pub struct Node(Rc<Inner>);

struct Inner {
    name: String,
    world: WeakWorld,
    started: Timestamp,
    /// How far its clock is ahead, in ms.
    ahead: Cell<i64>,
    /// How much faster than the world's it runs, in parts per million.
    drift: Cell<i64>,
    /// The latest time that its clock showed before it was set.
    latest: Cell<Timestamp>,
    is_up: Cell<bool>,
    instances: RefCell<Vec<WeakGroup>>,
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

impl World {
    /// A process whose clock shows what the world's does.
    pub fn node(&self, name: &str) -> Node {
        Node(Rc::new(Inner {
            name: name.to_owned(),
            world: self.downgrade(),
            started: self.now(),
            ahead: Cell::new(0),
            drift: Cell::new(0),
            latest: Cell::new(Timestamp::ZERO),
            is_up: Cell::new(true),
            instances: RefCell::default(),
            waiting: RefCell::default(),
        }))
    }
}

/// The clock of the process.
impl Timer for Node {
    type Sleep = Sleep;

    fn now(&self) -> Timestamp {
        Node::now(self)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Node::sleep(self, duration)
    }
}

impl Node {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.0.is_up.get()
    }

    /// Ends all instances in it at once; none opens before it is started again. What they had not
    /// committed is gone.
    pub fn kill(&self) {
        self.0.is_up.set(false);
        for group in self.0.instances.take() {
            if let Some(group) = group.upgrade() {
                group.end("its process was killed");
            }
        }
        self.tell();
    }

    /// Starts it again: alarms that are due fire.
    pub fn start(&self) {
        self.0.is_up.set(true);
        self.tell();
    }

    /// Has its clock run faster by `parts_per_million`, or slower.
    pub fn drift(&self, parts_per_million: i64) {
        let world = self.0.world.upgrade();
        let shown = world.map(|world| (self.shown(world.now()), world.now()));
        self.0.drift.set(parts_per_million.clamp(-900_000, 900_000));
        // The clock goes on from what it shows.
        if let Some((before, now)) = shown {
            let after = self.shown(now);
            self.shift(difference(before, after));
        }
        self.tell();
    }

    /// Moves its clock by so many ms, back if negative. It never shows a time before the epoch.
    pub fn step_clock(&self, millis: i64) {
        self.0.latest.set(self.0.latest.get().max(self.now()));
        self.shift(millis);
        self.tell();
    }

    /// What its clock shows.
    pub fn now(&self) -> Timestamp {
        let world = self.0.world.upgrade();
        world.map_or(Timestamp::ZERO, |world| self.shown(world.now()))
    }

    /// Whether its clock has ever shown this time, or a later one.
    pub fn has_shown(&self, time: Timestamp) -> bool {
        self.0.latest.get().max(self.now()) >= time
    }

    /// Resolves when `duration` has passed, as this process counts time; steps of its clock change
    /// nothing.
    ///
    /// # Panics
    ///
    /// If the world is gone.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        match self.0.world.upgrade() {
            Some(world) => world.sleep(self.lasts(duration)),
            None => panic!("nothing sleeps without a world"),
        }
    }

    /// What its clock shows when the world's shows `now`.
    pub(crate) fn shown(&self, now: Timestamp) -> Timestamp {
        let passed = i128::from(now.as_millis()) - i128::from(self.0.started.as_millis());
        let gained = passed * i128::from(self.0.drift.get()) / 1_000_000;
        let shown = i128::from(now.as_millis()) + i128::from(self.0.ahead.get()) + gained;
        Timestamp::from_millis(u64::try_from(shown.max(0)).unwrap_or(u64::MAX))
    }

    /// How long in the world's time `duration` lasts by its clock.
    pub(crate) fn lasts(&self, duration: Duration) -> Duration {
        let drift = self.0.drift.get();
        if drift == 0 {
            return duration;
        }
        let rate = (1_000_000 + drift) as f64 / 1_000_000.0;
        duration.div_f64(rate)
    }

    /// Resolves when it is killed or started, or its clock is changed.
    pub(crate) fn changed(&self) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let mut waiting = self.0.waiting.borrow_mut();
        waiting.retain(|waiting| !waiting.is_canceled());
        waiting.push(tell);
        told
    }

    /// An instance that ends with this process.
    pub(crate) fn joins(&self, group: &Group) {
        let mut instances = self.0.instances.borrow_mut();
        instances.retain(|group| group.upgrade().is_some_and(|group| !group.has_ended()));
        instances.push(group.downgrade());
    }

    fn shift(&self, millis: i64) {
        self.0.ahead.set(self.0.ahead.get().saturating_add(millis));
    }

    fn tell(&self) {
        for waiting in self.0.waiting.take() {
            let _ = waiting.send(());
        }
    }
}

fn difference(left: Timestamp, right: Timestamp) -> i64 {
    let difference = i128::from(left.as_millis()) - i128::from(right.as_millis());
    i64::try_from(difference).unwrap_or(0)
}
