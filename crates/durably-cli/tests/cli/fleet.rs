//! Servers whose shards share the budgets of another server.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use durably::semaphore::client::SemaphoreClient;
use durably_native::http::{HttpHolders, TokioTimer};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::support::endpoint::Endpoint;
use crate::support::load::{
    Place, Random, check_limits, submit, until_all_ran, until_permits_return,
};
use crate::support::network::Network;
use crate::support::{Server, Setup, until};

const BLOWS: usize = 20;
const ACCOUNTS: usize = 4;
const GROUPS: usize = 3;
const JOBS: usize = 250;
const ACCOUNT_LIMIT: u64 = 5;
const GROUP_LIMIT: u64 = 3;
const TOKEN: &str = "the-holders-secret";

/// A server whose holders are behind `network`.
fn shards(endpoint: &Endpoint, network: &Network) -> Setup {
    Setup::new(endpoint.url())
        .args(["--holders", &network.url()])
        .variable("DURABLY_HOLDERS_TOKEN", TOKEN)
}

fn holders(endpoint: &Endpoint) -> Setup {
    Setup::new(endpoint.url()).args(["--token", TOKEN])
}

fn job(server: &str, index: usize, ms: u64) -> Value {
    json!({
        "account": format!("account-{}", index % ACCOUNTS),
        "group": format!("group-{}", index / ACCOUNTS % GROUPS),
        "id": format!("{server}-{index}"),
        "body": {"ms": ms},
    })
}

async fn kill(place: &Place, setup: &Setup) {
    let running = place.write().await.take();
    running.expect("a server").kill().await;
    *place.write().await = Some(opened(setup).await);
}

/// A server that is asked with the token, should it want one.
async fn opened(setup: &Setup) -> Server {
    let mut server = setup.start().await;
    server.token = Some(TOKEN.to_owned());
    server
}

/// Keeps the network in trouble for a while; what was held back may be lost as well.
async fn trouble(network: &Network, random: &mut Random) {
    let silent = random.below(2) == 0;
    match silent {
        true => network.silence(),
        false => network.refuse(),
    }
    tokio::time::sleep(Duration::from_millis(random.below(700))).await;
    if silent && random.below(2) == 0 {
        network.cut();
    }
    network.mend();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_share_a_budget_whoever_dies_and_whatever_the_network_does() {
    share(Some(GROUP_LIMIT), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_share_it_by_leases_as_well() {
    // Grants leave three permits of five alone.
    let provisioning = json!({"mode": "under", "reserve": 3});
    let leases = json!({"provisioning": provisioning, "permitsPerLease": 2, "ttlMs": 2000});
    share(None, Some(leases)).await;
}

/// Two servers run jobs within the budgets of a third.
async fn share(group_limit: Option<u64>, leases: Option<Value>) {
    let seed = RandomState::new().hash_one(0) | 1;
    let endpoint = Endpoint::start().await;
    let mut budgets = holders(&endpoint).args([&*format!("--default-limit={ACCOUNT_LIMIT}")]);
    if let Some(limit) = group_limit {
        budgets = budgets.args([&*format!("--default-group-limit={limit}")]);
    }
    let networks = [Network::start().await, Network::start().await];
    let fronts = [0, 1].map(|index| shards(&endpoint, &networks[index]));
    let servers: [Place; 2] = [
        RwLock::new(Some(fronts[0].start().await)),
        RwLock::new(Some(fronts[1].start().await)),
    ];
    let holder: Place = RwLock::new(Some(opened(&budgets).await));
    for index in 0..ACCOUNTS {
        let holder = holder.read().await;
        let path = format!("accounts/account-{index}/leases");
        let leases = json!({ "leases": leases });
        let (status, answer) = holder.as_ref().unwrap().put(&path, &leases).await;
        assert_eq!(status, 200, "{answer}");
    }
    let lead = async || {
        let address = holder.read().await.as_ref().unwrap().address;
        for network in &networks {
            network.lead_to(address);
        }
    };
    lead().await;
    let mut random = Random(!seed | 1);
    let mut leased = 0;
    let blows = async {
        for number in 0..BLOWS {
            tokio::time::sleep(Duration::from_millis(random.below(400))).await;
            let side = random.below(2) as usize;
            match random.below(4) {
                0 => {
                    kill(&holder, &budgets).await;
                    lead().await;
                }
                1 => kill(&servers[side], &fronts[side]).await,
                2 => networks[side].cut(),
                _ => trouble(&networks[side], &mut random).await,
            }
            let path = format!("accounts/account-{}/usage", number % ACCOUNTS);
            let holder = holder.read().await;
            let (_, usage) = holder.as_ref().unwrap().get(&path).await;
            leased += usage["leased"].as_u64().unwrap();
        }
    };
    let load = |side: usize| {
        let name = ["left", "right"][side];
        let mut random = Random(seed.rotate_left(7 * side as u32) | 1);
        let jobs = (0..JOBS).map(|index| job(name, index, 20 + random.below(150)));
        let jobs: Vec<Value> = jobs.collect();
        submit(&servers[side], jobs, random)
    };
    futures::join!(load(0), load(1), blows);
    assert_eq!(leased > 0, leases.is_some());
    let ids: BTreeSet<String> = ["left", "right"]
        .into_iter()
        .flat_map(|name| (0..JOBS).map(move |index| format!("{name}-{index}")))
        .collect();
    until_all_ran(&endpoint, ids).await;
    check_limits(&endpoint, ACCOUNT_LIMIT, group_limit);
    // All permits return, whichever server is asked.
    let front = servers[0].read().await;
    until_permits_return(front.as_ref().unwrap(), ACCOUNTS).await;
    for (side, name) in ["left", "right"].into_iter().enumerate() {
        let server = servers[side].read().await;
        let server = server.as_ref().unwrap();
        for index in 0..JOBS {
            let account = format!("account-{}", index % ACCOUNTS);
            let id = format!("{name}-{index}");
            server.until_state(&account, &id, "completed").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_takes_jobs_before_its_holders_are_there() {
    let endpoint = Endpoint::start().await;
    let network = Network::start().await;
    let front = shards(&endpoint, &network).start().await;
    let (status, answer) = front
        .post("jobs", &json!({"account": "acme", "id": "1"}))
        .await;
    assert_eq!(status, 202, "{answer}");
    until("the job to say what it waits for", || async {
        let (_, job) = front.get("accounts/acme/jobs/1").await;
        (job["state"] == "queued" && job["blockedReason"] == "unreachable").then_some(())
    })
    .await;
    for path in ["limit", "groups/default/limit", "usage"] {
        let (status, answer) = front.get(&format!("accounts/acme/{path}")).await;
        assert_eq!(status, 503, "{answer}");
        assert_eq!(answer["error"]["code"], "holders_unreachable");
    }
    // Its shards are its own.
    assert_eq!(front.get("accounts/acme/shards").await.0, 200);
    assert_eq!(front.get("health").await.0, 200);

    let budgets = holders(&endpoint).start().await;
    network.lead_to(budgets.address);
    front.until_state("acme", "1", "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_usage_are_those_of_the_holders_on_every_server() {
    let endpoint = Endpoint::start().await;
    let network = Network::start().await;
    let budgets = opened(&holders(&endpoint)).await;
    network.lead_to(budgets.address);
    let front = shards(&endpoint, &network).start().await;

    front.put("accounts/acme/limit", &json!({"limit": 2})).await;
    let group = "accounts/acme/groups/nightly%2F1/limit";
    front.put(group, &json!({"limit": 1})).await;
    for path in ["accounts/acme/limit", group, "accounts/acme/usage"] {
        let there = budgets.get(path).await;
        assert_eq!(front.get(path).await, there);
        assert_eq!(there.0, 200);
    }
    let hold = |id: &str| {
        let group = "nightly/1";
        json!({"account": "acme", "id": id, "group": group, "body": {"hold": true}})
    };
    front.post("jobs", &json!([hold("1"), hold("2")])).await;
    until("the group's one permit to be in use", || async {
        let (_, usage) = front.get("accounts/acme/usage").await;
        assert_eq!(usage["limit"], 2);
        (usage["groups"]["nightly/1"] == json!({"granted": 1, "limit": 1})).then_some(())
    })
    .await;
    endpoint.release();
    let (status, answer) = front.delete(group).await;
    assert_eq!((status.as_u16(), answer), (200, json!({"limit": null})));
    for id in ["1", "2"] {
        front.until_state("acme", id, "completed").await;
    }
    for (limit, field) in [
        (json!(-1), "limit"),
        (json!(9_007_199_254_740_992_u64), "limit"),
    ] {
        let body = json!({ "limit": limit });
        let (status, answer) = front.put("accounts/acme/limit", &body).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["field"]),
            (400, &json!(field))
        );
    }
    // A path of HTTP cannot lead to such an account.
    let (status, answer) = front
        .post("jobs", &json!({"account": "..", "id": "1"}))
        .await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["field"]),
        (400, &json!("account"))
    );

    // A client that knows only the front reaches the same budget.
    let reached = HttpHolders::new(&format!("http://{}", front.address), None).unwrap();
    let client = SemaphoreClient::new(reached, TokioTimer);
    let reply = client.request("acme", crate::holders::demand(5)).await;
    assert_eq!(reply.unwrap().grants[0].permits, 2);
    let (_, usage) = budgets.get("accounts/acme/usage").await;
    assert_eq!(usage["granted"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_or_server_is_told_and_no_token_is_logged() {
    let endpoint = Endpoint::start().await;
    let budgets = holders(&endpoint).start().await;
    let wrong = Setup::new(endpoint.url())
        .args(["--holders", &format!("http://{}", budgets.address)])
        .variable("DURABLY_HOLDERS_TOKEN", "not-the-secret");
    let (front, log) = wrong.start_logged().await;
    front
        .post("jobs", &json!({"account": "acme", "id": "1"}))
        .await;
    let (status, answer) = front.get("accounts/acme/limit").await;
    assert_eq!(status, 502, "{answer}");
    assert_eq!(answer["error"]["code"], "holders_refused");
    assert!(answer.to_string().contains("unauthorized"), "{answer}");
    until("the job to say what it waits for", || async {
        let (_, job) = front.get("accounts/acme/jobs/1").await;
        (job["blockedReason"] == "unreachable").then_some(())
    })
    .await;
    // A server whose holders are elsewhere is none to have holders at, least of all one's own.
    let behind = Setup::new(endpoint.url())
        .args(["--holders", &format!("http://{}", front.address)])
        .start()
        .await;
    let (status, answer) = behind.get("accounts/acme/usage").await;
    assert_eq!(status, 502);
    let text = answer.to_string();
    assert!(text.contains("held_elsewhere"), "{text}");
    assert!(text.contains(&budgets.address.to_string()), "{text}");
    front.kill().await;
    let log = log.await;
    assert!(log.contains("holders_refused"), "{log}");
    assert!(!log.contains("not-the-secret"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_of_one_name_on_two_servers_are_two_clients_in_all_their_lives() {
    let endpoint = Endpoint::start().await;
    let network = Network::start().await;
    let budgets = opened(&holders(&endpoint)).await;
    network.lead_to(budgets.address);
    let setups = [shards(&endpoint, &network), shards(&endpoint, &network)];
    let clients = |count: usize| {
        let budgets = &budgets;
        async move {
            until("each job to hold a permit", || async {
                let (_, listed) = budgets.get("accounts/acme/holders").await;
                let holders = listed["holders"].as_array().unwrap();
                let granted = |holder: &Value| holder["granted"].as_u64().unwrap();
                let all = holders.iter().map(granted).sum::<u64>() == count as u64;
                let ids = holders.iter().map(|it| it["clientId"].to_string());
                all.then(|| ids.collect::<BTreeSet<String>>())
            })
            .await
        }
    };
    let one = json!({"shards": ["one"]});
    let job = |id: String| json!({"account": "acme", "id": id, "body": {"hold": true}});
    let mut known = BTreeSet::new();
    for life in 0..2 {
        for (index, setup) in setups.iter().enumerate() {
            let front = setup.start().await;
            front.put("accounts/acme/shards", &one).await;
            front.post("jobs", &job(format!("{index}-{life}"))).await;
            let holding = clients(2 * life + index + 1).await;
            known.extend(holding.iter().cloned());
            front.kill().await;
        }
        // Each server one, and the same again.
        assert_eq!(known.len(), 2);
    }
}
