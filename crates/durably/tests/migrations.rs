//! Schemas that go forward with a build, and back with an older one.

use std::cell::Cell;
use std::rc::Rc;

use durably::error::BoxError;
use durably::host::{Host, LocalFuture, Sql};
use durably::migrations::{Migration, migrate};
use durably::scheduler::Participant;
use durably::{OpenError, Scheduler, SchedulerConfig, StorageError, Timestamp};
use durably_sim::{Alarms, VirtualObject, World};

const FIRST: Migration = Migration {
    name: "0001_things",
    up: "CREATE TABLE things (id INTEGER PRIMARY KEY) STRICT; INSERT INTO things VALUES (7)",
    down: "DROP TABLE things",
};
const SECOND: Migration = Migration {
    name: "0002_size",
    up: "ALTER TABLE things ADD COLUMN size INTEGER NOT NULL DEFAULT 1",
    down: "ALTER TABLE things DROP COLUMN size",
};
const THIRD: Migration = Migration {
    name: "0003_colour",
    up: "ALTER TABLE things ADD COLUMN colour TEXT",
    down: "ALTER TABLE things DROP COLUMN colour",
};
const FOURTH: Migration = Migration {
    name: "0004_more",
    up: "CREATE TABLE more (id INTEGER PRIMARY KEY) STRICT",
    down: "DROP TABLE more",
};
const BRANCH: Migration = Migration {
    name: "0002_weight",
    up: "ALTER TABLE things ADD COLUMN weight INTEGER",
    down: "ALTER TABLE things DROP COLUMN weight",
};
const BROKEN: Migration = Migration {
    name: "0002_broken",
    up: "CREATE TABLE half (id INTEGER PRIMARY KEY) STRICT; CREATE NONSENSE",
    down: "DROP TABLE half",
};

const ONE: &[Migration] = &[FIRST];
const TWO: &[Migration] = &[FIRST, SECOND];
const THREE: &[Migration] = &[FIRST, SECOND, THIRD];
const FOUR: &[Migration] = &[FIRST, SECOND, THIRD, FOURTH];
const OTHER: &[Migration] = &[FIRST, BRANCH];
const HALF: &[Migration] = &[FIRST, BROKEN];

struct Schema(&'static [Migration]);

impl Participant for Schema {
    fn name(&self) -> &'static str {
        "things"
    }

    fn migrations(&self) -> &'static [Migration] {
        self.0
    }

    fn load(&self, _sql: &dyn Sql, _now: Timestamp) -> Result<(), StorageError> {
        Ok(())
    }

    fn next_pending_at(&self, _sql: &dyn Sql) -> Result<Option<Timestamp>, StorageError> {
        Ok(None)
    }

    fn next_wake_at(
        &self,
        _sql: &dyn Sql,
        _now: Timestamp,
    ) -> Result<Option<Timestamp>, StorageError> {
        Ok(None)
    }

    fn run_due(self: Rc<Self>, _now: Timestamp) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async { Ok(()) })
    }
}

/// An object with one capability, or with none for an operator's moves.
struct Things {
    host: Rc<dyn Host>,
    _schema: Option<Rc<Schema>>,
}

impl durably::host::Object for Things {
    const CLASS: &'static str = "things";

    fn alarm(self: Rc<Self>) -> LocalFuture<Result<(), BoxError>> {
        Box::pin(async { Ok(()) })
    }
}

struct Fixture {
    world: World,
    object: VirtualObject<Things>,
    build: Rc<Cell<Option<&'static [Migration]>>>,
    error: Rc<Cell<Option<OpenError>>>,
}

impl Fixture {
    fn new() -> Self {
        let world = World::new(1_000);
        let build = Rc::new(Cell::new(None));
        let error = Rc::new(Cell::new(None));
        let (chosen, failed) = (build.clone(), error.clone());
        let object = world.object("t", Alarms::Manual, move |host| {
            let schema = chosen.get().map(|known| Rc::new(Schema(known)));
            let failed = failed.clone();
            async move {
                if let Some(schema) = &schema {
                    let scheduler = Scheduler::new(host.clone(), SchedulerConfig::default())?;
                    scheduler.attach(schema)?;
                    if let Err(error) = scheduler.open().await {
                        failed.set(Some(error.clone()));
                        return Err(error.into());
                    }
                }
                Ok(Rc::new(Things {
                    host,
                    _schema: schema,
                }))
            }
        });
        Fixture {
            world,
            object,
            build,
            error,
        }
    }

    /// Opens the object with the migrations that a build knows.
    fn open(&self, known: &'static [Migration]) -> Result<(), OpenError> {
        self.object.crash();
        self.build.set(Some(known));
        match self.world.block_on(self.object.open()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.error.take().expect("a reason")),
        }
    }

    fn migrate(&self, known: &'static [Migration], target: Option<&str>) -> Result<(), OpenError> {
        self.object.crash();
        self.build.set(None);
        let target = target.map(str::to_owned);
        let moved = self.object.call(move |things| async move {
            migrate(things.host.clone(), "things", known, target.as_deref()).await
        });
        self.world.block_on(moved).expect("the object answers")
    }

    /// The columns of the table; none if there is no table.
    fn columns(&self) -> Vec<&'static str> {
        let read = self.object.storage().transaction(|transaction| {
            transaction.sql().first(
                "SELECT sql FROM sqlite_schema WHERE name = 'things'",
                &[],
                |row| row.string(0),
            )
        });
        let table = read.expect("readable").unwrap_or_default();
        ["id", "size", "colour", "weight"]
            .into_iter()
            .filter(|column| table.contains(&format!("{column} ")))
            .collect()
    }

    fn history(&self) -> Vec<(String, String, u64)> {
        let read = self.object.storage().transaction(|transaction| {
            transaction.sql().all(
                "SELECT name, down, applied_at FROM durability_migrations
                 WHERE capability = 'things' ORDER BY position",
                &[],
                |row| Ok((row.string(0)?, row.string(1)?, row.count(2)?)),
            )
        });
        read.expect("readable")
    }

    fn names(&self) -> Vec<String> {
        self.history().into_iter().map(|(name, ..)| name).collect()
    }
}

#[test]
fn migrations_are_applied_once_in_order_and_remembered() {
    let fixture = Fixture::new();
    assert_eq!(fixture.open(ONE), Ok(()));
    assert_eq!(fixture.columns(), ["id"]);
    fixture.world.advance(std::time::Duration::from_secs(1));
    assert_eq!(fixture.open(THREE), Ok(()));
    assert_eq!(fixture.open(THREE), Ok(()));
    assert_eq!(fixture.columns(), ["id", "size", "colour"]);
    let expected = [(FIRST, 1_000), (SECOND, 2_000), (THIRD, 2_000)]
        .map(|(migration, at)| (migration.name.to_owned(), migration.down.to_owned(), at));
    assert_eq!(fixture.history(), expected);
}

#[test]
fn an_older_build_undoes_at_most_two_with_their_stored_scripts() {
    let fixture = Fixture::new();
    assert_eq!(fixture.open(FOUR), Ok(()));
    assert_eq!(fixture.open(TWO), Ok(()));
    assert_eq!(fixture.columns(), ["id", "size"]);
    assert_eq!(fixture.names(), [FIRST.name, SECOND.name]);
    assert_eq!(fixture.open(FOUR), Ok(()));
    let refused = fixture.open(ONE).expect_err("three are too many");
    assert_eq!(
        refused,
        OpenError::TooFarAhead {
            capability: "things".into(),
            ahead: 3,
            allowed: 2
        }
    );
    assert_eq!(refused.code(), "schema_too_far_ahead");
    assert_eq!(fixture.names().len(), 4, "nothing was changed");
    assert_eq!(fixture.open(THREE), Ok(()));
    assert_eq!(fixture.columns(), ["id", "size", "colour"]);
}

#[test]
fn a_history_that_differs_is_refused() {
    let fixture = Fixture::new();
    assert_eq!(fixture.open(TWO), Ok(()));
    let refused = fixture.open(OTHER).expect_err("another second migration");
    assert_eq!(
        refused,
        OpenError::HistoryDiffers {
            capability: "things".into(),
            found: SECOND.name.into(),
            expected: BRANCH.name.into(),
        }
    );
    assert_eq!(refused.code(), "schema_history_differs");
    assert_eq!(fixture.columns(), ["id", "size"]);
}

#[test]
fn a_migration_that_fails_leaves_the_schema_as_it_was() {
    let fixture = Fixture::new();
    assert!(matches!(fixture.open(HALF), Err(OpenError::Storage(_))));
    assert_eq!(fixture.columns(), [""; 0]);
    assert_eq!(fixture.open(ONE), Ok(()));
    assert!(matches!(fixture.open(HALF), Err(OpenError::Storage(_))));
    assert_eq!(fixture.names(), [FIRST.name]);
    assert_eq!(fixture.open(TWO), Ok(()));
}

#[test]
fn an_operator_moves_a_schema_to_any_version() {
    let fixture = Fixture::new();
    assert_eq!(fixture.migrate(FOUR, Some(SECOND.name)), Ok(()));
    assert_eq!(fixture.columns(), ["id", "size"]);
    assert_eq!(fixture.migrate(FOUR, Some(FOURTH.name)), Ok(()));
    assert_eq!(fixture.names().len(), 4);
    // As far back as asked, unlike a build that just opens the object.
    assert_eq!(fixture.migrate(FOUR, Some(FIRST.name)), Ok(()));
    assert_eq!(fixture.columns(), ["id"]);
    let refused = fixture.migrate(FOUR, Some("0009_unknown"));
    assert_eq!(
        refused,
        Err(OpenError::UnknownMigration {
            capability: "things".into(),
            target: "0009_unknown".into(),
        })
    );
    assert_eq!(fixture.names(), [FIRST.name]);
    assert_eq!(fixture.migrate(FOUR, None), Ok(()));
    assert_eq!(fixture.columns(), [""; 0]);
    assert_eq!(fixture.names(), [""; 0]);
    assert_eq!(fixture.open(FOUR), Ok(()));
    assert_eq!(fixture.columns(), ["id", "size", "colour"]);
    // A build with fewer migrations removes all of a newer one's.
    assert_eq!(fixture.migrate(ONE, None), Ok(()));
    assert_eq!(fixture.names(), [""; 0]);
}
