//! The server is killed (SIGKILL) while groups change: what was acknowledged is there afterwards, is
//! published, and reaches the members.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::members::Members;
use super::{send, setup};
use crate::support::load::Random;
use crate::support::{Server, until};

const KILLS: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_before_a_kill_is_published_and_delivered_after_it() {
    let members = Members::start().await;
    members.seen().refusing = vec!["a".to_owned(), "b".to_owned()];
    let setup = setup().args(["--state-channels=limits"]);
    let server = setup.start().await;
    let draft = json!({
        "members": [members.member("a"), members.member("b")],
        "states": {"limits": {"jobs": 7}},
    });
    let made = send(&server, Method::PUT, "main/groups/t1", None, Some(&draft)).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.body);
    server.kill().await;
    assert_eq!(members.value("a", "limits"), None);
    members.seen().refusing.clear();

    let server = setup.start().await;
    // Nobody asks for the group: its coordinator comes back by itself.
    for id in ["a", "b"] {
        let value = until("the value to arrive", || async {
            members.value(id, "limits")
        })
        .await;
        assert_eq!(value, json!({"jobs": 7}));
    }
    let published = send(&server, Method::GET, "main/published/t1", None, None).await;
    assert_eq!(published.body["content"]["version"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_nothing_acknowledged_is_lost_and_all_converges() {
    let seed = RandomState::new().hash_one(0) | 1;
    let mut moments = Random(seed);
    let members = Members::start().await;
    let setup = setup().args(["--state-channels=limits"]);
    let mut last = 0;
    for _ in 0..KILLS {
        let server = setup.start().await;
        let until_kill = Duration::from_millis(moments.below(300));
        // Each change adds a member and sets a value: a change without an answer may have happened.
        let changing = change_on(&server, &members, &mut last);
        let _ = tokio::time::timeout(until_kill, changing).await;
        server.kill().await;
    }
    let server = setup.start().await;
    let path = "main/groups/t1";
    let patch = json!({"put": [members.member("end")], "states": {"limits": "end"}});
    let end = send(&server, Method::PATCH, path, None, Some(&patch)).await;
    assert_eq!(end.status, StatusCode::OK, "{}", end.body);
    let there: Vec<&str> = end.body["snapshot"]["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["id"].as_str().unwrap())
        .collect();
    for number in 1..=last {
        assert!(
            there.contains(&&*format!("m{number}")),
            "seed {seed}: m{number} is lost: {there:?}"
        );
    }
    let wait = format!("{path}/convergence?audience=all&waitMs=60000");
    let converged = send(&server, Method::GET, &wait, None, None).await;
    assert_eq!(converged.body["reached"], true, "{}", converged.body);
    for id in there {
        assert_eq!(members.value(id, "limits"), Some(json!("end")), "{id}");
    }
    let published = send(&server, Method::GET, "main/published/t1", None, None).await;
    let (shown, version) = (&published.body["content"], &end.body["snapshot"]["version"]);
    assert_eq!(shown["version"], *version);
    assert_eq!(shown["members"], end.body["snapshot"]["members"]);
}

/// Adds members one by one for as long as it is let; `last` is the last one that was acknowledged.
async fn change_on(server: &Server, members: &Members, last: &mut u64) {
    loop {
        let number = *last + 1;
        let patch: Value = json!({
            "put": [members.member(&format!("m{number}"))],
            "states": {"limits": number},
        });
        let answer = send(server, Method::PATCH, "main/groups/t1", None, Some(&patch)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        *last = number;
    }
}
