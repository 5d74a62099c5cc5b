//! What opening an object does to its alarm, on the virtual host.

use std::rc::Rc;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Object, Sql};
use durably::migrations::Migration;
use durably::scheduler::Participant;
use durably::{Scheduler, SchedulerConfig, StorageError, Timestamp};
use durably_sim::{Alarms, VirtualObject, World};

const MIN_DELAY: Duration = Duration::from_secs(15);

/// A capability that remembers times and forgets them when they have come.
struct Reminders {
    scheduler: Scheduler,
}

impl Participant for Reminders {
    fn name(&self) -> &'static str {
        "reminders"
    }

    fn migrations(&self) -> &'static [Migration] {
        &[Migration {
            name: "0001-create",
            up: "CREATE TABLE reminders (due INTEGER PRIMARY KEY) STRICT",
            down: "DROP TABLE reminders",
        }]
    }

    fn load(&self, _: &dyn Sql, _: Timestamp) -> Result<(), StorageError> {
        Ok(())
    }

    fn next_pending_at(&self, sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        let due = sql.first("SELECT min(due) FROM reminders", &[], |row| {
            row.optional_time(0)
        })?;
        Ok(due.flatten())
    }

    fn next_wake_at(
        &self,
        sql: &dyn Sql,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        let later = sql.first(
            "SELECT min(due) FROM reminders WHERE due > ?",
            &[now.into()],
            |row| row.optional_time(0),
        )?;
        Ok(later.flatten())
    }

    fn run_due(self: Rc<Self>, now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        let forgotten = self.scheduler.transaction(move |transaction| {
            transaction.execute("DELETE FROM reminders WHERE due <= ?", &[now.into()])
        });
        Box::pin(async move {
            forgotten.await?;
            Ok(())
        })
    }
}

struct Diary {
    scheduler: Scheduler,
    _reminders: Rc<Reminders>,
}

impl Diary {
    async fn open(host: Rc<dyn Host>) -> Result<Rc<Self>, BoxError> {
        let mut config = SchedulerConfig::default();
        config.alarm_min_delay = MIN_DELAY;
        let scheduler = Scheduler::new(host, config)?;
        let reminders = Rc::new(Reminders {
            scheduler: scheduler.clone(),
        });
        scheduler.attach(&reminders)?;
        scheduler.open().await?;
        Ok(Rc::new(Diary {
            scheduler,
            _reminders: reminders,
        }))
    }
}

impl Object for Diary {
    const CLASS: &'static str = "diary";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async move { Ok(self.scheduler.alarm().await?) })
    }
}

/// A diary, closed, that remembers a time `ahead` of now.
fn diary(world: &World, ahead: Duration) -> VirtualObject<Diary> {
    let diary = world.object("a", Alarms::Manual, Diary::open);
    let due = world.now() + ahead;
    let remember = diary.call(move |diary| {
        diary.scheduler.transaction(move |transaction| {
            transaction.execute("INSERT INTO reminders VALUES (?)", &[due.into()])
        })
    });
    world
        .block_on(remember)
        .expect("the object opens")
        .expect("the time is stored");
    diary.crash();
    diary
}

#[test]
fn an_object_that_never_lives_for_the_minimum_delay_still_gets_to_its_work() {
    let world = World::new(1_000_000);
    let due = world.now() + Duration::from_secs(60);
    let diary = diary(&world, Duration::from_secs(60));
    world.advance_to(due + Duration::from_secs(1));
    for _ in 0..3 {
        world.block_on(diary.open()).expect("the object opens");
        assert_eq!(diary.alarm(), Some(due), "the alarm is not put off");
        world.advance(MIN_DELAY / 2);
        diary.crash();
    }
    world
        .block_on(diary.fire_alarm())
        .expect("the alarm is handled");
    assert_eq!(diary.alarm(), None);
}

#[test]
fn opening_arms_the_alarm_for_what_is_still_to_come() {
    let world = World::new(1_000_000);
    let start = world.now();
    let diary = diary(&world, Duration::from_secs(60));
    world.advance(Duration::from_secs(55));
    world.block_on(diary.open()).expect("the object opens");
    // The time comes sooner than an alarm may be set for; until then there is a timer.
    assert_eq!(diary.alarm(), Some(world.now() + MIN_DELAY));
    world.advance_to(start + Duration::from_secs(61));
    let pending = diary.call(|diary| async move { diary.scheduler.next_pending_at().await });
    let pending = world.block_on(pending).expect("the object is open");
    assert_eq!(pending.expect("storage answers"), None);
    assert_eq!(diary.alarm(), None);
}
