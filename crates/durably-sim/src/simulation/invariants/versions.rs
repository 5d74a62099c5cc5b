//! *Versions of a group only rise, through its deletion too, and no version has two contents.*

use std::collections::BTreeMap;

use super::coordinated::GroupView;
use crate::simulation::run::Run;

const RISE: &str = "versions of a group only rise";
const CONTENT: &str = "a version has one content";

/// Compares the groups of a coordinator with those before a commit.
pub fn check(run: &Run, before: &BTreeMap<String, GroupView>, after: &BTreeMap<String, GroupView>) {
    for (group, old) in before {
        let Some(new) = after.get(group) else {
            run.fail(RISE, group, "its row is gone".to_owned());
            continue;
        };
        if new.version < old.version {
            let message = format!("version {} comes after {}", new.version, old.version);
            run.fail(RISE, group, message);
        }
        let is_same = new.deleted == old.deleted && new.members == old.members;
        if new.version == old.version && !is_same {
            run.fail(CONTENT, group, format!("it was {old:?} and is {new:?}"));
        }
    }
}
