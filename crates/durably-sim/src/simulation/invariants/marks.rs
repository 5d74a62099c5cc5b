//! *No permit is freed twice: the marks of a grant or lease only rise, and never pass each other.*

use super::books::Book;
use crate::simulation::run::Run;

const NAME: &str = "no permit is freed twice";

/// Checks what one commit has changed.
pub fn check(run: &Run, key: &str, before: &Book, after: &Book) {
    for (id, grant) in &after.grants {
        let known = before.grants.get(id);
        let fell = known.is_some_and(|known| {
            grant.claimed < known.claimed
                || grant.released < known.released
                || grant.permits > known.permits
        });
        let crossed = grant.released > grant.claimed || grant.claimed > grant.permits;
        if fell || crossed {
            run.fail(
                NAME,
                key,
                format!("grant {id} was {known:?} and is {grant:?}"),
            );
        }
    }
    for (id, lease) in &after.leases {
        let known = before.leases.get(id);
        let fell = known.is_some_and(|known| {
            lease.released < known.released || known.retired && !lease.retired
        });
        if fell || lease.released > lease.permits {
            run.fail(
                NAME,
                key,
                format!("lease {id} was {known:?} and is {lease:?}"),
            );
        }
    }
}
