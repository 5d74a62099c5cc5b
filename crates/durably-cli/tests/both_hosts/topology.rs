//! Groups are changed by those who know their version, published, and told to their members, through deaths.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use durably::topology::decode;
use reqwest::Method;
use reqwest::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use serde_json::{Value, json};

use crate::host::{Answer, Host, Place, Settings, answer};
use crate::members::Members;
use crate::support::load::Random;
use crate::support::until;

on_both_hosts!(
    a_group_is_changed_by_those_who_know_its_version,
    groups_are_listed_by_pages_and_topologies_are_apart,
    what_is_published_is_read_with_its_tag,
    members_are_told_the_values_of_their_channels,
    a_member_that_cannot_be_reached_delays_nobody_and_is_shown,
    a_draining_member_goes_when_it_says_that_it_holds_nothing,
    wrong_changes_are_refused_and_store_nothing,
    what_was_acknowledged_before_a_kill_is_delivered_after_it,
    killed_again_and_again_nothing_acknowledged_is_lost,
    evicted_again_and_again_nothing_acknowledged_is_lost,
);

fn settings() -> Settings {
    Settings {
        state_channels: Some("limits,flags=read"),
        ..Settings::default()
    }
}

fn active(id: &str) -> Value {
    json!({"id": id, "state": "active"})
}

fn ids(snapshot: &Value) -> Vec<&str> {
    let members = snapshot["members"].as_array().unwrap();
    members
        .iter()
        .map(|member| member["id"].as_str().unwrap())
        .collect()
}

impl Answer {
    fn tag(&self) -> &str {
        self.headers["etag"].to_str().unwrap()
    }
}

/// A request below `/v1/topologies/`, with a condition.
async fn send(
    host: &Host,
    method: Method,
    path: &str,
    condition: Option<(HeaderName, &str)>,
    body: Option<&Value>,
) -> Answer {
    let mut request = host.request(method, &format!("topologies/{path}")).await;
    if let Some((name, value)) = condition {
        request = request.header(name, value);
    }
    if let Some(body) = body {
        request = request.json(body);
    }
    answer(request).await.unwrap()
}

async fn put(host: &Host, path: &str, body: &Value) -> Answer {
    let made = send(host, Method::PUT, path, None, Some(body)).await;
    assert_eq!(made.status, 200, "{}", made.body);
    made
}

async fn get(host: &Host, path: &str) -> Answer {
    send(host, Method::GET, path, None, None).await
}

async fn a_group_is_changed_by_those_who_know_its_version(place: Place) {
    let host = Host::start(place, &settings()).await;
    let path = "main/groups/tenant%2F1";
    let draft = json!({"members": [active("b"), active("a")]});
    let none = get(&host, path).await;
    assert_eq!(none.refusal(), (404, "unknown_group", ""));

    let only_new = Some((IF_NONE_MATCH, "*"));
    let created = send(&host, Method::PUT, path, only_new.clone(), Some(&draft)).await;
    assert_eq!(created.status, 200, "{}", created.body);
    assert_eq!(
        (created.tag(), &created.body["published"]),
        ("\"1\"", &json!(true))
    );
    assert_eq!(created.body["snapshot"]["group"], "tenant/1");
    assert_eq!(ids(&created.body["snapshot"]), ["a", "b"]);
    let again = send(&host, Method::PUT, path, only_new.clone(), Some(&draft)).await;
    let (status, code, _) = again.refusal();
    assert_eq!((status, code), (412, "version_conflict"));
    // The same once more changes nothing.
    let first = Some((IF_MATCH, "\"1\""));
    let same = send(&host, Method::PUT, path, first.clone(), Some(&draft)).await;
    assert_eq!((same.status, same.tag()), (200, "\"1\""));

    let patch = json!({"put": [active("c")], "remove": ["a"], "drain": [{"id": "b"}]});
    let patched = send(&host, Method::PATCH, path, first.clone(), Some(&patch)).await;
    assert_eq!(
        (patched.status, patched.tag()),
        (200, "\"2\""),
        "{}",
        patched.body
    );
    assert_eq!(ids(&patched.body["snapshot"]), ["b", "c"]);
    assert_eq!(patched.body["snapshot"]["members"][0]["state"], "draining");
    for method in [Method::PATCH, Method::PUT, Method::DELETE] {
        let stale = send(&host, method, path, first.clone(), Some(&patch)).await;
        assert_eq!(stale.status, 412, "{}", stale.body);
    }
    let read = get(&host, path).await;
    assert_eq!(
        (read.tag(), &read.body),
        ("\"2\"", &patched.body["snapshot"])
    );

    let second = Some((IF_MATCH, "\"2\""));
    let deleted = send(&host, Method::DELETE, path, second, None).await;
    assert_eq!(deleted.ok(), json!({"version": 3, "published": true}));
    let gone = send(&host, Method::DELETE, path, None, None).await;
    assert_eq!(gone.status, 404);
    // It goes on counting.
    let anew = send(&host, Method::PUT, path, only_new, Some(&draft)).await;
    assert_eq!(anew.tag(), "\"4\"");
}

async fn groups_are_listed_by_pages_and_topologies_are_apart(place: Place) {
    let host = Host::start(place, &settings()).await;
    let draft = json!({"members": [active("a")]});
    for path in [
        "main/groups/one",
        "main/groups/three",
        "main/groups/two",
        "other/groups/four",
    ] {
        put(&host, path, &draft).await;
    }
    send(&host, Method::DELETE, "main/groups/three", None, None).await;
    for (path, groups) in [
        ("main/groups?limit=1", json!(["one"])),
        ("main/groups?after=one", json!(["two"])),
        ("main/groups?after=two", json!([])),
        ("other/groups", json!(["four"])),
        ("nobody/groups", json!([])),
    ] {
        assert_eq!(
            get(&host, path).await.ok(),
            json!({ "groups": groups }),
            "{path}"
        );
    }
}

async fn what_is_published_is_read_with_its_tag(place: Place) {
    let host = Host::start(place, &settings()).await;
    let path = "main/published/t1";
    assert_eq!(get(&host, path).await.refusal(), (404, "not_published", ""));
    put(&host, "main/groups/t1", &json!({"members": [active("a")]})).await;
    let first = get(&host, path).await;
    assert_eq!(first.status, 200, "{}", first.body);
    let text = host
        .request(Method::GET, &format!("topologies/{path}"))
        .await;
    let text = text.send().await.unwrap().bytes().await.unwrap();
    let read = decode("t1", &text).expect("a published text");
    assert_eq!((read.edition.version, read.members.unwrap().len()), (1, 1));
    let tag = first.tag();
    let known = || Some((IF_NONE_MATCH, tag));
    let same = send(&host, Method::GET, path, known(), None).await;
    assert_eq!(
        (same.status, same.tag(), &same.body),
        (304, tag, &Value::Null)
    );

    // A new incarnation is another edition of the same version.
    let begun = send(&host, Method::POST, "main/new-incarnation", None, None).await;
    assert_eq!(begun.status, 200, "{}", begun.body);
    until("the group to be published anew", || async {
        let now = send(&host, Method::GET, path, known(), None).await;
        (now.status == 200).then_some(())
    })
    .await;
    send(&host, Method::DELETE, "main/groups/t1", None, None).await;
    assert_eq!(get(&host, path).await.status, 404);
    let nobody = send(&host, Method::POST, "nobody/new-incarnation", None, None).await;
    assert_eq!(nobody.refusal(), (404, "unknown_topology", ""));
}

async fn members_are_told_the_values_of_their_channels(place: Place) {
    let members = Members::start().await;
    let host = Host::start(place, &settings()).await;
    let mut draining = members.member("b");
    draining["state"] = json!("draining");
    let states = json!({"limits": {"jobs": 10}, "flags": [1]});
    let draft = json!({"members": [members.member("a"), draining], "states": states});
    put(&host, "main/groups/t1", &draft).await;
    let wait = "main/groups/t1/convergence?version=1&audience=all&waitMs=60000";
    let there = get(&host, wait).await.ok();
    assert_eq!(
        (&there["reached"], &there["converged"]),
        (&json!(true), &json!(true)),
        "{there}"
    );
    assert_eq!(members.value("a", "limits"), Some(json!({"jobs": 10})));
    assert_eq!(members.value("b", "flags"), Some(json!([1])));
    // It takes no new work.
    assert_eq!(members.value("b", "limits"), None);
    let stored = get(&host, "main/groups/t1/states").await.ok();
    assert_eq!(stored, json!({ "states": states }));

    let patch = json!({"states": {"limits": null}, "put": [members.member("c")]});
    send(&host, Method::PATCH, "main/groups/t1", None, Some(&patch))
        .await
        .ok();
    get(&host, "main/groups/t1/convergence?version=2&waitMs=60000")
        .await
        .ok();
    assert_eq!(members.value("a", "limits"), Some(Value::Null));
    assert_eq!(members.value("c", "flags"), Some(json!([1])));
    {
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
        assert!(update["incarnation"]["createdAt"].is_u64(), "{update}");
        assert!(seen.tokens.is_empty() && seen.older.is_empty());
    }

    // Restored from a copy, it sends everything again, in its new incarnation.
    let known = members.seen().deliveries.len();
    send(&host, Method::POST, "main/new-incarnation", None, None)
        .await
        .ok();
    until("the values to be sent again", || async {
        let seen = members.seen();
        let again = seen.deliveries[known..].iter();
        let again: Vec<_> = again
            .map(|update| (update["member"].as_str(), update["channel"].as_str()))
            .collect();
        [
            ("a", "limits"),
            ("a", "flags"),
            ("b", "flags"),
            ("c", "limits"),
            ("c", "flags"),
        ]
        .iter()
        .all(|(member, channel)| again.contains(&(Some(member), Some(channel))))
        .then_some(())
    })
    .await;
}

async fn a_member_that_cannot_be_reached_delays_nobody_and_is_shown(place: Place) {
    let members = Members::start().await;
    let host = Host::start(place, &settings()).await;
    let nowhere = json!({"id": "z", "state": "active", "meta": {"url": "http://127.0.0.1:9/"}});
    let draft = json!({"members": [members.member("a"), nowhere], "states": {"limits": 1}});
    put(&host, "main/groups/t1", &draft).await;
    until("the other to have it", || async {
        members.value("a", "limits")
    })
    .await;
    let path = "main/groups/t1/convergence";
    let shown = until("the failure to be shown", || async {
        let shown = get(&host, path).await.ok();
        shown["channels"][0]["members"][1]["lastError"]
            .is_string()
            .then_some(shown)
    })
    .await;
    assert_eq!(shown["converged"], false);
    let stranger = &shown["channels"][0]["members"][1];
    assert_eq!(stranger["member"], "z");
    for (audience, wait, reached) in [("all", 20, false), ("published", 60_000, true)] {
        let path = format!("{path}?version=1&audience={audience}&waitMs={wait}");
        assert_eq!(
            get(&host, &path).await.ok()["reached"],
            reached,
            "{audience}"
        );
    }
}

async fn a_draining_member_goes_when_it_says_that_it_holds_nothing(place: Place) {
    let members = Members::start().await;
    let host = Host::start(place, &settings()).await;
    let draft = json!({"members": [members.member("a"), members.member("b")]});
    put(&host, "main/groups/t1", &draft).await;
    let patch = json!({"drain": [{"id": "b", "whenDrained": true}]});
    send(&host, Method::PATCH, "main/groups/t1", None, Some(&patch))
        .await
        .ok();
    until("it to be asked", || async {
        members.seen().asked.contains(&"b".to_owned()).then_some(())
    })
    .await;
    assert_eq!(ids(&get(&host, "main/groups/t1").await.ok()), ["a", "b"]);
    members.seen().drained.push("b".to_owned());
    until("it to be gone", || async {
        let read = get(&host, "main/groups/t1").await.ok();
        (ids(&read) == ["a"]).then_some(())
    })
    .await;
}

async fn wrong_changes_are_refused_and_store_nothing(place: Place) {
    let host = Host::start(place, &settings()).await;
    let path = "main/groups/t1";
    let four = ["a", "b", "c", "d"].map(active);
    let made = put(
        &host,
        path,
        &json!({"members": four, "states": {"limits": 1}}),
    )
    .await;
    let large = "x".repeat(17_000);
    let long = format!("main/groups/{}", "x".repeat(257));
    let long_topology = format!("{}/groups/t1", "x".repeat(257));
    for (method, path, body, status, code) in [
        (Method::PUT, path, json!({"members": []}), 400, "no_members"),
        (
            Method::PUT,
            path,
            json!({"members": [active("a"), active("a")]}),
            400,
            "duplicate_member",
        ),
        (
            Method::PUT,
            path,
            json!({"members": [active("")]}),
            400,
            "invalid_member",
        ),
        (
            Method::PUT,
            path,
            json!({"members": [{"id": "a", "state": "active", "meta": large}]}),
            400,
            "invalid_member",
        ),
        (
            Method::PUT,
            path,
            json!({"members": [{"id": "a", "state": "asleep"}]}),
            400,
            "invalid_draft",
        ),
        (
            Method::PUT,
            path,
            json!({"members": [{"id": 1, "state": "active"}]}),
            400,
            "invalid_draft",
        ),
        (
            Method::PUT,
            path,
            json!({"members": null}),
            400,
            "invalid_draft",
        ),
        (Method::PUT, path, json!([]), 400, "invalid_draft"),
        (
            Method::PUT,
            path,
            json!({"states": {"colours": 1}}),
            400,
            "unknown_channel",
        ),
        (
            Method::PUT,
            path,
            json!({"states": {"limits": "x".repeat(1_100_000)}}),
            413,
            "state_too_large",
        ),
        (
            Method::PUT,
            path,
            json!({"members": [active("a")], "guard": 0.5}),
            409,
            "too_many_removed",
        ),
        (
            Method::PUT,
            path,
            json!({"members": [active("a")], "guard": 2}),
            400,
            "invalid_draft",
        ),
        (
            Method::PATCH,
            path,
            json!({"remove": ["nobody"]}),
            404,
            "unknown_member",
        ),
        (
            Method::PATCH,
            path,
            json!({"drain": [{"id": "a", "withinMs": 0}]}),
            400,
            "invalid_member",
        ),
        (
            Method::PATCH,
            path,
            json!({"put": [active("a")], "remove": ["a"]}),
            400,
            "duplicate_member",
        ),
        (
            Method::PATCH,
            path,
            json!({"put": "a"}),
            400,
            "invalid_draft",
        ),
        (
            Method::PATCH,
            "main/groups/t2",
            json!({"states": {"limits": 1}}),
            404,
            "unknown_group",
        ),
        (
            Method::PUT,
            &*long,
            json!({"members": [active("a")]}),
            400,
            "invalid_group",
        ),
        (
            Method::PUT,
            &*long_topology,
            json!({"members": [active("a")]}),
            400,
            "invalid_topology",
        ),
    ] {
        let refused = send(&host, method.clone(), path, None, Some(&body)).await;
        let (told, named, _) = refused.refusal();
        let shown: String = body.to_string().chars().take(80).collect();
        assert_eq!(
            (told, named),
            (status, code),
            "{method} {shown}: {}",
            refused.body
        );
    }
    for (name, value) in [
        (IF_MATCH, "1"),
        (IF_MATCH, "\"one\""),
        (IF_MATCH, "W/\"1\""),
        (IF_NONE_MATCH, "\"1\""),
    ] {
        let body = json!({"members": [active("a")]});
        let refused = send(&host, Method::PUT, path, Some((name, value)), Some(&body)).await;
        assert_eq!(refused.status, 400, "{value}: {}", refused.body);
    }
    for query in ["version=x", "audience=everybody", "waitMs=60001"] {
        let refused = get(&host, &format!("{path}/convergence?{query}")).await;
        assert_eq!(refused.status, 400, "{query}: {}", refused.body);
    }
    let read = get(&host, path).await;
    assert_eq!((read.tag(), &read.body), ("\"1\"", &made.body["snapshot"]));
    let states = get(&host, "main/groups/t1/states").await.ok();
    assert_eq!(states, json!({"states": {"limits": 1}}));
}

async fn what_was_acknowledged_before_a_kill_is_delivered_after_it(place: Place) {
    let members = Members::start().await;
    members.seen().refusing = vec!["a".to_owned(), "b".to_owned()];
    let host = Host::start(place, &settings()).await;
    let draft = json!({
        "members": [members.member("a"), members.member("b")],
        "states": {"limits": {"jobs": 7}},
    });
    put(&host, "main/groups/t1", &draft).await;
    host.kill().await;
    assert_eq!(members.value("a", "limits"), None);
    members.seen().refusing.clear();
    host.start_again().await;
    // Nobody asks for the group: its coordinator comes back by itself.
    for id in ["a", "b"] {
        let value = until("the value to arrive", || async {
            members.value(id, "limits")
        })
        .await;
        assert_eq!(value, json!({"jobs": 7}));
    }
    let published = get(&host, "main/published/t1").await.ok();
    assert_eq!(published["content"]["version"], 1);
}

async fn killed_again_and_again_nothing_acknowledged_is_lost(place: Place) {
    through(place, true).await;
}

async fn evicted_again_and_again_nothing_acknowledged_is_lost(place: Place) {
    through(place, false).await;
}

/// Changes a group while its coordinator dies in the middle of publishing and delivering.
async fn through(place: Place, killed: bool) {
    let seed = RandomState::new().hash_one(0) | 1;
    let mut moments = Random(seed);
    let members = Members::start().await;
    let host = Host::start(place, &settings()).await;
    let mut last = 0;
    for _ in 0..6 {
        let until_death = Duration::from_millis(moments.below(300));
        // A change without an answer may have happened.
        let changing = change_on(&host, &members, &mut last);
        let _ = tokio::time::timeout(until_death, changing).await;
        match killed {
            true => {
                host.kill().await;
                host.start_again().await;
            }
            false => host.evict().await,
        }
    }
    let path = "main/groups/t1";
    let patch = json!({"put": [members.member("end")], "states": {"limits": "end"}});
    let end = send(&host, Method::PATCH, path, None, Some(&patch))
        .await
        .ok();
    let there = ids(&end["snapshot"]);
    for number in 1..=last {
        let id = format!("m{number}");
        assert!(
            there.contains(&&*id),
            "seed {seed}: {id} is lost: {there:?}"
        );
    }
    let wait = format!("{path}/convergence?audience=all&waitMs=60000");
    let converged = get(&host, &wait).await.ok();
    assert_eq!(converged["reached"], true, "seed {seed}: {converged}");
    for id in there {
        assert_eq!(
            members.value(id, "limits"),
            Some(json!("end")),
            "seed {seed}: {id}"
        );
    }
    let published = get(&host, "main/published/t1").await.ok();
    assert_eq!(
        published["content"]["version"], end["snapshot"]["version"],
        "seed {seed}"
    );
    assert_eq!(
        published["content"]["members"], end["snapshot"]["members"],
        "seed {seed}"
    );
    assert_eq!(members.seen().older, Vec::<Value>::new(), "seed {seed}");
}

/// Adds members one by one for as long as it is let; `last` is the last one that was acknowledged.
async fn change_on(host: &Host, members: &Members, last: &mut u64) {
    loop {
        let number = *last + 1;
        let patch = json!({
            "put": [members.member(&format!("m{number}"))],
            "states": {"limits": number},
        });
        let answer = send(host, Method::PATCH, "main/groups/t1", None, Some(&patch)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        *last = number;
    }
}
