//! Checks the deciding code of the semaphore in small worlds, exhaustively: every order in which
//! messages arrive, are lost, copied or late, in which clients and the holder die, time passes and
//! limits move, within the bounds of each world.
//!
//! - **What is real.** The holder's decisions (`round::decide`, `Book`, `Leasing`, `Ledger`), and what a
//!   queue makes of an answer (`judge`, `Echo`, `fate`), through `durably::testing::deciders`.
//! - **What is written here.** `holder` keeps the rows in ordered maps and applies plans as `store.rs` and
//!   `rounds.rs` do, checking that each plan fits the rows. `client` keeps what a queue keeps; the queue's
//!   own book is made of `Rc`s and follows SQL, so it cannot be a state of a checker. A client repeats a
//!   request under one id until its answer is stored, runs only what was confirmed, draws only from live
//!   leases, settles leases it never stored, and closes a request that it does not need any more.
//! - **Time** is a small whole number. A grant may be claimed for one tick, a lease is drawn from for two
//!   after its last report. Within a tick everything may happen in any order.
//! - **Bounds.** How often time passes, packets are lost, late or copied, somebody dies and limits move is a
//!   budget of each world; so is the number of jobs (1 to 3). Since a client has at most two calls out, so
//!   many packets are under way beside late ones and copies. What a client has to report it sends at once;
//!   the network decides when it arrives. Where `slow_answers` is off, the answer to a report arrives with it
//!   or not at all. Ids that nobody knows any more are used again, so that states that differ only in them
//!   are one. Clients are not interchangeable: ties are broken by their names.
//! - **What must hold** is in `rules` and `model`: of every step, of every state, and that from *every* state,
//!   once nothing goes wrong any more, all work is done and all permits come back. The last is tried by
//!   going on deterministically from each state, since a checker's "eventually" says nothing about circles.

mod client;
mod coverage;
mod holder;
mod model;
mod report;
mod rules;
mod state;
mod world;

pub use coverage::{Coverage, Event};
pub use model::Small;
pub use report::{accounts, sentence};
pub use rules::Rule;
pub use state::{Action, Lane, State};
pub use world::{Budget, Kind, Plan, World, worlds};

use std::sync::Arc;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

/// What came of a world.
pub struct Verdict {
    /// States that were reached, counted each time.
    pub states: usize,
    /// Different states.
    pub unique: usize,
    /// The longest way to a state, in steps.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// What happened in it.
    pub coverage: Arc<Coverage>,
    /// The first property that does not hold, and the steps that break it.
    pub broken: Option<Broken>,
}

/// A property that does not hold.
pub struct Broken {
    /// The property.
    pub property: &'static str,
    /// The steps that lead there, as sentences, with the accounts after each.
    pub steps: Vec<String>,
}

/// Explores a world until there is nothing new, or a property does not hold.
pub fn check(world: World) -> Verdict {
    let begun = Instant::now();
    let model = Small::new(world);
    let coverage = model.coverage();
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let broken = checker.discoveries().into_iter().next();
    let broken = broken.map(|(property, path)| {
        let mut steps = Vec::new();
        let path = path.into_vec();
        for (place, (state, action)) in path.iter().enumerate() {
            let Some(action) = action else { continue };
            let after = path.get(place + 1).map_or(state, |(after, _)| after);
            steps.push(format!(
                "{}\n      {}",
                sentence(state, action),
                accounts(after)
            ));
        }
        Broken { property, steps }
    });
    Verdict {
        states: checker.state_count(),
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: begun.elapsed(),
        coverage,
        broken,
    }
}
