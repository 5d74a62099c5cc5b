//! Limits that move while jobs run, and what may run meanwhile.
//!
//! Raised, a limit is in force from the moment that it is asked for. Lowered, it is in force when all that is
//! out is within it, for no round gives more from then on; what was given before may still begin until then.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::seat::Seat;
use crate::support::endpoint::Endpoint;
use crate::support::load::Random;
use crate::support::until;

/// A round that had read the limit before it was set is over after so long.
const ROUNDS_END_WITHIN: Duration = Duration::from_millis(150);

/// How an account shares its limit out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// By grants alone, and within limits of its groups.
    Grants,
    Strict,
    Under,
    Over,
}

/// What an account with [`Sharing::Over`] leases beyond its limit.
const EXTRA: u64 = 2;

impl Sharing {
    /// How the account gives leases that live for `ttl_ms`.
    pub(super) fn leases(self, ttl_ms: u64) -> Value {
        let provisioning = match self {
            Sharing::Grants => return json!({"leases": null}),
            Sharing::Strict => json!({"mode": "strict"}),
            Sharing::Under => json!({"mode": "under", "reserve": 3}),
            Sharing::Over => json!({"mode": "over", "extra": EXTRA}),
        };
        json!({"leases": {
            "provisioning": provisioning, "permitsPerLease": 2, "ttlMs": ttl_ms,
        }})
    }

    fn extra(self) -> u64 {
        match self {
            Sharing::Over => EXTRA,
            _ => 0,
        }
    }
}

/// A limit of an account, or of one of its groups.
pub(super) struct Limit<'a> {
    pub(super) holders: &'a Seat,
    pub(super) endpoint: &'a Endpoint,
    pub(super) account: &'a str,
    pub(super) group: Option<&'a str>,
    pub(super) sharing: Sharing,
    pub(super) value: u64,
}

impl Limit<'_> {
    fn path(&self, what: &str) -> String {
        match self.group {
            None => format!("accounts/{}/{what}", self.account),
            Some(group) => format!("accounts/{}/groups/{group}/{what}", self.account),
        }
    }

    fn allow(&self, limit: u64) {
        let running = limit + self.sharing.extra();
        self.endpoint
            .seen()
            .allow(self.account, self.group, running);
    }

    /// Sets the limit, and says what may run once it is in force.
    pub(super) async fn set(&mut self, limit: u64) {
        let lowered = limit < std::mem::replace(&mut self.value, limit);
        if !lowered {
            self.allow(limit);
        }
        put(self.holders, &self.path("limit"), &json!({"limit": limit})).await;
        if lowered {
            tokio::time::sleep(ROUNDS_END_WITHIN).await;
            until("all that is out to be within the limit", || async {
                let path = self.path("usage");
                let (status, usage) = self.holders.ask(Method::GET, &path, None).await?;
                let usage = match self.group {
                    None => &usage,
                    Some(_) => &usage["group"],
                };
                let [granted, leased] =
                    ["granted", "leased"].map(|name| usage[name].as_u64().unwrap_or(u64::MAX));
                let (granted, within) = match self.sharing {
                    Sharing::Over => (granted, leased <= EXTRA),
                    _ => (granted.saturating_add(leased), true),
                };
                (status == StatusCode::OK && within && granted <= limit).then_some(())
            })
            .await;
            self.allow(limit);
        }
    }

    /// Moves the limit up, down and to zero until it is told to stop, then to `last`.
    pub(super) async fn move_about(
        mut self,
        last: u64,
        mut random: Random,
        stop: watch::Receiver<bool>,
    ) -> u64 {
        let mut moves = 0;
        while !*stop.borrow() {
            tokio::time::sleep(Duration::from_millis(100 + random.below(900))).await;
            self.set(random.below(last + 3)).await;
            moves += 1;
        }
        self.set(last).await;
        moves
    }
}

/// Sets something, again until the answer says that it is set.
pub(super) async fn put(seat: &Seat, path: &str, body: &Value) {
    until(&format!("{path} to be set"), || async {
        let (status, answer) = seat.ask(Method::PUT, path, Some(body)).await?;
        assert!(status.is_success() || status.is_server_error(), "{answer}");
        status.is_success().then_some(())
    })
    .await;
}
