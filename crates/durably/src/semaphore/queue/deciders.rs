//! What a queue decides about a holder's answers, for [`testing::deciders`](crate::testing::deciders).

pub use super::claim::{Claim, Standing, Verdict, judge};
pub use super::lease::{Clocks, Echo, Fate, Lease, Phase, fate};
