//! The rules of a round against a model that recomputes everything from a plain list of grants,
//! and against clients whose messages are lost, repeated and reordered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::semaphore::ledger::GroupSum;
use crate::semaphore::protocol::{GrantReport, GrantResult, GrantStatus};

const CLAIM_WINDOW: u64 = 40;
const CLIENTS: [&str; 3] = ["c1", "c2", "B"];
const GROUPS: [&str; 3] = ["alpha", "beta", "gamma"];

/// The deciders with a table in memory, driven as the holder drives them.
#[derive(Default)]
struct Holder {
    rows: BTreeMap<String, GrantRow>,
    ledger: Ledger,
    made: u64,
}

impl Holder {
    fn named<'a>(&self, reports: impl IntoIterator<Item = &'a GrantReport>) -> Vec<GrantRow> {
        let stored = reports
            .into_iter()
            .filter_map(|report| self.rows.get(&report.grant_id));
        stored.cloned().collect()
    }

    fn due(&self, now: Timestamp) -> Vec<GrantRow> {
        let due = self.rows.values().filter(|row| row.is_due(now));
        due.cloned().collect()
    }

    fn write(&mut self, changes: &Changes, delta: &Delta) {
        for row in &changes.grants_inserted {
            let taken = self.rows.insert(row.grant_id.clone(), row.clone());
            assert_eq!(taken, None, "an id was given twice");
        }
        for row in &changes.grants_updated {
            let before = self.rows.insert(row.grant_id.clone(), row.clone());
            assert_ne!(before.as_ref(), Some(row), "an unchanged row was written");
        }
        for row in &changes.grants_released {
            let stored = self.rows.get_mut(&row.grant_id).expect("it was loaded");
            assert!(
                stored.released < row.released,
                "an unchanged row was written"
            );
            stored.released = row.released;
            assert_eq!(stored, row, "more than the release changed");
        }
        for grant_id in &changes.grants_removed {
            assert!(self.rows.remove(grant_id).is_some());
        }
        self.ledger.apply(delta);
        self.check();
    }

    fn check(&self) {
        let mut scanned: BTreeMap<String, GroupSum> = BTreeMap::new();
        for row in self.rows.values() {
            assert!(row.released <= row.claimed && row.claimed <= row.permits);
            assert!(row.released < row.permits, "a finished grant was kept");
            let sum = scanned.entry(row.group.clone()).or_default();
            sum.outstanding += row.outstanding();
            sum.grants += 1;
        }
        let mut ledger = Ledger::default();
        for (group, sum) in scanned {
            ledger.load_group(group, sum);
        }
        assert_eq!(self.ledger, ledger, "sums and rows differ");
    }

    fn round(
        &mut self,
        now: Timestamp,
        limit: u64,
        policies: &BTreeMap<String, Policy>,
        requests: Vec<PermitRequest>,
    ) -> RoundOutcome {
        let mut rows = self.due(now);
        rows.extend(self.named(requests.iter().flat_map(|request| &request.grants)));
        let input = RoundInput {
            now,
            limit,
            policies: policies.clone(),
            leasing: Leasing::Off,
            requests: requests.into_iter().map(Arc::new).collect(),
            parked: 0,
            grants: rows,
            leases: Vec::new(),
            numbers: BTreeMap::new(),
            grant_timeout: Duration::from_millis(CLAIM_WINDOW),
            round_period: Duration::from_millis(200),
            with_usage: true,
        };
        let mut made = self.made;
        let mut next_id = || {
            made += 1;
            format!("g{made:06}")
        };
        let outcome = decide(input, &self.ledger, &mut next_id);
        self.made = made;
        self.write(&outcome.changes, &outcome.delta);
        outcome
    }

    fn sync(&mut self, now: Timestamp, client: &str, reports: &[GrantReport]) -> Vec<GrantResult> {
        let mut book = Book::new(self.named(reports), []);
        let results = reports
            .iter()
            .map(|report| book.report(client, report, now))
            .collect();
        let (changes, delta) = book.close();
        self.write(&changes, &delta);
        results
    }

    fn clean_up(&mut self, now: Timestamp) -> Vec<SemaphoreEvent> {
        let mut book = Book::new(self.due(now), []);
        let events = book.clean_up(now);
        let (changes, delta) = book.close();
        self.write(&changes, &delta);
        events
    }
}

/// The rules as FORMAT.md of the traces words them, on a list of all grants in order of insertion.
#[derive(Default)]
struct Model {
    grants: Vec<GrantRow>,
    made: u64,
}

impl Model {
    fn outstanding(&self, group: Option<&str>, now: Timestamp) -> u64 {
        let counted = self
            .grants
            .iter()
            .filter(|grant| group.is_none_or(|group| grant.group == group));
        counted
            .map(|grant| {
                let late = now >= grant.expires_at;
                (if late { grant.claimed } else { grant.permits }) - grant.released
            })
            .sum()
    }

    fn report(&mut self, client: &str, report: &GrantReport, now: Timestamp) -> GrantResult {
        let found = self
            .grants
            .iter()
            .position(|grant| grant.grant_id == report.grant_id && grant.client_id == client);
        let Some(place) = found else {
            return GrantResult {
                grant_id: report.grant_id.clone(),
                claimed: 0,
                status: GrantStatus::NotFound,
            };
        };
        let grant = &mut self.grants[place];
        let late = now >= grant.expires_at;
        let permits = if late { grant.claimed } else { grant.permits };
        let claimed = grant.claimed.max(report.claimed.min(permits));
        let released = grant.released.max(report.released.min(claimed));
        (grant.permits, grant.claimed, grant.released) = (permits, claimed, released);
        if released >= permits {
            self.grants.remove(place);
        }
        GrantResult {
            grant_id: report.grant_id.clone(),
            claimed,
            status: if late && report.claimed > claimed {
                GrantStatus::Expired
            } else {
                GrantStatus::Ok
            },
        }
    }

    fn clean_up(&mut self, now: Timestamp) -> Vec<(String, u64)> {
        let mut taken_back = Vec::new();
        for grant in &mut self.grants {
            if now >= grant.expires_at && grant.claimed < grant.permits {
                taken_back.push((grant.grant_id.clone(), grant.permits - grant.claimed));
                grant.permits = grant.claimed;
            }
        }
        self.grants.retain(|grant| grant.released < grant.permits);
        taken_back
    }

    /// Returns the replies.
    fn round(
        &mut self,
        now: Timestamp,
        limit: u64,
        policies: &BTreeMap<String, Policy>,
        requests: &[PermitRequest],
    ) -> Vec<GrantReply> {
        let mut replies = Vec::new();
        for request in requests {
            let mut grant_results = Vec::new();
            for report in &request.grants {
                grant_results.push(self.report(&request.client_id, report, now));
            }
            replies.push(GrantReply {
                grants: Vec::new(),
                blocked: Vec::new(),
                grant_results,
                next_request_at: now + Duration::from_millis(200),
                leases: None,
                contended: false,
                request_number: None,
                now: None,
            });
        }
        self.clean_up(now);
        let mut order = Vec::new();
        for (arrival, request) in requests.iter().enumerate() {
            for (position, demand) in request.demand.iter().enumerate() {
                let client = request.client_id.as_bytes();
                order.push((demand.oldest_at, client, arrival, position));
            }
        }
        order.sort();
        for (_, _, arrival, position) in order {
            let demand = &requests[arrival].demand[position];
            let reply = &mut replies[arrival];
            let mut blocked = |reason| {
                reply.blocked.push(Blocked {
                    group: demand.group.clone(),
                    reason,
                });
            };
            let ceiling = match policies[&demand.group] {
                Policy::Closed(reason) => {
                    blocked(reason);
                    continue;
                }
                Policy::Open { ceiling } => ceiling,
            };
            let room = limit.saturating_sub(self.outstanding(None, now));
            let used = self.outstanding(Some(&demand.group), now);
            let group_room = ceiling.map(|ceiling| ceiling.saturating_sub(used));
            let give = demand.count.min(room).min(group_room.unwrap_or(u64::MAX));
            if give < demand.count {
                blocked(if group_room == Some(give) {
                    BlockedReason::GroupLimit
                } else {
                    BlockedReason::Limit
                });
            }
            if give > 0 {
                self.made += 1;
                let grant_id = format!("g{:06}", self.made);
                reply.grants.push(Grant {
                    grant_id: grant_id.clone(),
                    group: demand.group.clone(),
                    permits: give,
                });
                self.grants.push(GrantRow {
                    grant_id,
                    client_id: requests[arrival].client_id.clone(),
                    group: demand.group.clone(),
                    permits: give,
                    claimed: 0,
                    released: 0,
                    created_at: now,
                    expires_at: now + Duration::from_millis(CLAIM_WINDOW),
                    request_id: None,
                });
            }
        }
        replies
    }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Limit(u64),
    Policy(usize, Policy),
    Request {
        client: usize,
        demand: Vec<(usize, u64, u64)>,
        reports: Vec<(u64, u64, u64)>,
    },
    Sync {
        client: usize,
        reports: Vec<(u64, u64, u64)>,
    },
    Round,
    CleanUp,
}

fn reports() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    prop::collection::vec((0..12u64, 0..6u64, 0..6u64), 0..4)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Open { ceiling: None }),
        (0..6u64).prop_map(|ceiling| Policy::Open {
            ceiling: Some(ceiling)
        }),
        Just(Policy::Closed(BlockedReason::NotPermitted)),
        Just(Policy::Closed(BlockedReason::LimitResolutionError)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let demand = prop::collection::vec((0..GROUPS.len(), 1..6u64, 0..4u64), 0..4);
    let step = prop_oneof![
        3 => (1..5u64).prop_map(|tens| Step::Advance(10 * tens)),
        1 => (0..10u64).prop_map(Step::Limit),
        1 => (0..GROUPS.len(), policies()).prop_map(|(group, policy)| Step::Policy(group, policy)),
        5 => (0..CLIENTS.len(), demand, reports())
            .prop_map(|(client, demand, reports)| Step::Request { client, demand, reports }),
        3 => (0..CLIENTS.len(), reports())
            .prop_map(|(client, reports)| Step::Sync { client, reports }),
        4 => Just(Step::Round),
        1 => Just(Step::CleanUp),
    ];
    prop::collection::vec(step, 1..60)
}

/// Reports of grants counted back from the newest; some were never made.
fn as_reports(made: u64, marks: &[(u64, u64, u64)]) -> Vec<GrantReport> {
    let report = |&(back, claimed, released): &(u64, u64, u64)| GrantReport {
        grant_id: format!("g{:06}", made.saturating_sub(back)),
        claimed,
        released,
    };
    marks.iter().map(report).collect()
}

proptest! {
    #[test]
    fn decides_like_the_naive_model(steps in steps()) {
        let mut holder = Holder::default();
        let mut model = Model::default();
        let mut now = Timestamp::from_millis(1_000_000);
        let mut limit = 5;
        let mut policies: BTreeMap<String, Policy> = GROUPS
            .iter()
            .map(|group| ((*group).to_owned(), Policy::Open { ceiling: None }))
            .collect();
        let mut waiting: Vec<PermitRequest> = Vec::new();
        for step in steps {
            match step {
                Step::Advance(ms) => now = now + Duration::from_millis(ms),
                Step::Limit(value) => limit = value,
                Step::Policy(group, policy) => {
                    policies.insert(GROUPS[group].to_owned(), policy);
                }
                Step::Request { client, demand, reports } => {
                    let demand = demand.into_iter().map(|(group, count, age)| Demand {
                        group: GROUPS[group].to_owned(),
                        count,
                        oldest_at: Timestamp::from_millis(999_990 - age),
                    });
                    let mut request = PermitRequest {
                        client_id: CLIENTS[client].to_owned(),
                        demand: demand.collect(),
                        grants: as_reports(holder.made, &reports),
                        leases: None,
                        sent_at: None,
                        request_id: None,
                        request_number: None,
                        wait_ms: None,
                        client_ttl_ms: None,
                    };
                    accept(&mut request, now);
                    waiting.push(request);
                }
                Step::Sync { client, reports } => {
                    let reports = as_reports(holder.made, &reports);
                    let expected: Vec<_> = reports
                        .iter()
                        .map(|report| model.report(CLIENTS[client], report, now))
                        .collect();
                    prop_assert_eq!(holder.sync(now, CLIENTS[client], &reports), expected);
                    let rows = holder.rows.clone();
                    let last = &reports[reports.len().saturating_sub(1)..];
                    holder.sync(now, CLIENTS[client], last);
                    prop_assert_eq!(&holder.rows, &rows, "a repeated report changed something");
                }
                Step::Round => {
                    let requests = std::mem::take(&mut waiting);
                    let outstanding = holder.ledger.outstanding();
                    let expected = model.round(now, limit, &policies, &requests);
                    let outcome = holder.round(now, limit, &policies, requests.clone());
                    prop_assert_eq!(&outcome.replies, &expected);
                    prop_assert!(holder.ledger.outstanding() <= limit.max(outstanding));
                    if outcome.granted > 0 {
                        prop_assert!(holder.ledger.outstanding() <= limit);
                    }
                    check_summary(&outcome, &requests, &model, &policies, limit, now);
                }
                Step::CleanUp => {
                    let expected = model.clean_up(now);
                    let found: Vec<_> = holder
                        .clean_up(now)
                        .into_iter()
                        .map(|event| match event {
                            SemaphoreEvent::GrantReclaimed { grant_id, permits, .. } => {
                                (grant_id, permits)
                            }
                            other => panic!("not of a cleanup: {other:?}"),
                        })
                        .collect();
                    prop_assert_eq!(found, expected);
                }
            }
            let stored: Vec<&GrantRow> = holder.rows.values().collect();
            let expected: Vec<&GrantRow> = model.grants.iter().collect();
            prop_assert_eq!(stored, expected);
        }
    }

    /// Clients that keep to the protocol, over a network that loses, repeats and reorders.
    #[test]
    fn no_permit_is_freed_before_its_work_ended(
        limit in 1..6u64,
        moves in prop::collection::vec((0..7u8, any::<prop::sample::Index>(), 1..5u64), 1..150),
    ) {
        /// A grant as its client knows it.
        struct Known {
            client: &'static str,
            id: String,
            permits: u64,
            claimed: u64,
            confirmed: u64,
            released: u64,
        }
        let mut holder = Holder::default();
        let mut known: Vec<Known> = Vec::new();
        let mut network: Vec<(&str, GrantReport)> = Vec::new();
        let mut now = Timestamp::from_millis(1_000_000);
        let open = BTreeMap::from([("alpha".to_owned(), Policy::Open { ceiling: None })]);
        for (kind, which, amount) in moves {
            match kind {
                0 => now = now + Duration::from_millis(amount * 10),
                // A round; the reply may be lost, and with it the grant.
                1 | 2 => {
                    let client = CLIENTS[which.index(CLIENTS.len())];
                    let request = PermitRequest {
                        client_id: client.to_owned(),
                        demand: vec![Demand {
                            group: "alpha".to_owned(),
                            count: amount,
                            oldest_at: now,
                        }],
                        grants: Vec::new(),
                        leases: None,
                        sent_at: None,
                        request_id: None,
                        request_number: None,
                        wait_ms: None,
                        client_ttl_ms: None,
                    };
                    let outcome = holder.round(now, limit, &open, vec![request]);
                    if kind == 1 {
                        for grant in &outcome.replies[0].grants {
                            known.push(Known {
                                client,
                                id: grant.grant_id.clone(),
                                permits: grant.permits,
                                claimed: 0,
                                confirmed: 0,
                                released: 0,
                            });
                        }
                    }
                }
                3 | 4 if !known.is_empty() => {
                    let place = which.index(known.len());
                    let grant = &mut known[place];
                    if kind == 3 {
                        grant.claimed = grant.permits.min(grant.claimed + amount);
                    } else {
                        grant.released = grant.confirmed.min(grant.released + amount);
                    }
                    network.push((grant.client, GrantReport {
                        grant_id: grant.id.clone(),
                        claimed: grant.claimed,
                        released: grant.released,
                    }));
                }
                // Any message arrives, again or for the first time; most never do.
                5 if !network.is_empty() => {
                    let (client, report) = network[which.index(network.len())].clone();
                    let result = holder.sync(now, client, std::slice::from_ref(&report)).remove(0);
                    if let Some(grant) = known.iter_mut().find(|grant| grant.id == report.grant_id) {
                        grant.confirmed = grant.confirmed.max(result.claimed);
                    }
                }
                6 => {
                    holder.clean_up(now);
                }
                _ => {}
            }
            let running: u64 = known.iter().map(|grant| grant.confirmed - grant.released).sum();
            prop_assert!(running <= holder.ledger.outstanding());
            prop_assert!(holder.ledger.outstanding() <= limit);
        }
        // All work ends and everything is told at last: every permit is back.
        now = now + Duration::from_millis(CLAIM_WINDOW);
        for grant in &known {
            let report = GrantReport {
                grant_id: grant.id.clone(),
                claimed: grant.claimed,
                released: grant.claimed,
            };
            holder.sync(now, grant.client, &[report]);
        }
        holder.clean_up(now);
        prop_assert_eq!(holder.ledger.outstanding(), 0);
        prop_assert!(holder.rows.is_empty());
    }
}

fn check_summary(
    outcome: &RoundOutcome,
    requests: &[PermitRequest],
    model: &Model,
    policies: &BTreeMap<String, Policy>,
    limit: u64,
    now: Timestamp,
) {
    let demands = || requests.iter().flat_map(|request| &request.demand);
    let given: u64 = outcome
        .replies
        .iter()
        .flat_map(|reply| &reply.grants)
        .map(|grant| grant.permits)
        .sum();
    let requested: u64 = demands().map(|demand| demand.count).sum();
    assert_eq!((outcome.requested, outcome.granted), (requested, given));

    let usage = outcome.usage.as_ref().expect("it was wanted");
    let outstanding = model.outstanding(None, now);
    assert_eq!(usage.granted, outstanding);
    assert_eq!(usage.available, limit.saturating_sub(outstanding));
    let groups: BTreeSet<&String> = model.grants.iter().map(|grant| &grant.group).collect();
    assert_eq!(usage.groups.keys().collect::<BTreeSet<_>>(), groups);
    for (group, group_usage) in &usage.groups {
        assert_eq!(group_usage.granted, model.outstanding(Some(group), now));
        assert_eq!(group_usage.limit, policies[group].ceiling());
    }

    // What stayed behind is explained once by group and reason, and nothing else is.
    let left: u64 = outcome.blocked.iter().map(|(_, count)| count).sum();
    assert_eq!(left, requested - given);
    let reasons: BTreeSet<_> = outcome
        .blocked
        .iter()
        .map(|(blocked, _)| (&blocked.group, blocked.reason))
        .collect();
    assert_eq!(reasons.len(), outcome.blocked.len());
}

fn request(client: &str, demand: &[(&str, u64, u64)], sent_at: Option<u64>) -> PermitRequest {
    PermitRequest {
        client_id: client.to_owned(),
        demand: demand
            .iter()
            .map(|(group, count, oldest_at)| Demand {
                group: (*group).to_owned(),
                count: *count,
                oldest_at: Timestamp::from_millis(*oldest_at),
            })
            .collect(),
        grants: Vec::new(),
        leases: None,
        sent_at: sent_at.map(Timestamp::from_millis),
        request_id: None,
        request_number: None,
        wait_ms: None,
        client_ttl_ms: None,
    }
}

#[test]
fn a_group_demanded_twice_is_one_demand_at_its_first_place() {
    let mut doubled = request("c1", &[("a", 2, 30), ("b", 1, 20), ("a", 3, 10)], None);
    accept(&mut doubled, Timestamp::from_millis(50));
    assert_eq!(doubled, request("c1", &[("a", 5, 10), ("b", 1, 20)], None));
}

#[test]
fn ages_are_measured_on_the_senders_clock() {
    // The sender's clock is 900 ms behind; its oldest item is 40 ms old, another "from the future".
    let demand = [("a", 1, 60), ("b", 1, 170)];
    let mut behind = request("c1", &demand, Some(100));
    accept(&mut behind, Timestamp::from_millis(1_000));
    let ages: Vec<u64> = behind
        .demand
        .iter()
        .map(|demand| demand.oldest_at.as_millis())
        .collect();
    assert_eq!(ages, [960, 1_000]);

    // An age older than the holder's epoch is the oldest there is.
    let mut ahead = request("c1", &[("a", 1, 0)], Some(5_000));
    accept(&mut ahead, Timestamp::from_millis(1_000));
    assert_eq!(ahead.demand[0].oldest_at, Timestamp::ZERO);
}

#[test]
fn huge_counts_are_cut_and_never_wrap() {
    let huge = MAX_SAFE_INTEGER;
    let mut holder = Holder::default();
    let now = Timestamp::from_millis(1);
    let mut first = request("c1", &[("a", huge, 1), ("a", huge, 1)], None);
    accept(&mut first, now);
    assert_eq!(first.demand[0].count, huge);
    let policies = BTreeMap::from([("a".to_owned(), Policy::Open { ceiling: None })]);
    let outcome = holder.round(now, huge, &policies, vec![first.clone(), first]);
    assert_eq!(outcome.granted, huge);
    assert_eq!(outcome.requested, huge);
    assert_eq!(holder.ledger.outstanding(), huge);
}

#[test]
fn states_can_be_kept_by_a_model_checker() {
    fn keepable<T: std::hash::Hash + Clone + Eq + Send + Sync>() {}
    keepable::<Ledger>();
    keepable::<Book>();
    keepable::<RoundInput>();
    keepable::<RoundOutcome>();
}
