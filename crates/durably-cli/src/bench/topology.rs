//! A coordinator with many members, and one with many groups.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object};
use durably::outbox::Outbox;
use durably::topology::{
    Audience, Draft, Landing, NewMember, Publication, Publisher, PublisherConfig,
    StateChannelConfig, Topology, TopologyError, TopologyEventKind,
};
use durably::{OpenError, Scheduler, SchedulerConfig};
use durably_native::publishers::FolderPublisher;
use durably_native::{System, SystemConfig};
use futures::future::join_all;

use super::report::{Goal, Value};
use super::{Bench, clear, median_of, per_second};

/// The one group of the first coordinator.
const GROUP: &str = "tenant";

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    let members = bench.amount(10_000, 1_000);
    let repetitions = bench.amount(9, 3);
    bench.begin(
        "topology",
        "a group of many members, in memory; many groups in a folder",
    )?;
    let mut of_members = Vec::new();
    let folder = bench.fresh("topology");
    for _ in 0..repetitions {
        of_members.push(many_members(&folder, members).await?);
        clear(&folder)?;
    }
    let groups = bench.amount(10_000, 1_000);
    let (mut first, mut again, mut written) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.amount(3, 1) {
        let figures = many_groups(&folder, groups).await?;
        first.push(per_second(groups, figures.published));
        again.push(figures.caught_up);
        written.push(figures.written as f64);
        clear(&folder)?;
    }
    let median =
        |of: fn(&OfMembers) -> Duration| median_of(&of_members.iter().map(of).collect::<Vec<_>>());
    let many = super::report::thousands(members as f64);
    let report = &mut bench.report;
    report.line(
        &format!("one member added to {many}: committed"),
        Value::Time(median(|figures| figures.added)?),
        Goal::AtMost(Value::Time(Duration::from_millis(30))),
    )?;
    report.line(
        "the same: committed and published in memory",
        Value::Time(median(|figures| figures.added_and_published)?),
        Goal::None,
    )?;
    let staged = of_members.iter().map(|figures| figures.staged).max();
    report.line(
        "deliveries that it stages, with one channel",
        Value::Count(staged.unwrap_or(0) as f64),
        Goal::AtMost(Value::Count(1.0)),
    )?;
    report.line(
        &format!("one value changed for {many} members: committed"),
        Value::Time(median(|figures| figures.changed)?),
        Goal::AtMost(Value::Time(Duration::from_millis(300))),
    )?;
    let rates: Vec<_> = of_members
        .iter()
        .map(|figures| per_second(members, figures.delivered))
        .collect();
    report.line(
        "its deliveries to members in memory, from the commit to the last",
        Value::Rate(median_of(&rates)?),
        Goal::AtLeast(Value::Rate(5_000.0)),
    )?;
    let many = super::report::thousands(groups as f64);
    report.line(
        &format!("{many} groups created and published into a folder"),
        Value::Rate(median_of(&first)?),
        Goal::None,
    )?;
    report.line(
        "after a restart with 1 % outdated: until all are published",
        Value::Time(median_of(&again)?),
        Goal::None,
    )?;
    report.line(
        "writes into the folder for it",
        Value::Count(median_of(&written)?),
        Goal::AtMost(Value::Count((groups / 100) as f64)),
    )?;
    Ok(())
}

struct OfMembers {
    added: Duration,
    added_and_published: Duration,
    staged: u64,
    changed: Duration,
    delivered: Duration,
}

async fn many_members(folder: &Path, members: usize) -> Result<OfMembers, BoxError> {
    let publisher = Kept::default();
    let system = coordinators(folder, Some(Store::Memory(publisher)))?;
    let coordinator = system.object::<Coordinator>("c");
    let draft = Draft::members((0..members).map(|number| {
        NewMember::active(format!("{GROUP}-{number:05}"))
            .meta(serde_json::json!({"url": format!("http://10.0.{}.{}:8080", number / 256, number % 256)}))
    }));
    let figures = coordinator.call(move |coordinator| async move {
        let topology = &coordinator.topology;
        topology
            .update(GROUP, move |_| Ok(draft.state("limits", 1)))
            .await?;
        all_delivered(topology, 1).await?;

        let before = coordinator.delivered.get();
        let begun = Instant::now();
        let updated = topology
            .update(GROUP, |current| {
                let known = current.members.iter().map(NewMember::from);
                Ok(Draft::members(known.chain([NewMember::active("one-more")])))
            })
            .await?;
        let added_and_published = begun.elapsed();
        let committed = coordinator
            .changed
            .get()
            .ok_or("the update told no event")?;
        let added = committed.duration_since(begun);
        if !updated.published {
            return Err("it is not published".into());
        }
        all_delivered(topology, 2).await?;
        let staged = coordinator.delivered.get() - before;

        let begun = Instant::now();
        topology
            .update(GROUP, |_| Ok(Draft::default().state("limits", 2)))
            .await?;
        let changed = begun.elapsed();
        let begun = Instant::now();
        all_delivered(topology, 2).await?;
        let delivered = begun.elapsed();
        Ok::<_, BoxError>(OfMembers {
            added,
            added_and_published,
            staged,
            changed,
            delivered,
        })
    });
    let figures = figures.await??;
    system.shutdown().await;
    Ok(figures)
}

/// Waits until every member has the newest value.
async fn all_delivered(topology: &Topology, version: u64) -> Result<(), BoxError> {
    let timeout = Duration::from_secs(60);
    let convergence = topology
        .wait_until(GROUP, version, Audience::All, timeout)
        .await?;
    match convergence.reached(version, Audience::All) {
        true => Ok(()),
        false => Err("not all members were reached".into()),
    }
}

struct OfGroups {
    published: Duration,
    caught_up: Duration,
    written: u64,
}

async fn many_groups(folder: &Path, groups: usize) -> Result<OfGroups, BoxError> {
    let published = folder.join("published");
    let data = folder.join("data");
    let folder_of = |written: &Arc<AtomicU64>| Store::Folder(published.clone(), written.clone());
    let written = Arc::<AtomicU64>::default();
    let begun = Instant::now();
    {
        let system = coordinators(&data, Some(folder_of(&written)))?;
        update_groups(&system, groups, 1, "a").await?;
        system.shutdown().await;
    }
    let took = begun.elapsed();
    if written.load(SeqCst) != groups as u64 {
        return Err("not every group was published once".into());
    }
    {
        // Without a publisher every hundredth group changes.
        let system = coordinators(&data, None)?;
        update_groups(&system, groups, 100, "b").await?;
        system.shutdown().await;
    }
    let written = Arc::<AtomicU64>::default();
    let begun = Instant::now();
    let system = coordinators(&data, Some(folder_of(&written)))?;
    let coordinator = system.object::<Coordinator>("c");
    coordinator
        .call(move |coordinator| async move {
            for number in (0..groups).step_by(100) {
                let (group, timeout) = (group(number), Duration::from_secs(60));
                let topology = &coordinator.topology;
                topology
                    .wait_until(&group, 2, Audience::Published, timeout)
                    .await?;
            }
            Ok::<_, TopologyError>(())
        })
        .await??;
    let caught_up = begun.elapsed();
    system.shutdown().await;
    Ok(OfGroups {
        published: took,
        caught_up,
        written: written.load(SeqCst),
    })
}

fn group(number: usize) -> String {
    format!("tenant-{number:05}")
}

/// Gives every `step`th group one member.
async fn update_groups(
    system: &System,
    groups: usize,
    step: usize,
    member: &'static str,
) -> Result<(), BoxError> {
    let coordinator = system.object::<Coordinator>("c");
    let updated = coordinator.call(move |coordinator| async move {
        let numbers: Vec<_> = (0..groups).step_by(step).collect();
        for batch in numbers.chunks(500) {
            let updates = batch.iter().map(|number| {
                let (topology, group) = (coordinator.topology.clone(), group(*number));
                async move {
                    let draft = Draft::members([NewMember::active(member)]);
                    topology.update(&group, |_| Ok(draft)).await
                }
            });
            for updated in join_all(updates).await {
                if !updated?.published {
                    return Err("a group is not published".into());
                }
            }
        }
        Ok::<_, BoxError>(())
    });
    updated.await?
}

/// Where the coordinators of a measurement publish.
#[derive(Clone)]
enum Store {
    Memory(Kept),
    /// Counts what is written.
    Folder(PathBuf, Arc<AtomicU64>),
}

/// Keeps the last text of its one group, as a store does that is not version-aware.
#[derive(Clone, Default)]
struct Kept(Arc<std::sync::Mutex<String>>);

impl Publisher for Kept {
    fn is_version_aware(&self) -> bool {
        false
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        if let Ok(mut kept) = self.0.lock() {
            publication.text().clone_into(&mut kept);
        }
        Box::pin(async { Ok(Landing::Stored) })
    }
}

struct Counted(FolderPublisher, Arc<AtomicU64>);

impl Publisher for Counted {
    fn is_version_aware(&self) -> bool {
        self.0.is_version_aware()
    }

    fn publish(&self, publication: Rc<Publication>) -> LocalFuture<Result<Landing, BoxError>> {
        self.1.fetch_add(1, SeqCst);
        self.0.publish(publication)
    }
}

struct Coordinator {
    scheduler: Scheduler,
    topology: Topology,
    delivered: Rc<Cell<u64>>,
    /// When the last change was told to be committed.
    changed: Rc<Cell<Option<Instant>>>,
}

impl Object for Coordinator {
    const CLASS: &'static str = "bench-coordinator";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

fn coordinators(folder: &Path, store: Option<Store>) -> Result<System, BoxError> {
    let folder_publisher = match &store {
        Some(Store::Folder(folder, _)) => Some(FolderPublisher::open(folder)?),
        _ => None,
    };
    Ok(System::builder(folder)
        .config(SystemConfig::default())
        .class::<Coordinator>(move |host| {
            let (store, publisher) = (store.clone(), folder_publisher.clone());
            Box::pin(async move {
                let coordinator = Coordinator::build(host, store, publisher)?;
                coordinator.scheduler.open().await?;
                Ok(Rc::new(coordinator))
            })
        })
        .open()?)
}

impl Coordinator {
    fn build(
        host: Rc<dyn Host>,
        store: Option<Store>,
        folder: Option<FolderPublisher>,
    ) -> Result<Self, OpenError> {
        let scheduler = Scheduler::new(host, SchedulerConfig::default())?;
        let outbox = Outbox::new(&scheduler)?;
        let (delivered, changed) = (Rc::<Cell<u64>>::default(), Rc::<Cell<_>>::default());
        let (counted, told) = (delivered.clone(), changed.clone());
        let mut builder = Topology::builder(&outbox)
            .channel("limits", StateChannelConfig::default(), move |_, _| {
                counted.set(counted.get() + 1);
                async { Ok(()) }
            })
            .on_event(Rc::new(move |event| {
                if matches!(event.kind, TopologyEventKind::Changed { .. }) {
                    told.set(Some(Instant::now()));
                }
            }));
        let config = PublisherConfig::default();
        builder = match (store, folder) {
            (Some(Store::Memory(kept)), _) => builder.publish(kept, config),
            (Some(Store::Folder(_, written)), Some(folder)) => {
                builder.publish(Counted(folder, written), config)
            }
            _ => builder,
        };
        Ok(Coordinator {
            scheduler,
            topology: builder.build()?,
            delivered,
            changed,
        })
    }
}
