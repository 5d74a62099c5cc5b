//! The work of admitted jobs. It runs outside of any object, so no death of one touches it.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use durably::semaphore::queue::AdmittedItem;

use super::Fleet;
use crate::simulation::invariants::jobs::{self, Job, Stage};
use crate::simulation::invariants::running::Runs;

/// All jobs of a run.
#[derive(Default)]
pub(super) struct Work {
    jobs: RefCell<BTreeMap<String, Job>>,
    running: RefCell<BTreeMap<String, Runs>>,
    changes: Cell<u64>,
}

impl Work {
    pub(super) fn jobs(&self) -> Ref<'_, BTreeMap<String, Job>> {
        self.jobs.borrow()
    }

    /// How many times some work has begun or ended.
    pub(super) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Looks at what runs with permits of `key`.
    pub(super) fn with_running(&self, key: &str, look: impl FnOnce(&Runs)) {
        if let Some(runs) = self.running.borrow().get(key) {
            look(runs);
        }
    }

    /// A job that will be submitted.
    pub(super) fn expect(&self, id: &str, shard: &str, key: &str, group: &str) {
        let job = Job::new(shard, key, group);
        self.jobs.borrow_mut().insert(id.to_owned(), job);
    }

    pub(super) fn acknowledged(&self, id: &str) {
        self.change(id, |job| job.acknowledged = true);
    }

    /// Its queue has said that it will not run.
    pub(super) fn cancelled(&self, fleet: &Fleet, id: &str) {
        let mut jobs = self.jobs.borrow_mut();
        let Some(job) = jobs.get_mut(id) else { return };
        match job.stage {
            // A submission whose answer was lost is made again, and is a new one then.
            Stage::Waiting if !job.acknowledged => job.perhaps_cancelled = true,
            Stage::Waiting => job.stage = Stage::Cancelled,
            Stage::Cancelled => {}
            Stage::Running | Stage::Done => {
                let message = "it is cancelled and was admitted".to_owned();
                drop(jobs);
                fleet.run.fail(jobs::CANCELLED, id, message);
            }
        }
    }

    pub(super) fn perhaps_cancelled(&self, id: &str) {
        self.change(id, |job| job.perhaps_cancelled = true);
    }

    pub(super) fn shard_of(&self, id: &str) -> Option<String> {
        self.jobs.borrow().get(id).map(|job| job.shard.clone())
    }

    /// Those of `ids` whose work has ended.
    pub(super) fn done(&self, ids: Vec<String>) -> Vec<String> {
        let jobs = self.jobs.borrow();
        let is_done = |id: &String| jobs.get(id).is_some_and(|job| job.stage == Stage::Done);
        ids.into_iter().filter(is_done).collect()
    }

    /// Starts the work of an item, unless it has been started before.
    pub(super) fn start(&self, fleet: &Rc<Fleet>, shard: &str, item: &AdmittedItem) {
        let run = &fleet.run;
        let stage = self.jobs.borrow().get(&item.id).map(|job| job.stage);
        match stage {
            Some(Stage::Running | Stage::Done) => {
                run.cover("job admitted again");
                return;
            }
            Some(Stage::Waiting) => {}
            Some(Stage::Cancelled) => {
                let message = "it was cancelled and is admitted".to_owned();
                return run.fail(jobs::CANCELLED, &item.id, message);
            }
            None => {
                let message = "nobody submitted it, and it is admitted".to_owned();
                return run.fail(jobs::CANCELLED, &item.id, message);
            }
        }
        run.note(&item.id, format_args!("runs in {shard}"));
        self.change(&item.id, |job| job.stage = Stage::Running);
        let mut running = self.running.borrow_mut();
        let of_key = running.entry(item.key.clone()).or_default();
        of_key.started(shard, &item.group);
        self.changes.set(self.changes.get() + 1);
        drop(running);
        let takes = Duration::from_millis(1 + fleet.dice.below(run.knob("work-ms")));
        let (fleet, shard) = (Rc::downgrade(fleet), shard.to_owned());
        let (id, key, group) = (item.id.clone(), item.key.clone(), item.group.clone());
        let world = run.world.clone();
        run.world.spawn(async move {
            world.sleep(takes).await;
            let Some(fleet) = fleet.upgrade() else { return };
            fleet.work.end(&fleet, &id, &shard, &key, &group);
            if fleet.dice.fails("release-lost-percent") {
                fleet.run.cover("release unheard");
                return;
            }
            let object = fleet.shard(&shard).map(|side| side.object.clone());
            drop(fleet);
            if let Some(object) = object {
                // It may die meanwhile; then the release is lost.
                let _ = object
                    .call(move |shard| async move { shard.queue.release(&id).await })
                    .await;
            }
        });
    }

    fn end(&self, fleet: &Fleet, id: &str, shard: &str, key: &str, group: &str) {
        fleet.run.note(id, format_args!("ends"));
        self.change(id, |job| job.stage = Stage::Done);
        if let Some(of_key) = self.running.borrow_mut().get_mut(key) {
            of_key.ended(shard, group);
            self.changes.set(self.changes.get() + 1);
        }
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.borrow_mut().get_mut(id) {
            change(job);
        }
    }
}
