//! Cases about instances: names, memory, tasks, timers, eviction, panics.

use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;

use super::object::{said, unknown};
use super::{Exam, ExamObject, Verdict, demand, demand_eq, exam_cases};
use crate::host::Object;

exam_cases![
    names_and_ids_are_kept,
    odd_names_are_names,
    two_objects_do_not_see_each_other,
    calls_share_one_instance,
    calls_interleave_at_awaits,
    eviction_forgets_memory_and_keeps_rows,
    sleep_is_never_too_short,
    sleeps_end_in_order,
    tasks_go_on_after_their_call,
    tasks_end_with_their_instance,
    calls_that_wait_fail_when_the_instance_ends,
    a_panic_in_a_call_ends_only_that_instance,
    a_panic_in_a_task_ends_only_that_instance,
    work_that_was_queued_is_lost_whole_or_kept_whole,
    a_factory_that_fails_is_tried_again,
    randomness_differs,
    the_clock_goes_on,
];

async fn names_and_ids_are_kept(exam: &Exam<'_>) -> Verdict {
    let name = exam.step("instances name").await?;
    demand_eq!(name, exam.case, "the name of the object");
    let id = exam.step("instances id").await?;
    demand!(!id.is_empty(), "the id is empty");
    exam.crash().await;
    demand_eq!(exam.step("instances id").await?, id, "the id after a crash");
    let other = format!("{}-other", exam.case);
    demand!(
        exam.step_of(&other, "instances id").await? != id,
        "two objects have the id {id:?}"
    );
    Ok(())
}

async fn odd_names_are_names(exam: &Exam<'_>) -> Verdict {
    let case = exam.case;
    let long = format!("{case}-{}", "long".repeat(40));
    let names = [
        format!("{case}-A"),
        format!("{case}-a"),
        format!("{case}/../up"),
        format!("..{case}"),
        format!("/{case}"),
        format!("{case} with spaces, %2F, \"quotes\" and \\"),
        format!("{case}-é"),
        // The same to the eye, other bytes.
        format!("{case}-e\u{301}"),
        format!("{case}-🦀"),
        format!("{case}.sqlite"),
        long,
    ];
    for name in &names {
        exam.step_of(name, &format!("object note {name}")).await?;
    }
    for name in &names {
        exam.examinee.crash(name).await;
        demand_eq!(
            exam.log_of(name).await?,
            [name.as_str()],
            format!("the log of the object named {name:?}")
        );
        demand_eq!(
            &exam.step_of(name, "instances name").await?,
            name,
            "what the object takes for its name"
        );
    }
    Ok(())
}

async fn two_objects_do_not_see_each_other(exam: &Exam<'_>) -> Verdict {
    let [one, other] = ["one", "other"].map(|name| format!("{}-{name}", exam.case));
    exam.step_of(&one, "object note mine").await?;
    exam.step_of(&one, "instances remember 7").await?;
    demand_eq!(
        exam.log_of(&other).await?,
        Vec::<String>::new(),
        "the log of the other object"
    );
    demand_eq!(
        exam.step_of(&other, "instances recall").await?,
        "0",
        "what the other object remembers"
    );
    exam.examinee.crash(&other).await;
    demand_eq!(
        exam.step_of(&one, "instances recall").await?,
        "7",
        "what the object remembers after the other one crashed"
    );
    Ok(())
}

async fn calls_share_one_instance(exam: &Exam<'_>) -> Verdict {
    let calls = (0..20).map(|_| exam.step("object instance"));
    let instances = join_all(calls).await;
    for instance in &instances {
        demand_eq!(instance, &instances[0], "the instance that answered");
    }
    instances[0].as_ref().map_err(Clone::clone)?;
    exam.step("instances remember 3").await?;
    demand_eq!(exam.step("instances recall").await?, "3", "the memory");
    Ok(())
}

async fn calls_interleave_at_awaits(exam: &Exam<'_>) -> Verdict {
    exam.step("object note start").await?;
    let slow = exam.step("instances sleep_and_note 500 slow");
    let quick = async {
        exam.pass(50).await;
        exam.step("object note quick").await
    };
    let (slow, quick) = futures::join!(slow, quick);
    slow?;
    quick?;
    demand_eq!(
        exam.log().await?,
        ["start", "quick", "slow"],
        "the log of a call that sleeps and one that comes later"
    );
    Ok(())
}

async fn eviction_forgets_memory_and_keeps_rows(exam: &Exam<'_>) -> Verdict {
    exam.step("object note kept").await?;
    exam.step("instances remember 5").await?;
    let before = exam.step("object instance").await?;
    exam.examinee.evict(exam.case).await;
    demand_eq!(exam.step("instances recall").await?, "0", "the memory");
    demand!(
        exam.step("object instance").await? != before,
        "the evicted instance still answers"
    );
    demand_eq!(exam.log().await?, ["kept"], "the log");
    Ok(())
}

async fn sleep_is_never_too_short(exam: &Exam<'_>) -> Verdict {
    for millis in [0i64, 1, 7, 100] {
        let slept = exam.step(&format!("instances sleep {millis}")).await?;
        let slept: i64 = slept.parse().map_err(said)?;
        // Reading a clock in whole milliseconds before and after may hide one.
        demand!(
            slept >= millis - 1,
            "a sleep of {millis} ms ended after {slept} ms"
        );
    }
    Ok(())
}

async fn sleeps_end_in_order(exam: &Exam<'_>) -> Verdict {
    exam.step("instances sleepers").await?;
    exam.wait_for("slept 300", 1).await?;
    demand_eq!(
        exam.log().await?,
        ["slept 0", "slept 100", "slept 200", "slept 300"],
        "the order in which sleeps ended"
    );
    Ok(())
}

async fn tasks_go_on_after_their_call(exam: &Exam<'_>) -> Verdict {
    exam.step("instances task 150").await?;
    exam.pass_with_slack(150).await;
    demand_eq!(exam.log().await?, ["task"], "the log");
    Ok(())
}

async fn tasks_end_with_their_instance(exam: &Exam<'_>) -> Verdict {
    // Long enough for a crash that comes late.
    exam.step("instances task 1000").await?;
    exam.crash().await;
    // The next instance must not inherit it.
    exam.step("object note next").await?;
    exam.pass_with_slack(1_000).await;
    demand_eq!(exam.log().await?, ["next"], "the log");
    Ok(())
}

async fn calls_that_wait_fail_when_the_instance_ends(exam: &Exam<'_>) -> Verdict {
    let call = exam
        .examinee
        .call(exam.case, "instances sleep_and_note 5000 slept");
    let crash = async {
        exam.pass(100).await;
        exam.crash().await;
    };
    let (answer, ()) = futures::join!(call, crash);
    demand!(
        answer.is_err(),
        "the call answered {answer:?} although its instance had ended"
    );
    demand_eq!(
        exam.log().await?,
        Vec::<String>::new(),
        "the log of the next instance"
    );
    Ok(())
}

async fn a_panic_in_a_call_ends_only_that_instance(exam: &Exam<'_>) -> Verdict {
    let other = format!("{}-other", exam.case);
    let bystander = exam.step_of(&other, "object instance").await?;
    exam.step("object note before").await?;
    let before = exam.step("object instance").await?;
    exam.fatal_step("instances panic").await?;
    demand!(
        exam.step("object instance").await? != before,
        "the instance that panicked still answers"
    );
    exam.step("object note after").await?;
    demand_eq!(exam.log().await?, ["before", "after"], "the log");
    demand_eq!(
        exam.step_of(&other, "object instance").await?,
        bystander,
        "the instance of another object after the panic"
    );
    Ok(())
}

async fn a_panic_in_a_task_ends_only_that_instance(exam: &Exam<'_>) -> Verdict {
    let before = exam.step("object instance").await?;
    exam.step("instances panic_later").await?;
    exam.pass_with_slack(20).await;
    demand!(
        exam.step("object instance").await? != before,
        "the instance whose task panicked still answers"
    );
    Ok(())
}

async fn work_that_was_queued_is_lost_whole_or_kept_whole(exam: &Exam<'_>) -> Verdict {
    exam.fatal_step("instances queue_and_panic").await?;
    let log = exam.log().await?;
    demand!(
        log.is_empty() || log == ["one", "two"],
        "half of a transaction was stored: {log:?}"
    );
    Ok(())
}

async fn a_factory_that_fails_is_tried_again(exam: &Exam<'_>) -> Verdict {
    for failure in ["an error", "panic"] {
        exam.step(&format!("object set refuse={failure}")).await?;
        exam.crash().await;
        if let Ok(answer) = exam.examinee.call(exam.case, "object instance").await {
            return Err(format!("an object that cannot open answered {answer:?}"));
        }
        exam.step(&format!("object note open after {failure}"))
            .await?;
    }
    demand_eq!(
        exam.log().await?,
        ["open after an error", "open after panic"],
        "the log"
    );
    Ok(())
}

async fn randomness_differs(exam: &Exam<'_>) -> Verdict {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let drawn = exam.step("instances random").await?;
        seen.extend(drawn.split(' ').map(str::to_owned));
        exam.crash().await;
    }
    demand_eq!(seen.len(), 6, "draws");
    seen.sort();
    seen.dedup();
    demand_eq!(
        seen.len(),
        6,
        "draws of 16 bytes that differ from all others"
    );
    Ok(())
}

async fn the_clock_goes_on(exam: &Exam<'_>) -> Verdict {
    let now = |text: String| text.parse::<u64>().map_err(said);
    let before = now(exam.step("instances now").await?)?;
    demand!(before > 0, "the clock shows the epoch");
    exam.pass(300).await;
    exam.crash().await;
    let after = now(exam.step("instances now").await?)?;
    demand!(
        after >= before + 299,
        "the clock moved by {} ms in 300 ms",
        after as i64 - before as i64
    );
    Ok(())
}

pub(super) async fn step(
    object: &Rc<ExamObject>,
    step: &str,
    argument: &str,
) -> Result<String, String> {
    let host = &object.host;
    match step {
        "name" => return Ok(host.name().to_owned()),
        "id" => {
            let class = <ExamObject as Object>::CLASS;
            return if host.id() == class {
                Err("the id is the class alone".into())
            } else {
                Ok(host.id().to_owned())
            };
        }
        "now" => return Ok(host.now().as_millis().to_string()),
        "remember" => object.memory.set(argument.parse().map_err(said)?),
        "recall" => return Ok(object.memory.get().to_string()),
        "random" => {
            let mut drawn = Vec::new();
            for _ in 0..2 {
                let mut bytes = [0; 16];
                host.random(&mut bytes);
                drawn.push(format!("{:032x}", u128::from_le_bytes(bytes)));
            }
            return Ok(drawn.join(" "));
        }
        "sleep" => {
            let before = host.now();
            let millis = argument.parse().map_err(said)?;
            host.sleep(Duration::from_millis(millis)).await;
            return Ok((host.now().as_sql() - before.as_sql()).to_string());
        }
        "sleep_and_note" => {
            let (millis, entry) = argument.split_once(' ').unwrap_or((argument, ""));
            host.sleep(Duration::from_millis(millis.parse().map_err(said)?))
                .await;
            object.note(entry).await.map_err(said)?;
        }
        "sleepers" => {
            for millis in [200, 0, 300, 100] {
                note_later(object, millis, format!("slept {millis}"));
            }
        }
        "task" => note_later(object, argument.parse().map_err(said)?, "task".into()),
        "panic" => panic!("told to panic in a call"),
        "panic_later" => {
            let sleep = host.sleep(Duration::from_millis(20));
            host.spawn(Box::pin(async move {
                sleep.await;
                panic!("told to panic in a task");
            }));
        }
        "queue_and_panic" => {
            let now = host.now().as_sql();
            drop(host.transaction(move |transaction| {
                super::object::log(transaction.sql(), "one", now)?;
                super::object::log(transaction.sql(), "two", now)
            }));
            panic!("told to panic with a transaction queued");
        }
        _ => return unknown(step),
    }
    Ok(String::new())
}

/// Writes to the log in a task, after some time.
fn note_later(object: &Rc<ExamObject>, millis: u64, entry: String) {
    let writer = object.clone();
    object.host.spawn(Box::pin(async move {
        writer.host.sleep(Duration::from_millis(millis)).await;
        // If this fails the entry is missing, which the case finds.
        let _ = writer.note(&entry).await;
    }));
}
