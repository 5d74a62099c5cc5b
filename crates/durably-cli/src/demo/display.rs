//! Shows how the day goes: bars on a terminal, lines elsewhere.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::board::{Board, Waiting};

/// What is shown, at one moment.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) minute: u64,
    pub(super) elapsed: Duration,
    pub(super) restarts: u64,
    done: u64,
    running: u64,
    waiting: u64,
    total: u64,
    accounts: Vec<AccountProgress>,
    /// Waiting jobs by the reason that the server names.
    blocked: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct AccountProgress {
    name: String,
    running: u64,
    limit: u64,
    waiting: u64,
    blocked: BTreeMap<String, u64>,
}

impl Progress {
    /// What the board knows, and why groups wait.
    pub(super) fn of(board: &Board, waiting: &[Waiting], reasons: &[Option<String>]) -> Progress {
        let mut progress = Progress {
            done: count(board.done()),
            running: board.running(),
            total: count(board.total()),
            ..Progress::default()
        };
        for (name, account) in board.accounts() {
            let mut shown = AccountProgress {
                name: name.clone(),
                running: account.all.running,
                limit: board.limits().account,
                waiting: 0,
                blocked: BTreeMap::new(),
            };
            let of_account = waiting
                .iter()
                .zip(reasons)
                .filter(|(group, _)| group.account == *name);
            for (group, reason) in of_account {
                let jobs = count(group.jobs);
                shown.waiting += jobs;
                if let Some(reason) = reason {
                    *shown.blocked.entry(reason.clone()).or_default() += jobs;
                    *progress.blocked.entry(reason.clone()).or_default() += jobs;
                }
            }
            progress.waiting += shown.waiting;
            progress.accounts.push(shown);
        }
        progress
    }
}

fn count(jobs: usize) -> u64 {
    u64::try_from(jobs).unwrap_or(u64::MAX)
}

fn listed(blocked: &BTreeMap<String, u64>) -> String {
    let parts = blocked
        .iter()
        .map(|(reason, jobs)| format!("{reason} {jobs}"));
    parts.collect::<Vec<_>>().join(", ")
}

/// The same as an aside.
fn reasons(blocked: &BTreeMap<String, u64>) -> String {
    match listed(blocked) {
        none if none.is_empty() => none,
        some => format!(" ({some})"),
    }
}

/// Where progress is shown.
pub(super) enum Display {
    Bars(Bars),
    Lines(Lines),
}

impl Display {
    /// Bars if somebody looks at a terminal.
    pub(super) fn new() -> Display {
        if io::stdout().is_terminal() && io::stderr().is_terminal() {
            Display::Bars(Bars::new())
        } else {
            Display::Lines(Lines { last: None })
        }
    }

    pub(super) fn show(&mut self, progress: &Progress) {
        match self {
            Display::Bars(bars) => bars.show(progress),
            Display::Lines(lines) => lines.show(progress),
        }
    }

    /// Leaves the screen to what comes after.
    pub(super) fn end(&self) {
        if let Display::Bars(bars) = self {
            // A terminal that is gone needs no clearing.
            let _ = bars.all.clear();
        }
    }
}

pub(super) struct Bars {
    all: MultiProgress,
    day: ProgressBar,
    why: ProgressBar,
    accounts: BTreeMap<String, ProgressBar>,
}

impl Bars {
    fn new() -> Bars {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let day = all.add(ProgressBar::new(0));
        day.set_style(style("{bar:40} {pos}/{len} done  {msg}"));
        let why = all.add(ProgressBar::new(0));
        why.set_style(style("{msg}"));
        Bars {
            all,
            day,
            why,
            accounts: BTreeMap::new(),
        }
    }

    fn show(&mut self, progress: &Progress) {
        self.day.set_length(progress.total);
        self.day.set_position(progress.done);
        self.day.set_message(format!(
            "{} running, {} waiting{}",
            progress.running,
            progress.waiting,
            restarts(progress.restarts)
        ));
        self.why.set_message(format!(
            "minute {} of the day; blocked: {}",
            progress.minute,
            match listed(&progress.blocked) {
                none if none.is_empty() => "nobody".to_owned(),
                some => some,
            }
        ));
        for account in &progress.accounts {
            let bar = self
                .accounts
                .entry(account.name.clone())
                .or_insert_with(|| {
                    let bar = self.all.add(ProgressBar::new(account.limit));
                    bar.set_style(style("  {prefix:3} {bar:24} {pos:>2}/{len} running  {msg}"));
                    bar.set_prefix(account.name.clone());
                    bar
                });
            bar.set_position(account.running);
            bar.set_message(match account.waiting {
                0 => String::new(),
                waiting => format!("{waiting} waiting{}", reasons(&account.blocked)),
            });
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are ours and right; a plain bar would do as well.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("█▉░")
}

fn restarts(restarts: u64) -> String {
    match restarts {
        0 => String::new(),
        1 => ", 1 restart".to_owned(),
        more => format!(", {more} restarts"),
    }
}

/// Between two lines.
const LINE_EVERY: Duration = Duration::from_secs(3);

pub(super) struct Lines {
    last: Option<Instant>,
}

impl Lines {
    fn show(&mut self, progress: &Progress) {
        if self.last.is_some_and(|last| last.elapsed() < LINE_EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let full = progress
            .accounts
            .iter()
            .filter(|account| account.waiting > 0);
        let full: Vec<String> = full
            .map(|account| format!("{} {}/{}", account.name, account.running, account.limit))
            .collect();
        // Whoever read the lines may be gone; the run goes on.
        let _ = writeln!(
            io::stdout(),
            "{:5.1} s  minute {:4}  {:3}/{} done, {:3} running, {:3} waiting{}{}{}",
            progress.elapsed.as_secs_f64(),
            progress.minute,
            progress.done,
            progress.total,
            progress.running,
            progress.waiting,
            reasons(&progress.blocked),
            restarts(progress.restarts),
            if full.is_empty() {
                String::new()
            } else {
                format!("; waiting: {}", full.join(" "))
            },
        );
    }
}
