//! A holder of the tests' own: it lends in strict mode, answers without rounds, on a clock of its own,
//! and checks what no client may ever do.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use durably::Timestamp;
use durably::semaphore::client::HolderCall;
use durably::semaphore::protocol::{
    Blocked, BlockedReason, Grant, GrantReply, GrantReport, GrantResult, GrantStatus, LeaseGrant,
    LeaseReport, Message, PermitRequest, Reply, SyncReply,
};
use durably_sim::World;

use crate::setup::{Setup, ms};

/// How far the lender's clock is ahead of all others.
const AHEAD: Duration = Duration::from_secs(10_000);

#[derive(Clone, Debug)]
struct Lent {
    group: String,
    permits: u64,
    drawn: u64,
    released: u64,
    expires_at: Timestamp,
    retired: bool,
    request: Option<String>,
    /// What was drawn when its client said that it draws no more.
    last_drawn: Option<u64>,
}

#[derive(Clone, Debug)]
struct Given {
    group: String,
    permits: u64,
    claimed: u64,
    released: u64,
    deadline: Timestamp,
    request: Option<String>,
}

pub(crate) struct Lender {
    world: World,
    pub(crate) limit: Cell<u64>,
    pub(crate) permits_per_lease: Cell<u64>,
    pub(crate) ttl: Cell<Duration>,
    /// Whether grants are given at all.
    pub(crate) grants: Cell<bool>,
    pub(crate) contended: Cell<bool>,
    leases: RefCell<BTreeMap<String, Lent>>,
    given: RefCell<BTreeMap<String, Given>>,
    next: Cell<u64>,
    pub(crate) lent: Cell<u64>,
    /// Permits lent and not come back, at most.
    pub(crate) most: Cell<u64>,
}

impl Lender {
    pub(crate) fn new(setup: &Setup, limit: u64, permits_per_lease: u64) -> Rc<Lender> {
        let lender = Rc::new(Lender {
            world: setup.world.clone(),
            limit: Cell::new(limit),
            permits_per_lease: Cell::new(permits_per_lease),
            ttl: Cell::new(Duration::from_secs(60)),
            grants: Cell::new(true),
            contended: Cell::new(false),
            leases: RefCell::default(),
            given: RefCell::default(),
            next: Cell::new(1),
            lent: Cell::new(0),
            most: Cell::new(0),
        });
        let answering = lender.clone();
        setup.script(move |call| Some(Ok(answering.answer(call))));
        lender
    }

    /// Permits that count as used.
    pub(crate) fn footprint(&self) -> u64 {
        let leases = self.leases.borrow();
        let leased: u64 = leases
            .values()
            .map(|lease| lease.permits - lease.released)
            .sum();
        let now = self.now();
        let given = self.given.borrow();
        let granted = given.values().map(|grant| match now < grant.deadline {
            true => grant.permits - grant.released,
            false => grant.claimed - grant.released,
        });
        leased + granted.sum::<u64>()
    }

    /// Leases that are not settled.
    pub(crate) fn open(&self) -> usize {
        self.leases.borrow().len()
    }

    pub(crate) fn retire_all(&self) {
        for lease in self.leases.borrow_mut().values_mut() {
            lease.retired = true;
        }
    }

    pub(crate) fn forget_all(&self) {
        self.leases.borrow_mut().clear();
    }

    /// Drawn and released marks of all leases together.
    pub(crate) fn marks(&self) -> (u64, u64) {
        let leases = self.leases.borrow();
        leases.values().fold((0, 0), |(drawn, released), lease| {
            (drawn + lease.drawn, released + lease.released)
        })
    }

    fn now(&self) -> Timestamp {
        self.world.now() + AHEAD
    }

    fn name(&self, prefix: &str) -> String {
        let next = self.next.get();
        self.next.set(next + 1);
        format!("{prefix}{next:04}")
    }

    fn answer(&self, call: &HolderCall) -> Reply {
        match &call.message {
            Message::Sync(sync) => {
                let grant_results = self.report_grants(&sync.grants);
                let leases = sync
                    .leases
                    .as_ref()
                    .map(|leases| self.report_leases(leases));
                Reply::Synced(SyncReply {
                    grant_results,
                    contended: leases.is_some() && self.contended.get(),
                    leases,
                    now: sync.sent_at.map(|_| self.now()),
                })
            }
            Message::Request(request) => Reply::Grant(self.request(request)),
        }
    }

    fn request(&self, request: &PermitRequest) -> GrantReply {
        let now = self.now();
        let grant_results = self.report_grants(&request.grants);
        let reports = request.leases.as_ref().expect("the queue can use leases");
        let mut leases = self.report_leases(reports);
        for lease in self.leases.borrow_mut().values_mut() {
            lease.retired |= lease.expires_at <= now;
        }
        let id = request.request_id.clone();
        assert!(id.is_some(), "the queue names its requests");
        let is_repeat = self
            .leases
            .borrow()
            .values()
            .any(|lease| lease.request == id)
            || self
                .given
                .borrow()
                .values()
                .any(|grant| grant.request == id);
        let mut grants = Vec::new();
        let mut blocked = Vec::new();
        if is_repeat {
            for (name, grant) in self.given.borrow().iter() {
                if grant.request == id {
                    grants.push(Grant {
                        grant_id: name.clone(),
                        group: grant.group.clone(),
                        permits: grant.permits,
                    });
                }
            }
        } else {
            for demand in &request.demand {
                let room = self.limit.get().saturating_sub(self.footprint());
                let room = if self.grants.get() { room } else { 0 };
                let permits = room.min(demand.count);
                if permits > 0 {
                    let name = self.name("g");
                    let given = Given {
                        group: demand.group.clone(),
                        permits,
                        claimed: 0,
                        released: 0,
                        deadline: now + ms(1_000),
                        request: id.clone(),
                    };
                    self.given.borrow_mut().insert(name.clone(), given);
                    grants.push(Grant {
                        grant_id: name,
                        group: demand.group.clone(),
                        permits,
                    });
                }
                if permits < demand.count {
                    blocked.push(Blocked {
                        group: demand.group.clone(),
                        reason: BlockedReason::Limit,
                    });
                }
            }
            for demand in &request.demand {
                self.lend(&demand.group, reports, &id);
            }
        }
        // What this request created, and, as stopped, what its client did not report.
        for (name, lease) in self.leases.borrow_mut().iter_mut() {
            if reports.iter().any(|report| report.lease_id == *name) {
                continue;
            }
            let is_own = lease.request == id;
            if !is_own {
                lease.retired = true;
            }
            leases.push(LeaseGrant {
                lease_id: name.clone(),
                group: lease.group.clone(),
                permits: lease.permits,
                expires_at: if lease.retired { now } else { lease.expires_at },
            });
        }
        self.most.set(self.most.get().max(self.footprint()));
        GrantReply {
            grants,
            blocked,
            grant_results,
            next_request_at: now + ms(200),
            leases: Some(leases),
            contended: self.contended.get(),
            request_number: None,
            now: request.sent_at.map(|_| now),
        }
    }

    fn lend(&self, group: &str, reports: &[LeaseReport], request: &Option<String>) {
        let holds = self.leases.borrow().iter().any(|(name, lease)| {
            let report = reports.iter().find(|report| report.lease_id == *name);
            let drawn = report.map_or(lease.permits, |report| report.drawn);
            !lease.retired && lease.group == group && drawn < lease.permits
        });
        let room = self.limit.get().saturating_sub(self.footprint());
        let permits = room.min(self.permits_per_lease.get());
        if holds || permits == 0 {
            return;
        }
        let lease = Lent {
            group: group.to_owned(),
            permits,
            drawn: 0,
            released: 0,
            expires_at: self.now() + self.ttl.get(),
            retired: false,
            request: request.clone(),
            last_drawn: None,
        };
        self.lent.set(self.lent.get() + 1);
        self.leases.borrow_mut().insert(self.name("l"), lease);
    }

    fn report_grants(&self, reports: &[GrantReport]) -> Vec<GrantResult> {
        let now = self.now();
        let mut given = self.given.borrow_mut();
        given.retain(|_, grant| {
            if now >= grant.deadline {
                grant.permits = grant.claimed;
            }
            grant.released < grant.permits
        });
        let mut results = Vec::new();
        for report in reports {
            let mut result = GrantResult {
                grant_id: report.grant_id.clone(),
                claimed: 0,
                status: GrantStatus::NotFound,
            };
            if let Some(grant) = given.get_mut(&report.grant_id) {
                grant.claimed = grant.claimed.max(report.claimed.min(grant.permits));
                grant.released = grant.released.max(report.released.min(grant.claimed));
                result.claimed = grant.claimed;
                result.status = match report.claimed > grant.claimed {
                    true => GrantStatus::Expired,
                    false => GrantStatus::Ok,
                };
                if grant.released >= grant.permits {
                    given.remove(&report.grant_id);
                }
            }
            results.push(result);
        }
        results
    }

    fn report_leases(&self, reports: &[LeaseReport]) -> Vec<LeaseGrant> {
        let now = self.now();
        let mut leases = self.leases.borrow_mut();
        let mut echoes = Vec::new();
        for report in reports {
            let mut echo = LeaseGrant {
                lease_id: report.lease_id.clone(),
                group: String::new(),
                permits: 0,
                expires_at: now,
            };
            assert!(report.released <= report.drawn, "{report:?}");
            if let Some(lease) = leases.get_mut(&report.lease_id) {
                assert!(
                    report.drawn <= lease.permits,
                    "{report:?} draws more than {lease:?} has"
                );
                if let Some(last) = lease.last_drawn {
                    assert!(
                        report.drawn <= last,
                        "{report:?} after the end of {lease:?}"
                    );
                }
                lease.drawn = lease.drawn.max(report.drawn);
                lease.released = lease.released.max(report.released.min(report.drawn));
                if report.retired {
                    lease.last_drawn = Some(report.drawn);
                    lease.permits = lease.released.max(report.drawn);
                }
                lease.retired |= report.retired || now >= lease.expires_at;
                echo.group = lease.group.clone();
                echo.permits = lease.permits;
                if lease.released >= lease.permits {
                    echo.permits = lease.released;
                    leases.remove(&report.lease_id);
                } else if !lease.retired {
                    lease.expires_at = now + self.ttl.get();
                    echo.expires_at = lease.expires_at;
                }
            }
            echoes.push(echo);
        }
        echoes
    }
}
