//! The recorded traces, and that the replay notices when something differs from them.

use std::path::{Path, PathBuf};
use std::process::Command;

use durably_sim::replay::{Outcome, replay, replay_file};
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    let conformance = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    conformance.join(name)
}

fn traces(name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder(name)).expect("the traces are part of the project");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    files.sort();
    files
}

/// Replays a folder and counts what passed; a difference fails.
fn passed(name: &str) -> usize {
    let mut passed = 0;
    for file in traces(name) {
        match replay_file(&file) {
            Outcome::Ok => passed += 1,
            Outcome::Different(difference) => panic!("{}\n{difference}", file.display()),
            Outcome::Unreadable(problem) => panic!("{}: {problem}", file.display()),
        }
    }
    passed
}

// The counts are exact, so that no trace is skipped without anybody noticing.

#[test]
fn semaphore_traces_pass() {
    assert_eq!(passed("semaphore"), 137);
}

#[test]
fn semaphore_traces_with_slow_limits_pass() {
    assert_eq!(passed("semaphore-async"), 3);
}

#[test]
fn topology_traces_pass() {
    assert_eq!(passed("topology"), 73);
}

#[test]
fn every_expectation_of_every_step_is_compared() {
    for name in [
        "semaphore/named-01-grant-lifecycle.jsonl",
        "semaphore/named-05-blocked-reasons.jsonl",
        "semaphore/named-15-crash.jsonl",
        "semaphore/named-42-malformed-messages.jsonl",
        "topology/named-08-late-settlement.jsonl",
        "topology/named-14-deliveries-retry-alone.jsonl",
        "topology/named-29-discarded-and-back.jsonl",
    ] {
        let text = std::fs::read_to_string(folder(name)).expect("a trace");
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        let mut changed_lines = 0;
        for index in 0..lines.len() {
            for changed in changes(&lines[index]) {
                changed_lines += 1;
                let mut lines = lines.clone();
                lines[index] = changed.clone();
                let text: Vec<String> = lines.iter().map(Value::to_string).collect();
                match replay(&text.join("\n")) {
                    Outcome::Different(difference) => assert!(
                        // Ids are bound where they first appear and may be missed later.
                        difference.step > index,
                        "{name}: step {} reported for a change in step {}",
                        difference.step,
                        index + 1
                    ),
                    other => panic!("{name}, step {}: {other:?} for {changed}", index + 1),
                }
            }
        }
        assert!(changed_lines > 30, "{name}: {changed_lines} changes tried");
    }
}

/// Versions of a step that expect something else.
fn changes(step: &Value) -> Vec<Value> {
    if step["op"] == "note" {
        return Vec::new();
    }
    let mut changes = Vec::new();
    let mut change = |member: &str, value: Value| {
        let mut changed = step.clone();
        changed[member] = value;
        changes.push(changed);
    };
    if step["op"] != "open" {
        change("now", json!(7));
    }
    change("alarm", json!(7));
    let out = step["out"].as_array().expect("a list");
    let mut longer = out.clone();
    longer.push(json!({"t": "event", "event": {}}));
    change("out", Value::Array(longer));
    for index in 0..out.len() {
        let mut shorter = out.clone();
        shorter.remove(index);
        change("out", Value::Array(shorter));
        for pointer in [
            "/id",
            "/value",
            "/error",
            "/event",
            "/event/timestamp",
            "/value/grants",
            "/value/published",
            "/version",
            "/members",
            "/topologyVersion",
        ] {
            let mut other = out.clone();
            if let Some(value) = other[index].pointer_mut(pointer) {
                *value = json!(["something else"]);
                change("out", Value::Array(other));
            }
        }
    }
    if out.len() > 1 && out[0] != out[1] {
        let mut swapped = out.clone();
        swapped.swap(0, 1);
        change("out", Value::Array(swapped));
    }
    changes
}

const OPEN: &str = r#"{"op":"open","now":1000000,"config":{"roundWaitMs":100,"roundPeriodMs":200,"grantTimeoutMs":1000,"limit":5},"alarm":null,"out":[]}"#;

#[test]
fn rows_can_be_loaded_before_and_after_opening() {
    let load = r#"{"op":"load","grants":[
        {"grantId":"g10","clientId":"c1","group":"alpha","permits":2,"claimed":0,"released":0,"createdAt":999500,"expiresAt":1000500},
        {"grantId":"g9","clientId":"c2","group":"beta","permits":3,"claimed":3,"released":1,"createdAt":999500,"expiresAt":1000500}]}"#
        .replace('\n', "");
    let rows = r#"[{"grantId":"g10","clientId":"c1","group":"alpha","permits":2,"claimed":0,"released":0,"createdAt":999500,"expiresAt":1000500},
        {"grantId":"g9","clientId":"c2","group":"beta","permits":3,"claimed":3,"released":1,"createdAt":999500,"expiresAt":1000500}]"#
        .replace('\n', "");
    let rest = [
        format!(r#"{{"op":"state","now":1000000,"alarm":1000500,"out":[{{"t":"state","grants":{rows},"leases":[]}}]}}"#),
        r#"{"op":"usage","now":1000000,"alarm":1000500,"out":[{"t":"usage","value":{"limit":5,"granted":4,"leased":0,"available":1,"groups":{"alpha":{"granted":2},"beta":{"granted":2}}}}]}"#.into(),
        r#"{"op":"send","id":"r1","message":{"type":"sync","v":1,"clientId":"c1","grants":[{"grantId":"g10","claimed":1,"released":0}]},"now":1000000,"alarm":1000500,"out":[{"t":"reply","id":"r1","value":{"type":"synced","v":1,"grantResults":[{"grantId":"g10","claimed":1,"status":"ok"}]}}]}"#.into(),
    ]
    .join("\n");
    let alarm = r#""alarm":1000500,"out":[]}"#;
    let opened_after = OPEN.replace(r#""alarm":null,"out":[]}"#, alarm);
    for trace in [
        format!("{load}\n{opened_after}\n{rest}"),
        format!("{OPEN}\n{load}\n{rest}"),
    ] {
        match replay(&trace) {
            Outcome::Ok => {}
            Outcome::Different(difference) => panic!("{difference}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_no_trace_is_unreadable() {
    let usage = r#"{"op":"usage","now":1000000,"alarm":null,"out":[]}"#;
    for (text, problem) in [
        ("", "there is no step \"open\""),
        (r#"{"op":"note","text":"nothing else"}"#, "no step \"open\""),
        ("{\"op\":", "line 1"),
        ("[]", "line 1"),
        (&format!("{usage}\n{OPEN}"), "line 1: nothing is open yet"),
        (
            &format!("{OPEN}\n{{\"op\":\"advance\",\"ms\":1}}"),
            "line 2: no member \"now\"",
        ),
        (
            &format!("{OPEN}\n{}", usage.replace("usage", "snapshot")),
            "line 2: no step \"snapshot\"",
        ),
        (
            &format!("{OPEN}\n{}", usage.replace("usage", "send")),
            "line 2: no member \"id\"",
        ),
    ] {
        match replay(text) {
            Outcome::Unreadable(found) => assert!(found.contains(problem), "{found:?}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn the_command_counts_and_exits_with_one_on_any_difference() {
    let folder = std::env::temp_dir().join(format!("durably-traces-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a temporary file");
        path
    };
    let good = file("good.jsonl", OPEN);
    let topology = file(
        "topology.jsonl",
        &OPEN.replace(
            r#""limit":5"#,
            r#""coordinator":"c1","channels":{},"retryDelays":[]"#,
        ),
    );
    let wrong = file(
        "wrong.jsonl",
        &OPEN.replace(r#""alarm":null"#, r#""alarm":3"#),
    );
    let run = |files: &[&Path]| {
        let output = Command::new(env!("CARGO_BIN_EXE_durably-sim"))
            .arg("replay")
            .args(files)
            .output()
            .expect("the program runs");
        let text = String::from_utf8(output.stdout).expect("text");
        (output.status.code(), text)
    };

    let (code, text) = run(&[&good, &topology]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.ends_with("2 traces: 2 ok, 0 different, 0 unreadable\n"),
        "{text}"
    );

    let (code, text) = run(&[&good, &wrong]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("DIFF") && text.contains("expected 3"),
        "{text}"
    );

    let (code, text) = run(&[&good, &folder.join("missing.jsonl")]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("UNREADABLE"), "{text}");
    std::fs::remove_dir_all(&folder).expect("the folder was ours");
}
