//! What is printed of a world and of a path that breaks a rule.

use crate::state::{Action, Body, Lane, Packet, State};

/// A step as a sentence.
pub fn sentence(state: &State, action: &Action) -> String {
    let client = |client: &usize| ["a", "b", "c"][*client];
    let packet = |place: &usize| packet(&state.network[*place]);
    match action {
        Action::Enqueue(of) => format!("{}: its next job comes", client(of)),
        Action::Finish(of, job) => format!("{}: job {job} ends", client(of)),
        Action::Return(of, lease) => format!("{}: gives lease {lease} back", client(of)),
        Action::Ask(of) => format!("{}: asks", client(of)),
        Action::GiveUp(of, Lane::Ask) => format!("{}: gives its request up", client(of)),
        Action::GiveUp(of, Lane::Tell) => format!("{}: gives its report up", client(of)),
        Action::Deliver(place) => format!("arrives: {}", packet(place)),
        Action::Lose(place) => format!("is lost: {}", packet(place)),
        Action::LoseAnswer(place) => {
            format!("arrives, and its answer is lost: {}", packet(place))
        }
        Action::Copy(place) => format!("arrives, and a copy stays: {}", packet(place)),
        Action::Round => "holder: round".to_owned(),
        Action::EndWaits => "holder: waits end".to_owned(),
        Action::Alarm => "holder: alarm".to_owned(),
        Action::Tick => format!("it becomes {}", state.now + 1),
        Action::Limit(limit) => format!("the limit becomes {limit}"),
        Action::Leases(true) => "leases are switched on".to_owned(),
        Action::Leases(false) => "leases are switched off".to_owned(),
        Action::CrashClient(of, noted) => {
            let noted = if *noted {
                ""
            } else {
                " before it noted what it was handed"
            };
            format!("{}: dies{noted}", client(of))
        }
        Action::CrashHolder => "holder: dies".to_owned(),
    }
}

/// What stands in the accounts, in a line.
pub fn accounts(state: &State) -> String {
    let mut parts = Vec::new();
    for row in state.holder.grants.values() {
        parts.push(format!(
            "grant {} of {} {}/{}/{} until {}",
            row.grant_id,
            row.client_id,
            row.permits,
            row.claimed,
            row.released,
            row.expires_at.as_millis()
        ));
    }
    for row in state.holder.leases.values() {
        let retired = if row.retired { ", retired" } else { "" };
        parts.push(format!(
            "lease {} of {} {}/{} until {}{retired}",
            row.lease_id,
            row.client_id,
            row.permits,
            row.released,
            row.expires_at.as_millis()
        ));
    }
    match parts.is_empty() {
        true => "nothing is out".to_owned(),
        false => parts.join("; "),
    }
}

fn packet(packet: &Packet) -> String {
    let late = if packet.wanted {
        ""
    } else {
        " (nobody waits for its answer)"
    };
    let client = ["a", "b", "c"][packet.client];
    match &packet.body {
        Body::Request(request) => {
            let demand: u64 = request.demand.iter().map(|demand| demand.count).sum();
            let name = request.request_id.as_deref().unwrap_or("-");
            let number = request.request_number.unwrap_or(0);
            let leases: Vec<String> = request.leases.iter().flatten().map(lease).collect();
            let grants: Vec<String> = request.grants.iter().map(grant).collect();
            format!(
                "request {name} ({number}) of {client} for {demand} [{}] [{}]{late}",
                grants.join(", "),
                leases.join(", ")
            )
        }
        Body::Sync(sync) => {
            let leases: Vec<String> = sync.leases.iter().flatten().map(lease).collect();
            let grants: Vec<String> = sync.grants.iter().map(grant).collect();
            format!(
                "report of {client} [{}] [{}]{late}",
                grants.join(", "),
                leases.join(", ")
            )
        }
        Body::Granted(reply) => {
            let grants = reply.grants.iter();
            let grants: Vec<String> = grants
                .map(|grant| format!("grant {} of {}", grant.grant_id, grant.permits))
                .collect();
            let leases: Vec<String> = reply.leases.iter().flatten().map(told).collect();
            format!(
                "answer to {client} [{}] [{}]",
                grants.join(", "),
                leases.join(", ")
            )
        }
        Body::Synced(reply) => {
            let leases: Vec<String> = reply.leases.iter().flatten().map(told).collect();
            let results = reply.grant_results.iter();
            let results: Vec<String> = results
                .map(|result| format!("{} claimed {}", result.grant_id, result.claimed))
                .collect();
            format!(
                "answer to {client} [{}] [{}]",
                results.join(", "),
                leases.join(", ")
            )
        }
    }
}

fn lease(report: &durably::semaphore::protocol::LeaseReport) -> String {
    let retired = if report.retired { " retired" } else { "" };
    format!(
        "{} {}/{}{retired}",
        report.lease_id, report.drawn, report.released
    )
}

fn grant(report: &durably::semaphore::protocol::GrantReport) -> String {
    format!("{} {}/{}", report.grant_id, report.claimed, report.released)
}

fn told(lease: &durably::semaphore::protocol::LeaseGrant) -> String {
    format!(
        "lease {} of {} until {}",
        lease.lease_id,
        lease.permits,
        lease.expires_at.as_millis()
    )
}
