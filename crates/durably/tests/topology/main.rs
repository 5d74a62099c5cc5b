//! The coordinator on the virtual host. What the traces tell of it is not told again here.

mod converging;
mod draining;
mod publishing;
mod receiving;
mod refusals;
mod restored;
mod shelf;
mod support;

#[cfg(feature = "deliberate-bugs")]
#[test]
fn deliberate_bugs_are_found() {
    durably_sim::proof::by_own_tests("topology");
}
