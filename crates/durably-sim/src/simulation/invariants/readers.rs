//! *A reader never goes back: of one coordinator's editions it answers none that is older than one
//! that it has answered. And it serves what it could not look at again only for as long as it was told to.*

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use durably::topology::{Edition, Origin, ReaderOptions, Reading, Snapshot};

use super::published::Published;
use crate::simulation::run::Run;

const NAME: &str = "a reader never goes back";
const STALE: &str = "a reader serves stale copies for as long as it was told to";

/// What a reader has answered.
#[derive(Default)]
pub struct Answered(RefCell<BTreeMap<String, Edition>>);

impl Answered {
    /// Checks an answer against those before.
    pub fn check(&self, run: &Run, reader: &str, published: &Published, snapshot: &Snapshot) {
        let group = &snapshot.group;
        let possible = published.editions(group, snapshot.version, &snapshot.members);
        let mut answered = self.0.borrow_mut();
        let last = answered.get(group);
        // A snapshot does not tell its incarnation; any that it may have been will do.
        let next = possible
            .into_iter()
            .filter(|edition| {
                last.is_none_or(|last| edition.compare(last).is_none_or(|order| order.is_ge()))
            })
            .min_by(|one, other| one.compare(other).unwrap_or(std::cmp::Ordering::Equal));
        match next {
            Some(edition) => {
                answered.insert(group.clone(), edition);
            }
            None => {
                let version = snapshot.version;
                let message = match last {
                    Some(last) => format!("it answers version {version} of {group} after {last}"),
                    None => {
                        format!("it answers version {version} of {group}, which was never stored")
                    }
                };
                run.fail(NAME, reader, message);
            }
        }
    }

    /// The newest edition of a group that it has answered.
    pub fn newest(&self, group: &str) -> Option<Edition> {
        self.0.borrow().get(group).cloned()
    }
}

/// Checks how long ago the store told a reader anything useful about a group, be it that an older copy is
/// there, against the longest for which a copy may be used then.
pub fn check_age(
    run: &Run,
    reader: &str,
    reading: &Reading,
    told: Duration,
    options: &ReaderOptions,
) {
    let stale = match reading.origin() {
        Origin::Fresh | Origin::Cached => return,
        Origin::Stale => options.stale_if_error.unwrap_or_default(),
        _ => Duration::ZERO,
    };
    // A copy is given up to a fifth more than the `ttl`.
    let ttl = options.ttl + options.ttl / 5 + Duration::from_millis(1);
    let most = ttl.max(options.negative_ttl) + stale;
    if told > most {
        let message = format!("it answers what it was told {told:?} ago, of {most:?} at most");
        run.fail(STALE, reader, message);
    }
}
