//! *Calls for a key never overlap within an instance, and no more are on their way than may be; where
//! batches wait for their slowest, there is one at a time.*

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use durably::Timestamp;

use super::entries::Name;
use crate::simulation::run::Run;

const OVERLAP: &str = "calls for a key do not overlap";
const BATCH: &str = "one batch runs at a time";
const MANY: &str = "no more calls are on their way than may be";

/// The calls of one sender that run.
#[derive(Default)]
pub struct Calls {
    running: RefCell<BTreeMap<u64, (Timestamp, Vec<Name>)>>,
    last: Cell<u64>,
}

/// What calls may do.
#[derive(Clone, Copy)]
pub struct Rules {
    /// One batch of a channel at a time.
    pub one_batch: bool,
    /// A call is a whole batch.
    pub whole: bool,
    /// How many keys of a channel are on their way at most, unless batches go one at a time.
    pub most: u64,
}

/// A call that runs; it ends with this, also if its instance does.
pub struct Running {
    calls: Rc<Calls>,
    number: u64,
}

impl Calls {
    /// A call for these keys of a channel begins.
    pub fn begin(self: &Rc<Self>, run: &Run, rules: Rules, names: Vec<Name>) -> Running {
        let mut running = self.running.borrow_mut();
        let now = run.world.now();
        let others: Vec<&Name> = running.values().flat_map(|(_, names)| names).collect();
        for name in &names {
            if others.contains(&name) {
                run.fail(OVERLAP, &name.1, format!("two calls run for {name:?}"));
            }
        }
        let channel = names.first().map(|name| name.0.clone()).unwrap_or_default();
        let beside = others.iter().filter(|name| name.0 == channel).count();
        // The calls of a batch all begin at one instant.
        let of_another = running.values().any(|(begun, names)| {
            (rules.whole || *begun < now) && names.iter().any(|name| name.0 == channel)
        });
        if rules.one_batch && of_another {
            run.fail(
                BATCH,
                &channel,
                format!("{beside} entries of another batch run"),
            );
        }
        if !rules.one_batch && (beside + names.len()) as u64 > rules.most {
            let message = format!(
                "{} are on their way, of {}",
                beside + names.len(),
                rules.most
            );
            run.fail(MANY, &channel, message);
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        running.insert(number, (now, names));
        Running {
            calls: self.clone(),
            number,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.calls.running.borrow_mut().remove(&self.number);
    }
}
