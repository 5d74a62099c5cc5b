//! The end of the demo: what came of it, and whether that is what was promised.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use durably::jobs::Admission;

use super::board::Board;
use super::day::Pace;

/// Ids shown of a list that should be empty.
const SHOWN: usize = 10;

/// What came of a run.
pub(super) struct Summary<'a> {
    pub(super) board: &'a Board,
    pub(super) pace: Pace,
    pub(super) took: Duration,
    pub(super) restarts: u64,
    /// Permits that had not returned some time after the last job; `None` if nobody could say.
    pub(super) still_out: Option<u64>,
}

impl Summary<'_> {
    /// What was promised and not kept.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let missing = self.board.missing();
        if !missing.is_empty() {
            problems.push(format!(
                "{} jobs did not run: {}",
                missing.len(),
                some(&missing)
            ));
        }
        let repeated = self.board.repeated();
        if !repeated.is_empty() {
            problems.push(format!(
                "{} jobs ran under several keys: {}",
                repeated.len(),
                some(&repeated)
            ));
        }
        let passed = self.board.passed_limits();
        if !passed.is_empty() {
            problems.push(format!("limits were passed: {}", passed.join(", ")));
        }
        // Without the jobs' end nothing is known of their permits.
        if missing.is_empty() {
            match self.still_out {
                Some(0) => {}
                Some(permits) => problems.push(format!("{permits} permits did not return")),
                None => problems.push("the server could not be asked for its permits".to_owned()),
            }
        }
        problems
    }
}

fn some(ids: &[&str]) -> String {
    let mut text = ids
        .iter()
        .take(SHOWN)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if ids.len() > SHOWN {
        text.push_str(", …");
    }
    text
}

/// The value below which a share of the sorted `values` lies.
fn percentile(values: &[Duration], percent: usize) -> Duration {
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or_default()
}

impl Display for Summary<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let limits = self.board.limits();
        writeln!(
            out,
            "{} of {} jobs done in {:.1} s, {} restarts",
            self.board.done(),
            self.board.total(),
            self.took.as_secs_f64(),
            self.restarts
        )?;
        if self.board.strangers() > 0 {
            writeln!(
                out,
                "and {} that an earlier run had left in the data folder",
                self.board.strangers()
            )?;
        }
        let waits = self.board.waits();
        write!(out, "admission wait")?;
        for percent in [50, 99] {
            let wait = percentile(&waits, percent);
            write!(
                out,
                "  p{percent} {:.3} s ({:.0} minutes of the day)",
                wait.as_secs_f64(),
                self.pace.minutes(wait)
            )?;
        }
        let [granted, leased, at_once] =
            [Admission::Grant, Admission::Lease, Admission::LeaseAtOnce]
                .map(|admission| self.board.admitted(admission));
        writeln!(
            out,
            "\n{} admissions needed a round trip ({granted} granted, {leased} from a lease that \
             they waited for), {at_once} none (drawn from a lease at once)",
            granted + leased
        )?;
        writeln!(
            out,
            "leases: {}; the others: grants",
            self.board.leasing().join(", ")
        )?;
        writeln!(out, "highest running at once, of the limit:")?;
        for (name, account) in self.board.accounts() {
            let groups: Vec<String> = account
                .groups
                .iter()
                .map(|(group, count)| format!("{group} {}/{}", count.highest, limits.group))
                .collect();
            writeln!(
                out,
                "  {name:3} {:2}/{}  {}  ({} jobs)",
                account.all.highest,
                limits.account,
                groups.join("  "),
                account.jobs
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50), Duration::from_millis(100));
        assert_eq!(percentile(&values, 99), Duration::from_millis(198));
        assert_eq!(percentile(&values[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
