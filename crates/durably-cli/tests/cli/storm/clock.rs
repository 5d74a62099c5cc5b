//! A server's wall clock is set forward or back by hours while it runs, and set right again.
//!
//! The process sees the clock through libfaketime, which reads the offset from a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::fleet::Fleet;
use super::limits::Sharing;
use super::settings::Storm;
use crate::support::endpoint::Endpoint;
use crate::support::{Setup, until};

const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// Offsets are up to so many seconds, either way.
const FARTHEST: u64 = 6 * 60 * 60;

/// The clocks of all servers, by name.
struct Clocks(TempDir);

impl Clocks {
    fn new() -> Clocks {
        Clocks(TempDir::new().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn set(&self, name: &str, seconds: i64) {
        // Moved into place whole: the library reads it at any moment.
        let draft = self.file("draft");
        std::fs::write(&draft, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(draft, self.file(name)).unwrap();
    }

    fn equip(&self, library: &Path, name: &str, setup: Setup) -> Setup {
        self.set(name, 0);
        setup
            .variable("LD_PRELOAD", &library.to_string_lossy())
            .variable(
                "FAKETIME_TIMESTAMP_FILE",
                &self.file(name).to_string_lossy(),
            )
            .variable("FAKETIME_NO_CACHE", "1")
            // Only the wall clock is set; time goes by as ever.
            .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            // Processes that are killed would leave it behind.
            .variable("FAKETIME_DISABLE_SHM", "1")
            .variable("NO_FAKE_STAT", "1")
    }
}

/// Where Debian's package libfaketime puts the library.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    let mut found = folders.filter_map(|folder| Some(folder.ok()?.path().join(LIBRARY)));
    found.find(|path| path.exists())
}

#[tokio::test(flavor = "multi_thread")]
async fn storm_of_clock_steps() {
    let storm = Storm::new("clock steps", "STORM_STEPS", 14);
    let Some(library) = library() else {
        println!("skipped: there is no {LIBRARY} in /usr/lib (Debian's package libfaketime)");
        return;
    };
    let clocks = Clocks::new();
    let sharing = [
        Sharing::Grants,
        Sharing::Strict,
        Sharing::Under,
        Sharing::Over,
    ];
    let equip = |name, setup| clocks.equip(&library, name, setup);
    let fleet = Fleet::start(&sharing, &[], equip).await;
    let blows = async {
        let mut random = storm.random(1);
        for _ in 0..storm.blows {
            tokio::time::sleep(Duration::from_millis(random.below(700))).await;
            let seat = fleet.some_seat(&mut random);
            let seconds = match random.below(3) {
                0 => 0,
                1 => 1 + random.below(FARTHEST) as i64,
                _ => -1 - random.below(FARTHEST) as i64,
            };
            clocks.set(seat.name, seconds);
            if random.below(4) == 0 {
                seat.kill().await;
                seat.start().await;
            }
        }
        for seat in fleet.seats() {
            clocks.set(seat.name, 0);
        }
        format!("{} steps", storm.blows)
    };
    fleet.weather(&storm, blows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_is_not_put_off_by_a_clock_that_is_set_back() {
    let Some(library) = library() else {
        println!("skipped: there is no {LIBRARY} in /usr/lib (Debian's package libfaketime)");
        return;
    };
    let clocks = Clocks::new();
    let endpoint = Endpoint::start().await;
    let setup = clocks.equip(&library, "one", Setup::new(endpoint.url()));
    let job = |id: &str| json!({"account": "acme", "id": id, "body": {"answers": [503, 503, 200]}});
    let begun = |id: &'static str| {
        let endpoint = &endpoint;
        until("a first attempt", move || async move {
            let seen = endpoint.seen();
            let of_job = |run: &(String, Value)| run.1["id"] == id;
            seen.requests.iter().any(of_job).then_some(())
        })
    };
    let hours = 3 * 60 * 60;
    clocks.set("one", hours);
    let server = setup.start().await;
    server.post("jobs", &job("while it runs")).await;
    begun("while it runs").await;
    clocks.set("one", 0);
    server
        .until_state("acme", "while it runs", "completed")
        .await;
    clocks.set("one", 2 * hours);
    server.kill().await;
    let server = setup.start().await;
    server.post("jobs", &job("while it is down")).await;
    begun("while it is down").await;
    server.kill().await;
    clocks.set("one", 0);
    let server = setup.start().await;
    server
        .until_state("acme", "while it is down", "completed")
        .await;
}
