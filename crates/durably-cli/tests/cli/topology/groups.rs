//! Groups are created, changed, read and deleted; members get what is theirs.

use durably::topology::decode;
use reqwest::header::{IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::members::Members;
use super::{send, setup};
use crate::support::until;

fn ids(snapshot: &Value) -> Vec<&str> {
    let members = snapshot["members"].as_array().unwrap();
    let members = members.iter();
    members
        .map(|member| member["id"].as_str().unwrap())
        .collect()
}

fn active(id: &str) -> Value {
    json!({"id": id, "state": "active"})
}

#[tokio::test]
async fn a_group_is_created_changed_and_deleted_by_those_who_know_its_version() {
    let setup = setup();
    let server = setup.start().await;
    let path = "main/groups/tenant%2F1";
    let draft = json!({"members": [active("b"), active("a")]});

    let none = send(&server, Method::GET, path, None, None).await;
    assert_eq!(
        (none.status, &none.body["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("unknown_group"))
    );

    let only_new = || Some((IF_NONE_MATCH, "*"));
    let created = send(&server, Method::PUT, path, only_new(), Some(&draft)).await;
    assert_eq!(created.status, StatusCode::OK, "{}", created.body);
    assert_eq!(
        (created.tag().as_str(), &created.body["published"]),
        ("\"1\"", &json!(true))
    );
    assert_eq!(created.body["snapshot"]["group"], "tenant/1");
    assert_eq!(ids(&created.body["snapshot"]), ["a", "b"]);
    let again = send(&server, Method::PUT, path, only_new(), Some(&draft)).await;
    assert_eq!(
        (again.status, &again.body["error"]["code"]),
        (StatusCode::PRECONDITION_FAILED, &json!("version_conflict"))
    );

    // The same once more changes nothing.
    let same = send(
        &server,
        Method::PUT,
        path,
        Some((IF_MATCH, "\"1\"")),
        Some(&draft),
    )
    .await;
    assert_eq!(
        (same.status, same.tag().as_str()),
        (StatusCode::OK, "\"1\"")
    );

    let patch = json!({"put": [active("c")], "remove": ["a"], "drain": [{"id": "b"}]});
    let patched = send(
        &server,
        Method::PATCH,
        path,
        Some((IF_MATCH, "\"1\"")),
        Some(&patch),
    )
    .await;
    assert_eq!(
        (patched.status, patched.tag().as_str()),
        (StatusCode::OK, "\"2\""),
        "{}",
        patched.body
    );
    assert_eq!(ids(&patched.body["snapshot"]), ["b", "c"]);
    assert_eq!(patched.body["snapshot"]["members"][0]["state"], "draining");
    let stale = send(
        &server,
        Method::PATCH,
        path,
        Some((IF_MATCH, "\"1\"")),
        Some(&patch),
    )
    .await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);

    let read = send(&server, Method::GET, path, None, None).await;
    assert_eq!(
        (read.tag().as_str(), &read.body),
        ("\"2\"", &patched.body["snapshot"])
    );

    let stale = send(
        &server,
        Method::DELETE,
        path,
        Some((IF_MATCH, "\"1\"")),
        None,
    )
    .await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);
    let deleted = send(
        &server,
        Method::DELETE,
        path,
        Some((IF_MATCH, "\"2\"")),
        None,
    )
    .await;
    assert_eq!(
        (deleted.status, &deleted.body),
        (StatusCode::OK, &json!({"version": 3, "published": true}))
    );
    let gone = send(&server, Method::DELETE, path, None, None).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    // It goes on counting.
    let anew = send(&server, Method::PUT, path, only_new(), Some(&draft)).await;
    assert_eq!(anew.tag(), "\"4\"");
}

#[tokio::test]
async fn groups_are_listed_by_pages_and_topologies_are_apart() {
    let setup = setup();
    let server = setup.start().await;
    let draft = json!({"members": [active("a")]});
    for group in ["one", "three", "two"] {
        let path = format!("main/groups/{group}");
        send(&server, Method::PUT, &path, None, Some(&draft)).await;
    }
    send(
        &server,
        Method::PUT,
        "other/groups/four",
        None,
        Some(&draft),
    )
    .await;
    send(&server, Method::DELETE, "main/groups/three", None, None).await;
    let first = send(&server, Method::GET, "main/groups?limit=1", None, None).await;
    assert_eq!(first.body, json!({"groups": ["one"]}));
    let rest = send(&server, Method::GET, "main/groups?after=one", None, None).await;
    assert_eq!(rest.body, json!({"groups": ["two"]}));
    let end = send(&server, Method::GET, "main/groups?after=two", None, None).await;
    assert_eq!(end.body, json!({"groups": []}));
    let nobody = send(&server, Method::GET, "nobody/groups", None, None).await;
    assert_eq!(
        (nobody.status, nobody.body),
        (StatusCode::OK, json!({"groups": []}))
    );
}

#[tokio::test]
async fn what_is_published_is_read_with_its_tag() {
    let setup = setup();
    let server = setup.start().await;
    let path = "main/published/t1";
    let missing = send(&server, Method::GET, path, None, None).await;
    assert_eq!(
        (missing.status, &missing.body["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("not_published"))
    );
    let draft = json!({"members": [active("a")]});
    send(&server, Method::PUT, "main/groups/t1", None, Some(&draft)).await;

    let first = send(&server, Method::GET, path, None, None).await;
    assert_eq!(first.status, StatusCode::OK);
    let text = server.request(Method::GET, "topologies/main/published/t1");
    let text = text.send().await.unwrap().bytes().await.unwrap();
    let read = decode("t1", &text).expect("a published text");
    assert_eq!((read.edition.version, read.members.unwrap().len()), (1, 1));
    let tag = first.tag();
    let same = send(
        &server,
        Method::GET,
        path,
        Some((IF_NONE_MATCH, &tag)),
        None,
    )
    .await;
    assert_eq!(
        (same.status, same.tag(), same.body),
        (StatusCode::NOT_MODIFIED, tag.clone(), Value::Null)
    );

    // A new incarnation is another edition of the same version.
    let begun = send(&server, Method::POST, "main/new-incarnation", None, None).await;
    assert_eq!(begun.status, StatusCode::OK, "{}", begun.body);
    until("the group to be published anew", || async {
        let now = send(
            &server,
            Method::GET,
            path,
            Some((IF_NONE_MATCH, &tag)),
            None,
        )
        .await;
        (now.status == StatusCode::OK).then_some(())
    })
    .await;

    send(&server, Method::DELETE, "main/groups/t1", None, None).await;
    let gone = send(&server, Method::GET, path, None, None).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    let nobody = send(&server, Method::POST, "nobody/new-incarnation", None, None).await;
    assert_eq!(
        (nobody.status, &nobody.body["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("unknown_topology"))
    );
}

#[tokio::test]
async fn members_are_told_the_values_of_their_channels() {
    let members = Members::start().await;
    let setup = setup().args(["--state-channels=limits,flags=read"]);
    let server = setup.start().await;
    let mut draining = members.member("b");
    draining["state"] = json!("draining");
    let draft = json!({
        "members": [members.member("a"), draining],
        "states": {"limits": {"jobs": 10}, "flags": [1]},
    });
    let made = send(&server, Method::PUT, "main/groups/t1", None, Some(&draft)).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.body);
    let wait = "main/groups/t1/convergence?version=1&audience=all&waitMs=60000";
    let there = send(&server, Method::GET, wait, None, None).await;
    assert_eq!(
        (&there.body["reached"], &there.body["converged"]),
        (&json!(true), &json!(true)),
        "{}",
        there.body
    );
    assert_eq!(members.value("a", "limits"), Some(json!({"jobs": 10})));
    assert_eq!(members.value("b", "flags"), Some(json!([1])));
    // It takes no new work.
    assert_eq!(members.value("b", "limits"), None);
    let states = send(&server, Method::GET, "main/groups/t1/states", None, None).await;
    assert_eq!(
        states.body,
        json!({"states": {"limits": {"jobs": 10}, "flags": [1]}})
    );

    let patch = json!({"states": {"limits": null}, "put": [members.member("c")]});
    send(&server, Method::PATCH, "main/groups/t1", None, Some(&patch)).await;
    let wait = "main/groups/t1/convergence?version=2&waitMs=60000";
    send(&server, Method::GET, wait, None, None).await;
    assert_eq!(members.value("a", "limits"), Some(Value::Null));
    assert_eq!(members.value("c", "flags"), Some(json!([1])));
    let seen = members.seen();
    let update = &seen.applied[&("c".to_owned(), "flags".to_owned())];
    assert_eq!(
        (&update["topology"], &update["group"]),
        (&json!("main"), &json!("t1"))
    );
    assert_eq!(
        (&update["version"], &update["topologyVersion"]),
        (&json!(1), &json!(2))
    );
    assert!(seen.tokens.is_empty() && seen.older.is_empty());
}

#[tokio::test]
async fn the_configuration_may_say_where_members_are_and_only_then_sends_them_a_token() {
    let members = Members::start().await;
    let template = format!("http://{}/{{member}}", members.address);
    let setup = setup().args([
        "--state-channels=limits",
        "--member-url",
        &template,
        "--member-token=secret",
    ]);
    let server = setup.start().await;
    // What metadata says is not looked at.
    let elsewhere = json!({"id": "a", "state": "active", "meta": {"url": "http://127.0.0.1:9/"}});
    let draft = json!({"members": [elsewhere], "states": {"limits": 1}});
    send(&server, Method::PUT, "main/groups/t1", None, Some(&draft)).await;
    let wait = "main/groups/t1/convergence?version=1&waitMs=60000";
    send(&server, Method::GET, wait, None, None).await;
    assert_eq!(members.value("a", "limits"), Some(json!(1)));
    assert_eq!(members.seen().tokens, ["Bearer secret"]);
}

#[tokio::test]
async fn a_member_that_cannot_be_reached_delays_nobody_and_is_shown() {
    let members = Members::start().await;
    let setup = setup().args(["--state-channels=limits"]);
    let server = setup.start().await;
    let nowhere = json!({"id": "z", "state": "active"});
    let draft = json!({"members": [members.member("a"), nowhere], "states": {"limits": 1}});
    send(&server, Method::PUT, "main/groups/t1", None, Some(&draft)).await;
    until("the other to have it", || async {
        members.value("a", "limits")
    })
    .await;
    let path = "main/groups/t1/convergence";
    let shown = until("the failure to be shown", || async {
        let shown = send(&server, Method::GET, path, None, None).await.body;
        shown["channels"][0]["members"][1]["lastError"]
            .is_string()
            .then_some(shown)
    })
    .await;
    assert_eq!(shown["converged"], false);
    let stranger = &shown["channels"][0]["members"][1];
    assert_eq!(stranger["member"], "z");
    assert!(
        stranger["lastError"]
            .as_str()
            .unwrap()
            .contains("names no url"),
        "{stranger}"
    );
    // Waiting ends with its time.
    let wait = format!("{path}?version=1&audience=all&waitMs=20");
    assert_eq!(
        send(&server, Method::GET, &wait, None, None).await.body["reached"],
        false
    );
    let wait = format!("{path}?version=1&audience=published&waitMs=60000");
    assert_eq!(
        send(&server, Method::GET, &wait, None, None).await.body["reached"],
        true
    );
}

#[tokio::test]
async fn a_draining_member_goes_when_it_says_that_it_holds_nothing() {
    let members = Members::start().await;
    let setup = setup().args(["--drain-check-period=50ms"]);
    let server = setup.start().await;
    let draft = json!({"members": [members.member("a"), members.member("b")]});
    send(&server, Method::PUT, "main/groups/t1", None, Some(&draft)).await;
    let patch = json!({"drain": [{"id": "b", "whenDrained": true}]});
    send(&server, Method::PATCH, "main/groups/t1", None, Some(&patch)).await;
    until("it to be asked", || async {
        members.seen().asked.contains(&"b".to_owned()).then_some(())
    })
    .await;
    let read = send(&server, Method::GET, "main/groups/t1", None, None).await;
    assert_eq!(ids(&read.body), ["a", "b"]);
    members.seen().drained.push("b".to_owned());
    until("it to be gone", || async {
        let read = send(&server, Method::GET, "main/groups/t1", None, None).await;
        (ids(&read.body) == ["a"]).then_some(())
    })
    .await;
}
