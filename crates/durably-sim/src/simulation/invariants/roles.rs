//! *Nothing is delivered to somebody who is outside of the channel's role at the time of the call.*

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use durably::Timestamp;

use crate::simulation::run::Run;

const NAME: &str = "deliveries go to members in the channel's role";

/// A group, a member and a channel.
pub type Target = (String, String, String);

/// Who is in the roles of a coordinator's channels.
#[derive(Default)]
pub struct Roles {
    inside: RefCell<BTreeSet<Target>>,
    left: RefCell<BTreeMap<Target, Timestamp>>,
}

impl Roles {
    /// Notes who is in the roles now.
    pub fn follow(&self, run: &Run, inside: BTreeSet<Target>) {
        let before = self.inside.replace(inside);
        let inside = self.inside.borrow();
        let mut left = self.left.borrow_mut();
        for target in before.difference(&inside) {
            left.insert(target.clone(), run.world.now());
        }
    }

    /// Checks a delivery as it is called.
    pub fn check(&self, run: &Run, target: &Target) {
        if self.inside.borrow().contains(target) {
            return;
        }
        // The call follows from a commit; another at the same instant may come in between.
        let left = self.left.borrow().get(target).copied();
        if left == Some(run.world.now()) {
            run.cover("member left as its delivery was called");
            return;
        }
        let (group, member, channel) = target;
        let message =
            format!("{channel} of {group} is delivered to {member}, which left at {left:?}");
        run.fail(NAME, member, message);
    }
}
