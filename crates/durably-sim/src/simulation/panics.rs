//! Panics in a run are findings: where they came from is kept for the report instead of being printed.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::panic;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps where the next panics of every thread come from, and prints none. For programs that run
/// simulations and nothing else.
pub fn collect() {
    panic::set_hook(Box::new(|info| {
        let mut told = info.to_string();
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            told = format!("{told}\n{}", Backtrace::force_capture());
        }
        LAST.with(|last| *last.borrow_mut() = Some(told));
    }));
}

/// What the last panic of this thread said, with its place.
pub(super) fn last() -> Option<String> {
    LAST.with(|last| last.borrow_mut().take())
}
