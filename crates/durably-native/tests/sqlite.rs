//! The commit path: what a batch of closures stores, and what is left of it when something fails.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use durably::host::{RolledBack, Transaction, Value, Work, WorkResult};
use durably::{StorageError, Timestamp};
use durably_native::sqlite::{Committed, Counters, Database, Fatal, Settings};
use tempfile::TempDir;

fn work(run: impl FnOnce(&dyn Transaction) -> WorkResult + 'static) -> Work {
    Box::new(run)
}

/// A closure that inserts `value` and then answers `answer`.
fn insert(value: i64, answer: WorkResult) -> Work {
    work(move |transaction| {
        transaction
            .execute("INSERT INTO items (value) VALUES (?1)", &[value.into()])
            .map_err(|_| RolledBack)?;
        answer
    })
}

fn succeed(committed: Committed) {
    assert!(committed.fatal.is_none(), "{:?}", committed.fatal);
    assert!(committed.results.iter().all(Result::is_ok));
}

/// Runs one closure and returns what it returned, undoing what it did on an error.
fn run<T: 'static>(
    database: &Database,
    inner: impl FnOnce(&dyn Transaction) -> Result<T, StorageError> + 'static,
) -> Result<T, StorageError> {
    let slot = Rc::new(RefCell::new(None));
    let result = slot.clone();
    let committed = database.commit(vec![work(move |transaction| {
        let outcome = inner(transaction);
        let answer = outcome.as_ref().map(|_| ()).map_err(|_| RolledBack);
        *slot.borrow_mut() = Some(outcome);
        answer
    })]);
    let outcome = result.borrow_mut().take();
    match (outcome, committed.results.into_iter().next()) {
        (Some(Err(error)), _) | (_, Some(Err(error))) => Err(error),
        (Some(Ok(value)), Some(Ok(()))) => Ok(value),
        _ => panic!("the closure did not run"),
    }
}

fn values(database: &Database) -> Vec<i64> {
    run(database, |transaction| {
        transaction
            .sql()
            .all("SELECT value FROM items ORDER BY rowid", &[], |row| {
                row.integer(0)
            })
    })
    .expect("the table is readable")
}

struct Fixture {
    _folder: TempDir,
    path: PathBuf,
    settings: Settings,
    counters: Arc<Counters>,
}

impl Fixture {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let counters = Arc::new(Counters::new(true));
        let mut settings = Settings::default();
        settings.counters = Some(counters.clone());
        Fixture {
            path: folder.path().join("a/b/object.sqlite"),
            _folder: folder,
            settings,
            counters,
        }
    }

    fn open(&self) -> Database {
        Database::open(&self.path, "Counter", "one", &self.settings).expect("it opens")
    }

    fn with_table(&self) -> Database {
        let database = self.open();
        run(&database, |transaction| {
            transaction.script("CREATE TABLE items (value INTEGER NOT NULL UNIQUE) STRICT;")
        })
        .expect("a table");
        database
    }

    fn flushes(&self) -> u64 {
        self.counters.snapshot().flushes
    }
}

#[test]
fn a_closure_that_fails_takes_only_its_own_rows_and_alarm_with_it() {
    let fixture = Fixture::new();
    let database = fixture.with_table();
    let at = Timestamp::from_millis(1_000);
    let order = Rc::new(RefCell::new(Vec::new()));
    let note = |text: &'static str| {
        let order = order.clone();
        move || order.borrow_mut().push(text)
    };
    let (first, third, seen) = (
        note("first released"),
        note("third released"),
        note("third runs"),
    );
    let undone = note("never");
    let flushes = fixture.flushes();
    succeed(database.commit(vec![
        work(move |transaction| {
            transaction
                .execute("INSERT INTO items (value) VALUES (1)", &[])
                .map_err(|_| RolledBack)?;
            transaction.set_alarm(Some(at)).map_err(|_| RolledBack)?;
            transaction.on_release(Box::new(first));
            Ok(())
        }),
        work(move |transaction| {
            transaction
                .execute("INSERT INTO items (value) VALUES (2)", &[])
                .map_err(|_| RolledBack)?;
            transaction.set_alarm(None).map_err(|_| RolledBack)?;
            transaction.on_release(Box::new(undone));
            Err(RolledBack)
        }),
        work(move |transaction| {
            seen();
            transaction.on_release(Box::new(third));
            Ok(())
        }),
        insert(4, Ok(())),
    ]));
    assert_eq!(
        *order.borrow(),
        ["first released", "third runs", "third released"]
    );
    assert_eq!(fixture.flushes() - flushes, 1, "the batch shares one flush");
    database.close().expect("it closes");

    let database = fixture.open();
    assert_eq!(database.alarm(), Some(at));
    assert_eq!(values(&database), [1, 4]);
}

#[test]
fn what_writes_nothing_does_not_flush() {
    let fixture = Fixture::new();
    let database = fixture.with_table();
    succeed(database.commit(vec![insert(1, Ok(()))]));
    let flushes = fixture.flushes();
    assert_eq!(values(&database), [1]);
    succeed(database.commit(vec![insert(2, Err(RolledBack))]));
    succeed(database.commit(vec![insert(2, Err(RolledBack)), insert(3, Err(RolledBack))]));
    run(&database, |transaction| {
        transaction.execute("DELETE FROM items WHERE value = 9", &[])
    })
    .expect("it runs");
    database.before_first_write(|| panic!("nothing is to be written"));
    run(&database, |transaction| {
        transaction.script(
            "CREATE TABLE IF NOT EXISTS items (value INTEGER); DELETE FROM items WHERE value = 9;",
        )
    })
    .expect("it runs");
    assert_eq!(fixture.flushes(), flushes);
    assert_eq!(values(&database), [1]);
}

#[test]
fn a_panic_fails_the_batch_and_ends_the_instance() {
    let fixture = Fixture::new();
    let database = fixture.with_table();
    let committed = database.commit(vec![insert(1, Ok(())), work(|_| panic!("on purpose"))]);
    assert!(matches!(&committed.fatal, Some(Fatal::Panicked(text)) if text == "on purpose"));
    assert!(committed.results.iter().all(Result::is_err));
    let later = database.commit(vec![insert(2, Ok(()))]);
    assert!(matches!(&later.results[..], [Err(StorageError::Ended(_))]));
    drop(database);
    assert_eq!(values(&fixture.open()), [0i64; 0]);
}

#[test]
fn the_host_keeps_its_statements_and_its_table() {
    let fixture = Fixture::new();
    let database = fixture.with_table();
    for statement in [
        "BEGIN",
        "COMMIT",
        "/*host*/COMMIT",
        " /*host*/ROLLBACK",
        "ROLLBACK",
        "SAVEPOINT mine",
        "RELEASE work",
        "END",
        "PRAGMA user_version",
        "PRAGMA synchronous = OFF",
        "ATTACH 'other.sqlite' AS other",
        "VACUUM",
        "DELETE FROM durability_object",
        "UPDATE durability_object SET alarm_at = 1",
        "DROP TABLE durability_object",
        "ALTER TABLE durability_object RENAME TO mine",
    ] {
        let refused = run(&database, move |transaction| {
            transaction.execute(statement, &[])
        });
        assert!(
            matches!(refused, Err(StorageError::Failed(_))),
            "{statement}: {refused:?}"
        );
        let refused = run(&database, move |transaction| transaction.script(statement));
        assert!(
            matches!(refused, Err(StorageError::Failed(_))),
            "{statement}: {refused:?}"
        );
    }
    succeed(database.commit(vec![insert(1, Ok(()))]));
    assert_eq!(values(&database), [1]);
}

#[test]
fn errors_say_what_they_are() {
    let fixture = Fixture::new();
    let mut settings = fixture.settings.clone();
    settings.max_value_bytes = 10_000;
    let database = fixture.with_table();
    database.close().expect("it closes");
    let database = Database::open(&fixture.path, "Counter", "one", &settings).expect("it opens");
    let code = |outcome: Result<u64, StorageError>| outcome.map_err(|error| error.code());
    succeed(database.commit(vec![insert(1, Ok(()))]));
    let twice = run(&database, |transaction| {
        transaction.execute("INSERT INTO items (value) VALUES (1)", &[])
    });
    assert_eq!(code(twice), Err("storage_constraint"));
    let long = "x".repeat(20_000);
    let too_long = run(&database, move |transaction| {
        transaction.execute("SELECT ?1", &[Value::Text(&long)])
    });
    assert_eq!(code(too_long), Err("storage_too_large"));
    let too_large = run(&database, |transaction| {
        transaction.execute("SELECT ?1", &[Value::Integer(1 << 53)])
    });
    assert_eq!(code(too_large), Err("storage_too_large"));
    let wrong_count = run(&database, |transaction| {
        transaction.execute("SELECT ?1", &[])
    });
    assert_eq!(code(wrong_count), Err("storage_failed"));
    let two = run(&database, |transaction| {
        transaction.execute("SELECT 1; SELECT 2", &[])
    });
    assert_eq!(code(two), Err("storage_failed"));

    let second = Database::open(&fixture.path, "Counter", "one", &settings);
    assert_eq!(
        second.err().map(|error| error.code()),
        Some("storage_locked")
    );
    database.close().expect("it closes");
    let other = Database::open(&fixture.path, "Counter", "two", &settings);
    assert_eq!(
        other.err().map(|error| error.code()),
        Some("storage_damaged")
    );
    std::fs::write(
        &fixture.path,
        "this is no database, though it is long enough to be one".repeat(99),
    )
    .expect("a damaged file");
    let damaged = Database::open(&fixture.path, "Counter", "one", &settings);
    assert_eq!(
        damaged.err().map(|error| error.code()),
        Some("storage_damaged")
    );
}

#[test]
fn a_full_quota_undoes_what_did_not_fit_and_nothing_else() {
    let fixture = Fixture::new();
    let mut settings = fixture.settings.clone();
    settings.max_file_bytes = Some(12 * 4_096);
    let database = fixture.with_table();
    succeed(database.commit(vec![insert(1, Ok(()))]));
    database.close().expect("it closes");
    let database = Database::open(&fixture.path, "Counter", "one", &settings).expect("it opens");
    let fill = |transaction: &dyn Transaction| {
        let blob = vec![7; 30_000];
        transaction.script("CREATE TABLE IF NOT EXISTS large (blob BLOB) STRICT;")?;
        for _ in 0..2 {
            let value = Value::Blob(&blob);
            transaction.execute("INSERT INTO large (blob) VALUES (?1)", &[value])?;
        }
        Ok(())
    };
    let full = run(&database, fill);
    assert_eq!(full.map_err(|error| error.code()), Err("storage_full"));
    assert_eq!(
        values(&database),
        [1],
        "alone in its commit it ends no instance"
    );

    let swallowed = Rc::new(Cell::new(None));
    let seen = swallowed.clone();
    let committed = database.commit(vec![
        insert(2, Ok(())),
        work(move |transaction| {
            let outcome = fill(transaction);
            seen.set(outcome.err().map(|error| error.code()));
            // A closure that goes on regardless must not store half of what it did.
            let _ = transaction.execute("INSERT INTO items (value) VALUES (3)", &[]);
            Ok(())
        }),
    ]);
    assert_eq!(swallowed.get(), Some("storage_full"));
    let stored = if committed.fatal.is_some() {
        vec![1]
    } else {
        vec![1, 2, 3]
    };
    assert_eq!(
        committed.results.iter().all(Result::is_ok),
        committed.fatal.is_none()
    );
    drop(database);
    assert_eq!(values(&fixture.open()), stored);
}

#[test]
fn an_alarm_that_went_off_is_removed_unless_it_was_set_again() {
    let fixture = Fixture::new();
    let database = fixture.with_table();
    let at = Timestamp::from_millis(5);
    let set = move |transaction: &dyn Transaction| transaction.set_alarm(Some(at));
    run(&database, set).expect("it is set");
    let fired = database.fire_alarm();
    run(&database, set).expect("it is set again, to the same time");
    succeed(database.commit(vec![database.settle_alarm(fired)]));
    assert_eq!(database.alarm(), Some(at));
    succeed(database.commit(vec![database.settle_alarm(database.fire_alarm())]));
    assert_eq!(database.alarm(), None);
    database.close().expect("it closes");
    assert_eq!(fixture.open().alarm(), None);
}

#[test]
fn an_object_that_stores_nothing_leaves_no_file() {
    let fixture = Fixture::new();
    let database = fixture.open();
    succeed(database.commit(vec![work(|_| Ok(()))]));
    assert!(!database.is_created());
    database.close().expect("it closes");
    assert!(!fixture.path.exists());
    assert_eq!(fixture.flushes(), 0);
}

#[test]
fn creating_an_object_is_one_commit() {
    let fixture = Fixture::new();
    let database = fixture.open();
    succeed(database.commit(vec![
        work(|transaction| {
            transaction
                .script("CREATE TABLE a (b);")
                .map_err(|_| RolledBack)
        }),
        work(|transaction| {
            transaction
                .set_alarm(Some(Timestamp::from_millis(9)))
                .map_err(|_| RolledBack)
        }),
    ]));
    assert_eq!(fixture.flushes(), 1);
    assert!(database.is_created());
}

#[test]
fn nothing_is_committed_before_the_first_write_was_allowed() {
    let fixture = Fixture::new();
    let database = fixture.with_table();
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    database.before_first_write(move || {
        count.set(count.get() + 1);
        Ok(())
    });
    assert_eq!(values(&database), [0i64; 0]);
    assert_eq!(asked.get(), 0, "reading needs no leave");
    succeed(database.commit(vec![insert(1, Ok(()))]));
    succeed(database.commit(vec![insert(2, Ok(()))]));
    assert_eq!(asked.get(), 1);
    database.before_first_write(|| Err(StorageError::Full("the journal's disk".into())));
    let refused = database.commit(vec![insert(3, Ok(()))]);
    assert!(refused.fatal.is_some());
    drop(database);
    assert_eq!(values(&fixture.open()), [1, 2]);
}

#[test]
fn a_checkpoint_is_wanted_when_the_log_has_grown() {
    let fixture = Fixture::new();
    let mut settings = fixture.settings.clone();
    settings.checkpoint_pages = 20;
    fixture.with_table().close().expect("it closes");
    let database = Database::open(&fixture.path, "Counter", "one", &settings).expect("it opens");
    let mut value = 0;
    while !database.wants_checkpoint() {
        value += 1;
        succeed(database.commit(vec![insert(value, Ok(()))]));
        assert!(value < 50, "the log grows with every commit");
    }
    database.checkpoint().expect("a checkpoint");
    assert!(!database.wants_checkpoint());
    succeed(database.commit(vec![insert(value + 1, Ok(()))]));
    assert!(!database.wants_checkpoint(), "the log has started over");
}

#[test]
fn a_database_in_memory_keeps_the_same_promises() {
    let counters = Arc::new(Counters::new(false));
    let mut settings = Settings::default();
    settings.counters = Some(counters.clone());
    let database = Database::in_memory("Counter", "one", &settings).expect("it opens");
    run(&database, |transaction| {
        transaction.script("CREATE TABLE items (value INTEGER);")
    })
    .expect("a table");
    succeed(database.commit(vec![
        insert(1, Ok(())),
        insert(2, Err(RolledBack)),
        insert(3, Ok(())),
    ]));
    assert_eq!(values(&database), [1, 3]);
    assert_eq!(counters.snapshot().flushes, 2);
}

#[test]
fn a_statement_says_how_many_rows_it_changed_also_when_rows_are_counted() {
    let fixture = Fixture::new();
    let database = fixture.with_table();
    for expected in [1, 0] {
        let changed = run(&database, |transaction| {
            transaction.execute("INSERT INTO items VALUES (7) ON CONFLICT DO NOTHING", &[])
        });
        assert_eq!(changed, Ok(expected));
    }
    let changed = run(&database, |transaction| {
        transaction.execute("DELETE FROM items WHERE value = 7", &[])
    });
    assert_eq!(changed, Ok(1));
}
