//! Writes recordings of holders into files, on a thread of its own, so that no object waits for it.
//!
//! Decided here: which file a line goes to, when it is written, and that a full disk or a slow one ends
//! recordings and nothing else. What is recorded is decided in [`durably::semaphore::recording`].

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use durably::ConfigError;
use durably::host::Object;
use durably::jobs::{AccountLimit, Recorder};

use crate::clock;
use crate::error::SystemError;
use crate::key::Key;

/// How long a line waits for others at most before it is written; lost if the process is killed.
const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// How much waits in memory before it is written early.
const FLUSH_BYTES: usize = 1 << 20;

/// How much may be on its way to the thread. Beyond, the disk is too slow.
const MAX_BYTES: usize = 64 << 20;

/// What the thread is told.
enum Entry {
    Line { key: String, line: String },
    Finish,
}

/// The thread, for who ends it.
pub(super) struct RecordingThread {
    lines: Arc<Lines>,
    thread: JoinHandle<()>,
}

/// Where objects leave their lines.
struct Lines {
    sender: Sender<Entry>,
    /// Bytes on their way.
    on_the_way: Arc<AtomicUsize>,
    /// Nothing is recorded any more.
    stopped: Arc<AtomicBool>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Recorder for Lines {
    fn line(&self, key: &str, line: String) -> bool {
        let bytes = line.len();
        let before = self.on_the_way.fetch_add(bytes, SeqCst);
        // One line is always taken, however long it is.
        let too_much = before > 0 && before + bytes > MAX_BYTES;
        if self.stopped.load(SeqCst) || too_much {
            self.on_the_way.fetch_sub(bytes, SeqCst);
            if too_much {
                tracing::error!(
                    key,
                    problem = "the disk is too slow: this recording ends",
                    "durability.recording.failed"
                );
            }
            return false;
        }
        let key = key.to_owned();
        self.sender.send(Entry::Line { key, line }).is_ok()
    }
}

impl RecordingThread {
    /// Starts to record into `folder`, which is created if need be.
    pub(super) fn start(folder: &Path) -> Result<RecordingThread, SystemError> {
        let unusable = |error: io::Error| {
            let problem = format!("names no folder that can be written to: {error}");
            SystemError::Config(ConfigError::new("record", problem))
        };
        fs::create_dir_all(folder).map_err(unusable)?;
        try_file_in(folder).map_err(unusable)?;
        let (sender, entries) = channel();
        let lines = Arc::new(Lines {
            sender,
            on_the_way: Arc::default(),
            stopped: Arc::default(),
        });
        let writer = Writer {
            folder: folder.to_owned(),
            start: clock::now().as_millis(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            on_the_way: lines.on_the_way.clone(),
            stopped: lines.stopped.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("durably-recorder".into())
            .spawn(move || writer.run(&entries))
            .map_err(SystemError::Thread)?;
        Ok(RecordingThread { lines, thread })
    }

    pub(super) fn recorder(&self) -> Arc<dyn Recorder> {
        self.lines.clone()
    }

    /// Writes what is left and ends the thread.
    pub(super) fn finish(self) {
        let _ = self.lines.sender.send(Entry::Finish);
        if self.thread.join().is_err() {
            tracing::error!(
                problem = "the recorder panicked",
                "durability.recording.failed"
            );
        }
    }
}

/// Whether files can be made in a folder shows only when one is made.
fn try_file_in(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".probe-{}", std::process::id()));
    File::create(&path)?;
    fs::remove_file(path)
}

struct Writer {
    folder: PathBuf,
    /// When the server started, so that no two of its lives share a file.
    start: u64,
    /// Whole lines that are not written yet, by key.
    waiting: BTreeMap<String, String>,
    waiting_bytes: usize,
    on_the_way: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl Writer {
    fn run(mut self, entries: &Receiver<Entry>) {
        let mut flush_at = None;
        loop {
            let now = Instant::now();
            let entry = match flush_at {
                None => entries.recv().map_err(RecvTimeoutError::from),
                Some(at) => entries.recv_timeout(at - now.min(at)),
            };
            match entry {
                Ok(Entry::Line { key, line }) => {
                    self.take(key, &line);
                    flush_at = flush_at.or(Some(now + FLUSH_EVERY));
                    if self.waiting_bytes < FLUSH_BYTES && flush_at.is_some_and(|at| now < at) {
                        continue;
                    }
                }
                Ok(Entry::Finish) | Err(RecvTimeoutError::Disconnected) => {
                    self.flush();
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.flush();
            flush_at = None;
        }
    }

    fn take(&mut self, key: String, line: &str) {
        if self.stopped.load(SeqCst) {
            self.on_the_way.fetch_sub(line.len(), SeqCst);
            return;
        }
        self.waiting_bytes += line.len();
        let waiting = self.waiting.entry(key).or_default();
        waiting.push_str(line);
        waiting.push('\n');
    }

    /// Writes what waits, a file after the other.
    fn flush(&mut self) {
        for (key, text) in std::mem::take(&mut self.waiting) {
            if let Err(error) = self.append(&key, &text) {
                self.stopped.store(true, SeqCst);
                tracing::error!(
                    %error,
                    key,
                    folder = %self.folder.display(),
                    problem = "nothing is recorded any more until the next start",
                    "durability.recording.failed"
                );
                break;
            }
        }
        let written = std::mem::take(&mut self.waiting_bytes);
        self.on_the_way.fetch_sub(written, SeqCst);
    }

    fn append(&self, key: &str, text: &str) -> io::Result<()> {
        let stem = Key::new(AccountLimit::CLASS, key).file_stem();
        let path = self.folder.join(format!("{stem}-{}.jsonl", self.start));
        let mut file = File::options().create(true).append(true).open(path)?;
        file.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_key_are_in_one_file_whatever_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let thread = RecordingThread::start(&folder.path().join("records")).unwrap();
        let recorder = thread.recorder();
        for number in 0..3 {
            assert!(recorder.line("../acme", format!("{number}")));
            assert!(recorder.line("acme", format!("{number}")));
        }
        thread.finish();
        let files: Vec<PathBuf> = fs::read_dir(folder.path().join("records"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(files.len(), 2);
        for file in files {
            assert_eq!(fs::read_to_string(file).unwrap(), "0\n1\n2\n");
        }
        assert!(!recorder.line("acme", String::new()), "nobody writes it");
    }

    #[test]
    fn a_file_that_cannot_be_written_ends_recording() {
        let folder = tempfile::tempdir().unwrap();
        let records = folder.path().join("records");
        let thread = RecordingThread::start(&records).unwrap();
        let recorder = thread.recorder();
        fs::remove_dir(&records).unwrap();
        assert!(recorder.line("acme", "x".repeat(FLUSH_BYTES)));
        while recorder.line("acme", "x".to_owned()) {
            std::thread::yield_now();
        }
        thread.finish();
        assert!(RecordingThread::start(Path::new("/dev/null/x")).is_err());
    }
}
