//! The server is killed (SIGKILL) at random moments, again and again: every job runs, none twice,
//! and no account or group ever has more running than it may, as seen from the job endpoint.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::support::Setup;
use crate::support::endpoint::Endpoint;
use crate::support::load::{Random, check_limits, submit, until_all_ran, until_permits_return};

const KILLS: usize = 24;
const ACCOUNTS: usize = 6;
const GROUPS: usize = 3;
const JOBS: usize = 900;
const ACCOUNT_LIMIT: u64 = 5;
const GROUP_LIMIT: u64 = 3;

fn job(index: usize, ms: u64) -> Value {
    json!({
        "account": format!("account-{}", index % ACCOUNTS),
        "group": format!("group-{}", index / ACCOUNTS % GROUPS),
        "id": format!("job-{index}"),
        "body": {"ms": ms},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_no_limit_passed_however_often_the_server_is_killed() {
    let seed = RandomState::new().hash_one(0) | 1;
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url()).args([
        &*format!("--default-limit={ACCOUNT_LIMIT}"),
        &*format!("--default-group-limit={GROUP_LIMIT}"),
    ]);
    let server = RwLock::new(Some(setup.start().await));
    let mut moments = Random(!seed | 1);
    let killing = async {
        for _ in 0..KILLS {
            // From the first moments of a server to well into its work.
            tokio::time::sleep(Duration::from_millis(moments.below(400))).await;
            let running = server.write().await.take();
            running.expect("a server").kill().await;
            let started = setup.start().await;
            *server.write().await = Some(started);
        }
    };
    let mut lengths = Random(seed);
    let jobs = (0..JOBS).map(|index| job(index, 20 + lengths.below(200)));
    let jobs: Vec<Value> = jobs.collect();
    futures::join!(submit(&server, jobs, lengths), killing);
    let ids = (0..JOBS).map(|index| format!("job-{index}")).collect();
    until_all_ran(&endpoint, ids).await;
    check_limits(&endpoint, ACCOUNT_LIMIT, Some(GROUP_LIMIT));
    // Every permit returns, and the server knows the end of every job.
    let server = server.read().await;
    let server = server.as_ref().unwrap();
    until_permits_return(server, ACCOUNTS).await;
    for index in 0..JOBS {
        let account = format!("account-{}", index % ACCOUNTS);
        server
            .until_state(&account, &format!("job-{index}"), "completed")
            .await;
    }
}
