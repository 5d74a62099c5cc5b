//! The one alarm, the timers before it and alarm passes, on the virtual host.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Sql};
use durably::migrations::Migration;
use durably::scheduler::Participant;
use durably::{OpenError, Scheduler, SchedulerConfig, StorageError, Timestamp};
use durably_sim::{Alarms, VirtualObject, World};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const MINUTE: u64 = 60;
const MIN_DELAY: Duration = Duration::from_secs(15);

/// What a probe does with a pass.
#[derive(Clone, Copy, Default)]
enum Work {
    /// Removes what is due.
    #[default]
    Do,
    /// Fails, having stored nothing.
    Fail,
    /// Takes this long, once; passes meanwhile join it. Then removes what is due.
    Take(Duration),
    /// Hangs and has no row that says so.
    HangWithoutRow,
}

/// What a probe did, and is to do; outlives instances.
#[derive(Clone, Default)]
struct Script {
    work: Rc<Cell<Work>>,
    passes: Rc<RefCell<Vec<Timestamp>>>,
    begun: Rc<Cell<u64>>,
}

/// A participant whose pending times are rows.
struct Probe {
    name: &'static str,
    scheduler: Scheduler,
    world: World,
    script: Script,
    running: RefCell<Option<futures::future::Shared<LocalFuture<()>>>>,
}

const MIGRATIONS_A: &[Migration] = &[Migration {
    name: "0001_probe",
    up: "CREATE TABLE probe_a (due_at INTEGER NOT NULL) STRICT",
    down: "DROP TABLE probe_a",
}];
const MIGRATIONS_B: &[Migration] = &[Migration {
    name: "0001_probe",
    up: "CREATE TABLE probe_b (due_at INTEGER NOT NULL) STRICT",
    down: "DROP TABLE probe_b",
}];

impl Probe {
    async fn set(&self, due: &[Timestamp]) {
        let name = self.name;
        let due = due.to_vec();
        let stored = self.scheduler.transaction(move |transaction| {
            transaction.execute(&format!("DELETE FROM probe_{name}"), &[])?;
            for at in due {
                let insert = format!("INSERT INTO probe_{name} VALUES (?)");
                transaction.execute(&insert, &[at.into()])?;
            }
            Ok::<_, StorageError>(())
        });
        stored.await.expect("storage works");
    }

    async fn finish(&self, now: Timestamp) -> Result<(), StorageError> {
        let name = self.name;
        let finished = self.scheduler.transaction(move |transaction| {
            let delete = format!("DELETE FROM probe_{name} WHERE due_at <= ?");
            transaction.execute(&delete, &[now.into()])
        });
        finished.await.map(|_| ())
    }
}

impl Participant for Probe {
    fn name(&self) -> &'static str {
        self.name
    }

    fn migrations(&self) -> &'static [Migration] {
        match self.name {
            "a" => MIGRATIONS_A,
            _ => MIGRATIONS_B,
        }
    }

    fn load(&self, _sql: &dyn Sql, _now: Timestamp) -> Result<(), StorageError> {
        Ok(())
    }

    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        let query = format!("SELECT min(due_at) FROM probe_{}", self.name);
        Ok(sql
            .first(&query, &[], |row| row.optional_time(0))?
            .flatten())
    }

    fn next_wake_at(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        let query = format!(
            "SELECT min(due_at) FROM probe_{} WHERE due_at > ?",
            self.name
        );
        let next = sql.first(&query, &[now.into()], |row| row.optional_time(0))?;
        Ok(next.flatten())
    }

    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move {
            self.script.passes.borrow_mut().push(now);
            match self.script.work.get() {
                Work::Do => self.finish(now).await?,
                Work::Fail => return Err("this probe fails".into()),
                Work::HangWithoutRow => pending().await,
                Work::Take(time) => {
                    let own = self.clone();
                    let running = self
                        .running
                        .borrow_mut()
                        .get_or_insert_with(|| {
                            own.script.begun.set(own.script.begun.get() + 1);
                            let sleep = own.world.sleep(time);
                            let work: LocalFuture<()> = Box::pin(sleep);
                            futures::FutureExt::shared(work)
                        })
                        .clone();
                    running.await;
                    self.finish(now).await?;
                }
            }
            Ok(())
        })
    }
}

struct Probes {
    scheduler: Scheduler,
    a: Rc<Probe>,
    b: Rc<Probe>,
}

impl durably::host::Object for Probes {
    const CLASS: &'static str = "probes";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

struct Fixture {
    world: World,
    object: VirtualObject<Probes>,
    a: Script,
    b: Script,
}

impl Fixture {
    fn new(alarms: Alarms) -> Self {
        Fixture::with(alarms, SchedulerConfig::default())
    }

    fn with(alarms: Alarms, config: SchedulerConfig) -> Self {
        let world = World::new(1_700_000_000_000);
        let (a, b) = (Script::default(), Script::default());
        let scripts = (a.clone(), b.clone());
        let in_object = world.clone();
        let object = world.object("p", alarms, move |host| {
            let probes = build(host, config.clone(), &in_object, &scripts);
            async move {
                let probes = probes?;
                probes.scheduler.open().await?;
                Ok(probes)
            }
        });
        Fixture {
            world,
            object,
            a,
            b,
        }
    }

    fn set(&self, a: &[Timestamp], b: &[Timestamp]) {
        let (a, b) = (a.to_vec(), b.to_vec());
        let set = self.object.call(move |probes| async move {
            probes.a.set(&a).await;
            probes.b.set(&b).await;
        });
        self.world.block_on(set).expect("the object answers");
    }

    /// An alarm pass by hand, until it returns.
    fn fire(&self) {
        let fired = self.world.block_on(self.object.fire_alarm());
        fired.expect("the alarm is armed again");
    }
}

fn build(
    host: Rc<dyn Host>,
    config: SchedulerConfig,
    world: &World,
    scripts: &(Script, Script),
) -> Result<Rc<Probes>, OpenError> {
    let scheduler = Scheduler::new(host, config)?;
    let probe = |name, script: &Script| {
        let probe = Rc::new(Probe {
            name,
            scheduler: scheduler.clone(),
            world: world.clone(),
            script: script.clone(),
            running: RefCell::default(),
        });
        scheduler.attach(&probe).map(|()| probe)
    };
    let a = probe("a", &scripts.0)?;
    let b = probe("b", &scripts.1)?;
    Ok(Rc::new(Probes { scheduler, a, b }))
}

#[test]
fn the_alarm_follows_the_earliest_pending_time() {
    let fixture = Fixture::new(Alarms::Automatic);
    let now = fixture.world.now();
    fixture.set(&[now + seconds(90)], &[now + seconds(60)]);
    assert_eq!(fixture.object.alarm(), Some(now + seconds(60)));
    fixture.set(&[now + seconds(30)], &[now + seconds(60)]);
    assert_eq!(fixture.object.alarm(), Some(now + seconds(30)));
    fixture.set(&[], &[]);
    assert_eq!(fixture.object.alarm(), None);
    fixture.set(&[now + seconds(30)], &[now + seconds(100)]);
    fixture.world.advance(seconds(30));
    assert_eq!(fixture.a.passes.borrow()[..], [now + seconds(30)]);
    assert_eq!(fixture.object.alarm(), Some(now + seconds(100)));
    fixture.world.advance(seconds(200));
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn a_time_that_moves_away_costs_no_write_and_is_still_met() {
    let fixture = Fixture::new(Alarms::Automatic);
    let now = fixture.world.now();
    fixture.set(&[now + seconds(60)], &[]);
    let (a, late) = (now + seconds(600), now + seconds(60));
    let moved = fixture.object.call(move |probes| async move {
        let moved = probes.scheduler.transaction(move |transaction| {
            transaction.execute("UPDATE probe_a SET due_at = ?", &[a.into()])
        });
        moved.await
    });
    assert_eq!(fixture.world.block_on(moved).expect("it answers"), Ok(1));
    assert_eq!(
        fixture.object.alarm(),
        Some(late),
        "the alarm stays where it was"
    );
    fixture.world.advance(seconds(60));
    assert_eq!(fixture.object.alarm(), Some(a));
    fixture.world.advance(seconds(540));
    assert_eq!(fixture.a.passes.borrow().last(), Some(&a));
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn sooner_than_the_minimum_a_timer_wakes_the_object() {
    let fixture = Fixture::new(Alarms::Automatic);
    let now = fixture.world.now();
    fixture.set(&[now + seconds(1)], &[now + seconds(2)]);
    assert_eq!(fixture.object.alarm(), Some(now + MIN_DELAY));
    fixture.world.advance(Duration::from_millis(999));
    assert_eq!(fixture.a.passes.borrow().len(), 0);
    fixture.world.advance(Duration::from_millis(1));
    assert_eq!(fixture.a.passes.borrow()[..], [now + seconds(1)]);
    fixture.world.advance(seconds(1));
    assert_eq!(
        fixture.b.passes.borrow()[..],
        [now + seconds(1), now + seconds(2)]
    );
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn the_minimum_can_be_lowered_to_a_second() {
    let mut config = SchedulerConfig::default();
    config.alarm_min_delay = seconds(1);
    let fixture = Fixture::with(Alarms::Automatic, config);
    let now = fixture.world.now();
    fixture.set(&[now], &[]);
    assert_eq!(fixture.object.alarm(), Some(now + seconds(1)));
}

#[test]
fn a_timer_is_set_again_also_by_a_pass_that_stores_nothing() {
    let fixture = Fixture::new(Alarms::Automatic);
    let now = fixture.world.now();
    fixture.a.work.set(Work::Fail);
    fixture.set(&[now + seconds(1)], &[now + seconds(2)]);
    fixture.world.advance(seconds(2));
    assert_eq!(
        fixture.b.passes.borrow()[..],
        [now + seconds(1), now + seconds(2)]
    );
}

#[test]
fn after_an_eviction_the_alarm_stands_in_for_the_timer() {
    let fixture = Fixture::new(Alarms::Automatic);
    let now = fixture.world.now();
    fixture.set(&[now + seconds(1)], &[]);
    fixture.object.crash();
    fixture.world.advance(seconds(14));
    assert_eq!(fixture.a.passes.borrow().len(), 0);
    assert!(!fixture.object.is_open());
    fixture.world.advance(seconds(1));
    assert_eq!(fixture.a.passes.borrow()[..], [now + MIN_DELAY]);
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn a_participant_that_fails_stops_nobody_and_is_tried_again() {
    let fixture = Fixture::new(Alarms::Automatic);
    let now = fixture.world.now();
    fixture.a.work.set(Work::Fail);
    fixture.set(&[now + seconds(60)], &[now + seconds(60)]);
    fixture.world.advance(seconds(60));
    assert_eq!(fixture.b.passes.borrow()[..], [now + seconds(60)]);
    assert_eq!(fixture.object.alarm(), Some(now + seconds(75)));
    fixture.world.advance(seconds(30));
    assert_eq!(fixture.a.passes.borrow().len(), 3);
    fixture.a.work.set(Work::Do);
    fixture.world.advance(seconds(15));
    assert_eq!(fixture.object.alarm(), None);
    assert_eq!(fixture.object.instances(), 1);
}

#[test]
fn opening_arms_an_alarm_that_was_lost_and_removes_one_that_nobody_needs() {
    let fixture = Fixture::new(Alarms::Manual);
    let now = fixture.world.now();
    fixture.set(&[now + seconds(60)], &[]);
    let alarm = |at: Option<Timestamp>| {
        fixture.object.crash();
        let set = fixture
            .object
            .storage()
            .transaction(move |transaction| transaction.set_alarm(at));
        assert_eq!(set, Ok(()));
        fixture
            .world
            .block_on(fixture.object.open())
            .expect("it opens");
        fixture.world.run_until_idle();
        fixture.object.alarm()
    };
    assert_eq!(alarm(None), Some(now + seconds(60)));
    fixture.set(&[], &[]);
    assert_eq!(alarm(Some(now + seconds(60))), None);
}

#[test]
fn an_alarm_that_never_fired_is_armed_again_by_the_next_commit() {
    // The host forgets this alarm while the object lives.
    let fixture = Fixture::new(Alarms::Manual);
    let now = fixture.world.now();
    fixture.set(&[now + seconds(60)], &[]);
    fixture.a.work.set(Work::Fail);
    fixture.world.advance(seconds(70));
    fixture.set(&[now + seconds(60)], &[]);
    assert_eq!(
        fixture.object.alarm(),
        Some(now + seconds(60)),
        "it may be about to fire"
    );
    fixture.world.advance(seconds(10));
    fixture.set(&[now + seconds(60)], &[]);
    assert_eq!(fixture.object.alarm(), Some(now + seconds(95)));
}

#[test]
fn a_long_pass_is_handed_to_the_next_alarm_which_joins_its_work() {
    let fixture = Fixture::new(Alarms::Manual);
    let now = fixture.world.now();
    fixture.a.work.set(Work::Take(seconds(20 * MINUTE)));
    fixture.set(&[now], &[]);
    fixture.fire();
    assert_eq!(fixture.world.now(), now + seconds(14 * MINUTE));
    let fallback = fixture.world.now() + MIN_DELAY;
    assert_eq!(fixture.object.alarm(), Some(fallback));
    fixture.world.advance_to(fallback);
    fixture.fire();
    assert_eq!(
        fixture.world.now(),
        now + seconds(20 * MINUTE),
        "it waits for the same work"
    );
    assert_eq!(fixture.a.begun.get(), 1);
    assert_eq!(fixture.object.alarm(), None);
}

#[test]
fn a_long_pass_does_not_hold_up_what_is_due_meanwhile() {
    let fixture = Fixture::new(Alarms::Automatic);
    let now = fixture.world.now();
    fixture.a.work.set(Work::Take(seconds(10 * MINUTE)));
    fixture.b.work.set(Work::Fail);
    fixture.set(&[now], &[now + seconds(18)]);
    fixture.object.crash();
    // The alarm at 15 s begins a pass that stores nothing for long.
    fixture.world.advance(seconds(20));
    assert_eq!(fixture.a.begun.get(), 1);
    assert_eq!(
        fixture.b.passes.borrow()[..],
        [now + seconds(15), now + seconds(18)]
    );
}

#[test]
fn work_without_a_row_is_covered_by_the_fallback_alarm() {
    let fixture = Fixture::new(Alarms::Manual);
    let now = fixture.world.now();
    fixture.a.work.set(Work::HangWithoutRow);
    fixture.set(&[], &[now + seconds(60 * MINUTE)]);
    fixture.fire();
    let handed_over = now + seconds(14 * MINUTE);
    assert_eq!(fixture.world.now(), handed_over);
    assert_eq!(fixture.object.alarm(), Some(handed_over + MIN_DELAY));
    fixture.set(&[], &[]);
    fixture.fire();
    let again = handed_over + seconds(14 * MINUTE);
    assert_eq!(fixture.object.alarm(), Some(again + MIN_DELAY));
}

#[test]
fn a_capability_attaches_once_and_in_time() {
    let world = World::new(0);
    let outside = world.clone();
    let object = world.object("p", Alarms::Manual, move |host| {
        let outside = outside.clone();
        async move {
            let scripts = <(Script, Script)>::default();
            let probes = build(host.clone(), SchedulerConfig::default(), &outside, &scripts)?;
            let scheduler = &probes.scheduler;
            assert_eq!(
                scheduler.attach(&probes.a),
                Err(OpenError::AttachedTwice("a"))
            );
            let second = Scheduler::new(host.clone(), SchedulerConfig::default());
            assert_eq!(second.err(), Some(OpenError::SecondScheduler));
            // Whoever is built on the object without a scheduler finds the one that there is.
            let found = Scheduler::of(host)?;
            assert_eq!(found.attach(&probes.b), Err(OpenError::AttachedTwice("b")));
            scheduler.open().await?;
            let late = Rc::new(Probe {
                name: "late",
                scheduler: scheduler.clone(),
                world: outside,
                script: Script::default(),
                running: RefCell::default(),
            });
            let refused = scheduler.attach(&late).expect_err("it is open");
            assert_eq!(refused, OpenError::AttachedLate("late"));
            assert_eq!(refused.code(), "attached_late");
            assert_eq!(scheduler.open().await, Err(OpenError::OpenedTwice));
            Ok(probes)
        }
    });
    assert_eq!(world.block_on(object.open()), Ok(()));
    // After a restart everything attaches again, and nothing has changed.
    object.crash();
    assert_eq!(world.block_on(object.open()), Ok(()));
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |change: fn(&mut SchedulerConfig)| {
        let mut config = SchedulerConfig::default();
        change(&mut config);
        let fixture = Fixture::with(Alarms::Manual, config);
        let error = fixture.world.block_on(fixture.object.open());
        error.expect_err("refused").to_string()
    };
    let short = refused(|config| config.alarm_min_delay = Duration::from_millis(999));
    assert!(
        short.contains("alarm_min_delay must be between 1 and 15 s"),
        "{short}"
    );
    let long = refused(|config| config.alarm_min_delay = seconds(16));
    assert!(long.contains("alarm_min_delay"), "{long}");
    let none = refused(|config| config.alarm_concurrency = 0);
    assert!(
        none.contains("alarm_concurrency must be between 1 and"),
        "{none}"
    );
    let never = refused(|config| config.alarm_handoff = Duration::ZERO);
    assert!(never.contains("alarm_handoff"), "{never}");
}

#[test]
fn while_one_keeps_the_alarm_busy_the_others_are_woken_by_timers() {
    let fixture = Fixture::new(Alarms::Automatic);
    let now = fixture.world.now();
    fixture.a.work.set(Work::Take(seconds(10 * MINUTE)));
    fixture.set(&[now + seconds(20)], &[]);
    fixture.world.advance(seconds(20));
    assert_eq!(fixture.a.begun.get(), 1);
    // The alarm is armed for what is still pending, but is not delivered before the pass has ended.
    let (one, other) = (now + seconds(50), now + seconds(90));
    fixture.set(&[now + seconds(20)], &[one, other]);
    fixture.world.advance(seconds(100));
    let passes = fixture.b.passes.borrow();
    assert!(passes.contains(&one), "{passes:?}");
    assert!(passes.contains(&other), "{passes:?}");
}

#[cfg(feature = "deliberate-bugs")]
#[test]
fn deliberate_bugs_are_found() {
    durably_sim::proof::by_own_tests("scheduler");
}
