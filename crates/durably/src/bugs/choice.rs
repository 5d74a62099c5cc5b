//! Which bug is on. A choice is the thread's own, so one build serves all bugs and tests may run side
//! by side.

use std::cell::Cell;
use std::str::FromStr;

use super::Bug;

/// The environment variable that chooses a bug for every thread that does not choose itself. A name
/// that is none is a fault of whoever set it, and ends the thread that reads it.
pub const VARIABLE: &str = "DURABLY_BUG";

thread_local! {
    static CHOSEN: Cell<Option<Bug>> = Cell::new(from_environment());
    static MET: Cell<u64> = const { Cell::new(0) };
}

fn from_environment() -> Option<Bug> {
    let name = std::env::var(VARIABLE).ok()?;
    match name.parse() {
        Ok(bug) => Some(bug),
        Err(UnknownBug(name)) => panic!("{VARIABLE}: no deliberate bug is named {name:?}"),
    }
}

/// Whether the code at this place is to be wrong.
pub fn is_on(bug: Bug) -> bool {
    let is_on = CHOSEN.get() == Some(bug);
    if is_on {
        MET.set(MET.get() + 1);
    }
    is_on
}

/// Does `work` with `bug` on in this thread, or with none, and puts back what was chosen before.
pub fn with<T>(bug: Option<Bug>, work: impl FnOnce() -> T) -> T {
    struct Before(Option<Bug>);
    impl Drop for Before {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }
    let _before = Before(CHOSEN.replace(bug));
    MET.set(0);
    work()
}

/// How often this thread came by the place of the bug that is on since it was chosen: one that is
/// never met cannot be found.
pub fn met() -> u64 {
    MET.get()
}

/// No bug has this name.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no deliberate bug is named {0:?}")]
pub struct UnknownBug(pub String);

impl FromStr for Bug {
    type Err = UnknownBug;

    fn from_str(name: &str) -> Result<Bug, UnknownBug> {
        let mut all = Bug::ALL.iter().copied();
        all.find(|bug| bug.name() == name)
            .ok_or_else(|| UnknownBug(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kebab_case_and_read_back() {
        for bug in Bug::ALL {
            let name = bug.name();
            assert_eq!(name.parse::<Bug>().ok(), Some(*bug));
            let is_kebab = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(name.chars().all(is_kebab), "{name}");
        }
        assert!("forget-everything".parse::<Bug>().is_err());
    }

    #[test]
    fn a_choice_ends_with_the_work() {
        let (one, other) = (Bug::ALL[0], Bug::ALL[1]);
        with(Some(one), || {
            assert!(is_on(one) && !is_on(other));
            with(None, || assert!(!is_on(one)));
            let caught = std::panic::catch_unwind(|| with(Some(other), || panic!("on purpose")));
            assert!(caught.is_err() && is_on(one));
        });
    }

    #[test]
    fn deliberate_bugs_are_found() {
        durably_sim::proof::by_own_tests("lib");
    }
}
