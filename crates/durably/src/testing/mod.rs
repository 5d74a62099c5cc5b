//! The host exam: what every host must do, as one suite that each of them runs.
//!
//! A host takes it through an [`Examinee`]: it serves objects of one class, [`ExamObject`], and can
//! end their instances. [`run_all`] gives the verdict on each case. What the cases demand is written
//! in [`crate::host`]; nothing else is asked.
//!
//! The exam speaks to its objects in text, so that a host in another process can take it too: a
//! request names a step, [`ExamObject::call`] does it inside the object. Waiting goes through the
//! examinee, so virtual time passes virtually.

mod alarms;
pub mod deciders;
mod instances;
mod object;
pub mod published;
pub mod publishers;
mod transactions;
mod values;

use std::time::Duration;

use futures::future::LocalBoxFuture;

pub use object::ExamObject;

/// A host taking the exam.
///
/// Objects are of class [`ExamObject`], built by [`ExamObject::open`]. Names are used by one case
/// each, so storage must be empty at the start and is never cleared.
pub trait Examinee {
    /// Delivers `request` to the object named `object`, opening it if it has no instance, and
    /// resolves with what [`ExamObject::call`] answered. The outer error says that the instance ended
    /// first or could not be opened.
    fn call<'a>(
        &'a self,
        object: &'a str,
        request: &'a str,
    ) -> LocalBoxFuture<'a, Result<Result<String, String>, String>>;

    /// Ends the object's instance where it stands, as if its process had died: what is not committed
    /// is lost. Nothing happens if it has none. Without calls the object stays closed until its alarm.
    fn crash<'a>(&'a self, object: &'a str) -> LocalBoxFuture<'a, ()>;

    /// Takes the idle object out of memory, as when it hibernates.
    fn evict<'a>(&'a self, object: &'a str) -> LocalBoxFuture<'a, ()> {
        self.crash(object)
    }

    /// Ends all instances and the host itself, which comes back on the same storage after `away`.
    fn restart<'a>(&'a self, away: Duration) -> LocalBoxFuture<'a, ()>;

    /// Lets time pass: the host's own, be it real or virtual.
    fn pass<'a>(&'a self, time: Duration) -> LocalBoxFuture<'a, ()>;

    /// By how much an alarm may be late without failing the exam; also how long a case waits to see
    /// that nothing happens.
    fn slack(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// How long the host may take to call an alarm handler again that failed.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// One case of the exam.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name; the objects that it uses are named after it.
    pub name: &'static str,
    run: for<'a> fn(&'a Exam<'a>) -> LocalBoxFuture<'a, Verdict>,
}

impl Case {
    /// Examines one host in this one case.
    ///
    /// # Errors
    ///
    /// What the host did wrong.
    pub async fn run(&self, examinee: &dyn Examinee) -> Result<(), String> {
        let exam = Exam {
            examinee,
            case: self.name,
        };
        (self.run)(&exam).await
    }
}

type Verdict = Result<(), String>;

/// All cases.
pub fn cases() -> Vec<Case> {
    [
        transactions::CASES,
        alarms::CASES,
        instances::CASES,
        values::CASES,
    ]
    .concat()
}

/// Runs all cases, one after the other, and gives the verdict on each.
pub async fn run_all(examinee: &dyn Examinee) -> Vec<(&'static str, Result<(), String>)> {
    let mut verdicts = Vec::new();
    for case in cases() {
        verdicts.push((case.name, case.run(examinee).await));
    }
    verdicts
}

/// What a case works with.
struct Exam<'a> {
    examinee: &'a dyn Examinee,
    case: &'static str,
}

impl Exam<'_> {
    /// Has the case's own object do a step that must succeed.
    async fn step(&self, request: &str) -> Result<String, String> {
        self.step_of(self.case, request).await
    }

    /// Has some object do a step that must succeed.
    async fn step_of(&self, object: &str, request: &str) -> Result<String, String> {
        match self.examinee.call(object, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(problem)) => Err(format!("{request}: {problem}")),
            Err(lost) => Err(format!("{request}: the call failed: {lost}")),
        }
    }

    /// Has the case's object do a step that must end its instance.
    async fn fatal_step(&self, request: &str) -> Verdict {
        match self.examinee.call(self.case, request).await {
            Err(_) => Ok(()),
            Ok(answer) => Err(format!(
                "{request}: answered {answer:?} although the instance had to end"
            )),
        }
    }

    async fn crash(&self) {
        self.examinee.crash(self.case).await;
    }

    async fn pass(&self, millis: u64) {
        self.examinee.pass(Duration::from_millis(millis)).await;
    }

    /// Passes `millis` and as much more as alarms may be late.
    async fn pass_with_slack(&self, millis: u64) {
        let slack = self.examinee.slack();
        let time = Duration::from_millis(millis) + slack;
        self.examinee.pass(time).await;
    }

    /// What the case's object has written to its log, in order.
    async fn log(&self) -> Result<Vec<String>, String> {
        self.log_of(self.case).await
    }

    async fn log_of(&self, object: &str) -> Result<Vec<String>, String> {
        let log = self.step_of(object, "object log").await?;
        Ok(log.lines().map(str::to_owned).collect())
    }

    /// Waits until the log holds `entry` at least `times` times, as long as the host's patience allows.
    async fn wait_for(&self, entry: &str, times: usize) -> Verdict {
        const STEP: Duration = Duration::from_millis(50);
        let mut waited = Duration::ZERO;
        loop {
            // A call may be lost here, where the handler that is waited for ends the instance.
            let log = match self.examinee.call(self.case, "object log").await {
                Ok(answer) => answer?,
                Err(_) => String::new(),
            };
            if log.lines().filter(|found| *found == entry).count() >= times {
                return Ok(());
            }
            if waited > self.examinee.patience() {
                return Err(format!(
                    "waited {} s for {times} × {entry:?}; the log is {log:?}",
                    waited.as_secs()
                ));
            }
            self.examinee.pass(STEP).await;
            waited += STEP;
        }
    }
}

fn count(log: &[String], entry: &str) -> usize {
    log.iter().filter(|found| *found == entry).count()
}

/// Fails the case unless the condition holds.
macro_rules! demand {
    ($condition:expr, $($problem:tt)+) => {
        if !$condition {
            return Err(format!($($problem)+));
        }
    };
}

/// Fails the case, showing both, unless they are equal.
macro_rules! demand_eq {
    ($actual:expr, $expected:expr, $what:expr) => {{
        let (actual, expected) = (&$actual, &$expected);
        if actual != expected {
            return Err(format!(
                "{}: expected {expected:?}, found {actual:?}",
                $what
            ));
        }
    }};
}

/// The cases of a file, from functions of the same names.
macro_rules! exam_cases {
    ($($name:ident),+ $(,)?) => {
        pub(super) const CASES: &[super::Case] = &[
            $(super::Case {
                name: stringify!($name),
                run: |exam| Box::pin($name(exam)),
            }),+
        ];
    };
}

use {demand, demand_eq, exam_cases};
