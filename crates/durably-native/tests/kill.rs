//! A process that is killed with SIGKILL at random moments, again and again: what it had
//! acknowledged is all there, and committed alarms fire without anybody calling their objects.
//!
//! The child is this test binary, told by its environment to be one.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{Call, Event, Fixture, Notes, Plan, builder};
use durably_native::SystemConfig;
use futures::future::join_all;
use tokio::sync::mpsc;

const FOLDER: &str = "DURABLY_TEST_KILL_FOLDER";
const ROUND: &str = "DURABLY_TEST_KILL_ROUND";
const NAMES: u64 = 30;
const ROUNDS: u64 = 12;

/// So few may be open, for so short a time, that objects close and open all the while.
fn busy_config() -> SystemConfig {
    let mut config = SystemConfig::default();
    config.threads = 4;
    config.max_open_objects = 8;
    config.idle_timeout = Duration::from_millis(3);
    config.open_wait = Duration::from_secs(600);
    config.checkpoint_pages = 20;
    config
}

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Does nothing unless told to be the child: then it writes until it is killed.
#[tokio::test]
async fn child() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let round: u64 = std::env::var(ROUND)
        .ok()
        .and_then(|round| round.parse().ok())
        .expect("the parent says which round it is");
    // Alarms go off here too, but only the parent's handler settles them.
    let plan = Arc::new(Plan::default());
    plan.failures.store(u32::MAX, SeqCst);
    let (events, _heard) = mpsc::unbounded_channel();
    let system = builder(Path::new(&folder), busy_config(), events, plan)
        .open()
        .expect("the folder of a killed process is free");
    let writers = (0..6).map(|writer| {
        let system = system.clone();
        async move {
            let mut numbers = Numbers(round * 1_000 + writer + 1);
            for count in 0u64.. {
                let name = format!("n{}", numbers.below(NAMES));
                let text = format!("{round}.{writer}.{count}");
                let object = system.object::<Notes>(&name);
                object.write_with_alarm(&text, numbers.below(60)).await;
                let mut out = std::io::stdout();
                writeln!(out, "acknowledged {name} {text}")
                    .and_then(|()| out.flush())
                    .expect("the parent listens");
            }
        }
    });
    join_all(writers).await;
}

/// Runs a child until it has acknowledged so many notes, and a moment longer; returns what it
/// acknowledged.
fn run_and_kill(
    folder: &Path,
    round: u64,
    notes: usize,
    moment: Duration,
) -> Vec<(String, String)> {
    let mut child = Command::new(std::env::current_exe().expect("the test binary"))
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut acknowledged = Vec::new();
    let mut note = |line: &str| {
        let mut words = line.split(' ').skip_while(|word| *word != "acknowledged");
        if let (Some(_), Some(name), Some(text)) = (words.next(), words.next(), words.next()) {
            acknowledged.push((name.to_owned(), text.to_owned()));
        }
        acknowledged.len()
    };
    for line in lines.by_ref() {
        if note(&line.expect("text")) >= notes {
            break;
        }
    }
    // Where in its work this finds it is left to chance.
    std::thread::sleep(moment);
    child.kill().expect("SIGKILL");
    child.wait().expect("it is dead");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    // The last line may be cut short; it is no acknowledgement then.
    for line in rest.iter().filter(|line| line.starts_with("acknowledged")) {
        note(line);
    }
    acknowledged
}

#[tokio::test]
async fn what_was_acknowledged_survives_and_its_alarms_fire() {
    if std::env::var(FOLDER).is_ok() {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.config = busy_config();
    let seed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |since| since.subsec_nanos() as u64 | 1);
    let mut numbers = Numbers(seed);
    let mut acknowledged: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for round in 1..=ROUNDS {
        let notes = 1 + numbers.below(120) as usize;
        let moment = Duration::from_micros(numbers.below(5_000));
        for (name, text) in run_and_kill(fixture.data(), round, notes, moment) {
            acknowledged.entry(name).or_default().push(text);
        }
    }

    // Nobody calls anything before every object that was written to has handled its alarm.
    let system = fixture.open();
    let mut silent: Vec<String> = acknowledged.keys().cloned().collect();
    while !silent.is_empty() {
        if let Event::Alarm(name, _) = fixture.event().await {
            silent.retain(|left| *left != name);
        }
    }
    for (name, texts) in &acknowledged {
        let stored = system.object::<Notes>(name).read().await;
        for text in texts {
            let found = stored.iter().find(|(stored, _)| stored == text);
            assert_eq!(found, Some(&(text.clone(), true)), "{name}, seed {seed}");
        }
    }
    system.shutdown().await;
    assert_eq!(fixture.journal(), (0, 0));
}
