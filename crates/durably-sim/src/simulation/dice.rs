//! What a scenario leaves to chance while it runs.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::run::Run;
use crate::random::Random;

/// The chances of one scenario in a run.
pub(super) struct Dice {
    run: Rc<Run>,
    random: RefCell<Random>,
}

impl Dice {
    pub(super) fn new(run: &Rc<Run>, purpose: &str) -> Dice {
        Dice {
            run: run.clone(),
            random: RefCell::new(run.random(purpose)),
        }
    }

    /// A number below `end`.
    pub(super) fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().below(end)
    }

    /// Whether something goes wrong that does so in as many of 100 cases as the knob says, while
    /// faults last.
    pub(super) fn fails(&self, knob: &str) -> bool {
        let percent = self.run.knob(knob);
        !self.run.is_healed() && self.random.borrow_mut().percent(percent)
    }

    /// How long something takes that takes as long as the knob says at most, while faults last.
    pub(super) async fn linger(&self, knob: &str) {
        let most = self.run.knob(knob);
        if most > 0 && !self.run.is_healed() {
            let takes = Duration::from_millis(self.below(most + 1));
            self.run.world.sleep(takes).await;
        }
    }

    /// A short while until something is tried again.
    pub(super) async fn rest(&self) {
        let patience = Duration::from_millis(1 + self.below(2_000));
        self.run.world.sleep(patience).await;
    }

    /// Has `happens` take place to `scenario` at some time while faults last.
    pub(super) fn sometime<S: 'static, F: Future<Output = ()> + 'static>(
        &self,
        scenario: &Rc<S>,
        happens: impl FnOnce(Rc<S>) -> F + 'static,
    ) {
        let at = Duration::from_millis(self.below(self.run.knob("duration-s") * 1_000));
        // What the world keeps would keep the world.
        let scenario = Rc::downgrade(scenario);
        let world = self.run.world.clone();
        self.run.world.spawn(async move {
            world.sleep(at).await;
            if let Some(scenario) = scenario.upgrade() {
                happens(scenario).await;
            }
        });
    }
}
