//! Durable calls on the virtual host.

mod attempts;
mod chaos;
mod deaths;
mod endings;
mod running;
mod support;

#[cfg(feature = "deliberate-bugs")]
#[test]
fn deliberate_bugs_are_found() {
    durably_sim::proof::by_own_tests("operations");
}
