//! What happened in a run, line by line. The same seed writes the same bytes.

use std::fmt::{self, Write};

use durably::Timestamp;

/// Whether lines are kept or only summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Only their digest.
    Digest,
    /// Every line.
    Lines,
}

/// The lines of a run.
pub(super) struct History {
    keep: Keep,
    lines: Vec<Line>,
    buffer: String,
    digest: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When, in ms since the run began.
    pub at: u64,
    /// To which object, process or job.
    pub subject: String,
    /// What.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { at, subject, text } = self;
        write!(formatter, "{:>9.3} {subject}: {text}", *at as f64 / 1_000.0)
    }
}

impl History {
    pub(super) fn new(keep: Keep) -> History {
        History {
            keep,
            lines: Vec::new(),
            buffer: String::new(),
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub(super) fn note(
        &mut self,
        begun: Timestamp,
        now: Timestamp,
        subject: &str,
        text: fmt::Arguments<'_>,
    ) {
        let at = u64::try_from(now.since(begun).as_millis()).unwrap_or(u64::MAX);
        self.buffer.clear();
        // Writing to a string cannot fail.
        let _ = write!(self.buffer, "{text}");
        self.add(&at.to_le_bytes());
        self.add(subject.as_bytes());
        let text = std::mem::take(&mut self.buffer);
        self.add(text.as_bytes());
        match self.keep {
            Keep::Digest => self.buffer = text,
            Keep::Lines => self.lines.push(Line {
                at,
                subject: subject.to_owned(),
                text,
            }),
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        // FNV-1a, with a mark after each part.
        for byte in bytes.iter().chain(&[0xff]) {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Of all lines, in order.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn into_lines(self) -> Vec<Line> {
        self.lines
    }
}

/// The last `most` lines that tell of `subject`, or of all if it is empty.
pub fn excerpt(lines: &[Line], subject: &str, most: usize) -> Vec<Line> {
    let about =
        |line: &&Line| subject.is_empty() || line.subject == subject || line.text.contains(subject);
    let mut last: Vec<Line> = lines
        .iter()
        .rev()
        .filter(about)
        .take(most)
        .cloned()
        .collect();
    last.reverse();
    last
}
