//! Whatever clients send, the holder never panics, never passes a ceiling by what it gives, never
//! frees what somebody else holds, and its sums stay those of its rows.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use durably::semaphore::protocol::{GrantReply, LeaseGrant, Reply};
use durably::semaphore::{
    Amount, GrantRow, LeaseOptions, LeaseRow, LimitedGroups, Provisioning, Ratio, Usage,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::setup::{START, Setup, ms, request};

const CLIENTS: [&str; 3] = ["c1", "c2", "B"];
const GROUPS: [&str; 3] = ["alpha", "beta", "gamma"];
const HUGE: u64 = (1 << 53) - 1;

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Limit(u64),
    Ceiling(usize, Option<u64>),
    Leases(Option<LeaseOptions>),
    Request(usize, Vec<(usize, u64, u64)>, Reports, Extras),
    Sync(usize, Reports),
    Alarm,
    Crash,
}

/// Reports of grants and leases, each by how far back it was given.
#[derive(Clone, Debug)]
struct Reports {
    grants: Vec<(usize, u64, u64)>,
    leases: Option<Vec<(usize, u64, u64, bool)>>,
}

#[derive(Clone, Debug)]
struct Extras {
    request_id: Option<u8>,
    wait: Option<u64>,
    sent_at: Option<u64>,
}

fn mark() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..8u64, 1 => Just(HUGE), 1 => Just(HUGE - 1)]
}

fn reports() -> impl Strategy<Value = Reports> {
    // The last ones of the lists were never given.
    let grants = prop::collection::vec((0..6usize, mark(), mark()), 0..4);
    let leases = prop::collection::vec((0..6usize, mark(), mark(), any::<bool>()), 0..4);
    (grants, prop::option::weighted(0.8, leases))
        .prop_map(|(grants, leases)| Reports { grants, leases })
}

fn options() -> impl Strategy<Value = LeaseOptions> {
    let amount = prop_oneof![
        (0..9u64).prop_map(Amount::Permits),
        (0..5u32).prop_map(|quarters| Amount::Share {
            ratio: Ratio(f64::from(quarters) / 4.0)
        }),
    ];
    let provisioning = prop_oneof![
        Just(Provisioning::Strict),
        amount
            .clone()
            .prop_map(|reserve| Provisioning::Under { reserve }),
        amount.prop_map(|extra| Provisioning::Over { extra }),
    ];
    (
        provisioning,
        1..5u64,
        1..9u64,
        1..3u64,
        1..3u64,
        any::<bool>(),
    )
        .prop_map(
            |(provisioning, permits_per_lease, ttl, max_groups, max_clients_per_group, within)| {
                LeaseOptions {
                    provisioning,
                    permits_per_lease,
                    ttl: ms(ttl * 300),
                    max_groups,
                    max_clients_per_group,
                    limited_groups: if within {
                        LimitedGroups::WithinGroupLimit
                    } else {
                        LimitedGroups::Exclude
                    },
                }
            },
        )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let count = prop_oneof![9 => 1..6u64, 1 => Just(HUGE)];
    let demand = prop::collection::vec((0..GROUPS.len(), count, 0..4u64), 0..5);
    let extras = (
        prop::option::weighted(0.3, 0..3u8),
        prop::option::weighted(0.3, 0..3_000u64),
        prop::option::weighted(0.3, 0..2 * START),
    )
        .prop_map(|(request_id, wait, sent_at)| Extras {
            request_id,
            wait,
            sent_at,
        });
    let step = prop_oneof![
        6 => (1..8u64).prop_map(|steps| Step::Advance(100 * steps)),
        1 => prop_oneof![9 => 0..12u64, 1 => Just(HUGE)].prop_map(Step::Limit),
        1 => (0..GROUPS.len(), prop::option::of(0..6u64))
            .prop_map(|(group, ceiling)| Step::Ceiling(group, ceiling)),
        1 => prop::option::weighted(0.8, options()).prop_map(Step::Leases),
        8 => (0..CLIENTS.len(), demand, reports(), extras)
            .prop_map(|(client, demand, reports, extras)| {
                Step::Request(client, demand, reports, extras)
            }),
        4 => (0..CLIENTS.len(), reports())
            .prop_map(|(client, reports)| Step::Sync(client, reports)),
        1 => Just(Step::Alarm),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..50)
}

/// What the holder has given out so far, whoever to.
#[derive(Default)]
struct Given {
    grants: Vec<String>,
    leases: Vec<String>,
}

impl Given {
    fn note(&mut self, reply: &GrantReply) {
        for grant in &reply.grants {
            if !self.grants.contains(&grant.grant_id) {
                self.grants.push(grant.grant_id.clone());
            }
        }
        for LeaseGrant { lease_id, .. } in reply.leases.iter().flatten() {
            if !self.leases.contains(lease_id) {
                self.leases.push(lease_id.clone());
            }
        }
    }

    fn name(list: &[String], back: usize) -> String {
        let place = list.len().checked_sub(back + 1);
        place.map_or_else(|| format!("never-{back}"), |place| list[place].clone())
    }

    fn message(&self, client: usize, reports: &Reports) -> Value {
        let grants = reports.grants.iter().map(|(back, claimed, released)| {
            json!({"grantId": Given::name(&self.grants, *back), "claimed": claimed,
                   "released": released})
        });
        let mut message = json!({"type": "sync", "v": 1, "clientId": CLIENTS[client],
                                 "grants": grants.collect::<Vec<_>>()});
        if let Some(leases) = &reports.leases {
            let leases = leases.iter().map(|(back, drawn, released, retired)| {
                json!({"leaseId": Given::name(&self.leases, *back), "drawn": drawn,
                       "released": released, "retired": retired})
            });
            message["leases"] = leases.collect::<Vec<_>>().into();
        }
        message
    }
}

struct Rows {
    grants: Vec<GrantRow>,
    leases: Vec<LeaseRow>,
}

impl Rows {
    fn of(setup: &Setup) -> Rows {
        let call = setup.object.call(|object| async move {
            let grants = object.semaphore.grants().await.expect("storage works");
            let leases = object.semaphore.leases().await.expect("storage works");
            Rows { grants, leases }
        });
        setup.world.block_on(call).expect("the object is open")
    }

    fn check(&self) {
        for row in &self.grants {
            assert!(
                row.released <= row.claimed && row.claimed <= row.permits,
                "{row:?}"
            );
            assert!(row.released < row.permits, "{row:?}");
        }
        for row in &self.leases {
            assert!(row.released < row.permits, "{row:?}");
        }
    }

    /// What each client holds that is not `but`.
    fn of_others(&self, but: &str) -> (Vec<&GrantRow>, Vec<&LeaseRow>) {
        (
            self.grants
                .iter()
                .filter(|row| row.client_id != but)
                .collect(),
            self.leases
                .iter()
                .filter(|row| row.client_id != but)
                .collect(),
        )
    }

    fn footprint(&self, group: &str) -> u64 {
        let of_group = self.leases.iter().filter(|row| row.group == group);
        of_group.map(LeaseRow::footprint).sum()
    }

    fn outstanding(&self, group: &str) -> u64 {
        let of_group = self.grants.iter().filter(|row| row.group == group);
        of_group.map(GrantRow::outstanding).sum()
    }
}

/// What is out must stay within what may be, or not have grown.
fn check_ceilings(
    usage: &Usage,
    before: &Usage,
    rows: &Rows,
    rows_before: &Rows,
    ceilings: &BTreeMap<&str, u64>,
    options: Option<&LeaseOptions>,
) {
    let limit = usage.limit;
    let most = match options.map(|options| options.provisioning) {
        Some(Provisioning::Over { extra }) => {
            let extra = match extra {
                Amount::Permits(permits) => permits,
                Amount::Share { ratio } => (limit as f64 * ratio.0) as u64,
            };
            assert!(
                usage.granted <= limit.max(before.granted),
                "{usage:?} after {before:?}"
            );
            assert!(
                usage.leased <= extra.max(before.leased),
                "{usage:?} after {before:?}"
            );
            return;
        }
        _ => limit,
    };
    let out = |usage: &Usage| usage.granted.saturating_add(usage.leased);
    assert!(
        out(usage) <= most.max(out(before)),
        "{usage:?} after {before:?}"
    );
    for (group, ceiling) in ceilings {
        let out = |rows: &Rows| rows.outstanding(group) + rows.footprint(group);
        assert!(
            out(rows) <= (*ceiling).max(out(rows_before)),
            "{group} of {ceiling}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_clients_send_nothing_is_freed_or_given_twice(steps in steps()) {
        let limit = Rc::new(Cell::new(6));
        let ceilings: Rc<RefCell<BTreeMap<&str, u64>>> = Rc::default();
        let options: Rc<RefCell<Option<LeaseOptions>>> = Rc::default();
        let setup = {
            let (limit, ceilings, options) = (limit.clone(), ceilings.clone(), options.clone());
            Setup::new(move |builder| {
                let (limit, ceilings) = (limit.clone(), ceilings.clone());
                let builder = builder
                    .limit_with(move || std::future::ready(Ok(limit.get())))
                    .group_limit(move |group| {
                        std::future::ready(Ok(ceilings.borrow().get(&*group).copied()))
                    });
                match &*options.borrow() {
                    Some(options) => builder.leases(options.clone()),
                    None => builder,
                }
            })
        };
        let mut given = Given::default();
        let mut waiting = Vec::new();
        let mut before = setup.usage().unwrap();
        let mut rows_before = Rows::of(&setup);
        for step in steps {
            match step {
                Step::Advance(millis) => setup.world.advance(ms(millis)),
                Step::Limit(value) => limit.set(value),
                Step::Ceiling(group, ceiling) => {
                    match ceiling {
                        Some(ceiling) => ceilings.borrow_mut().insert(GROUPS[group], ceiling),
                        None => ceilings.borrow_mut().remove(GROUPS[group]),
                    };
                }
                Step::Leases(changed) => {
                    options.borrow_mut().clone_from(&changed);
                    let call = setup.object.call(|object| async move {
                        object.semaphore.set_leases(changed)
                    });
                    setup.world.block_on(call).unwrap().unwrap();
                }
                Step::Request(client, demand, reports, extras) => {
                    let mut message = given.message(client, &reports);
                    message["type"] = "request".into();
                    let demand = demand.iter().map(|(group, count, age)| {
                        json!({"group": GROUPS[*group], "count": count, "oldestAt": START - age})
                    });
                    message["demand"] = demand.collect::<Vec<_>>().into();
                    if let Some(request_id) = extras.request_id {
                        message["requestId"] = format!("r{request_id}").into();
                    }
                    if let Some(wait) = extras.wait {
                        message["waitMs"] = wait.into();
                    }
                    if let Some(sent_at) = extras.sent_at {
                        message["sentAt"] = sent_at.into();
                    }
                    waiting.push(setup.send(message));
                }
                Step::Sync(client, reports) => {
                    let message = given.message(client, &reports);
                    setup.sync(message.clone());
                    let after = Rows::of(&setup);
                    let others = rows_before.of_others(CLIENTS[client]);
                    prop_assert_eq!(after.of_others(CLIENTS[client]), others);
                    // Said again, it frees nothing more. Only a grant that is reported twice may have
                    // been claimed by a later report than the one that says it is back.
                    let mut names = BTreeSet::new();
                    let reported = message["grants"].as_array().unwrap();
                    let once = reported
                        .iter()
                        .all(|report| names.insert(report["grantId"].to_string()));
                    let again = setup.sync(message);
                    if once {
                        let rows = Rows::of(&setup);
                        prop_assert_eq!(&rows.grants, &after.grants);
                    }
                    prop_assert!(again.grant_results.len() == reports.grants.len());
                }
                Step::Alarm => {
                    let alarm = setup.object.fire_alarm();
                    setup.world.block_on(alarm).unwrap();
                }
                Step::Crash => setup.object.crash(),
            }
            setup.world.run_until_idle();
            waiting.retain(|sent| {
                if sent.is_waiting() {
                    return true;
                }
                if let Some(reply) = sent.grant() {
                    given.note(&reply);
                }
                false
            });
            let (sums, scanned) = setup.compare_sums();
            prop_assert_eq!(sums, scanned);
            let usage = setup.usage().unwrap();
            let rows = Rows::of(&setup);
            rows.check();
            check_ceilings(
                &usage,
                &before,
                &rows,
                &rows_before,
                &ceilings.borrow(),
                options.borrow().as_ref(),
            );
            (before, rows_before) = (usage, rows);
        }
    }
}

#[test]
fn a_thousand_groups_and_empty_demand_are_taken_and_too_much_is_refused_whole() {
    let setup = Setup::new(|builder| builder.limit(500).leases(LeaseOptions::default()));
    let groups: Vec<String> = (0..1_000).map(|group| format!("g{group:04}")).collect();
    let demand: Vec<(&str, u64)> = groups.iter().map(|group| (group.as_str(), 1)).collect();
    let many = setup.send(request("c1", &demand));
    let empty = setup.send(request("c2", &[]));
    setup.world.advance(ms(100));
    assert_eq!(many.granted().grants.len(), 500);
    assert_eq!(many.granted().blocked.len(), 500);
    assert!(empty.granted().grants.is_empty() && empty.granted().blocked.is_empty());

    let before = Rows::of(&setup);
    let report = |fields: Value| json!([fields]);
    for leases in [
        report(json!({"leaseId": "l", "drawn": HUGE + 1, "released": 0})),
        report(json!({"leaseId": "l", "drawn": -1, "released": 0})),
        report(json!({"leaseId": "l", "drawn": 0.5, "released": 0})),
        report(json!({"leaseId": "", "drawn": 0, "released": 0})),
        report(json!({"leaseId": "l", "drawn": 0, "released": 0, "retired": 1})),
        report(json!({"leaseId": "l", "released": 0})),
        json!({}),
        json!(vec![
            json!({"leaseId": "l", "drawn": 0, "released": 0});
            4_097
        ]),
    ] {
        let claimed = &before.grants[0].grant_id;
        let sent = setup.send(
            json!({"type": "sync", "v": 1, "clientId": "c1", "leases": leases,
            "grants": [{"grantId": claimed, "claimed": 1, "released": 1}]}),
        );
        assert_eq!(sent.failure(), "malformed", "{leases}");
    }
    let after = Rows::of(&setup);
    assert_eq!(
        (&after.grants, &after.leases),
        (&before.grants, &before.leases)
    );
    assert!(matches!(
        setup
            .send(json!({"type": "sync", "v": 1, "clientId": "c1", "grants": []}))
            .reply(),
        Some(Reply::Synced(_))
    ));
}
