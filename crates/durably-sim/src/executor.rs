//! A deterministic single-threaded executor with a virtual clock.
//!
//! Decided here: which ready task runs next ([`World::next_ready`]: first come, first served, unless
//! [`Chaos`] picks another), when the clock moves, and that a [`Group`] of tasks can be dropped as a
//! whole, instead of any poll of one of them. Not decided here: what an object is, or what its
//! storage holds.
//!
//! Nothing in it depends on the machine: the same program makes the same polls in the same order.

use std::any::Any;
use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use durably::Timestamp;
use durably::host::LocalFuture;
use futures::task::{ArcWake, waker};

use crate::chaos::Chaos;
use crate::clock::{Clock, Sleep};
use crate::node::Node;
use crate::random::Random;

/// Polls allowed without the clock moving; more are taken for tasks that wake each other for ever.
const MAX_POLLS_AT_ONE_INSTANT: u64 = 10_000_000;

/// Why an instance that chaos chose has ended.
pub(crate) const EVICTED: &str = "it was evicted";

type TaskId = u64;

/// A virtual clock and the tasks that live by it. Clones are handles to the same world.
///
/// Tasks run only inside [`run_until_idle`](World::run_until_idle), [`advance`](World::advance) and
/// [`block_on`](World::block_on).
#[derive(Clone)]
pub struct World(Rc<Inner>);

/// A handle that does not keep the world alive, for what lives inside its tasks.
#[derive(Clone)]
pub(crate) struct WeakWorld(Weak<Inner>);

struct Inner {
    clock: Rc<Clock>,
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    ready: Arc<Ready>,
    /// Tasks whose first poll waits until nothing is ready.
    later: RefCell<VecDeque<TaskId>>,
    last_task: Cell<TaskId>,
    random: RefCell<Random>,
    running: Cell<bool>,
    polls: Cell<u64>,
    polls_of_objects: Cell<u64>,
    polls_now: RefCell<Polls>,
    chaos: RefCell<Option<Rc<Chaos>>>,
    panics: RefCell<Vec<String>>,
}

/// What [`World::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A task was polled, or an object evicted in its place.
    Polled,
    /// The clock moved to the next timer.
    Moved,
    /// Nothing is ready, and no timer is due until the end of the time given.
    Idle,
}

struct Task {
    group: Option<Group>,
    future: LocalFuture<()>,
    waker: Waker,
    queued: Arc<TaskWaker>,
}

/// The queue of tasks to poll. Wakers must be `Send`, hence the lock; it is never contended.
#[derive(Default)]
struct Ready(Mutex<VecDeque<TaskId>>);

impl Ready {
    fn push(&self, id: TaskId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(id);
    }

    /// Takes the one at `place(length)`.
    fn pop(&self, place: impl FnOnce(usize) -> usize) -> Option<TaskId> {
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ready.len() {
            0 => None,
            1 => ready.pop_front(),
            length => ready.remove(place(length)),
        }
    }
}

struct TaskWaker {
    id: TaskId,
    ready: Arc<Ready>,
    queued: AtomicBool,
}

impl ArcWake for TaskWaker {
    fn wake_by_ref(waker: &Arc<Self>) {
        if !waker.queued.swap(true, Ordering::Relaxed) {
            waker.ready.push(waker.id);
        }
    }
}

impl World {
    /// A world whose clock shows `start_ms` ms since the epoch.
    pub fn new(start_ms: u64) -> World {
        World::with_seed(start_ms, 0)
    }

    /// The same with other randomness: all that hosts of this world draw follows from `seed`.
    pub fn with_seed(start_ms: u64, seed: u64) -> World {
        World(Rc::new(Inner {
            clock: Rc::new(Clock::new(Timestamp::from_millis(start_ms))),
            tasks: RefCell::default(),
            ready: Arc::default(),
            later: RefCell::default(),
            last_task: Cell::new(0),
            random: RefCell::new(Random::new(seed)),
            running: Cell::new(false),
            polls: Cell::new(0),
            polls_of_objects: Cell::new(0),
            polls_now: RefCell::default(),
            chaos: RefCell::default(),
            panics: RefCell::default(),
        }))
    }

    /// What the clock shows.
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Resolves when the clock has moved by `duration`; a fraction of a millisecond counts as one.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.0.clock.sleep(duration)
    }

    /// Resolves when the clock shows `at`.
    pub fn sleep_until(&self, at: Timestamp) -> Sleep {
        self.0.clock.sleep_until(at)
    }

    /// When the next timer is due, a past time included; `None` if there is none.
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.0.clock.next()
    }

    /// Runs a task that belongs to no object. If it panics, so does whoever runs the world.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.start(None, Box::pin(task), true);
    }

    /// Runs what is ready and due, without moving the clock, until nothing is.
    pub fn run_until_idle(&self) {
        self.run(None);
    }

    /// Moves the clock by `duration`. Every timer on the way runs at its own instant, with all that
    /// follows from it; those due exactly at the end are included.
    pub fn advance(&self, duration: Duration) {
        self.advance_to(self.now() + duration);
    }

    /// Moves the clock to `target`, as [`advance`](World::advance) does; never back.
    pub fn advance_to(&self, target: Timestamp) {
        self.run(Some(target));
        self.0.clock.move_to(target);
    }

    /// Does the next thing: polls one ready task, or else moves the clock to the next timer that is
    /// due until `end`.
    pub fn step(&self, end: Timestamp) -> Step {
        let _running = self.enter();
        self.step_once(end)
    }

    /// How many polls there were, each the continuation of an await.
    pub fn polls(&self) -> u64 {
        self.0.polls.get()
    }

    /// How many of them belonged to instances of objects. An eviction takes the place of one.
    pub fn polls_of_objects(&self) -> u64 {
        self.0.polls_of_objects.get()
    }

    /// Drops all tasks, and with them whatever they keep.
    pub(crate) fn end(&self) {
        loop {
            // Dropped outside the borrow: what a task owns may start, wake or end others.
            let tasks = self.0.tasks.take();
            if tasks.is_empty() {
                return;
            }
            drop(tasks);
        }
    }

    /// What instances of objects panicked with.
    pub(crate) fn panics(&self) -> Ref<'_, Vec<String>> {
        self.0.panics.borrow()
    }

    /// Has `chaos` interfere from now on.
    pub(crate) fn interfere(&self, chaos: Rc<Chaos>) {
        *self.0.chaos.borrow_mut() = Some(chaos);
    }

    pub(crate) fn chaos(&self) -> Option<Rc<Chaos>> {
        self.0.chaos.borrow().clone()
    }

    /// Runs the world until `future` resolves. When nothing is ready, the clock moves to the next
    /// timer.
    ///
    /// # Panics
    ///
    /// If `future` waits for something that cannot happen any more: nothing is ready and no timer
    /// is set. Also when called from inside a task.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let _running = self.enter();
        let mut future = pin!(future);
        let queued = self.new_waker();
        let waker = waker(queued.clone());
        let mut context = Context::from_waker(&waker);
        ArcWake::wake_by_ref(&queued);
        loop {
            while let Some(id) = self.next_ready() {
                self.count_poll();
                if id != queued.id {
                    self.poll(id);
                    continue;
                }
                queued.queued.store(false, Ordering::Relaxed);
                if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                    return value;
                }
            }
            let Some(due) = self.next_timer() else {
                panic!(
                    "deadlock at {}: the future given to block_on waits, but nothing is ready and \
                     no timer is set ({} tasks wait too)",
                    self.now(),
                    self.0.tasks.borrow().len()
                );
            };
            self.0.clock.fire(due);
        }
    }

    /// A number that follows from the seed and what was drawn before.
    pub fn random(&self) -> u64 {
        self.0.random.borrow_mut().next()
    }

    pub(crate) fn fill_random(&self, bytes: &mut [u8]) {
        self.0.random.borrow_mut().fill(bytes);
    }

    pub(crate) fn downgrade(&self) -> WeakWorld {
        WeakWorld(Rc::downgrade(&self.0))
    }

    /// A group of tasks, which go by the clock of `node`.
    pub(crate) fn group(&self, kind: Kind, node: Option<Node>) -> Group {
        Group(Rc::new(GroupInner {
            kind,
            node,
            world: self.downgrade(),
            clock: self.0.clock.clone(),
            tasks: RefCell::default(),
            ended: RefCell::default(),
            on_end: RefCell::default(),
        }))
    }

    /// Runs everything up to `target`, or at the present instant only.
    fn run(&self, target: Option<Timestamp>) {
        let _running = self.enter();
        while self.step_once(target.unwrap_or(self.now())) != Step::Idle {}
    }

    fn step_once(&self, end: Timestamp) -> Step {
        if let Some(id) = self.next_ready() {
            self.count_poll();
            self.poll(id);
            return Step::Polled;
        }
        match self.next_timer() {
            Some(due) if due <= end.max(self.now()) => {
                self.0.clock.fire(due);
                Step::Moved
            }
            _ => Step::Idle,
        }
    }

    fn count_poll(&self) {
        self.0.polls.set(self.0.polls.get() + 1);
        self.0.polls_now.borrow_mut().count(self.now());
    }

    /// The one place that decides which task runs next.
    fn next_ready(&self) -> Option<TaskId> {
        let chaos = self.0.chaos.borrow();
        let ready = self.0.ready.pop(|length| match &*chaos {
            Some(chaos) => chaos.pick(length),
            None => 0,
        });
        ready.or_else(|| self.0.later.borrow_mut().pop_front())
    }

    fn enter(&self) -> Running<'_> {
        assert!(
            !self.0.running.replace(true),
            "the world is running already: await inside a task instead of blocking on it"
        );
        Running(&self.0.running)
    }

    fn new_waker(&self) -> Arc<TaskWaker> {
        let id = self.0.last_task.get() + 1;
        self.0.last_task.set(id);
        Arc::new(TaskWaker {
            id,
            ready: self.0.ready.clone(),
            queued: AtomicBool::new(false),
        })
    }

    fn start(&self, group: Option<Group>, future: LocalFuture<()>, at_once: bool) {
        let queued = self.new_waker();
        let id = queued.id;
        if let Some(group) = &group {
            group.0.tasks.borrow_mut().insert(id);
        }
        if at_once {
            ArcWake::wake_by_ref(&queued);
        } else {
            self.0.later.borrow_mut().push_back(id);
        }
        let task = Task {
            group,
            future,
            waker: waker(queued.clone()),
            queued,
        };
        self.0.tasks.borrow_mut().insert(id, task);
    }

    fn poll(&self, id: TaskId) {
        // The task is out of the map meanwhile, so it may spawn tasks and end its own group.
        let Some(mut task) = self.0.tasks.borrow_mut().remove(&id) else {
            return;
        };
        task.queued.queued.store(false, Ordering::Relaxed);
        if let Some(group) = &task.group
            && group.0.kind == Kind::Instance
        {
            let place = self.0.polls_of_objects.get() + 1;
            self.0.polls_of_objects.set(place);
            let chaos = self.chaos();
            if chaos.is_some_and(|chaos| chaos.evicts(place)) {
                let group = group.clone();
                drop(task);
                group.end(EVICTED);
                return;
            }
        }
        let waker = task.waker.clone();
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut context)));
        match (polled, &task.group) {
            (Ok(Poll::Pending), group) => {
                if group.as_ref().is_none_or(|group| !group.has_ended()) {
                    self.0.tasks.borrow_mut().insert(id, task);
                }
            }
            (Ok(Poll::Ready(())), None) => {}
            (Ok(Poll::Ready(())), Some(group)) => {
                group.0.tasks.borrow_mut().remove(&id);
            }
            (Err(panic), Some(group)) => {
                let message = message(&*panic).to_owned();
                group.end(&format!("it panicked: {message}"));
                self.0.panics.borrow_mut().push(message);
            }
            (Err(panic), None) => resume_unwind(panic),
        }
    }
}

impl WeakWorld {
    pub(crate) fn upgrade(&self) -> Option<World> {
        self.0.upgrade().map(World)
    }
}

/// Marks the world as running for as long as it lives.
struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Counts polls at one instant, to tell a livelock from work.
#[derive(Default)]
struct Polls {
    at: Option<Timestamp>,
    count: u64,
}

impl Polls {
    fn count(&mut self, now: Timestamp) {
        if self.at != Some(now) {
            *self = Polls {
                at: Some(now),
                count: 0,
            };
        }
        self.count += 1;
        assert!(
            self.count <= MAX_POLLS_AT_ONE_INSTANT,
            "livelock at {now}: tasks go on waking each other and the clock never moves"
        );
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// Whose tasks a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An instance of an object, which may end at any await.
    Instance,
    /// The host itself.
    Host,
}

/// Tasks that end together.
#[derive(Clone)]
pub(crate) struct Group(Rc<GroupInner>);

/// A handle that does not keep the group.
pub(crate) struct WeakGroup(Weak<GroupInner>);

impl WeakGroup {
    pub(crate) fn upgrade(&self) -> Option<Group> {
        self.0.upgrade().map(Group)
    }
}

struct GroupInner {
    kind: Kind,
    node: Option<Node>,
    world: WeakWorld,
    clock: Rc<Clock>,
    tasks: RefCell<BTreeSet<TaskId>>,
    ended: RefCell<Option<String>>,
    on_end: RefCell<Vec<Box<dyn FnOnce()>>>,
}

impl Group {
    /// Runs a task of this group; it is dropped at once if the group has ended.
    pub(crate) fn spawn(&self, task: LocalFuture<()>) {
        self.start(task, true);
    }

    /// The same, first polled when nothing else is ready.
    pub(crate) fn spawn_later(&self, task: LocalFuture<()>) {
        self.start(task, false);
    }

    fn start(&self, task: LocalFuture<()>, at_once: bool) {
        if self.has_ended() {
            return;
        }
        if let Some(world) = self.0.world.upgrade() {
            world.start(Some(self.clone()), task, at_once);
        }
    }

    pub(crate) fn downgrade(&self) -> WeakGroup {
        WeakGroup(Rc::downgrade(&self.0))
    }

    /// The clock on the wall of its node.
    pub(crate) fn now(&self) -> Timestamp {
        let now = self.0.clock.now();
        self.0.node.as_ref().map_or(now, |node| node.shown(now))
    }

    /// Sleeps for `duration` as its node counts time.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        let node = self.0.node.as_ref();
        let duration = node.map_or(duration, |node| node.lasts(duration));
        self.0.clock.sleep(duration)
    }

    pub(crate) fn chaos(&self) -> Option<Rc<Chaos>> {
        self.0.world.upgrade().and_then(|world| world.chaos())
    }

    pub(crate) fn fill_random(&self, bytes: &mut [u8]) {
        if let Some(world) = self.0.world.upgrade() {
            world.fill_random(bytes);
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.ended.borrow().is_some()
    }

    /// Why the group has ended.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.ended.borrow().clone()
    }

    /// Has `action` run when the group ends, before its tasks are dropped.
    pub(crate) fn on_end(&self, action: impl FnOnce() + 'static) {
        self.0.on_end.borrow_mut().push(Box::new(action));
    }

    /// Drops all tasks where they stand; the one that runs, if it is one of them, at its next await.
    pub(crate) fn end(&self, reason: &str) {
        if self.has_ended() {
            return;
        }
        *self.0.ended.borrow_mut() = Some(reason.to_owned());
        for action in self.0.on_end.take() {
            action();
        }
        let ids = self.0.tasks.take();
        let Some(world) = self.0.world.upgrade() else {
            return;
        };
        for id in ids {
            // Dropped outside the borrow: what a task owns may wake or end others.
            let task = world.0.tasks.borrow_mut().remove(&id);
            drop(task);
        }
    }
}
