//! The deciding halves of the semaphore that are not public otherwise, for a model checker: what a queue
//! makes of a holder's answers, and what a holder does beside rounds and reports. Those are public:
//! [`round::decide`](crate::semaphore::round::decide), [`Book`], [`Ledger`](crate::semaphore::ledger::Ledger).
//!
//! Nothing here promises to stay as it is.

pub use crate::semaphore::queue::deciders::{
    Claim, Clocks, Echo, Fate, Lease, Phase, Standing, Verdict, fate, judge,
};

use crate::semaphore::ForceReleased;
use crate::semaphore::book::Book;
use crate::semaphore::protocol::GrantReply;

/// Takes away all that is in the book, as from a client that was silent for too long.
pub fn take_away(book: &mut Book) -> ForceReleased {
    book.take_away(None)
}

/// What a parked request is answered in the end: what its first round answered, and what has come
/// since.
pub fn merged(before: GrantReply, after: GrantReply) -> GrantReply {
    crate::semaphore::round::merged(before, after)
}
