//! The holder on the virtual host.

mod arbitrary;
mod ephemeral;
mod limits;
mod messages;
mod operators;
mod setup;
mod waiting;

#[cfg(feature = "deliberate-bugs")]
#[test]
fn deliberate_bugs_are_found() {
    durably_sim::proof::by_own_tests("semaphore");
}
