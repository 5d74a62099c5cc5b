//! What is run: each scenario builds objects and work from the knobs of its run.

mod fleet;
mod jobs;
mod operations;
mod outbox;
mod topology;
mod wire;

use std::rc::Rc;

use durably::semaphore::{Amount, LeaseOptions, LimitedGroups, Provisioning};

use super::knobs::Knob;
use super::run::Run;

/// A scenario as it can be chosen.
pub struct Plan {
    /// Its name, as `--scenario` takes it.
    pub name: &'static str,
    /// What it is about, in one line.
    pub about: &'static str,
    /// Its own knobs, beside those that all have.
    pub knobs: &'static [Knob],
    /// What many runs of it must have come across, or it exercises less than it says.
    pub expects: &'static [&'static str],
    /// Knobs of a short run, for trying every single eviction.
    pub short: &'static [(&'static str, u64)],
    /// Builds it in a run.
    pub start: fn(&Rc<Run>) -> Box<dyn Scenario>,
}

/// A scenario in a run.
pub trait Scenario {
    /// What must hold after every step; cheap.
    fn check(&self);

    /// What must hold at any time and takes a full scan to see.
    fn scan(&self);

    /// The faults are over: callbacks work, processes run, limits let work pass.
    fn heal(&self);

    /// What is still to be done: the subject it concerns, and what it is.
    fn left_to_do(&self) -> Option<(String, String)>;

    /// What must hold when all is done.
    fn finish(&self);
}

/// All scenarios.
pub fn all() -> &'static [&'static Plan] {
    &[
        &fleet::GRANTS,
        &fleet::LEASES,
        &fleet::LIMITS,
        &fleet::WAITING,
        &fleet::FOREIGN,
        &jobs::JOBS,
        &operations::OPERATIONS,
        &outbox::OUTBOX,
        &topology::TOPOLOGY,
        &topology::CONDITIONAL,
    ]
}

/// The scenario of that name.
pub fn named(name: &str) -> Option<&'static Plan> {
    all().iter().copied().find(|plan| plan.name == name)
}

/// How holders give leases, by the knobs of a run that start with `lease`.
fn leases(run: &Run) -> Option<LeaseOptions> {
    let part = Amount::Permits(run.knob("lease-part"));
    let provisioning = match run.knob("lease-mode") {
        1 => Provisioning::Strict,
        2 => Provisioning::Under { reserve: part },
        3 => Provisioning::Over { extra: part },
        _ => return None,
    };
    Some(LeaseOptions {
        provisioning,
        permits_per_lease: run.knob("lease-permits"),
        ttl: run.knob_ms("lease-ttl-ms"),
        limited_groups: match run.knob("lease-limited-groups") {
            0 => LimitedGroups::Exclude,
            _ => LimitedGroups::WithinGroupLimit,
        },
        ..LeaseOptions::default()
    })
}
