//! A round of many clients among many grants and leases: 100 clients ask for 10 groups each, while
//! 100,000 grants and 10,000 leases are out, or 1,000 and 100.
//!
//! Both holders get the same messages in turns. The round gives every demand a grant; another one also
//! gives each a new lease. All that is given back before the next one. The leases that are out are drawn to
//! the last permit, so that nobody has anything to report of them.

use std::time::Duration;

use durably::error::BoxError;
use durably::semaphore::LeaseOptions;
use durably::semaphore::protocol::{GrantReply, GrantReport, LeaseReport, PermitSync};
use durably_native::{ObjectHandle, SystemConfig};

use super::objects::{Holder, HolderConfig, holders_with, now, request};
use super::report::{Goal, Value, thousands};
use super::{Bench, clear, median_of};

const CLIENTS: usize = 100;

/// Groups that each client asks for in the round that is timed.
const GROUPS: usize = 10;

/// What is out while a round is timed: each client has so many grants, and leases of so many groups.
#[derive(Clone, Copy)]
struct Out {
    grants: usize,
    leases: usize,
}

pub(super) async fn measure(bench: &mut Bench) -> Result<(), BoxError> {
    bench.begin(
        "crowd",
        "a round of 100 clients with 1,000 demands, leases on",
    )?;
    let few = Out {
        grants: 10,
        leases: 1,
    };
    let many = Out {
        grants: bench.amount(1_000, 100),
        leases: bench.amount(100, 20),
    };
    let repetitions = bench.amount(31, 7);
    let folder = bench.fresh("crowd");
    let config = HolderConfig {
        leases: Some(LeaseOptions::default()),
        ..HolderConfig::default()
    };
    let system = holders_with(&folder, SystemConfig::default(), config)?;
    let among_few = system.object::<Holder>("few");
    let among_many = system.object::<Holder>("many");
    fill(&among_few, few).await?;
    fill(&among_many, many).await?;
    let (mut with_few, mut with_many) = (Vec::new(), Vec::new());
    let (mut leasing_few, mut leasing_many) = (Vec::new(), Vec::new());
    for repetition in 0..=repetitions {
        let first = round(&among_few, false).await?;
        let second = round(&among_many, false).await?;
        let third = round(&among_few, true).await?;
        let fourth = round(&among_many, true).await?;
        // The first one reads pages and prepares statements.
        if repetition > 0 {
            with_few.push(first);
            with_many.push(second);
            leasing_few.push(third);
            leasing_many.push(fourth);
        }
    }
    system.shutdown().await;
    drop(system);
    clear(&folder)?;
    let (with_few, with_many) = (median_of(&with_few)?, median_of(&with_many)?);
    let (leasing_few, leasing_many) = (median_of(&leasing_few)?, median_of(&leasing_many)?);
    let named = |out: Out| {
        let all = |each: usize| thousands((CLIENTS * each) as f64);
        format!("{} grants and {} leases", all(out.grants), all(out.leases))
    };
    let report = &mut bench.report;
    report.line(
        &format!("ratio, {} to {}", named(many), named(few)),
        Value::Ratio(with_many.as_secs_f64() / with_few.as_secs_f64()),
        Goal::AtMost(Value::Ratio(2.0)),
    )?;
    report.line(
        &format!("while {} are out", named(many)),
        Value::Time(with_many),
        Goal::AtMost(Value::Time(Duration::from_millis(20))),
    )?;
    report.line(
        &format!("while {} are out", named(few)),
        Value::Time(with_few),
        Goal::None,
    )?;
    report.line(
        &format!(
            "that also gives 1,000 leases: ratio, {} to {}",
            named(many),
            named(few)
        ),
        Value::Ratio(leasing_many.as_secs_f64() / leasing_few.as_secs_f64()),
        Goal::AtMost(Value::Ratio(2.0)),
    )?;
    report.line(
        &format!(
            "that also gives 1,000 leases: while {} are out",
            named(many)
        ),
        Value::Time(leasing_many),
        Goal::None,
    )?;
    Ok(())
}

/// Has grants claimed and leases drawn, by rounds and syncs.
async fn fill(holder: &ObjectHandle<Holder>, out: Out) -> Result<(), BoxError> {
    let at_once = out.grants.min(100);
    for _ in 0..out.grants / at_once {
        let (_, replies) = ask(holder, at_once, false).await?;
        for (client, reply) in replies.iter().enumerate() {
            tell(holder, client, reply, Marks::claimed()).await?;
        }
    }
    let (_, replies) = ask(holder, out.leases, true).await?;
    let leases: usize = replies.iter().map(|reply| leases(reply).count()).sum();
    if leases != CLIENTS * out.leases {
        return Err(format!("{leases} leases were given").into());
    }
    for (client, reply) in replies.iter().enumerate() {
        tell(holder, client, reply, Marks::drawn()).await?;
    }
    Ok(())
}

/// Times one round, then gives back what it gave.
async fn round(holder: &ObjectHandle<Holder>, with_leases: bool) -> Result<Duration, BoxError> {
    let (took, replies) = ask(holder, GROUPS, with_leases).await?;
    let grants: usize = replies.iter().map(|reply| reply.grants.len()).sum();
    if grants != CLIENTS * GROUPS {
        return Err(format!("a round made {grants} grants").into());
    }
    for (client, reply) in replies.iter().enumerate() {
        tell(holder, client, reply, Marks::returned()).await?;
    }
    Ok(took)
}

async fn ask(
    holder: &ObjectHandle<Holder>,
    groups: usize,
    with_leases: bool,
) -> Result<(Duration, Vec<GrantReply>), BoxError> {
    let requests = (0..CLIENTS).map(|client| {
        let mut request = request(&client_id(client), groups, 1);
        request.leases = with_leases.then(Vec::new);
        request
    });
    let requests = requests.collect();
    let asked = holder.call(move |holder| async move { holder.round(requests).await });
    Ok(asked.await??)
}

/// What is reported of everything that a reply gave.
#[derive(Clone, Copy)]
struct Marks {
    /// Of each grant's permit.
    released: u64,
    /// Whether leases are drawn to the last permit, or given back whole.
    drawn: bool,
}

impl Marks {
    fn claimed() -> Marks {
        Marks {
            released: 0,
            drawn: true,
        }
    }

    fn drawn() -> Marks {
        Marks {
            released: 1,
            drawn: true,
        }
    }

    fn returned() -> Marks {
        Marks {
            released: 1,
            drawn: false,
        }
    }
}

async fn tell(
    holder: &ObjectHandle<Holder>,
    client: usize,
    reply: &GrantReply,
    marks: Marks,
) -> Result<(), BoxError> {
    let grants = reply.grants.iter().map(|grant| GrantReport {
        grant_id: grant.grant_id.clone(),
        claimed: 1,
        released: marks.released,
    });
    let leases = leases(reply).map(|lease| LeaseReport {
        lease_id: lease.lease_id.clone(),
        drawn: if marks.drawn { lease.permits } else { 0 },
        released: 0,
        retired: !marks.drawn,
    });
    let sync = PermitSync {
        client_id: client_id(client),
        grants: grants.collect(),
        leases: Some(leases.collect()),
        sent_at: Some(now()),
        client_ttl_ms: None,
    };
    let told = holder.call(move |holder| async move { holder.sync(sync).await });
    told.await??;
    Ok(())
}

fn leases(reply: &GrantReply) -> impl Iterator<Item = &durably::semaphore::protocol::LeaseGrant> {
    reply.leases.iter().flatten()
}

fn client_id(client: usize) -> String {
    format!("client-{client:03}")
}
