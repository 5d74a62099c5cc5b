//! *What is granted and leased grows only within the limit in force, and in a group only within its
//! ceiling.* A lowered limit takes nothing back, so what is out may stay above it, but not grow.

use durably::semaphore::{Amount, Provisioning};

use super::books::{Allowed, Book};
use crate::simulation::run::Run;

const NAME: &str = "permits stay within the limit";

/// Checks what one commit has changed.
pub fn check(run: &Run, key: &str, before: &Book, after: &Book, allowed: &Allowed) {
    let gave_grants = after
        .grants
        .keys()
        .any(|id| !before.grants.contains_key(id));
    let gave_leases = after
        .leases
        .keys()
        .any(|id| !before.leases.contains_key(id));
    if !gave_grants && !gave_leases {
        return;
    }
    let (outstanding, footprint) = (after.outstanding(None), after.footprint(None));
    let fits = allowed.leases.iter().any(|leases| {
        let within_limit = || outstanding + footprint <= allowed.limit;
        match leases.as_ref().map(|options| options.provisioning) {
            None | Some(Provisioning::Strict | Provisioning::Under { .. }) => within_limit(),
            Some(Provisioning::Over { extra }) => {
                (!gave_grants || outstanding <= allowed.limit)
                    && (!gave_leases || footprint <= permits(extra, allowed.limit))
            }
        }
    });
    if !fits {
        let message = format!(
            "{outstanding} granted and {footprint} leased, of {} (leases {:?})",
            allowed.limit, allowed.leases
        );
        run.fail(NAME, key, message);
    }
    for group in after.groups() {
        let Some(Some(ceiling)) = allowed.ceilings.get(group) else {
            continue;
        };
        let gave = after
            .grants
            .iter()
            .any(|(id, grant)| grant.group == group && !before.grants.contains_key(id))
            || after
                .leases
                .iter()
                .any(|(id, lease)| lease.group == group && !before.leases.contains_key(id));
        let out = after.outstanding(Some(group)) + after.footprint(Some(group));
        if gave && out > *ceiling {
            let message = format!("{out} of {group} are out, of {ceiling}");
            run.fail(NAME, key, message);
        }
    }
}

fn permits(amount: Amount, limit: u64) -> u64 {
    match amount {
        Amount::Permits(permits) => permits,
        Amount::Share { ratio } => (limit as f64 * ratio.0).floor() as u64,
    }
}
