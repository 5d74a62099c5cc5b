//! Cases about transactions: what commits together, what is undone alone, and in which order.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::object::{log, said, unknown};
use super::{Exam, ExamObject, Verdict, count, demand, demand_eq, exam_cases};
use crate::error::StorageError;
use crate::host::{Sql, Transaction};

exam_cases![
    committed_rows_survive_a_crash,
    an_error_undoes_rows_and_alarm,
    an_error_keeps_the_alarm_that_was_set_before,
    queued_closures_are_undone_alone,
    releases_follow_their_closures,
    dropped_futures_still_run,
    bad_sql_leaves_the_instance_usable,
    constraint_errors_are_typed,
    a_caught_statement_error_undoes_that_statement_alone,
    transaction_statements_are_refused,
    a_text_with_two_statements_is_not_cut_short,
    changed_rows_are_counted,
    queries_stop_at_the_first_error,
    scripts_are_undone_too,
    a_panic_in_a_closure_rolls_back,
];

/// The steps that demand a statement to be refused, one for each way to run it.
const WAYS: [&str; 3] = ["refuse_execute", "refuse_query", "refuse_script"];

async fn committed_rows_survive_a_crash(exam: &Exam<'_>) -> Verdict {
    exam.step("object note one").await?;
    exam.crash().await;
    exam.step("object note two").await?;
    exam.crash().await;
    demand_eq!(
        exam.log().await?,
        ["one", "two"],
        "the log after two crashes"
    );
    Ok(())
}

async fn an_error_undoes_rows_and_alarm(exam: &Exam<'_>) -> Verdict {
    exam.step("transactions fail").await?;
    exam.pass_with_slack(100).await;
    demand_eq!(
        exam.log().await?,
        Vec::<String>::new(),
        "the log after a closure that failed"
    );
    Ok(())
}

async fn an_error_keeps_the_alarm_that_was_set_before(exam: &Exam<'_>) -> Verdict {
    exam.step("alarms set 100").await?;
    exam.step("transactions fail removing").await?;
    exam.wait_for("alarm", 1).await
}

async fn queued_closures_are_undone_alone(exam: &Exam<'_>) -> Verdict {
    let answer = exam.step("transactions queue").await?;
    demand_eq!(
        answer,
        "0 1 1",
        "rows that the three closures saw before theirs"
    );
    exam.crash().await;
    exam.pass_with_slack(100).await;
    let log = exam.log().await?;
    demand!(
        log.first().map(String::as_str) == Some("first")
            && log.get(1).map(String::as_str) == Some("third")
            && count(&log, "second") == 0,
        "the first and the third closure should have committed, the second not: {log:?}"
    );
    demand_eq!(
        count(&log, "alarm"),
        1,
        "alarms fired, of which one was set by the first closure and moved by the failed second"
    );
    Ok(())
}

async fn releases_follow_their_closures(exam: &Exam<'_>) -> Verdict {
    let order = exam.step("transactions release").await?;
    demand_eq!(
        order,
        "run 1, release 1a, release 1b, run 2, run 3, release 3, resolved 1, resolved 2, resolved 3",
        "the order of closures (the second fails), their releases and their answers"
    );
    Ok(())
}

async fn dropped_futures_still_run(exam: &Exam<'_>) -> Verdict {
    exam.step("transactions drop").await?;
    exam.wait_for("dropped", 1).await?;
    demand_eq!(
        exam.log().await?,
        ["dropped", "after"],
        "the log after a transaction whose future was dropped"
    );
    Ok(())
}

async fn bad_sql_leaves_the_instance_usable(exam: &Exam<'_>) -> Verdict {
    let before = exam.step("object instance").await?;
    for statement in [
        "this is not sql",
        "SELECT * FROM nowhere",
        "INSERT INTO exam_log (nothing) VALUES (1)",
        "SELECT 'open",
    ] {
        for way in WAYS {
            exam.step(&format!("transactions {way} {statement}"))
                .await?;
        }
    }
    exam.step("object note fine").await?;
    demand_eq!(
        exam.log().await?,
        ["fine"],
        "the log after refused statements"
    );
    demand_eq!(
        exam.step("object instance").await?,
        before,
        "the instance after refused statements"
    );
    Ok(())
}

async fn constraint_errors_are_typed(exam: &Exam<'_>) -> Verdict {
    for statement in [
        "INSERT INTO exam_log (position, entry, at) VALUES (1, 'twice', 0)",
        "INSERT INTO exam_log (entry, at) VALUES (NULL, 0)",
        "INSERT INTO exam_log (entry, at) VALUES ('text for a number', 'x')",
    ] {
        let request = format!("transactions constraint {statement}");
        let code = exam.step(&request).await?;
        demand_eq!(code, "storage_constraint", statement);
    }
    demand_eq!(
        exam.log().await?,
        Vec::<String>::new(),
        "the log after refused rows"
    );
    Ok(())
}

async fn a_caught_statement_error_undoes_that_statement_alone(exam: &Exam<'_>) -> Verdict {
    exam.step("transactions catch").await?;
    exam.crash().await;
    demand_eq!(
        exam.log().await?,
        ["before", "after"],
        "the log of a closure that went on after a refused statement"
    );
    Ok(())
}

async fn transaction_statements_are_refused(exam: &Exam<'_>) -> Verdict {
    for statement in [
        "BEGIN",
        "BEGIN IMMEDIATE",
        "COMMIT",
        "END",
        "ROLLBACK",
        "SAVEPOINT a",
        "RELEASE a",
        "ROLLBACK TO a",
        "PRAGMA user_version = 7",
        "  pragma journal_mode = DELETE",
        "/* hidden */ Begin",
        "-- hidden\n COMMIT",
    ] {
        for way in WAYS {
            exam.step(&format!("transactions {way} {statement}"))
                .await?;
        }
    }
    exam.step("transactions refuse_script SELECT 1; COMMIT; SELECT 1")
        .await?;
    exam.step("object note fine").await?;
    exam.crash().await;
    demand_eq!(
        exam.log().await?,
        ["fine"],
        "the log after refused statements"
    );
    Ok(())
}

async fn a_text_with_two_statements_is_not_cut_short(exam: &Exam<'_>) -> Verdict {
    for way in ["execute", "query"] {
        // It may be refused or run as a whole; what must not happen is that half of it is lost.
        exam.step(&format!("transactions two {way}")).await?;
    }
    Ok(())
}

async fn changed_rows_are_counted(exam: &Exam<'_>) -> Verdict {
    let counts = exam.step("transactions count").await?;
    demand_eq!(
        counts,
        "3 2 0 1",
        "rows changed by inserting three, updating two, deleting none, and deleting one"
    );
    Ok(())
}

async fn queries_stop_at_the_first_error(exam: &Exam<'_>) -> Verdict {
    let seen = exam.step("transactions stop").await?;
    demand_eq!(
        seen,
        "2",
        "rows handed out until the reader failed at the second"
    );
    Ok(())
}

async fn scripts_are_undone_too(exam: &Exam<'_>) -> Verdict {
    exam.step("transactions script").await?;
    exam.step("transactions refuse_query SELECT * FROM exam_scripted")
        .await?;
    Ok(())
}

async fn a_panic_in_a_closure_rolls_back(exam: &Exam<'_>) -> Verdict {
    exam.step("object note before").await?;
    let before = exam.step("object instance").await?;
    exam.fatal_step("transactions panic").await?;
    exam.pass_with_slack(100).await;
    demand_eq!(exam.log().await?, ["before"], "the log after the panic");
    demand!(
        exam.step("object instance").await? != before,
        "the instance that panicked still answers"
    );
    exam.step("object note after").await?;
    Ok(())
}

pub(super) async fn step(
    object: &Rc<ExamObject>,
    step: &str,
    argument: &str,
) -> Result<String, String> {
    match step {
        "fail" => fail(object, argument == "removing").await,
        "queue" => queue(object).await,
        "release" => release(object).await,
        "drop" => {
            let now = object.host.now().as_sql();
            drop(
                object
                    .host
                    .transaction(move |transaction| log(transaction.sql(), "dropped", now)),
            );
            object.note("after").await.map_err(said)
        }
        "refuse_execute" => refused(attempt(object, argument, execute_alone).await),
        "refuse_query" => refused(attempt(object, argument, query_alone).await),
        "refuse_script" => refused(attempt(object, argument, run_script).await),
        "constraint" => match attempt(object, argument, execute_alone).await {
            Err(error) => Ok(error.code().to_owned()),
            Ok(()) => Err("it was accepted".into()),
        },
        "two" => {
            let run = if argument == "query" {
                query_alone
            } else {
                execute_alone
            };
            let done = object.host.transaction(move |transaction| {
                let sql = transaction.sql();
                let two = "INSERT INTO exam_log (entry, at) VALUES ('half', 0);
                           INSERT INTO exam_log (entry, at) VALUES ('whole', 0)";
                let ran = run(sql, two);
                let rows = sql.first("SELECT count(*) FROM exam_log", &[], |row| row.count(0))?;
                sql.execute("DELETE FROM exam_log", &[])?;
                Ok::<_, StorageError>((ran.is_ok(), rows.unwrap_or(0)))
            });
            match done.await.map_err(said)? {
                (true, 2) | (false, 0) => Ok(String::new()),
                (ran, rows) => Err(format!("accepted: {ran}, rows written: {rows} of 2")),
            }
        }
        "catch" => catch(object).await,
        "count" => count_rows(object).await,
        "stop" => stop(object).await,
        "script" => {
            let undone = object.host.transaction(|transaction| {
                transaction.script(
                    "CREATE TABLE exam_scripted (a INTEGER NOT NULL) STRICT;
                     -- a comment; with a semicolon
                     INSERT INTO exam_scripted VALUES (1);
                     CREATE INDEX exam_scripted_by_a ON exam_scripted (a)",
                )?;
                Err::<(), _>(undo())
            });
            expect_undone(undone.await)
        }
        "panic" => {
            let now = object.host.now();
            object
                .host
                .transaction(move |transaction| -> Result<String, StorageError> {
                    log(transaction.sql(), "panicked", now.as_sql())?;
                    transaction.set_alarm(Some(now))?;
                    panic!("told to panic inside a transaction")
                })
                .await
                .map_err(said)
        }
        _ => unknown(step),
    }
}

/// The error with which the closures of these cases ask to be undone.
fn undo() -> StorageError {
    StorageError::Failed("on purpose".into())
}

fn expect_undone<T>(result: Result<T, StorageError>) -> Result<String, String> {
    match result {
        Err(error) if error == undo() => Ok(String::new()),
        Err(other) => Err(format!("the closure's own error became: {other}")),
        Ok(_) => Err("a closure that returned an error resolved without one".into()),
    }
}

async fn fail(object: &Rc<ExamObject>, removing: bool) -> Result<String, String> {
    let now = object.host.now();
    let failed = object.host.transaction(move |transaction| {
        log(transaction.sql(), "failed", now.as_sql())?;
        transaction.set_alarm((!removing).then_some(now + Duration::from_millis(50)))?;
        Err::<(), _>(undo())
    });
    expect_undone(failed.await)
}

async fn queue(object: &Rc<ExamObject>) -> Result<String, String> {
    let now = object.host.now();
    let insert = |entry: &'static str, alarm: u64, fails: bool| {
        let seen: Rc<RefCell<u64>> = Rc::default();
        let report = seen.clone();
        let done = object.host.transaction(move |transaction| {
            let sql = transaction.sql();
            let rows = sql.first("SELECT count(*) FROM exam_log", &[], |row| row.count(0))?;
            *report.borrow_mut() = rows.unwrap_or(0);
            log(sql, entry, now.as_sql())?;
            if alarm > 0 {
                transaction.set_alarm(Some(now + Duration::from_millis(alarm)))?;
            }
            if fails { Err(undo()) } else { Ok(()) }
        });
        (done, seen)
    };
    let (first, saw_first) = insert("first", 100, false);
    let (second, saw_second) = insert("second", 1_000_000, true);
    let (third, saw_third) = insert("third", 0, false);
    let (first, second, third) = futures::join!(first, second, third);
    first.map_err(|error| format!("the first closure: {error}"))?;
    expect_undone(second)?;
    third.map_err(|error| format!("the third closure: {error}"))?;
    Ok(format!(
        "{} {} {}",
        saw_first.borrow(),
        saw_second.borrow(),
        saw_third.borrow()
    ))
}

async fn release(object: &Rc<ExamObject>) -> Result<String, String> {
    let order: Rc<RefCell<Vec<String>>> = Rc::default();
    let note = |entry: &str| {
        let (order, entry) = (order.clone(), entry.to_owned());
        move || order.borrow_mut().push(entry)
    };
    let run = |number: u64, releases: &'static [&'static str], fails: bool| {
        let ran = note(&format!("run {number}"));
        let resolved = note(&format!("resolved {number}"));
        let released: Vec<_> = releases
            .iter()
            .map(|name| note(&format!("release {name}")))
            .collect();
        let done = object
            .host
            .transaction(move |transaction: &dyn Transaction| {
                ran();
                for released in released {
                    transaction.on_release(Box::new(released));
                }
                if fails { Err(undo()) } else { Ok(()) }
            });
        async move {
            let result = done.await;
            resolved();
            result
        }
    };
    let (first, second, third) = futures::join!(
        run(1, &["1a", "1b"], false),
        run(2, &["2"], true),
        run(3, &["3"], false)
    );
    first.map_err(said)?;
    expect_undone(second)?;
    third.map_err(said)?;
    let order = order.borrow().join(", ");
    Ok(order)
}

type Run = fn(&dyn Sql, &str) -> Result<(), StorageError>;

fn execute_alone(sql: &dyn Sql, statement: &str) -> Result<(), StorageError> {
    sql.execute(statement, &[]).map(drop)
}

fn query_alone(sql: &dyn Sql, statement: &str) -> Result<(), StorageError> {
    sql.query(statement, &[], &mut |_| Ok(()))
}

fn run_script(sql: &dyn Sql, statements: &str) -> Result<(), StorageError> {
    sql.script(statements)
}

/// Runs a statement in a transaction that has written before.
async fn attempt(object: &ExamObject, statement: &str, run: Run) -> Result<(), StorageError> {
    let statement = statement.to_owned();
    let done = object.host.transaction(move |transaction| {
        log(transaction.sql(), "must be undone", 0)?;
        run(transaction.sql(), &statement)
    });
    done.await
}

fn refused(attempted: Result<(), StorageError>) -> Result<String, String> {
    match attempted {
        Err(_) => Ok(String::new()),
        Ok(()) => Err("it was accepted".into()),
    }
}

async fn catch(object: &Rc<ExamObject>) -> Result<String, String> {
    let now = object.host.now().as_sql();
    let done = object.host.transaction(move |transaction| {
        let sql = transaction.sql();
        log(sql, "before", now)?;
        let refused = sql.execute(
            "INSERT INTO exam_log (position, entry, at) VALUES (100, 'half', 0), (100, 'twice', 0)",
            &[],
        );
        if refused.is_ok() {
            return Err(StorageError::Failed("a doubled key was accepted".into()));
        }
        log(sql, "after", now)
    });
    done.await.map_err(said).map(|()| String::new())
}

async fn count_rows(object: &Rc<ExamObject>) -> Result<String, String> {
    let counts = object.host.transaction(|transaction| {
        transaction.script("CREATE TABLE exam_counted (a INTEGER NOT NULL) STRICT")?;
        let mut counts = Vec::new();
        for statement in [
            "INSERT INTO exam_counted VALUES (1), (2), (3)",
            "UPDATE exam_counted SET a = a + 10 WHERE a > 1",
            "DELETE FROM exam_counted WHERE a = 99",
            "DELETE FROM exam_counted WHERE a = 1",
        ] {
            counts.push(transaction.execute(statement, &[])?.to_string());
        }
        Ok::<_, StorageError>(counts.join(" "))
    });
    counts.await.map_err(said)
}

async fn stop(object: &Rc<ExamObject>) -> Result<String, String> {
    let seen = object.host.transaction(|transaction| {
        let mut seen = 0u64;
        let stopped = transaction.query("VALUES (1), (2), (3), (4)", &[], &mut |_| {
            seen += 1;
            if seen == 2 { Err(undo()) } else { Ok(()) }
        });
        match stopped {
            Err(error) if error == undo() => Ok(seen),
            other => Err(StorageError::Failed(format!(
                "the query answered {other:?}"
            ))),
        }
    });
    seen.await.map_err(said).map(|seen| seen.to_string())
}
