//! Replays traces through the real capabilities and shows the first difference.
//!
//! Decided here: what becomes of a file. How a trace is read is decided in `trace`, what counts as
//! equal in `compare`, how steps are done in `semaphore` and
//! `topology`.

mod compare;
mod paced;
mod semaphore;
mod stage;
mod topology;
mod trace;

use std::fmt;
use std::path::Path;

use serde_json::Value;

use compare::{Names, same};
use semaphore::Holder;
use topology::Coordinator;
use trace::{Kind, Step, Trace};

/// What became of a trace.
#[derive(Debug)]
pub enum Outcome {
    /// Everything as the trace says.
    Ok,
    /// Something came out differently.
    Different(Box<Difference>),
    /// The file is missing or is not a trace.
    Unreadable(String),
}

/// The first step at which a replay came out differently.
#[derive(Debug)]
pub struct Difference {
    /// The step's number, from 1; notes count.
    pub step: usize,
    /// What was to be done.
    pub operation: Value,
    /// What differs: `now`, `alarm`, `out`, or that the step could not be done.
    pub what: String,
    /// What the trace says.
    pub expected: Value,
    /// What came out, with the trace's names for ids.
    pub actual: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "  step {}: {}", self.step, self.operation)?;
        writeln!(formatter, "  {}", self.what)?;
        writeln!(formatter, "  expected {:#}", self.expected)?;
        write!(formatter, "  actual   {:#}", self.actual)
    }
}

/// Something that does the steps of one trace.
trait Subject {
    /// Does one step, and all that follows from it until the clock has reached the step's end, and
    /// gives the outputs in order. Ids in the step are those that the subject has given out.
    fn step(&mut self, step: &Step) -> Result<Vec<Value>, String>;

    /// The clock.
    fn now(&self) -> Value;

    /// The next alarm, or null.
    fn alarm(&mut self) -> Result<Value, String>;
}

/// Replays the trace in a file.
pub fn replay_file(path: &Path) -> Outcome {
    match std::fs::read_to_string(path) {
        Ok(text) => replay(&text),
        Err(error) => Outcome::Unreadable(error.to_string()),
    }
}

/// Replays a trace.
pub fn replay(text: &str) -> Outcome {
    let trace = match Trace::parse(text) {
        Ok(trace) => trace,
        Err(problem) => return Outcome::Unreadable(problem),
    };
    match trace.kind {
        Kind::Topology => replay_parts(&trace, Coordinator::default),
        Kind::Semaphore => replay_parts(&trace, Holder::default),
    }
}

fn replay_parts<S: Subject>(trace: &Trace, subject: impl Fn() -> S) -> Outcome {
    for part in &trace.parts {
        let names = Names::new(trace.recorded);
        if let Err(difference) = compare_steps(part, names, &mut subject()) {
            return Outcome::Different(difference);
        }
    }
    Outcome::Ok
}

fn compare_steps(
    steps: &[Step],
    mut names: Names,
    subject: &mut dyn Subject,
) -> Result<(), Box<Difference>> {
    for step in steps {
        let differs = |what: &str, expected: &Value, actual: Value| {
            Box::new(Difference {
                step: step.number,
                operation: step.operation(),
                what: what.to_owned(),
                expected: expected.clone(),
                actual,
            })
        };
        let failed = |problem: String| differs("the step failed", &Value::Null, problem.into());
        let mut outputs = subject.step(&names.inward(step)).map_err(failed)?;
        if let Some(expected) = step.expected("out") {
            names.learn(expected, &outputs);
            outputs.iter_mut().for_each(|output| names.outward(output));
            let actual = Value::Array(outputs);
            if !same(expected, &actual) {
                return Err(differs("out is not what the trace says", expected, actual));
            }
        }
        if let Some(expected) = step.expected("now")
            && !same(expected, &subject.now())
        {
            return Err(differs("the clock differs", expected, subject.now()));
        }
        if let Some(expected) = step.expected("alarm") {
            let actual = subject.alarm().map_err(failed)?;
            if !same(expected, &actual) {
                return Err(differs("the alarm differs", expected, actual));
            }
        }
    }
    Ok(())
}
