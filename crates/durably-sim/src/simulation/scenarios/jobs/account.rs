//! An account of the application, and which limits its rounds may have gone by.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use durably::jobs::{AccountConfig, AccountLimit};
use durably::semaphore::LeaseOptions;
use durably::{SchedulerConfig, Timestamp};

use super::super::leases;
use super::super::wire::Address;
use super::Application;
use super::routing::Published;
use crate::node::Node;
use crate::object::VirtualObject;
use crate::simulation::invariants::books::Allowed;
use crate::simulation::run::Run;

/// How long a limit that was changed may still be gone by: a round that has asked takes its time.
const STALE: Duration = Duration::from_secs(2);

/// An account, and what is known of it outside.
pub(super) struct AccountSide {
    pub(super) key: String,
    pub(super) node: Node,
    pub(super) object: VirtualObject<AccountLimit>,
    /// Its newest instance.
    pub(super) open: RefCell<Weak<AccountLimit>>,
    seen: RefCell<Vec<(Timestamp, Limits)>>,
    /// The commits and instances when the limits were last looked at.
    looked: Cell<(u64, u64)>,
}

/// The limits of an account as they were at some time.
#[derive(Clone, Default, PartialEq)]
struct Limits {
    limit: u64,
    ceilings: BTreeMap<String, Option<u64>>,
}

/// An account in the process of accounts.
pub(super) fn open_account(application: &Rc<Application>, index: u64) -> Rc<AccountSide> {
    let run = &application.run;
    let key = format!("account-{index}");
    let node = application.nodes[0].clone();
    let config = AccountConfig {
        scheduler: SchedulerConfig::default(),
        default_limit: run.knob("limit"),
        default_group_limit: match run.knob("ceiling") {
            0 => None,
            ceiling => Some(ceiling),
        },
        default_leases: leases(run),
        round_wait: run.knob_ms("round-wait-ms"),
        round_period: run.knob_ms("round-period-ms"),
        grant_timeout: run.knob_ms("grant-timeout-ms"),
        recorder: None,
    };
    let weak = Rc::downgrade(application);
    let object = run.world.object_in(&node, &key, move |host| {
        let (weak, config) = (weak.clone(), config.clone());
        async move {
            let key = host.name().to_owned();
            let opening = AccountLimit::open(host, config, Published(weak.clone()));
            let account = Rc::new(opening.await?);
            let application = weak.upgrade();
            if let Some(side) = application.and_then(|application| application.account(&key)) {
                *side.open.borrow_mut() = Rc::downgrade(&account);
            }
            Ok(account)
        }
    });
    Rc::new(AccountSide {
        key,
        node,
        object,
        open: RefCell::default(),
        seen: RefCell::default(),
        looked: Cell::new((0, 0)),
    })
}

impl AccountSide {
    /// Where messages to its holder go.
    pub(super) fn address(&self) -> Address<AccountLimit> {
        Address {
            key: self.key.clone(),
            node: self.node.clone(),
            object: self.object.clone(),
            handle: |account, json| {
                Box::pin(async move { account.semaphore().handle_json(&json).await })
            },
        }
    }

    /// Notes the limits as they are now.
    pub(super) fn look(&self, run: &Run, groups: u64) {
        let now = (self.object.storage().commits(), self.object.instances());
        if self.looked.get() == now {
            return;
        }
        let Some(open) = self.open.borrow().upgrade() else {
            return;
        };
        self.looked.set(now);
        let limits = Limits {
            limit: open.limit().unwrap_or(run.knob("limit")),
            ceilings: (0..groups)
                .map(|index| {
                    let group = format!("group-{index}");
                    let default = Some(run.knob("ceiling")).filter(|ceiling| *ceiling > 0);
                    let ceiling = open.group_limit(&group).or(default);
                    (group, ceiling)
                })
                .collect(),
        };
        let now = run.world.now();
        let mut seen = self.seen.borrow_mut();
        if seen.last().is_none_or(|(_, last)| *last != limits) {
            if let Some((until, _)) = seen.last_mut() {
                *until = now;
            }
            seen.push((now, limits));
        }
        // All but the last say until when they held.
        let last = seen.len() - 1;
        let mut place = 0;
        seen.retain(|(until, _)| {
            place += 1;
            place > last || now.since(*until) <= STALE
        });
    }

    /// The most that a round may have gone by.
    pub(super) fn allowed(&self, leases: Option<LeaseOptions>) -> Allowed {
        let seen = self.seen.borrow();
        let mut allowed = Allowed {
            leases: vec![leases],
            ..Allowed::default()
        };
        for (_, limits) in seen.iter() {
            allowed.limit = allowed.limit.max(limits.limit);
            for (group, ceiling) in &limits.ceilings {
                let known = allowed.ceilings.entry(group.clone()).or_insert(*ceiling);
                *known = match (*known, *ceiling) {
                    (Some(known), Some(ceiling)) => Some(known.max(ceiling)),
                    _ => None,
                };
            }
        }
        allowed
    }
}
