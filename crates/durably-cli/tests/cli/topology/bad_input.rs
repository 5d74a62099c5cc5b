//! What is refused is told with its code, and changes nothing.

use reqwest::Method;
use reqwest::header::{IF_MATCH, IF_NONE_MATCH};
use serde_json::{Value, json};

use super::{send, setup};
use crate::support::{answer, until};

fn active(id: &str) -> Value {
    json!({"id": id, "state": "active"})
}

#[tokio::test]
async fn wrong_changes_are_refused_by_name_and_store_nothing() {
    let setup = setup().args([
        "--state-channels=limits",
        "--removal-guard=0.5",
        "--max-snapshot-bytes=60000",
        "--max-draft-bytes=2000000",
    ]);
    let server = setup.start().await;
    let path = "main/groups/t1";
    let draft = json!({"members": [active("a"), active("b"), active("c"), active("d")], "states": {"limits": 1}});
    let made = send(&server, Method::PUT, path, None, Some(&draft)).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let large = "x".repeat(17_000);
    let many = |size: usize| {
        let meta = "x".repeat(16_000);
        (0..size)
            .map(|index| json!({"id": format!("m{index}"), "state": "active", "meta": meta}))
            .collect::<Vec<_>>()
    };
    let (put, patch) = (Method::PUT, Method::PATCH);
    let cases = [
        (&put, path, json!({"members": []}), 400, "no_members"),
        (
            &put,
            path,
            json!({"members": [active("a"), active("a")]}),
            400,
            "duplicate_member",
        ),
        (
            &put,
            path,
            json!({"members": [active("")]}),
            400,
            "invalid_member",
        ),
        (
            &put,
            path,
            json!({"members": [active(&"x".repeat(257))]}),
            400,
            "invalid_member",
        ),
        (
            &put,
            path,
            json!({"members": [{"id": "a", "state": "active", "meta": large}]}),
            400,
            "invalid_member",
        ),
        (
            &put,
            path,
            json!({"members": [{"id": "a", "state": "asleep"}]}),
            400,
            "invalid_draft",
        ),
        (
            &put,
            path,
            json!({"members": [{"id": 1, "state": "active"}]}),
            400,
            "invalid_draft",
        ),
        (&put, path, json!({"members": null}), 400, "invalid_draft"),
        (&put, path, json!({"members": {}}), 400, "invalid_draft"),
        (&put, path, json!([]), 400, "invalid_draft"),
        (
            &put,
            path,
            json!({"states": {"colours": 1}}),
            400,
            "unknown_channel",
        ),
        (
            &put,
            path,
            json!({"states": {"limits": "x".repeat(1_100_000)}}),
            413,
            "state_too_large",
        ),
        (
            &put,
            path,
            json!({"states": {"limits": "x".repeat(2_100_000)}}),
            413,
            "body_too_large",
        ),
        (
            &put,
            path,
            json!({"members": many(4), "guard": 1}),
            413,
            "snapshot_too_large",
        ),
        (
            &put,
            path,
            json!({"members": [active("a")]}),
            409,
            "too_many_removed",
        ),
        (
            &patch,
            path,
            json!({"remove": ["a", "b", "c"]}),
            409,
            "too_many_removed",
        ),
        (
            &put,
            path,
            json!({"members": [active("a")], "guard": 2}),
            400,
            "invalid_draft",
        ),
        (
            &patch,
            path,
            json!({"remove": ["nobody"]}),
            404,
            "unknown_member",
        ),
        (
            &patch,
            path,
            json!({"drain": [{"id": "nobody"}]}),
            404,
            "unknown_member",
        ),
        (
            &patch,
            path,
            json!({"drain": [{"id": "a", "withinMs": 0}]}),
            400,
            "invalid_member",
        ),
        (
            &patch,
            path,
            json!({"put": [active("a")], "remove": ["a"]}),
            400,
            "duplicate_member",
        ),
        (&patch, path, json!({"put": "a"}), 400, "invalid_draft"),
        (
            &patch,
            "main/groups/t2",
            json!({"states": {"limits": 1}}),
            404,
            "unknown_group",
        ),
        (
            &patch,
            "main/groups/t2",
            json!({"remove": ["a"]}),
            404,
            "unknown_member",
        ),
    ];
    for (method, path, body, status, code) in cases {
        let refused = send(&server, method.clone(), path, None, Some(&body)).await;
        let shown: String = body.to_string().chars().take(80).collect();
        assert_eq!(
            (refused.status.as_u16(), &refused.body["error"]["code"]),
            (status, &json!(code)),
            "{shown}: {}",
            refused.body
        );
    }
    let long = format!("main/groups/{}", "x".repeat(257));
    for (path, code) in [
        (&*long, "invalid_group"),
        (
            &*format!("{}/groups/t1", "x".repeat(257)),
            "invalid_topology",
        ),
    ] {
        let refused = send(&server, Method::PUT, path, None, Some(&draft)).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.body["error"]["code"]),
            (400, &json!(code))
        );
    }
    let read = send(&server, Method::GET, path, None, None).await;
    assert_eq!(
        (read.tag().as_str(), &read.body),
        ("\"1\"", &made.body["snapshot"])
    );
    let states = send(&server, Method::GET, "main/groups/t1/states", None, None).await;
    assert_eq!(states.body, json!({"states": {"limits": 1}}));
}

#[tokio::test]
async fn wrong_requests_are_told() {
    let setup = setup();
    let server = setup.start().await;
    let path = "main/groups/t1";
    let draft = json!({"members": [active("a")]});
    send(&server, Method::PUT, path, None, Some(&draft)).await;
    for (name, value) in [
        (IF_MATCH, "1"),
        (IF_MATCH, "\"one\""),
        (IF_MATCH, "W/\"1\""),
        (IF_MATCH, "\"1\", \"2\""),
        (IF_NONE_MATCH, "\"1\""),
    ] {
        let field = if name == IF_MATCH {
            "If-Match"
        } else {
            "If-None-Match"
        };
        let refused = send(
            &server,
            Method::PUT,
            path,
            Some((name, value)),
            Some(&draft),
        )
        .await;
        assert_eq!(refused.status, 400, "{value}");
        assert_eq!(
            (
                &refused.body["error"]["code"],
                &refused.body["error"]["field"]
            ),
            (&json!("malformed_request"), &json!(field))
        );
    }
    let absent = send(
        &server,
        Method::PUT,
        "main/groups/t9",
        Some((IF_MATCH, "*")),
        Some(&draft),
    )
    .await;
    assert_eq!(absent.status, 404);
    for query in ["version=x", "audience=nobody", "waitMs=-1", "waitMs=60001"] {
        let refused = send(
            &server,
            Method::GET,
            &format!("{path}/convergence?{query}"),
            None,
            None,
        )
        .await;
        assert_eq!(refused.status, 400, "{query}: {}", refused.body);
    }
    for query in ["limit=0", "limit=1001", "limit=x"] {
        let refused = send(
            &server,
            Method::GET,
            &format!("main/groups?{query}"),
            None,
            None,
        )
        .await;
        assert_eq!(refused.status, 400, "{query}");
    }
    for (kind, body, status) in [
        ("application/json", "{\"members\": [", 400),
        ("application/json", "", 400),
        ("text/plain", "{}", 415),
    ] {
        let request = server.request(Method::PUT, "topologies/main/groups/t1");
        let request = request.header("content-type", kind).body(body);
        assert_eq!(answer(request).await.0, status, "{body}");
    }
    let post = send(&server, Method::POST, path, None, Some(&draft)).await;
    assert_eq!(post.status, 405);
}

#[tokio::test]
async fn asking_about_what_is_not_there_makes_nothing() {
    let setup = setup();
    let server = setup.start().await;
    for path in [
        "nobody/groups/t1",
        "nobody/groups/t1/states",
        "nobody/groups/t1/convergence",
        "nobody/published/t1",
    ] {
        assert_eq!(
            send(&server, Method::GET, path, None, None).await.status,
            404,
            "{path}"
        );
    }
    assert_eq!(
        send(&server, Method::DELETE, "nobody/groups/t1", None, None)
            .await
            .status,
        404
    );
    let draft = json!({"members": [active("a")]});
    for (condition, body, status) in [
        (None, json!({"members": []}), 400),
        (None, json!({"members": [active("a"), active("a")]}), 400),
        (None, json!({"members": [active("")]}), 400),
        (None, json!({"states": {}}), 404),
        (
            None,
            json!({"members": [active("a")], "states": {"limits": 1}}),
            400,
        ),
        (Some((IF_MATCH, "\"3\"")), draft.clone(), 412),
    ] {
        let path = "nobody/groups/t1";
        let refused = send(&server, Method::PUT, path, condition, Some(&body)).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.body);
    }
    assert!(!setup.data_dir().join("objects").join("topology").exists());
    assert!(!setup.data_dir().join("published").exists());
    let path = "nobody/groups/t1";
    let made = send(&server, Method::PUT, path, None, Some(&draft)).await;
    assert_eq!(made.status, 200, "{}", made.body);
}

#[tokio::test]
async fn a_damaged_copy_is_told_and_written_again_by_the_next_change() {
    let setup = setup();
    let server = setup.start().await;
    let draft = json!({"members": [active("a")]});
    send(&server, Method::PUT, "main/groups/t1", None, Some(&draft)).await;
    let published = crate::support::files(&setup.data_dir().join("published"));
    let (file, text) = published
        .into_iter()
        .find(|(path, _)| path.extension().is_some_and(|end| end == "json"))
        .expect("the published file");
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let damaged = send(&server, Method::GET, "main/published/t1", None, None).await;
    assert_eq!(
        (damaged.status.as_u16(), &damaged.body["error"]["code"]),
        (500, &json!("snapshot_malformed"))
    );
    let patch = json!({"put": [active("b")]});
    send(&server, Method::PATCH, "main/groups/t1", None, Some(&patch)).await;
    until("a good copy", || async {
        let read = send(&server, Method::GET, "main/published/t1", None, None).await;
        (read.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn wrong_settings_are_refused_by_name() {
    for (arg, field) in [
        ("--state-channels=a,a", "state_channels"),
        ("--state-channels=a=all", "--state-channels"),
        ("--removal-guard=1.5", "removal_guard"),
        ("--max-snapshot-bytes=0", "max_snapshot_bytes"),
        ("--max-draft-bytes=0", "max_draft_bytes"),
        ("--member-url=ftp://x/", "member_url"),
        ("--member-token=x", "member_token"),
    ] {
        let setup = setup().args([arg]);
        let (code, text) = setup.refused().await;
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(field), "{text}");
    }
    let setup = setup().config("state_channels = [\"a=everyone\"]");
    let (code, text) = setup.refused().await;
    assert!(code == 2 && text.contains("state_channels"), "{text}");
}
