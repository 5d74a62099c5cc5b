//! Cached reads of a topology: one group or a thousand, on one thread and on two, beside what one would
//! write oneself (`arc-swap` around a `HashMap`) and a cache off the shelf (`moka`), all doing the same
//! work: find the group, see that its copy is young enough, look at its version.
//!
//! Every figure is the median over many batches of a few hundred microseconds, so that what else the machine
//! does costs some batches and not the figure. On two threads both run the same batches at once.

#[cfg(feature = "peers")]
mod peers;
mod published;

use std::future::Future;
use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably::layers::Timer;
use durably::topology::{MemoryPublisher, ReaderOptions};
use durably_native::reading::{Reader, ReaderClock, ReaderRandom};
use futures::future::join_all;

use super::report::{Goal, Value};
use super::{Bench, clear, median_of};

const GROUPS: usize = 1_000;
const CALLERS: usize = 1_000;

/// Longer than it takes to measure.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Looks up this many groups, in the order given, from the start again if they do not suffice; something
/// that depends on all of them.
type Batch = Box<dyn Fn(&[String], usize) -> u64 + Sync>;

/// Who takes part, and the time of one lookup in each batch, by number of groups and of threads.
struct Contestant {
    name: &'static str,
    batch: Batch,
    times: [[Vec<f64>; 2]; 2],
}

impl Contestant {
    fn new(name: &'static str, lookup: impl Fn(&str) -> u64 + Sync + 'static) -> Contestant {
        let batch = move |groups: &[String], count: usize| {
            let groups = groups.iter().cycle().take(count);
            groups.fold(0u64, |sum, group| sum.wrapping_add(lookup(group)))
        };
        Contestant {
            name,
            batch: Box::new(batch),
            times: Default::default(),
        }
    }
}

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    let what = "cached reads: find the group, see that its copy is young enough; a cold group";
    bench.report.begin_apart_from_disk("reader", what)?;
    let names: Vec<String> = (0..GROUPS)
        .map(|index| format!("tenant-{index:04}"))
        .collect();
    let mut contestants = vec![Contestant::new("the clock alone", |_| {
        ReaderClock.now().as_millis()
    })];
    let folder = bench.fresh("reader");
    let store = published::store(&folder, &names).await?;
    clear(&folder)?;
    let reader = filled(store.clone(), &names).await?;
    #[cfg(feature = "peers")]
    let peers = peers::contestants(&reader, &names).await?;
    contestants.push(Contestant::new("TopologyReader::get", move |group| {
        // In its place, as whoever awaits it does.
        let reading = pin!(reader.get(group));
        match reading.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(reading)) => reading.version(),
            _ => 0,
        }
    }));
    #[cfg(feature = "peers")]
    contestants.extend(peers);
    let rounds = bench.amount(15, 3);
    for round in 0..=rounds {
        for groups in 0..2 {
            for threads in 0..2 {
                let turns = contestants.len();
                for turn in 0..turns {
                    let contestant = &mut contestants[(round + turn) % turns];
                    let names = if groups == 0 { &names[..1] } else { &names[..] };
                    let times = run(&contestant.batch, names, threads + 1);
                    // The first round fills caches.
                    if round > 0 {
                        contestant.times[groups][threads].extend(times);
                    }
                }
            }
        }
    }
    print(bench, &contestants)?;
    cold(bench, store).await
}

/// The time of one lookup in each of several batches on so many threads at once, in nanoseconds.
fn run(batch: &Batch, names: &[String], threads: usize) -> Vec<f64> {
    const BATCHES: usize = 20;
    const LOOKUPS: usize = 5_000;
    // Not in the order in which they were put in; 389 has no divisor in common with their number.
    let start = Barrier::new(threads);
    let one = |thread: usize| {
        let order = (0..names.len()).map(|index| (index * 389 + thread * 500) % names.len());
        let names: Vec<String> = order.map(|index| names[index].clone()).collect();
        start.wait();
        let times = (0..BATCHES).map(|_| {
            let began = Instant::now();
            std::hint::black_box(batch(&names, LOOKUPS));
            began.elapsed().as_secs_f64() * 1e9 / LOOKUPS as f64
        });
        times.collect::<Vec<f64>>()
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        let mut times = one(0);
        for other in others {
            times.extend(other.join().unwrap_or_default());
        }
        times
    })
}

/// A reader that has read all of them.
async fn filled(
    store: MemoryPublisher,
    names: &[String],
) -> Result<Reader<MemoryPublisher>, BoxError> {
    let mut options = ReaderOptions::default();
    options.ttl = TTL;
    let reader = Reader::new(options, store, ReaderClock, ReaderRandom)?;
    for name in names {
        reader.get(name).await?;
    }
    Ok(reader)
}

fn print(bench: &mut Bench, contestants: &[Contestant]) -> Result<(), BoxError> {
    for (groups, of) in ["of one group", "of 1,000 groups"].into_iter().enumerate() {
        for contestant in contestants {
            let ours = contestant.name.starts_with("TopologyReader");
            let one = median_of(&contestant.times[groups][0])?;
            let two = median_of(&contestant.times[groups][1])?;
            let time = |nanos: f64| Value::Time(Duration::from_secs_f64(nanos * 1e-9));
            let goal = |goal: Goal| if ours { goal } else { Goal::None };
            let name = contestant.name;
            bench.report.line(
                &format!("{of}, one thread: {name}"),
                time(one),
                goal(Goal::AtMost(Value::Time(Duration::from_nanos(100)))),
            )?;
            bench.report.line(
                &format!("{of}, two threads: {name}: throughput, to one thread"),
                Value::Ratio(2.0 * one / two),
                goal(Goal::AtLeast(Value::Ratio(1.6))),
            )?;
        }
    }
    if cfg!(not(feature = "peers")) {
        let why = "compiled with the feature peers only";
        bench.report.skipped("arc-swap and moka", why)?;
    }
    Ok(())
}

/// Many callers at one moment on a group that nobody has read.
async fn cold(bench: &mut Bench, published: MemoryPublisher) -> Result<(), BoxError> {
    let reads = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let store = move |group: &str| {
        counted.fetch_add(1, Ordering::Relaxed);
        let text = published.read(group).map(|text| text.to_string());
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok::<_, BoxError>(text)
        }
    };
    let reader = Reader::new(ReaderOptions::default(), store, ReaderClock, ReaderRandom)?;
    let answers = join_all((0..CALLERS).map(|_| reader.get("tenant-0000"))).await;
    for answer in answers {
        answer?;
    }
    bench.report.line(
        "reads of the store by 1,000 callers at one moment on a cold group",
        Value::Count(reads.load(Ordering::Relaxed) as f64),
        Goal::AtMost(Value::Count(1.0)),
    )?;
    Ok(())
}
