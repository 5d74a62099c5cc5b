//! Cases about the alarm: it commits with rows and fires after whatever happened meanwhile.

use std::rc::Rc;
use std::time::Duration;

use super::object::{log, said, unknown};
use super::{Exam, ExamObject, Verdict, count, demand, demand_eq, exam_cases};
use crate::error::StorageError;
use crate::host::Transaction;

exam_cases![
    an_alarm_fires_once_and_not_early,
    a_removed_alarm_does_not_fire,
    the_last_alarm_set_counts,
    an_alarm_fires_after_a_crash_right_after_its_commit,
    an_alarm_fires_without_calls_after_eviction,
    an_alarm_commits_with_its_rows_or_not_at_all,
    a_crash_at_any_moment_loses_no_alarm,
    an_alarm_that_came_due_while_the_host_was_away_fires,
    an_alarm_in_the_past_fires,
    a_failing_handler_is_called_again,
    a_panicking_handler_is_called_again,
    a_handler_cut_off_by_a_crash_is_called_again,
    an_alarm_outlasts_a_factory_that_fails,
    an_alarm_set_by_the_handler_is_kept,
    a_handler_that_sets_no_alarm_is_called_once,
    alarms_of_two_objects_are_apart,
    calls_go_on_while_the_handler_waits,
];

async fn an_alarm_fires_once_and_not_early(exam: &Exam<'_>) -> Verdict {
    exam.step("alarms set 150").await?;
    exam.wait_for("alarm", 1).await?;
    exam.pass_with_slack(0).await;
    demand_eq!(exam.log().await?, ["set", "alarm"], "the log");
    let late: i64 = exam.step("alarms late 150").await?.parse().map_err(said)?;
    demand!(late >= 0, "the alarm fired {} ms early", -late);
    Ok(())
}

async fn a_removed_alarm_does_not_fire(exam: &Exam<'_>) -> Verdict {
    exam.step("alarms set 150").await?;
    exam.step("alarms remove").await?;
    exam.pass_with_slack(150).await;
    exam.crash().await;
    exam.pass_with_slack(0).await;
    demand_eq!(count(&exam.log().await?, "alarm"), 0, "alarms fired");
    Ok(())
}

async fn the_last_alarm_set_counts(exam: &Exam<'_>) -> Verdict {
    exam.step("alarms set 100").await?;
    exam.step("alarms set 3600000").await?;
    exam.pass_with_slack(100).await;
    demand_eq!(
        count(&exam.log().await?, "alarm"),
        0,
        "alarms fired after it was put off for an hour"
    );
    exam.step("alarms set 100").await?;
    exam.wait_for("alarm", 1).await
}

async fn an_alarm_fires_after_a_crash_right_after_its_commit(exam: &Exam<'_>) -> Verdict {
    exam.step("alarms set 100").await?;
    exam.crash().await;
    exam.pass_with_slack(100).await;
    exam.step("object note mark").await?;
    demand_eq!(
        exam.log().await?,
        ["set", "alarm", "mark"],
        "the log, where the mark is the first call after the crash"
    );
    Ok(())
}

async fn an_alarm_fires_without_calls_after_eviction(exam: &Exam<'_>) -> Verdict {
    exam.step("alarms set 300").await?;
    exam.examinee.evict(exam.case).await;
    exam.pass_with_slack(300).await;
    exam.step("object note mark").await?;
    demand_eq!(
        exam.log().await?,
        ["set", "alarm", "mark"],
        "the log, where the mark is the first call after the eviction"
    );
    Ok(())
}

async fn an_alarm_commits_with_its_rows_or_not_at_all(exam: &Exam<'_>) -> Verdict {
    for millis in 0..5u64 {
        let object = format!("{}-{millis}", exam.case);
        exam.step_of(&object, "alarms start").await?;
        exam.pass(millis).await;
        exam.examinee.crash(&object).await;
        exam.pass_with_slack(100).await;
        let log = exam.log_of(&object).await?;
        // Where clocks are real the crash may come late, and cut off the end of the handler's turn: it is run again.
        let allowed: [&[&str]; 3] = [&[], &["set", "alarm"], &["set", "alarm", "alarm"]];
        demand!(
            allowed.iter().any(|allowed| log == *allowed),
            "the log after a crash {millis} ms after a transaction began: {log:?}"
        );
    }
    Ok(())
}

async fn a_crash_at_any_moment_loses_no_alarm(exam: &Exam<'_>) -> Verdict {
    for millis in (0..16u64).step_by(3) {
        let object = format!("{}-{millis}", exam.case);
        exam.step_of(&object, "alarms chain").await?;
        exam.pass(millis).await;
        exam.examinee.crash(&object).await;
        exam.pass_with_slack(100).await;
        exam.step_of(&object, "object note mark").await?;
        let log = exam.log_of(&object).await?;
        // Where clocks are real the alarm of one link may go off before the next link moves it.
        let links: Vec<_> = log
            .iter()
            .filter(|entry| entry.starts_with("link"))
            .collect();
        for (number, link) in links.iter().enumerate() {
            demand!(
                **link == format!("link {number}"),
                "crash after {millis} ms: the log has holes: {log:?}"
            );
        }
        if !links.is_empty() {
            let last_link = log.iter().rposition(|entry| entry.starts_with("link"));
            let fired = log.iter().rposition(|entry| entry == "alarm");
            let mark = log.iter().rposition(|entry| entry == "mark");
            demand!(
                fired > last_link && fired < mark,
                "crash after {millis} ms: the alarm of the last commit did not fire: {log:?}"
            );
        }
    }
    Ok(())
}

async fn an_alarm_that_came_due_while_the_host_was_away_fires(exam: &Exam<'_>) -> Verdict {
    exam.step("alarms set 100").await?;
    exam.examinee.restart(Duration::from_millis(400)).await;
    exam.pass_with_slack(0).await;
    exam.step("object note mark").await?;
    demand_eq!(
        exam.log().await?,
        ["set", "alarm", "mark"],
        "the log, where the mark is the first call after the restart"
    );
    let late: i64 = exam.step("alarms late 100").await?.parse().map_err(said)?;
    demand!(late >= 0, "the alarm fired {} ms early", -late);
    Ok(())
}

async fn an_alarm_in_the_past_fires(exam: &Exam<'_>) -> Verdict {
    exam.step("alarms overdue").await?;
    exam.wait_for("alarm", 1).await?;
    exam.pass_with_slack(0).await;
    demand_eq!(count(&exam.log().await?, "alarm"), 1, "alarms fired");
    Ok(())
}

async fn a_failing_handler_is_called_again(exam: &Exam<'_>) -> Verdict {
    exam.step("object set alarm=fail").await?;
    exam.step("alarms set 50").await?;
    exam.wait_for("alarm", 2).await?;
    exam.pass_with_slack(0).await;
    demand_eq!(
        exam.log().await?,
        ["set", "alarm", "alarm"],
        "the log: what the failed run committed stays, and the second succeeded"
    );
    Ok(())
}

async fn a_panicking_handler_is_called_again(exam: &Exam<'_>) -> Verdict {
    exam.step("object set alarm=panic").await?;
    exam.step("alarms set 50").await?;
    exam.wait_for("alarm", 2).await
}

async fn a_handler_cut_off_by_a_crash_is_called_again(exam: &Exam<'_>) -> Verdict {
    exam.step("object set alarm=hang").await?;
    exam.step("alarms set 50").await?;
    exam.wait_for("alarm", 1).await?;
    exam.crash().await;
    exam.wait_for("alarm", 2).await
}

async fn an_alarm_outlasts_a_factory_that_fails(exam: &Exam<'_>) -> Verdict {
    exam.step("object set refuse=an error").await?;
    exam.step("alarms set 100").await?;
    exam.crash().await;
    // Nothing calls the object while the alarm finds it impossible to open.
    exam.pass_with_slack(100).await;
    exam.wait_for("alarm", 1).await
}

async fn an_alarm_set_by_the_handler_is_kept(exam: &Exam<'_>) -> Verdict {
    exam.step("object set alarm=set again").await?;
    exam.step("alarms set 50").await?;
    exam.pass_with_slack(200).await;
    exam.step("object note mark").await?;
    demand_eq!(
        exam.log().await?,
        ["set", "alarm", "alarm", "mark"],
        "the log of a handler that sets the alarm once more"
    );
    Ok(())
}

async fn a_handler_that_sets_no_alarm_is_called_once(exam: &Exam<'_>) -> Verdict {
    exam.step("object set alarm=write slowly").await?;
    exam.step("alarms set 50").await?;
    exam.wait_for("written by the handler", 1).await?;
    exam.crash().await;
    exam.pass_with_slack(0).await;
    demand!(
        count(&exam.log().await?, "alarm") <= 2,
        "the handler was called again and again"
    );
    // The crash may have come before the host had noted the success; from now on nothing is due.
    let before = count(&exam.log().await?, "alarm");
    exam.pass_with_slack(0).await;
    exam.crash().await;
    exam.pass_with_slack(0).await;
    demand_eq!(count(&exam.log().await?, "alarm"), before, "alarms fired");
    Ok(())
}

async fn alarms_of_two_objects_are_apart(exam: &Exam<'_>) -> Verdict {
    let [one, other] = ["one", "other"].map(|name| format!("{}-{name}", exam.case));
    exam.step_of(&one, "alarms set 100").await?;
    exam.step_of(&other, "alarms set 3600000").await?;
    exam.pass_with_slack(100).await;
    demand_eq!(exam.log_of(&one).await?, ["set", "alarm"], "the first log");
    demand_eq!(exam.log_of(&other).await?, ["set"], "the second log");
    Ok(())
}

async fn calls_go_on_while_the_handler_waits(exam: &Exam<'_>) -> Verdict {
    exam.step("object set alarm=hang").await?;
    exam.step("alarms set 50").await?;
    exam.wait_for("alarm", 1).await?;
    exam.step("object note during").await?;
    demand_eq!(
        exam.log().await?,
        ["set", "alarm", "during"],
        "the log while the handler waits"
    );
    exam.crash().await;
    Ok(())
}

pub(super) async fn step(
    object: &Rc<ExamObject>,
    step: &str,
    argument: &str,
) -> Result<String, String> {
    let now = object.host.now();
    let set = |entry: String, millis: u64| {
        move |transaction: &dyn Transaction| {
            log(transaction.sql(), &entry, now.as_sql())?;
            transaction.set_alarm(Some(now + Duration::from_millis(millis)))
        }
    };
    match step {
        "set" => {
            let millis = argument.parse().map_err(said)?;
            let done = object.host.transaction(set("set".into(), millis));
            done.await.map_err(said)?;
        }
        "remove" => {
            let done = object
                .host
                .transaction(|transaction| transaction.set_alarm(None));
            done.await.map_err(said)?;
        }
        "overdue" => {
            let past = crate::Timestamp::from_millis(now.as_millis().saturating_sub(60_000));
            let done = object
                .host
                .transaction(move |transaction| transaction.set_alarm(Some(past)));
            done.await.map_err(said)?;
        }
        "start" => {
            let done = object.host.transaction(set("set".into(), 50));
            object.host.spawn(Box::pin(async move {
                // The crash may come first; either outcome is right.
                let _ = done.await;
            }));
        }
        "chain" => object.host.spawn(Box::pin(chain(object.clone()))),
        "late" => return late(object, argument.parse().map_err(said)?).await,
        _ => return unknown(step),
    }
    Ok(String::new())
}

/// Commits link after link, each with the alarm, a millisecond apart.
async fn chain(object: Rc<ExamObject>) {
    for link in 0..1_000 {
        let now = object.host.now();
        let done = object.host.transaction(move |transaction| {
            log(transaction.sql(), &format!("link {link}"), now.as_sql())?;
            transaction.set_alarm(Some(now + Duration::from_millis(100)))
        });
        if done.await.is_err() {
            return;
        }
        object.host.sleep(Duration::from_millis(1)).await;
    }
}

/// By how many milliseconds the first alarm came later than `millis` after it was set.
async fn late(object: &Rc<ExamObject>, millis: i64) -> Result<String, String> {
    let late = object.host.transaction(move |transaction| {
        let sql = transaction.sql();
        let at = |entry: &str| {
            sql.first(
                "SELECT at FROM exam_log WHERE entry = ? ORDER BY position",
                &[entry.into()],
                |row| row.integer(0),
            )
        };
        match (at("set")?, at("alarm")?) {
            (Some(set), Some(fired)) => Ok(fired - set - millis),
            _ => Err(StorageError::Failed("nothing has fired yet".into())),
        }
    });
    late.await.map_err(said).map(|late| late.to_string())
}
