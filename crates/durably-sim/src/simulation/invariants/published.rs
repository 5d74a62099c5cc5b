//! *What was told to be published is what the store holds, for good: nothing older of its coordinator
//! is there from then on.*

use std::cell::RefCell;
use std::collections::BTreeMap;

use durably::Timestamp;
use durably::topology::{Edition, Member};

use crate::simulation::run::Run;

const NAME: &str = "what is published stays";
const SAME: &str = "an edition has one content";

/// What a store held of a group from some time on.
#[derive(Clone)]
pub struct Copy {
    /// Since when.
    pub since: Timestamp,
    /// Which edition it is, of a removal too.
    pub edition: Edition,
    /// The text, or nothing.
    pub text: Option<String>,
    /// The members that it names; `None` of a deletion.
    pub members: Option<Vec<Member>>,
}

#[derive(Default)]
struct Held {
    /// All that it ever was, oldest first.
    copies: Vec<Copy>,
    promised: Option<Edition>,
}

/// What a store holds of every group, and what was promised about it.
#[derive(Default)]
pub struct Published(RefCell<BTreeMap<String, Held>>);

impl Published {
    /// Notes that a write has landed, which is the store's content now.
    pub fn landed(&self, run: &Run, group: &str, copy: Copy) {
        let mut held = self.0.borrow_mut();
        let held = held.entry(group.to_owned()).or_default();
        if held
            .copies
            .last()
            .is_some_and(|last| is_less(&copy.edition, &last.edition))
        {
            run.cover("older write landed over a newer one");
        }
        check(run, group, &copy.edition, held.promised.as_ref());
        held.copies.push(copy);
    }

    /// Notes that `edition` was told to be published.
    pub fn promised(&self, run: &Run, group: &str, edition: &Edition) {
        let mut held = self.0.borrow_mut();
        let held = held.entry(group.to_owned()).or_default();
        match held.copies.last() {
            Some(last) => check(run, group, &last.edition, Some(edition)),
            None => {
                let message = format!("{edition} is told to be published, and nothing was stored");
                run.fail(NAME, group, message);
            }
        }
        if held
            .promised
            .as_ref()
            .is_none_or(|known| is_less(known, edition))
        {
            held.promised = Some(edition.clone());
        }
    }

    /// Notes that `edition`, which has these members, was told to be published.
    pub fn told(&self, run: &Run, group: &str, edition: &Edition, members: Option<&[Member]>) {
        self.promised(run, group, edition);
        let held = self.0.borrow();
        let last = held.get(group).and_then(|held| held.copies.last());
        if let Some(last) = last.filter(|last| last.edition == *edition)
            && last.members.as_deref() != members
        {
            let message = format!(
                "{edition} is stored with {:?}, told with {members:?}",
                last.members
            );
            run.fail(SAME, group, message);
        }
    }

    /// What the store holds of a group.
    pub fn current(&self, group: &str) -> Option<Copy> {
        let held = self.0.borrow();
        held.get(group).and_then(|held| held.copies.last()).cloned()
    }

    /// What the store held of a group at some time.
    pub fn at(&self, group: &str, time: Timestamp) -> Option<Copy> {
        let held = self.0.borrow();
        let copies = held.get(group).map(|held| held.copies.iter().rev());
        copies?.into_iter().find(|copy| copy.since <= time).cloned()
    }

    /// The editions of a group that were stored and have this content.
    pub fn editions(&self, group: &str, version: u64, members: &[Member]) -> Vec<Edition> {
        let held = self.0.borrow();
        let copies = held.get(group).map(|held| held.copies.iter());
        let like = |copy: &&Copy| {
            copy.edition.version == version && copy.members.as_deref() == Some(members)
        };
        copies
            .into_iter()
            .flatten()
            .filter(like)
            .map(|copy| copy.edition.clone())
            .collect()
    }
}

fn check(run: &Run, group: &str, stored: &Edition, promised: Option<&Edition>) {
    if let Some(promised) = promised.filter(|promised| is_less(stored, promised)) {
        let message = format!("{promised} is told to be published, and the store has {stored}");
        run.fail(NAME, group, message);
    }
}

fn is_less(one: &Edition, other: &Edition) -> bool {
    one.compare(other).is_some_and(|order| order.is_lt())
}
