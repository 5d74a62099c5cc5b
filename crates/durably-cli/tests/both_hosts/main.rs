//! One application in two places: whatever is asserted here holds for `durably serve` and for the ready-made
//! worker in a real workerd, over HTTP, by the same code.
//!
//! Here are the cases that both must pass. How each host is started, killed and its objects evicted is decided in
//! `host`. Cases of the worker run in `.ci/cloudflare test`, which builds it.

/// Has each case run on each host.
macro_rules! on_both_hosts {
    ($($case:ident),* $(,)?) => {
        mod server {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case(crate::host::Place::Server).await;
                }
            )*
        }

        mod worker {
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "needs workerd: run .ci/cloudflare test"]
                async fn $case() {
                    super::$case(crate::host::Place::Worker).await;
                }
            )*
        }
    };
}

mod budgets;
mod deaths;
mod host;
mod jobs;
#[path = "../cli/topology/members.rs"]
mod members;
mod refusals;
#[path = "../cli/support/mod.rs"]
#[allow(dead_code, reason = "the tests of the server alone use more of it")]
mod support;
mod topology;
mod traces;
mod workerd;
