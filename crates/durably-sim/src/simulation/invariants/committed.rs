//! *A holder tells only of what is committed.* What it told and then lost with a crash would run
//! uncounted.

use std::collections::BTreeSet;

use durably::semaphore::protocol::Reply;

use crate::simulation::run::Run;

const NAME: &str = "replies tell of what is committed";

/// Checks an answer against everything that was ever stored.
pub fn check(run: &Run, key: &str, ever: &BTreeSet<String>, reply: &Reply) {
    let Reply::Grant(reply) = reply else { return };
    // A grant may be stored, run out and be taken back in one commit, if that takes long enough or the
    // clock steps meanwhile; then nobody outside ever sees its row.
    if run.knob("clock-steps") > 0 || run.knob("commit-ms") >= run.knob("grant-timeout-ms") {
        return;
    }
    let grants = reply.grants.iter().map(|grant| &grant.grant_id);
    // A lease that the holder does not know is told of without a group.
    let leases = reply.leases.iter().flatten();
    let leases = leases
        .filter(|lease| !lease.group.is_empty())
        .map(|lease| &lease.lease_id);
    for id in grants.chain(leases) {
        if !ever.contains(id) {
            run.fail(NAME, key, format!("{id} was told of and is not stored"));
        }
    }
}
