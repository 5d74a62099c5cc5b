//! The outbox on the virtual host.

mod channels;
mod deliveries;
mod refusals;
mod support;

#[cfg(feature = "deliberate-bugs")]
#[test]
fn deliberate_bugs_are_found() {
    durably_sim::proof::by_own_tests("outbox");
}
