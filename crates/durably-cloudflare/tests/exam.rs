//! The Cloudflare host takes the host exam inside real workerd, with objects on a disk.
//!
//! `.ci/cloudflare exam` builds what these tests need and runs them; nothing else does.
#![cfg(not(target_arch = "wasm32"))]

mod workerd;

use std::cell::Cell;
use std::time::Duration;

use durably::testing::{Case, Examinee, cases};
use futures::future::LocalBoxFuture;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use workerd::Workerd;

/// What stands for the death of an instance.
#[derive(Clone, Copy, PartialEq)]
enum Death {
    /// The platform resets the object; others and the process live on.
    Reset,
    /// SIGKILL for the whole process.
    Kill,
}

struct Cloudflare {
    workerd: Workerd,
    client: reqwest::Client,
    death: Death,
    /// Several cases are being examined at once.
    shared: Cell<bool>,
}

impl Cloudflare {
    async fn start(death: Death) -> Cloudflare {
        Cloudflare {
            workerd: Workerd::start("exam").await,
            client: workerd::client(),
            death,
            shared: Cell::new(false),
        }
    }

    async fn ask(&self, question: Value) -> Result<Value, String> {
        let url = self.workerd.url();
        let asked = self.client.post(url).json(&question).send().await;
        let answer = asked.map_err(|error| format!("{error:?}"))?;
        answer.json().await.map_err(|error| format!("{error:?}"))
    }
}

impl Examinee for Cloudflare {
    fn call<'a>(
        &'a self,
        object: &'a str,
        request: &'a str,
    ) -> LocalBoxFuture<'a, Result<Result<String, String>, String>> {
        async move {
            let question = json!({ "object": object, "action": "call", "request": request });
            let answer = self.ask(question).await?;
            let text = |name: &str| answer[name].as_str().map(str::to_owned);
            match (text("passed"), text("failed")) {
                (Some(passed), _) => Ok(Ok(passed)),
                (None, Some(failed)) => Ok(Err(failed)),
                (None, None) => Err(text("lost").unwrap_or_else(|| answer.to_string())),
            }
        }
        .boxed_local()
    }

    fn crash<'a>(&'a self, object: &'a str) -> LocalBoxFuture<'a, ()> {
        async move {
            if self.death == Death::Kill {
                return self.workerd.restart(Duration::ZERO).await;
            }
            let answer = self
                .ask(json!({ "object": object, "action": "abort" }))
                .await;
            let reason = answer.map(|answer| answer["lost"].to_string());
            assert!(
                reason
                    .as_ref()
                    .is_ok_and(|reason| reason.contains("told to")),
                "{object} was to be reset: {reason:?}"
            );
        }
        .boxed_local()
    }

    fn restart<'a>(&'a self, away: Duration) -> LocalBoxFuture<'a, ()> {
        assert!(
            !self.shared.get(),
            "a case that restarts must be examined alone"
        );
        async move { self.workerd.restart(away).await }.boxed_local()
    }

    fn pass<'a>(&'a self, time: Duration) -> LocalBoxFuture<'a, ()> {
        tokio::time::sleep(time).boxed_local()
    }

    /// An alarm whose handler is cut off by a reset is called again by the platform after about 2 s.
    fn slack(&self) -> Duration {
        Duration::from_secs(4)
    }
}

/// Cases that restart the host.
const RESTARTING: &[&str] = &["an_alarm_that_came_due_while_the_host_was_away_fires"];

/// Cases in which another object must live on when one dies.
const WITH_A_BYSTANDER: &[&str] = &["two_objects_do_not_see_each_other"];

type Examined = (&'static str, Result<(), String>);

/// Some at once: nearly all of a case is waiting, but each wants to be on time.
async fn examined(cases: impl Iterator<Item = impl Future<Output = Examined>>) -> Vec<Examined> {
    futures::stream::iter(cases)
        .buffer_unordered(6)
        .collect()
        .await
}

fn report(verdicts: Vec<Examined>) {
    assert!(!verdicts.is_empty());
    let failures: Vec<String> = verdicts
        .iter()
        .filter_map(|(case, verdict)| Some(format!("{case}: {}", verdict.as_ref().err()?)))
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} cases:\n{}",
        failures.len(),
        verdicts.len(),
        failures.join("\n")
    );
}

/// All cases in one process, side by side; an instance dies alone.
#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare exam"]
async fn the_cloudflare_host_passes_the_exam() {
    let host = Cloudflare::start(Death::Reset).await;
    let (alone, together): (Vec<Case>, Vec<Case>) = cases()
        .into_iter()
        .partition(|case| RESTARTING.contains(&case.name));
    let examine = |case: Case| {
        let host = &host;
        async move { (case.name, case.run(host).await) }
    };
    host.shared.set(true);
    let mut verdicts = examined(together.into_iter().map(examine)).await;
    host.shared.set(false);
    for case in alone {
        verdicts.push(examine(case).await);
    }
    report(verdicts);
}

/// The same with SIGKILL of the process wherever the exam has an instance die.
#[tokio::test]
#[ignore = "needs workerd: run .ci/cloudflare exam"]
async fn the_cloudflare_host_passes_the_exam_when_its_process_is_killed() {
    let examine = |case: Case| async move {
        let host = Cloudflare::start(Death::Kill).await;
        (case.name, case.run(&host).await)
    };
    let cases = cases()
        .into_iter()
        .filter(|case| !WITH_A_BYSTANDER.contains(&case.name));
    report(examined(cases.map(examine)).await);
}
