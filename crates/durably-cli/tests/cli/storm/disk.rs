//! The disk of a server runs full while it works, and has room again: errors meanwhile are typed, nothing that
//! was acknowledged is lost, and it goes on without a restart.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::fleet::Fleet;
use super::limits::Sharing;
use super::settings::Storm;

/// Of each server. Each of its 16 objects may have a write-ahead log of 4 MiB.
const DISK_BYTES: u64 = 128 << 20;

/// A small disk of its own at a server's data folder; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Path) -> Result<Disk, String> {
        std::fs::create_dir(folder).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={DISK_BYTES}"), "tmpfs"])
            .arg(folder)
            .output();
        let output = mount.map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(Disk(folder.to_owned())),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Leaves at most `room` bytes.
    fn fill(&self, room: u64) {
        let mut ballast = File::create(self.ballast()).unwrap();
        let block = vec![0; 64 << 10];
        loop {
            match ballast.write(&block) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
        let length = ballast.metadata().unwrap().len();
        ballast.set_len(length.saturating_sub(room)).unwrap();
    }

    fn make_room(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, for a server that was not ended yet.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn storm_of_full_disks() {
    let storm = Storm::new("full disks", "STORM_FULL_DISKS", 6);
    let sharing = [
        Sharing::Grants,
        Sharing::Strict,
        Sharing::Under,
        Sharing::Over,
    ];
    let disks = std::cell::RefCell::new(Vec::new());
    let refused = std::cell::Cell::new(None);
    let fleet = Fleet::start(&sharing, &["storage_full"], |_, setup| {
        match Disk::mount(&setup.data_dir()) {
            Ok(disk) => disks.borrow_mut().push(disk),
            Err(problem) => refused.set(Some(problem)),
        }
        // It would say at length that the disk is full.
        setup.log_level("off")
    })
    .await;
    if let Some(problem) = refused.take() {
        println!("skipped: a disk cannot be mounted here: {problem}");
        return;
    }
    let disks = disks.into_inner();
    let blows = async {
        let mut random = storm.random(1);
        let (mut restarts, mut refusals) = (0, 0);
        for number in 0..storm.blows {
            tokio::time::sleep(Duration::from_millis(200 + random.below(500))).await;
            let index = number as usize % 3;
            let (seat, disk) = (fleet.seats()[index], &disks[index]);
            disk.fill(random.below(3) * random.below(64 << 10));
            tokio::time::sleep(Duration::from_millis(300 + random.below(900))).await;
            if random.below(3) == 0 {
                seat.kill().await;
                restarts += 1;
                let runs = seat.start_if_there_is_room().await;
                tokio::time::sleep(Duration::from_millis(random.below(200))).await;
                disk.make_room();
                if !runs {
                    refusals += 1;
                    seat.start().await;
                }
            } else {
                disk.make_room();
            }
        }
        format!(
            "{} times a full disk, {restarts} restarts meanwhile, of which {refusals} refused until there was room",
            storm.blows
        )
    };
    fleet.weather(&storm, blows).await;
}
