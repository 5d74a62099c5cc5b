//! *No job is lost: what was acknowledged is run, unless it was cancelled first; and what was
//! cancelled is not run.*

use std::collections::BTreeMap;

use crate::simulation::run::Run;

/// The name of the promise that acknowledged jobs run.
pub const LOST: &str = "no job is lost";

/// The name of the promise that cancelled jobs do not.
pub const CANCELLED: &str = "nothing runs that must not";

/// A job as its submitter knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Where it was submitted.
    pub shard: String,
    /// Whose permits it needs.
    pub key: String,
    /// Its group.
    pub group: String,
    /// How far it is.
    pub stage: Stage,
    /// Its submission was answered.
    pub acknowledged: bool,
    /// Somebody wanted it cancelled, and it is not known what became of that.
    pub perhaps_cancelled: bool,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has not been run.
    Waiting,
    /// It must not be run any more.
    Cancelled,
    /// It runs.
    Running,
    /// It has been run.
    Done,
}

impl Job {
    /// One that will be submitted.
    pub fn new(shard: &str, key: &str, group: &str) -> Job {
        Job {
            shard: shard.to_owned(),
            key: key.to_owned(),
            group: group.to_owned(),
            stage: Stage::Waiting,
            acknowledged: false,
            perhaps_cancelled: false,
        }
    }

    fn is_settled(&self) -> bool {
        match self.stage {
            Stage::Done | Stage::Cancelled => true,
            Stage::Waiting => self.acknowledged && self.perhaps_cancelled,
            Stage::Running => false,
        }
    }
}

/// A job that is still to be run or acknowledged.
pub fn left(jobs: &BTreeMap<String, Job>) -> Option<(String, String)> {
    let left = jobs
        .iter()
        .find(|(_, job)| !job.is_settled() || !job.acknowledged);
    left.map(|(id, job)| (id.clone(), format!("{id} is not done: {job:?}")))
}

/// Checks the end of a run.
pub fn finish(run: &Run, jobs: &BTreeMap<String, Job>) {
    if let Some((id, left)) = left(jobs) {
        run.fail(LOST, &id, left);
    }
}
