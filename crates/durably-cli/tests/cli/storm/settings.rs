//! How long a storm is, and the seed that all its chances follow from.

use std::fmt::{self, Display, Formatter};
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use crate::support::load::Random;

/// The settings of one storm, from the environment.
pub(super) struct Storm {
    name: &'static str,
    /// How many blows it has.
    pub(super) blows: u64,
    seed: u64,
}

impl Storm {
    /// `variable` says how many blows the storm has, if anybody wants to know better than `short`.
    pub(super) fn new(name: &'static str, variable: &str, short: u64) -> Storm {
        let seed =
            from_env("STORM_SEED").unwrap_or_else(|| RandomState::new().hash_one(name) >> 16);
        let blows = from_env(variable).unwrap_or(short);
        println!("{name}: STORM_SEED={seed} {variable}={blows}");
        Storm { name, blows, seed }
    }

    /// The chances of one part of the storm.
    pub(super) fn random(&self, part: u64) -> Random {
        // Seeds and parts that differ in a bit must differ in all.
        let mut mixed = self
            .seed
            .wrapping_add(part.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((mixed ^ (mixed >> 31)) | 1)
    }
}

impl Display for Storm {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{} of seed {}", self.name, self.seed)
    }
}

fn from_env<T: FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(value) => Some(value),
        Err(_) => panic!("{variable} must be a whole number, not {text:?}"),
    }
}
