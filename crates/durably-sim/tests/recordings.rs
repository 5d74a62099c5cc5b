//! Recordings of real holders: their ids, their late rounds, their rows from before.

use std::process::Command;

use durably_sim::replay::{Outcome, replay};

/// One permit of three is free; the round that gives it begins 11 ms after it was due.
const PART: &str = r#"{"op":"open","key":"acme","version":"0.1.0","now":1795998000000,"config":{"limit":3,"groupLimits":{},"roundWaitMs":50,"roundPeriodMs":100,"grantTimeoutMs":10000,"recorded":true},"out":[]}
{"op":"load","grants":[{"grantId":"01a2-old","clientId":"c1","group":"g","permits":2,"claimed":2,"released":0,"createdAt":1795997990000,"expiresAt":1795998000500}]}
{"op":"load","clients":[{"clientId":"c9","ttlMs":500,"expiresAt":1795998000400}]}
{"op":"send","id":"m3","message":{"type":"request","v":1,"clientId":"c2","demand":[{"group":"g","count":2,"oldestAt":1795998000000}],"grants":[],"sentAt":1795998000000},"now":1795998000000,"out":[]}
{"op":"send","id":"m4","message":{"type":"request","v":1,"clientId":"c3","demand":[{"group":"h","count":1,"oldestAt":1795998000000}],"grants":[],"waitMs":70},"now":1795998000000,"out":[]}
{"op":"advance","ms":55,"now":1795998000055,"out":[]}
{"op":"send","id":"m5","message":{"type":"sync","v":1,"clientId":"c2","grants":[{"grantId":"01a2-strange","claimed":1,"released":0}]},"now":1795998000055,"out":[{"t":"reply","id":"m5","value":{"type":"synced","v":1,"grantResults":[{"grantId":"01a2-strange","claimed":0,"status":"not_found"}]}}]}
{"op":"advance","ms":6,"now":1795998000061,"out":[]}
{"op":"round","now":1795998000061,"out":[{"t":"reply","id":"m3","value":{"type":"grant","v":1,"grants":[{"grantId":"01a2-new","group":"g","permits":1}],"blocked":[{"group":"g","reason":"limit"}],"grantResults":[],"nextRequestAt":1795998000161,"now":1795998000061}}]}
{"op":"advance","ms":10,"now":1795998000071,"out":[]}
{"op":"waitEnded","id":"m4","now":1795998000071,"out":[{"t":"reply","id":"m4","value":{"type":"grant","v":1,"grants":[],"blocked":[{"group":"h","reason":"limit"}],"grantResults":[],"nextRequestAt":1795998000161}}]}
{"op":"send","id":"m6","message":{"type":"sync","v":1,"clientId":"c1","grants":[{"grantId":"01a2-old","claimed":2,"released":1}]},"now":1795998000071,"out":[{"t":"reply","id":"m6","value":{"type":"synced","v":1,"grantResults":[{"grantId":"01a2-old","claimed":2,"status":"ok"}]}}]}
"#;

#[track_caller]
fn check_ok(text: &str) {
    match replay(text) {
        Outcome::Ok => {}
        Outcome::Different(difference) => panic!("{difference}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rounds_begin_when_the_recording_says_so_and_parts_stand_alone() {
    check_ok(PART);
    // The holder's next life, with the rows that it found.
    check_ok(&format!("{PART}{PART}"));
}

#[test]
fn a_line_that_was_cut_off_is_none() {
    check_ok(&format!("{PART}{{\"op\":\"send\",\"id\":\"m7\",\"mess"));
    let Outcome::Unreadable(problem) = replay(&format!("{PART}{{\"op\":\n")) else {
        panic!("a whole line must be one");
    };
    assert!(problem.starts_with("line 13"), "{problem}");
}

#[test]
fn what_was_not_answered_so_is_found_by_step() {
    let folder = std::env::temp_dir().join(format!("durably-recordings-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    for (number, (said, instead, step)) in [
        ("", "", None),
        ("\"permits\":1}", "\"permits\":2}", Some(9)),
        ("\"status\":\"not_found\"", "\"status\":\"ok\"", Some(7)),
        (
            "\"reason\":\"limit\"}],\"grantResults\":[],\"nextRequestAt\":1795998000161}}]}",
            "\"reason\":\"limit\"}],\"grantResults\":[],\"nextRequestAt\":1795998000162}}]}",
            Some(11),
        ),
        (
            "\"op\":\"waitEnded\",\"id\":\"m4\"",
            "\"op\":\"waitEnded\",\"id\":\"m3\"",
            Some(11),
        ),
        (
            "\"op\":\"waitEnded\",\"id\":\"m4\"",
            "\"op\":\"round\",\"id\":\"m4\"",
            Some(11),
        ),
        (
            "\"released\":0,\"createdAt\"",
            "\"released\":1,\"createdAt\"",
            Some(9),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.join(format!("{number}.jsonl"));
        assert!(PART.contains(said));
        std::fs::write(&path, PART.replacen(said, instead, 1)).expect("a temporary file");
        let output = Command::new(env!("CARGO_BIN_EXE_durably-sim"))
            .arg("replay")
            .arg(&path)
            .output()
            .expect("the program runs");
        let text = String::from_utf8(output.stdout).expect("text");
        match step {
            None => assert_eq!(output.status.code(), Some(0), "{text}"),
            Some(step) => {
                assert_eq!(output.status.code(), Some(1), "{text}");
                assert!(text.contains(&format!("step {step}:")), "{said}: {text}");
            }
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder was ours");
}
