//! The small worlds: who is there, what may go wrong and how often.

use std::time::Duration;

use durably::semaphore::{Amount, LeaseOptions, LimitedGroups, Provisioning};

/// How many ticks a grant may be claimed.
pub(crate) const GRANT_TIMEOUT: u64 = 1;

/// How many ticks a lease is drawn from after its last report.
const LEASE_TTL: u64 = 2;

/// What a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It comes back with its rows.
    Durable,
    /// It has no storage, and may be silent for so many ticks.
    Ephemeral(u64),
}

impl Kind {
    pub(crate) fn ttl(self) -> Option<u64> {
        match self {
            Kind::Durable => None,
            Kind::Ephemeral(ttl) => Some(ttl),
        }
    }
}

/// A client of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) kind: Kind,
    /// Its jobs by their groups.
    pub(crate) jobs: Vec<&'static str>,
    /// How many of them are there from the beginning; the others come at any time.
    pub(crate) queued: usize,
}

/// How often what may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Time passes.
    pub ticks: u8,
    /// A packet is lost.
    pub losses: u8,
    /// A client gives up a message that may still arrive.
    pub late: u8,
    /// A message arrives and stays under way.
    pub copies: u8,
    /// A client dies.
    pub client_crashes: u8,
    /// The holder dies.
    pub holder_crashes: u8,
    /// The limit changes.
    pub limits: u8,
    /// Leases are switched on or off.
    pub switches: u8,
}

impl Budget {
    pub(crate) fn none(self) -> Budget {
        Budget::default()
    }
}

/// A small world.
#[derive(Clone, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    pub(crate) clients: Vec<Plan>,
    /// The groups and their ceilings.
    pub(crate) groups: Vec<(&'static str, Option<u64>)>,
    pub(crate) limit: u64,
    /// What the limit may become.
    pub(crate) limits: Vec<u64>,
    pub(crate) leases: Option<LeaseOptions>,
    /// Whether clients say that they can use leases.
    pub(crate) uses_leases: bool,
    /// Whether requests may wait for a later round.
    pub(crate) waits: bool,
    pub(crate) budget: Budget,
    /// Whether a client's clock is set back while it is dead.
    pub(crate) sets_clocks_back: bool,
    /// Whether answers to reports take time; otherwise they arrive at once or not at all.
    pub(crate) slow_answers: bool,
}

impl World {
    /// The same world while no time passes and nothing is lost, for a look that takes a moment.
    pub fn briefly(mut self) -> World {
        self.budget.losses = 0;
        self.budget.late = 0;
        self.budget.ticks = 0;
        self.budget.limits = self.budget.limits.min(1);
        self.slow_answers = false;
        self
    }

    pub(crate) fn name(&self, client: usize) -> String {
        ["a", "b", "c"][client].to_owned()
    }

    pub(crate) fn client(&self, name: &str) -> Option<usize> {
        ["a", "b", "c"].iter().position(|one| *one == name)
    }

    pub(crate) fn ceiling(&self, group: &str) -> Option<u64> {
        let (_, ceiling) = self.groups.iter().find(|(name, _)| *name == group)?;
        *ceiling
    }

    /// Whether grants and leases together stay within the limit.
    pub(crate) fn keeps_the_limit(&self) -> bool {
        let provisioning = self.leases.as_ref().map(|leases| leases.provisioning);
        !matches!(provisioning, Some(Provisioning::Over { .. }))
    }

    /// What leases may have above the limit.
    pub(crate) fn extra(&self, _limit: u64) -> u64 {
        match self.leases.as_ref().map(|leases| leases.provisioning) {
            Some(Provisioning::Over {
                extra: Amount::Permits(extra),
            }) => extra,
            _ => 0,
        }
    }

    /// The most that may run under a limit.
    pub(crate) fn most(&self, limit: u64) -> u64 {
        limit + self.extra(limit)
    }
}

fn durable(jobs: &[&'static str], queued: usize) -> Plan {
    Plan {
        kind: Kind::Durable,
        jobs: jobs.to_vec(),
        queued,
    }
}

fn ephemeral(jobs: &[&'static str], queued: usize, ttl: u64) -> Plan {
    Plan {
        kind: Kind::Ephemeral(ttl),
        ..durable(jobs, queued)
    }
}

fn leases(provisioning: Provisioning) -> LeaseOptions {
    LeaseOptions {
        provisioning,
        permits_per_lease: 2,
        ttl: Duration::from_millis(LEASE_TTL),
        limited_groups: LimitedGroups::WithinGroupLimit,
        ..LeaseOptions::default()
    }
}

/// All worlds.
pub fn worlds() -> Vec<World> {
    let mut all = granting();
    all.extend(leasing());
    all
}

const NOTHING_WRONG: Budget = Budget {
    ticks: 0,
    losses: 0,
    late: 0,
    copies: 0,
    client_crashes: 0,
    holder_crashes: 0,
    limits: 0,
    switches: 0,
};

/// Worlds without leases.
fn granting() -> Vec<World> {
    let grants = World {
        name: "grants",
        about: "two clients and one permit; losses, late messages, time",
        clients: vec![durable(&["x"], 1), durable(&["x"], 1)],
        groups: vec![("x", None)],
        limit: 1,
        limits: Vec::new(),
        leases: None,
        uses_leases: false,
        waits: false,
        budget: Budget {
            ticks: 1,
            losses: 1,
            late: 1,
            ..NOTHING_WRONG
        },
        sets_clocks_back: false,
        slow_answers: true,
    };
    let with = |budget| World {
        budget,
        slow_answers: false,
        ..grants.clone()
    };
    let copies = World {
        name: "copies",
        about: "two jobs and two permits; copies and late messages",
        clients: vec![durable(&["x", "x"], 1)],
        limit: 2,
        ..with(Budget {
            ticks: 1,
            late: 1,
            copies: 1,
            ..NOTHING_WRONG
        })
    };
    let deaths = World {
        name: "deaths",
        about: "clients and the holder die",
        ..with(Budget {
            ticks: 1,
            losses: 1,
            client_crashes: 1,
            holder_crashes: 1,
            ..NOTHING_WRONG
        })
    };
    let ceilings = World {
        name: "ceilings",
        about: "two groups, one of them with a ceiling",
        clients: vec![durable(&["x", "y"], 2), durable(&["y"], 1)],
        groups: vec![("x", None), ("y", Some(1))],
        limit: 2,
        ..with(Budget {
            ticks: 1,
            losses: 1,
            ..NOTHING_WRONG
        })
    };
    let limits = World {
        name: "limits",
        about: "the limit goes down, to zero and up",
        limit: 2,
        limits: vec![0, 1, 3],
        ..with(Budget {
            ticks: 1,
            losses: 1,
            limits: 2,
            ..NOTHING_WRONG
        })
    };
    let waiting = World {
        name: "waiting",
        about: "requests wait at the holder for capacity",
        waits: true,
        ..with(Budget {
            ticks: 1,
            losses: 1,
            late: 1,
            holder_crashes: 1,
            ..NOTHING_WRONG
        })
    };
    let three = World {
        name: "three",
        about: "three clients and two permits",
        clients: vec![durable(&["x"], 1), durable(&["x"], 1), durable(&["x"], 1)],
        limit: 2,
        ..with(Budget {
            ticks: 1,
            ..NOTHING_WRONG
        })
    };
    vec![grants, copies, deaths, ceilings, limits, waiting, three]
}

/// Worlds with leases.
fn leasing() -> Vec<World> {
    let strict = World {
        name: "strict",
        about: "one client draws from leases",
        clients: vec![durable(&["x", "x"], 1)],
        groups: vec![("x", None)],
        limit: 2,
        limits: Vec::new(),
        leases: Some(leases(Provisioning::Strict)),
        uses_leases: true,
        waits: false,
        budget: Budget {
            ticks: 2,
            losses: 1,
            ..NOTHING_WRONG
        },
        sets_clocks_back: false,
        slow_answers: true,
    };
    let two = World {
        name: "shared",
        about: "two clients share what may be leased",
        clients: vec![durable(&["x"], 1), durable(&["x"], 0)],
        slow_answers: false,
        budget: Budget {
            ticks: 1,
            losses: 1,
            ..NOTHING_WRONG
        },
        ..strict.clone()
    };
    let under = World {
        name: "under",
        about: "leases from a part of the limit that grants leave alone",
        leases: Some(leases(Provisioning::Under {
            reserve: Amount::Permits(1),
        })),
        ..two.clone()
    };
    let over = World {
        name: "over",
        about: "leases above the limit",
        limit: 1,
        leases: Some(leases(Provisioning::Over {
            extra: Amount::Permits(1),
        })),
        ..two.clone()
    };
    let retirement = World {
        name: "retirement",
        about: "the limit goes down, to zero and up while permits are leased",
        clients: vec![durable(&["x", "y"], 1)],
        groups: vec![("x", None), ("y", None)],
        limits: vec![0, 1, 3],
        budget: Budget {
            ticks: 1,
            limits: 1,
            ..NOTHING_WRONG
        },
        ..two.clone()
    };
    let ceilings = World {
        name: "leased-ceiling",
        about: "leases within a group's ceiling",
        clients: vec![durable(&["x", "y"], 1), durable(&["x"], 1)],
        groups: vec![("x", Some(1)), ("y", None)],
        budget: Budget {
            ticks: 1,
            ..NOTHING_WRONG
        },
        ..two.clone()
    };
    let switched = World {
        name: "switched",
        about: "leases are switched off and on again",
        clients: vec![durable(&["x", "x"], 1)],
        budget: Budget {
            ticks: 1,
            losses: 1,
            switches: 2,
            ..NOTHING_WRONG
        },
        ..two.clone()
    };
    let ephemeral = World {
        name: "ephemeral",
        about: "a client without storage dies or is silent for too long, beside another",
        clients: vec![ephemeral(&["x"], 1, 1), durable(&["x"], 1)],
        limit: 2,
        budget: Budget {
            ticks: 1,
            client_crashes: 1,
            ..NOTHING_WRONG
        },
        ..two.clone()
    };
    let waiting = World {
        name: "leased-waiting",
        about: "requests for leases wait at the holder",
        clients: vec![durable(&["x", "x"], 1), durable(&["x"], 0)],
        limit: 1,
        waits: true,
        budget: Budget {
            ticks: 1,
            losses: 1,
            ..NOTHING_WRONG
        },
        ..two.clone()
    };
    let alone = World {
        clients: vec![durable(&["x", "x"], 1)],
        ..two.clone()
    };
    let deaths = World {
        name: "leased-deaths",
        about: "a client with leases and the holder die",
        budget: Budget {
            losses: 1,
            client_crashes: 1,
            holder_crashes: 1,
            ..NOTHING_WRONG
        },
        ..alone.clone()
    };
    let set_back = World {
        name: "set-back",
        about: "a client dies, and its clock is set back",
        sets_clocks_back: true,
        budget: Budget {
            losses: 1,
            client_crashes: 2,
            ..NOTHING_WRONG
        },
        ..alone.clone()
    };
    let late = World {
        name: "late",
        about: "late and repeated requests for leases",
        budget: Budget {
            late: 1,
            copies: 1,
            ..NOTHING_WRONG
        },
        ..alone.clone()
    };
    let late_restart = World {
        name: "late-restart",
        about: "repeated requests for leases, and the holder dies",
        budget: Budget {
            copies: 1,
            holder_crashes: 1,
            ..NOTHING_WRONG
        },
        ..alone.clone()
    };
    vec![
        strict,
        two,
        under,
        over,
        retirement,
        ceilings,
        switched,
        ephemeral,
        waiting,
        deaths,
        set_back,
        late,
        late_restart,
    ]
}
