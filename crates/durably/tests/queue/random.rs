//! Random work over a bad network, with crashes at random moments: nothing is lost, nothing runs
//! without a claim that its holder confirmed, nothing that was cancelled runs, and when the network
//! heals every permit comes back.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use durably::layers::HeldBack;
use durably::semaphore::LeaseOptions;
use durably::semaphore::queue::{CancelOutcome, Outcome, QueueEvent, Via};
use durably_sim::World;

use crate::lender::Lender;
use crate::setup::{Fate, START, Setup, item, ms};

/// A small generator, so that what the test does is apart from what the world draws.
#[derive(Clone)]
struct Dice(Rc<Cell<u64>>);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(Rc::new(Cell::new(seed.wrapping_mul(2).wrapping_add(1))))
    }

    fn below(&self, bound: u64) -> u64 {
        let mut state = self.0.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.set(state);
        (state >> 11) % bound
    }
}

/// `lends` has holders give leases, `waits` has requests wait for capacity. Returns how many items drew
/// a permit, and how many requests offered to wait.
fn run(seed: u64, lends: bool, waits: bool) -> (usize, usize) {
    let dice = Dice::new(seed);
    let keys = ["acme", "bolt", "crux"];
    let limits: Vec<(&str, u64)> = keys.iter().map(|key| (*key, 1 + dice.below(4))).collect();
    let per_batch = 1 + dice.below(5);
    let setup = Setup::in_world(World::with_seed(START, seed), &limits, move |builder| {
        let builder = builder.max_admit_items(per_batch);
        match waits {
            true => builder.answer_timeout(ms(6_500)).request_wait(ms(1_500)),
            false => builder,
        }
    });
    let ttl = ms(500 + dice.below(20_000));
    if lends {
        setup.outside.leases.replace(Some(LeaseOptions {
            permits_per_lease: 1 + dice.below(4),
            ttl,
            ..LeaseOptions::default()
        }));
    }
    let bad = dice.below(60);
    let network = dice.clone();
    setup.fate(move |_| {
        if network.below(100) >= bad {
            return Fate::Arrives;
        }
        match network.below(6) {
            0 => Fate::Lost,
            1 => Fate::Refused,
            2 => Fate::AnswerLost,
            3 => Fate::Twice,
            4 => Fate::Late(network.below(3_000)),
            _ => Fate::AnswerLate(network.below(1_500)),
        }
    });

    let mut offered: Vec<String> = Vec::new();
    let mut cancelled = 0;
    for step in 0..60 {
        match dice.below(12) {
            0..=4 => {
                let key = keys[dice.below(3) as usize];
                let group = ["one", "two"][dice.below(2) as usize];
                let count = 1 + dice.below(6);
                let ids: Vec<String> = (0..count).map(|n| format!("job-{step:03}-{n}")).collect();
                let items: Vec<_> = ids.iter().map(|id| item(id, key, group)).collect();
                let call = setup
                    .shard
                    .call(move |shard| async move { shard.queue.enqueue(items).await });
                let outcomes = setup.world.block_on(call).expect("open").expect("stored");
                assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Queued));
                offered.extend(ids);
            }
            5 if !offered.is_empty() => {
                let id = offered[dice.below(offered.len() as u64) as usize].clone();
                let outcome = setup.cancel(&id);
                if matches!(outcome, CancelOutcome::Cancelled | CancelOutcome::Releasing)
                    && setup.outside.forbidden.borrow_mut().insert(id)
                {
                    cancelled += 1;
                }
            }
            6 => setup.shard.crash(),
            7 => setup.crash_holder(keys[dice.below(3) as usize]),
            8 => setup.outside.failing_admits.set(dice.below(3) as u32),
            9 => setup.outside.late_failing_admits.set(dice.below(3) as u32),
            10 => setup.outside.lost_releases.set(dice.below(3) as u32),
            _ => setup.outside.takes.set(ms(50 + dice.below(2_000))),
        }
        setup.world.advance(ms(dice.below(400)));
        setup.assert_sums();
    }

    setup.fate(|_| Fate::Arrives);
    setup.run_until_done(offered.len() - cancelled, Duration::from_secs(300));
    setup.world.advance(Duration::from_secs(60));
    setup.assert_settled(&keys);
    for (key, limit) in limits {
        assert!(
            setup.most(key) <= limit,
            "{} of {key} ran at once",
            setup.most(key)
        );
    }
    let mut started = setup.started();
    started.sort();
    started.dedup();
    assert_eq!(started.len(), offered.len() - cancelled);
    // Nothing but the end of retention is left to wake the shard.
    let alarm = setup.shard.alarm();
    let quiet = alarm.is_none_or(|at| at.since(setup.world.now()) > Duration::from_secs(3_600));
    assert!(quiet, "still awake: {alarm:?} at {}", setup.world.now());
    let events = setup.events();
    let drew = events.iter().filter(|event| {
        matches!(
            event,
            QueueEvent::Admitted {
                via: Via::Lease { .. },
                ..
            }
        )
    });
    let calls = setup.outside.calls.borrow();
    let waiting = calls
        .iter()
        .filter(|call| call.held_back() > Duration::ZERO);
    (drew.count(), waiting.count())
}

fn run_all(seeds: std::ops::Range<u64>, lends: bool, waits: bool) {
    let (mut drew, mut waited) = (0, 0);
    for seed in seeds {
        match std::panic::catch_unwind(|| run(seed, lends, waits)) {
            Ok((of_drawn, of_waiting)) => {
                drew += of_drawn;
                waited += of_waiting;
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                panic!("seed {seed}: {text}");
            }
        }
    }
    // It is about what it says it is about.
    assert_eq!((drew > 0, waited > 0), (lends, waits));
}

#[test]
fn nothing_is_lost_and_nothing_runs_unclaimed() {
    run_all(0..12, false, false);
}

#[test]
fn neither_is_anything_while_requests_wait() {
    run_all(100..112, false, true);
}

#[test]
fn nor_with_leases() {
    run_all(200..212, true, false);
}

#[test]
fn nor_with_leases_while_requests_wait() {
    run_all(300..312, true, true);
}

/// A holder that nobody can deceive, without rounds and with room for leases only, so that nearly
/// everything is drawn.
fn draw(seed: u64) {
    let dice = Dice::new(seed);
    let most = 1 + dice.below(8);
    let setup = Setup::in_world(World::with_seed(START, seed), &[], move |builder| {
        builder.max_admitted(most)
    });
    let lender = Lender::new(&setup, 1 + dice.below(12), 1 + dice.below(8));
    lender.grants.set(dice.below(3) == 0);
    lender.ttl.set(ms(300 + dice.below(15_000)));
    let bad = dice.below(50);
    let network = dice.clone();
    setup.fate(move |_| {
        if network.below(100) >= bad {
            return Fate::AnswerLate(network.below(100));
        }
        match network.below(6) {
            0 => Fate::Lost,
            1 => Fate::Refused,
            2 => Fate::AnswerLost,
            3 => Fate::Twice,
            4 => Fate::Late(network.below(3_000)),
            _ => Fate::AnswerLate(network.below(900)),
        }
    });
    let mut offered = 0;
    let mut forgot = false;
    for step in 0..80 {
        match dice.below(12) {
            0..=5 => {
                let group = ["one", "two", "three"][dice.below(3) as usize];
                let count = 1 + dice.below(8) as usize;
                setup.enqueue_many(&format!("job-{step:03}"), count, "acme", group);
                offered += count;
            }
            6 => setup.shard.crash(),
            7 => lender.contended.set(dice.below(2) == 0),
            8 => lender.retire_all(),
            9 => setup.outside.lost_releases.set(dice.below(3) as u32),
            10 if dice.below(8) == 0 => {
                lender.forget_all();
                forgot = true;
            }
            _ => setup.outside.takes.set(ms(50 + dice.below(2_000))),
        }
        setup.world.advance(ms(dice.below(400)));
        setup.assert_sums();
        assert!(setup.most("acme") <= most);
    }
    setup.fate(|_| Fate::Arrives);
    setup.run_until_done(offered, Duration::from_secs(600));
    setup.world.advance(Duration::from_secs(60));
    assert_eq!(lender.footprint(), 0);
    assert_eq!(lender.open(), 0);
    for table in ["grants", "leases", "requests"] {
        let table = format!("durability_semaphore_queue_{table}");
        assert_eq!(setup.rows(&table), 0, "{table}");
    }
    // What a holder has lost it cannot count.
    if !forgot {
        assert!(setup.most("acme") <= lender.limit.get());
        assert!(lender.most.get() <= lender.limit.get());
    }
    let alarm = setup.shard.alarm();
    let quiet = alarm.is_none_or(|at| at.since(setup.world.now()) > Duration::from_secs(3_600));
    assert!(quiet, "still awake: {alarm:?} at {}", setup.world.now());
}

#[test]
fn no_permit_is_drawn_twice_and_every_one_comes_back() {
    for seed in 0..30 {
        let outcome = std::panic::catch_unwind(|| draw(seed));
        if let Err(panic) = outcome {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            panic!("seed {seed}: {text}");
        }
    }
}
