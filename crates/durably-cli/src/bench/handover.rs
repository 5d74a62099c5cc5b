//! A permit that is given back, until the client that waits for it has it, over HTTP: rounds at 5 ms,
//! one permit, nothing else to do.

use std::path::Path;
use std::time::{Duration, Instant};

use durably::error::BoxError;
use durably::semaphore::client::SemaphoreClient;

use super::clients::{Clock, OverHttp, Server};
use super::objects::{report, request};
use super::report::{Goal, Value};
use super::{Bench, clear, median_of};

const KEY: &str = "account";

/// Long enough for a request to be parked, and for everything else to be over.
const REST: Duration = Duration::from_millis(30);

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin(
        "handover",
        "a freed permit to a client that waits, over HTTP, rounds at 5 ms",
    )?;
    let times = bench.amount(100, 20);
    let folder = bench.fresh("handover");
    std::fs::create_dir(&folder)?;
    let (granted, claimed) = run(&folder, times).await?;
    clear(&folder)?;
    let report = &mut bench.report;
    report.line(
        "from the release until the waiting client has the grant",
        Value::Time(median_of(&granted)?),
        Goal::AtMost(Value::Time(Duration::from_millis(20))),
    )?;
    report.line(
        "from the release until its claim is confirmed",
        Value::Time(median_of(&claimed)?),
        Goal::None,
    )?;
    Ok(())
}

async fn run(folder: &Path, times: usize) -> Result<(Vec<Duration>, Vec<Duration>), BoxError> {
    let server = Server::start(&folder.join("serve"), 1, "5ms").await?;
    let clients = [
        SemaphoreClient::new(server.transport().await?, Clock),
        SemaphoreClient::new(server.transport().await?, Clock),
    ];
    let (mut granted, mut claimed) = (Vec::new(), Vec::new());
    let mut held = acquire(&clients[0], "client-0").await?;
    for time in 0..times {
        let (holds, waits) = (&clients[time % 2], &clients[(time + 1) % 2]);
        let (holds_id, waits_id) = (client_id(time), client_id(time + 1));
        let waiting = async {
            let grant = acquire(waits, &waits_id).await?;
            let granted_at = Instant::now();
            waits
                .sync(KEY, report(&waits_id, [grant.as_str()], 1, 0))
                .await?;
            Ok::<_, BoxError>((grant, granted_at, Instant::now()))
        };
        let releasing = async {
            tokio::time::sleep(REST).await;
            let released_at = Instant::now();
            holds
                .sync(KEY, report(&holds_id, [held.as_str()], 1, 1))
                .await?;
            Ok::<_, BoxError>(released_at)
        };
        let ((grant, granted_at, claimed_at), released_at) =
            futures::future::try_join(waiting, releasing).await?;
        granted.push(granted_at.saturating_duration_since(released_at));
        claimed.push(claimed_at.saturating_duration_since(released_at));
        held = grant;
    }
    server.stop().await?;
    Ok((granted, claimed))
}

fn client_id(time: usize) -> String {
    format!("client-{}", time % 2)
}

/// Waits for the permit as long as it takes, and returns its grant.
async fn acquire(
    client: &SemaphoreClient<OverHttp, Clock>,
    client_id: &str,
) -> Result<String, BoxError> {
    loop {
        let mut request = request(client_id, 1, 1);
        request.wait_ms = Some(10_000);
        let reply = client.request(KEY, request).await?;
        if let Some(grant) = reply.grants.into_iter().next() {
            return Ok(grant.grant_id);
        }
    }
}
