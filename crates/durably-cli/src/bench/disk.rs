//! The disk by itself: how long it takes to flush 4 KiB that are overwritten, as a commit does.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use durably::error::BoxError;

use super::report::{Goal, Value};
use super::{Bench, median_of};

const BLOCK: usize = 4_096;

/// Many disks are slower after a pause than one flush after the other, and so is a lone commit.
const REST: Duration = Duration::from_millis(5);

pub(super) fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin("disk", "the disk by itself")?;
    let busy = flush(&bench.folder, bench.amount(2_000, 200))?;
    let rested = flush_after(REST, &bench.folder, bench.amount(200, 50))?;
    let report = &mut bench.report;
    report.line(
        "fdatasync of 4 KiB, overwriting, one after the other",
        Value::Time(busy),
        Goal::None,
    )?;
    report.line(
        "the same after 5 ms without one",
        Value::Time(rested),
        Goal::None,
    )?;
    Ok(())
}

/// The median time of so many flushes of one block in `folder`, one after the other.
pub(super) fn flush(folder: &Path, times: usize) -> Result<Duration, BoxError> {
    flush_after(Duration::ZERO, folder, times)
}

fn flush_after(rest: Duration, folder: &Path, times: usize) -> Result<Duration, BoxError> {
    let path = folder.join("flush");
    let mut file = File::create(&path)?;
    let mut block = [0; BLOCK];
    file.write_all(&block)?;
    file.sync_all()?;
    let mut flushes = Vec::with_capacity(times);
    for time in 0..times {
        block[0] = u8::try_from(time % 256).unwrap_or_default();
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        let start = Instant::now();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&block)?;
        file.sync_data()?;
        flushes.push(start.elapsed());
    }
    std::fs::remove_file(&path)?;
    median_of(&flushes)
}
