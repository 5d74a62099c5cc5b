//! What is printed: one line for each figure, beside its target.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::json;

/// Absolute targets hold for a disk that flushes 4 KiB in this time; a slower one is allowed as much
/// more.
const REFERENCE_FLUSH: Duration = Duration::from_micros(200);

/// A figure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Time(Duration),
    /// So many a second.
    Rate(f64),
    Ratio(f64),
    /// In MiB.
    Memory(f64),
    /// So many of something.
    Count(f64),
}

/// What a figure was to be. Times and rates depend on the disk, ratios and memory do not.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    None,
    AtMost(Value),
    AtLeast(Value),
}

/// Flushes, statements and rows of one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub(super) flushes: f64,
    pub(super) transactions: f64,
    pub(super) statements: f64,
    pub(super) rows_written: f64,
}

/// What Cloudflare bills 1,000 of something. Each alarm that is set is a row written, each that goes off a
/// request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bill {
    pub(super) rows_read: f64,
    pub(super) rows_written: f64,
    pub(super) requests: f64,
    pub(super) alarms: f64,
    pub(super) alarms_set: f64,
}

impl Bill {
    pub(super) fn mean(bills: &[Bill]) -> Bill {
        let mean =
            |of: fn(&Bill) -> f64| bills.iter().map(of).sum::<f64>() / bills.len().max(1) as f64;
        Bill {
            rows_read: mean(|bill| bill.rows_read),
            rows_written: mean(|bill| bill.rows_written),
            requests: mean(|bill| bill.requests),
            alarms: mean(|bill| bill.alarms),
            alarms_set: mean(|bill| bill.alarms_set),
        }
    }
}

pub(super) struct Report {
    json: bool,
    section: String,
    flush: Duration,
    document: Vec<serde_json::Value>,
    missed: usize,
    judged: usize,
}

impl Report {
    pub(super) fn new(json: bool) -> Report {
        Report {
            json,
            section: String::new(),
            flush: Duration::ZERO,
            document: Vec::new(),
            missed: 0,
            judged: 0,
        }
    }

    /// Begins a section whose absolute targets are scaled by `flush`.
    pub(super) fn begin(&mut self, name: &str, what: &str, flush: Duration) -> io::Result<()> {
        name.clone_into(&mut self.section);
        self.flush = flush;
        let mut note = format!("flush {}", text(Value::Time(flush)));
        if self.scale() > 1.005 {
            note += &format!(
                ", targets of times and rates eased {:.2} times",
                self.scale()
            );
        }
        self.print(&format!("\n{name}: {what} ({note})"))
    }

    /// Begins a section that has nothing to do with the disk: its targets are what they are.
    pub(super) fn begin_apart_from_disk(&mut self, name: &str, what: &str) -> io::Result<()> {
        name.clone_into(&mut self.section);
        self.flush = Duration::ZERO;
        self.print(&format!("\n{name}: {what}"))
    }

    /// A figure, and the target that it is held against.
    pub(super) fn line(&mut self, label: &str, value: Value, goal: Goal) -> io::Result<()> {
        let (goal, reached) = self.judge(value, goal);
        let verdict = reached.map_or("", |reached| if reached { "reached" } else { "MISSED" });
        if let Some(reached) = reached {
            self.judged += 1;
            self.missed += usize::from(!reached);
        }
        self.document.push(json!({
            "section": self.section,
            "label": label,
            "value": number(value),
            "unit": unit(value),
            "target": goal.as_ref().map(|(_, limit)| number(*limit)),
            "reached": reached,
            "flushSeconds": self.flush.as_secs_f64(),
        }));
        let goal = goal.map_or_else(String::new, |(sign, limit)| {
            format!("target {sign} {}", text(limit))
        });
        let line = format!("  {label:<66} {:>14}   {goal:<26} {verdict}", text(value));
        self.print(line.trim_end())
    }

    /// A part of a section that was left out, and why.
    pub(super) fn skipped(&mut self, label: &str, why: &str) -> io::Result<()> {
        self.document.push(json!({
            "section": self.section,
            "label": label,
            "skipped": why,
        }));
        self.print(&format!("  {label}: skipped, {why}"))
    }

    /// The heads of the columns that [`costs`](Self::costs) fills.
    pub(super) fn costs_head(&mut self, label: &str) -> io::Result<()> {
        self.print(&format!(
            "  {label:<66} {:>9} {:>9} {:>11} {:>9}",
            "flushes", "closures", "statements", "rows"
        ))
    }

    /// What one operation costs.
    pub(super) fn costs(&mut self, label: &str, costs: Costs) -> io::Result<()> {
        self.document.push(json!({
            "section": self.section,
            "label": label,
            "flushes": costs.flushes,
            "transactions": costs.transactions,
            "statements": costs.statements,
            "rowsWritten": costs.rows_written,
        }));
        self.print(&format!(
            "  {label:<66} {:>9} {:>9} {:>11} {:>9}",
            count(costs.flushes),
            count(costs.transactions),
            count(costs.statements),
            count(costs.rows_written)
        ))
    }

    /// The heads of the columns that [`bill`](Self::bill) fills.
    pub(super) fn bill_head(&mut self, label: &str) -> io::Result<()> {
        self.print(&format!(
            "  {label:<50} {:>10} {:>12} {:>9} {:>9} {:>10}",
            "rows read", "rows written", "requests", "alarms", "alarms set"
        ))
    }

    /// What 1,000 of something are billed.
    pub(super) fn bill(&mut self, label: &str, bill: Bill) -> io::Result<()> {
        self.document.push(json!({
            "section": self.section,
            "label": label,
            "rowsRead": bill.rows_read,
            "rowsWritten": bill.rows_written,
            "requests": bill.requests,
            "alarms": bill.alarms,
            "alarmsSet": bill.alarms_set,
        }));
        self.print(&format!(
            "  {label:<50} {:>10} {:>12} {:>9} {:>9} {:>10}",
            thousands(bill.rows_read),
            thousands(bill.rows_written),
            thousands(bill.requests),
            thousands(bill.alarms),
            thousands(bill.alarms_set)
        ))
    }

    /// Says how it went in all.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if self.json {
            let document = serde_json::Value::Array(std::mem::take(&mut self.document));
            return writeln!(io::stdout().lock(), "{document:#}");
        }
        let (judged, missed) = (self.judged, self.missed);
        self.print(&format!(
            "\n{} of {judged} targets reached",
            judged - missed
        ))
    }

    fn print(&self, line: &str) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    }

    fn scale(&self) -> f64 {
        (self.flush.as_secs_f64() / REFERENCE_FLUSH.as_secs_f64()).max(1.0)
    }

    /// The target on this disk, and whether it is reached.
    fn judge(&self, value: Value, goal: Goal) -> (Option<(&'static str, Value)>, Option<bool>) {
        let scaled = |limit| match limit {
            Value::Time(time) => Value::Time(time.mul_f64(self.scale())),
            Value::Rate(rate) => Value::Rate(rate / self.scale()),
            other => other,
        };
        match goal {
            Goal::None => (None, None),
            Goal::AtMost(limit) => {
                let limit = scaled(limit);
                (Some(("<=", limit)), Some(number(value) <= number(limit)))
            }
            Goal::AtLeast(limit) => {
                let limit = scaled(limit);
                (Some((">=", limit)), Some(number(value) >= number(limit)))
            }
        }
    }
}

fn number(value: Value) -> f64 {
    match value {
        Value::Time(time) => time.as_secs_f64(),
        Value::Rate(number)
        | Value::Ratio(number)
        | Value::Memory(number)
        | Value::Count(number) => number,
    }
}

fn unit(value: Value) -> &'static str {
    match value {
        Value::Time(_) => "s",
        Value::Rate(_) => "1/s",
        Value::Ratio(_) => "ratio",
        Value::Memory(_) => "MiB",
        Value::Count(_) => "count",
    }
}

fn text(value: Value) -> String {
    match value {
        Value::Time(time) if time >= Duration::from_secs(1) => {
            format!("{:.2} s", time.as_secs_f64())
        }
        Value::Time(time) if time >= Duration::from_millis(1) => {
            format!("{:.2} ms", time.as_secs_f64() * 1e3)
        }
        Value::Time(time) if time < Duration::from_micros(10) => format!("{} ns", time.as_nanos()),
        Value::Time(time) => format!("{:.0} µs", time.as_secs_f64() * 1e6),
        Value::Rate(rate) => format!("{}/s", thousands(rate)),
        Value::Ratio(ratio) => format!("{ratio:.2}"),
        Value::Memory(memory) => format!("{memory:.1} MiB"),
        Value::Count(number) => count(number),
    }
}

/// A count: whole where it is, else with as many places as say something.
fn count(number: f64) -> String {
    if (number - number.round()).abs() < 5e-4 {
        thousands(number)
    } else if number < 10.0 {
        format!("{number:.3}")
    } else {
        format!("{number:.1}")
    }
}

/// A whole number with a comma between thousands.
pub(super) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
