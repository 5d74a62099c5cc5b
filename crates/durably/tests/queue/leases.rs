//! Leases: what is drawn without asking anybody, when drawing ends, and that every permit comes back.

use durably::semaphore::protocol::Message;
use durably::semaphore::queue::{
    CancelOutcome, ItemStatus, LeaseStop, QueueEvent, SemaphoreQueueBuilder, Via,
};

use crate::lender::Lender;
use crate::setup::{Fate, MINUTE, SECOND, Setup, ms};

/// Plenty of room.
fn wide(builder: SemaphoreQueueBuilder) -> SemaphoreQueueBuilder {
    builder.max_admitted(1_000)
}

fn requests(setup: &Setup) -> usize {
    let calls = setup.outside.calls.borrow();
    let requests = calls
        .iter()
        .filter(|call| matches!(call.message, Message::Request(_)));
    requests.count()
}

/// Ids of items admitted through grants, and through leases.
fn admitted(setup: &Setup) -> (Vec<String>, Vec<String>) {
    let (mut granted, mut leased) = (Vec::new(), Vec::new());
    for event in setup.outside.events.borrow().iter() {
        if let QueueEvent::Admitted { id, via, .. } = event {
            match via {
                Via::Grant { .. } => granted.push(id.clone()),
                Via::Lease { .. } => leased.push(id.clone()),
                other => panic!("unknown way {other:?}"),
            }
        }
    }
    (granted, leased)
}

fn stops(setup: &Setup) -> Vec<LeaseStop> {
    let events = setup.outside.events.borrow();
    let stops = events.iter().filter_map(|event| match event {
        QueueEvent::LeaseStopped { reason, .. } => Some(*reason),
        _ => None,
    });
    stops.collect()
}

fn assert_all_back(setup: &Setup, lender: &Lender) {
    assert_eq!(lender.footprint(), 0, "{:?}", lender.marks());
    assert_eq!(lender.open(), 0);
    setup.assert_sums();
    for table in ["grants", "leases", "requests"] {
        let table = format!("durability_semaphore_queue_{table}");
        assert_eq!(setup.rows(&table), 0, "{table}");
    }
}

/// A shard that has a lease of `permits` permits for `g`, and nothing to do.
fn with_lease(permits: u64) -> (Setup, std::rc::Rc<Lender>) {
    let setup = Setup::new(&[], wide);
    let lender = Lender::new(&setup, 100, permits);
    setup.enqueue_many("first", 1, "acme", "g");
    setup.run_until_done(1, MINUTE);
    setup.world.advance(SECOND);
    setup.outside.calls.borrow_mut().clear();
    (setup, lender)
}

#[test]
fn items_are_admitted_as_they_are_queued_while_a_lease_lasts() {
    let (setup, lender) = with_lease(10);
    setup.enqueue_many("job", 6, "acme", "g");
    setup.world.run_until_idle();
    assert_eq!(setup.started().len(), 7, "without any time passing");
    assert_eq!(setup.outside.calls.borrow().len(), 0, "without asking");
    assert!(matches!(
        setup.status("job-005"),
        ItemStatus::Admitted { .. }
    ));
    assert_eq!(setup.cancel("job-005"), CancelOutcome::Admitted);
    // Another group has no lease; it asks.
    setup.enqueue_many("other", 1, "acme", "h");
    setup.run_until_done(8, MINUTE);
    assert_eq!(requests(&setup), 1);
    setup.world.advance(SECOND);
    // Released permits are not drawn again: four are left.
    setup.enqueue_many("more", 6, "acme", "g");
    setup.run_until_done(14, MINUTE);
    let (granted, leased) = admitted(&setup);
    assert_eq!(leased.len(), 10);
    assert_eq!(granted, ["first-000", "other-000", "more-004", "more-005"]);
    let mut in_order = setup.started();
    in_order.sort_by_key(|id| {
        (
            ["first", "job", "other", "more"]
                .iter()
                .position(|p| id.starts_with(p)),
            id.clone(),
        )
    });
    assert_eq!(setup.started(), in_order);
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn a_lease_that_arrives_is_drawn_by_the_oldest_that_wait() {
    let setup = Setup::new(&[], wide);
    let lender = Lender::new(&setup, 100, 4);
    lender.grants.set(false);
    setup.enqueue_many("job", 6, "acme", "g");
    setup.world.run_until_idle();
    assert_eq!(
        setup.started(),
        ["job-000", "job-001", "job-002", "job-003"]
    );
    assert_eq!(setup.rows("durability_semaphore_queue_leases"), 1);
    // One that comes later does not overtake those that wait.
    setup.enqueue_many("later", 1, "acme", "g");
    setup.run_until_done(7, MINUTE);
    assert_eq!(setup.started()[4..], ["job-004", "job-005", "later-000"]);
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn a_large_lease_is_drawn_to_its_end_by_all_that_wait_without_any_time_passing() {
    let setup = Setup::new(&[], |builder| builder.max_admitted(5_000));
    let lender = Lender::new(&setup, 10_000, 3_000);
    lender.grants.set(false);
    setup.fate(|_| Fate::AnswerLate(1_000));
    for batch in ["a", "b", "c"] {
        setup.enqueue_many(batch, 1_000, "acme", "g");
    }
    setup.world.advance(ms(1_000));
    assert_eq!(setup.started().len(), 3_000);
    setup.run_until_done(3_000, MINUTE);
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn who_loses_a_grant_is_drawn_for_from_a_lease_that_is_there() {
    let setup = Setup::new(&[], wide);
    let lender = Lender::new(&setup, 100, 10);
    for (done, key) in [(3, "acme"), (6, "umbrella")] {
        setup.fate(|call| match call.message {
            Message::Request(_) => Fate::Arrives,
            Message::Sync(_) => Fate::Lost,
        });
        setup.enqueue_many(key, 3, key, "g");
        // Until it is too late to claim what was granted.
        setup.world.advance(2 * SECOND);
        assert_eq!(setup.started().len(), done - 3);
        setup.fate(|_| Fate::Arrives);
        setup.run_until_done(done, MINUTE / 3);
    }
    let (granted, leased) = admitted(&setup);
    assert_eq!((granted.len(), leased.len()), (0, 6));
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn draws_that_cannot_be_stored_are_made_as_soon_as_they_can() {
    let setup = Setup::new(&[], wide);
    let lender = Lender::new(&setup, 100, 10);
    setup.fate(|call| match call.message {
        Message::Request(_) => Fate::Arrives,
        Message::Sync(_) => Fate::Lost,
    });
    setup.enqueue_many("job", 3, "acme", "g");
    setup.world.advance(2 * SECOND);
    setup.alter(
        "CREATE TRIGGER refuse BEFORE INSERT ON durability_semaphore_queue_grants
         WHEN NEW.lease_id IS NOT NULL BEGIN SELECT RAISE(ABORT, 'nothing is drawn'); END",
    );
    setup.fate(|_| Fate::Arrives);
    setup.world.advance(10 * SECOND);
    assert_eq!(setup.started().len(), 0);
    setup.alter("DROP TRIGGER refuse");
    setup.run_until_done(3, 5 * SECOND);
    let (granted, leased) = admitted(&setup);
    assert_eq!((granted.len(), leased.len()), (0, 3));
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn no_more_is_drawn_than_may_run_and_the_rest_as_places_become_free() {
    let setup = Setup::new(&[], |builder| builder.max_admitted(3));
    let lender = Lender::new(&setup, 100, 50);
    setup.enqueue_many("first", 1, "acme", "g");
    setup.run_until_done(1, MINUTE);
    setup.world.advance(SECOND);
    setup.outside.calls.borrow_mut().clear();
    setup.enqueue_many("job", 10, "acme", "g");
    setup.world.run_until_idle();
    assert_eq!(setup.started().len(), 4);
    assert!(matches!(
        setup.status("job-003"),
        ItemStatus::Queued { place: 1, .. }
    ));
    setup.run_until_done(11, MINUTE);
    assert_eq!(requests(&setup), 0, "the lease covers all of them");
    assert_eq!(setup.most("acme"), 3);
    let (_, leased) = admitted(&setup);
    assert_eq!(leased.len(), 10);
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn nothing_is_drawn_after_the_lease_is_over_and_its_permits_come_back() {
    let (setup, lender) = with_lease(10);
    setup.outside.takes.set(90 * SECOND);
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.run_until_idle();
    // Used, it is reported at half its lifetime, over and over.
    setup.world.advance(65 * SECOND);
    assert_eq!(lender.marks(), (2, 0));
    let syncs = setup.outside.calls.borrow().len();
    assert!((1..=3).contains(&syncs), "{syncs} reports in a minute");
    setup.enqueue_many("more", 1, "acme", "g");
    setup.world.run_until_idle();
    assert_eq!(setup.started().len(), 4);
    // Cut off, it may be drawn from until its time is over, and then not.
    setup.fate(|_| Fate::Lost);
    setup.world.advance(MINUTE);
    setup.enqueue_many("late", 1, "acme", "g");
    setup.world.advance(SECOND);
    assert!(matches!(
        setup.status("late-000"),
        ItemStatus::Queued { .. }
    ));
    assert_eq!(stops(&setup), [LeaseStop::Expired]);
    assert!(lender.footprint() >= 1, "its job runs");
    setup.fate(|_| Fate::Arrives);
    setup.run_until_done(5, 5 * MINUTE);
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn an_idle_lease_is_given_back_after_half_its_lifetime() {
    let (setup, lender) = with_lease(10);
    setup.world.advance(20 * SECOND);
    assert_eq!(setup.outside.calls.borrow().len(), 0);
    setup.shard.crash();
    // The alarm brings the object back.
    setup.world.advance(25 * SECOND);
    assert_eq!(stops(&setup), [LeaseStop::Idle]);
    assert_all_back(&setup, &lender);
}

#[test]
fn a_lease_whose_end_cannot_be_stored_is_given_back_as_soon_as_it_can() {
    let (setup, lender) = with_lease(10);
    let storage = setup.shard.storage().clone();
    let rename = |from: &'static str, to: &'static str| {
        let sql = format!("ALTER TABLE {from} RENAME TO {to}");
        let renamed = storage.transaction(move |transaction| transaction.script(&sql));
        renamed.expect("both names are fine");
    };
    rename("durability_semaphore_queue_leases", "hidden");
    setup.world.advance(MINUTE / 2);
    assert_eq!(lender.open(), 1);
    rename("hidden", "durability_semaphore_queue_leases");
    setup.world.advance(MINUTE / 2);
    assert_all_back(&setup, &lender);
}

#[test]
fn undrawn_permits_are_returned_when_others_want_them_and_nothing_waits() {
    let (setup, lender) = with_lease(10);
    setup.outside.takes.set(10 * SECOND);
    setup.enqueue_many("job", 2, "acme", "g");
    setup.world.run_until_idle();
    assert_eq!(lender.footprint(), 10);
    lender.contended.set(true);
    // It hears of it with the next answer.
    setup.outside.takes.set(SECOND);
    setup.enqueue_many("other", 1, "acme", "h");
    setup.world.advance(ms(500));
    assert!(stops(&setup).contains(&LeaseStop::Idle));
    // What its jobs use stays with them.
    assert_eq!(lender.marks(), (2, 0));
    lender.contended.set(false);
    setup.enqueue_many("more", 1, "acme", "g");
    setup.run_until_done(5, MINUTE);
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn a_lease_that_the_holder_stops_is_not_drawn_from_and_is_settled_with_its_last_job() {
    let (setup, lender) = with_lease(10);
    setup.outside.takes.set(10 * SECOND);
    setup.enqueue_many("job", 2, "acme", "g");
    lender.retire_all();
    lender.permits_per_lease.set(0);
    setup.enqueue_many("other", 1, "acme", "h");
    setup.world.advance(ms(500));
    assert_eq!(stops(&setup), [LeaseStop::Holder]);
    assert_eq!(lender.marks(), (2, 0));
    setup.shard.crash();
    setup.enqueue_many("more", 1, "acme", "g");
    setup.world.run_until_idle();
    let (_, leased) = admitted(&setup);
    assert_eq!(leased, ["job-000", "job-001"]);
    setup.run_until_done(5, MINUTE);
    setup.world.advance(SECOND);
    assert_all_back(&setup, &lender);
}

#[test]
fn a_lease_that_the_holder_lost_is_seen_to_its_end_and_reported_meanwhile() {
    let (setup, lender) = with_lease(10);
    setup.outside.takes.set(10 * SECOND);
    setup.enqueue_many("job", 2, "acme", "g");
    lender.forget_all();
    lender.permits_per_lease.set(0);
    lender.limit.set(0);
    setup.enqueue_many("other", 1, "acme", "h");
    setup.world.advance(ms(500));
    assert_eq!(stops(&setup), [LeaseStop::Unknown]);
    setup.world.advance(SECOND);
    // Every round learns what runs without its knowledge.
    let reported = match &setup.outside.calls.borrow().last().expect("a call").message {
        Message::Request(request) => request.leases.clone().expect("leases"),
        other => panic!("it asks for {other:?}"),
    };
    assert_eq!((reported[0].drawn, reported[0].released), (2, 0));
    assert!(reported[0].retired);
    setup.run_until_done(3, MINUTE);
    lender.limit.set(10);
    setup.run_until_done(4, MINUTE);
    setup.world.advance(SECOND);
    assert_all_back(&setup, &lender);
}

#[test]
fn a_crash_at_any_moment_loses_no_permit() {
    for moment in (0..2_000).step_by(40) {
        let setup = Setup::new(&[], |builder| builder.max_admitted(4));
        let lender = Lender::new(&setup, 6, 4);
        setup.fate(|_| Fate::AnswerLate(70));
        setup.enqueue_many("job", 12, "acme", "g");
        setup.world.advance(ms(moment));
        setup.shard.crash();
        setup.run_until_done(12, MINUTE);
        assert!(setup.most("acme") <= 6);
        setup.world.advance(3 * MINUTE);
        assert_all_back(&setup, &lender);
    }
}

#[test]
fn a_crash_between_the_ends_of_what_was_drawn_together_loses_no_permit() {
    let (setup, lender) = with_lease(10);
    let ends = [("job-000", 1), ("job-001", 5), ("job-002", 10)];
    let ends = ends.map(|(id, seconds)| (id.to_owned(), seconds * SECOND));
    setup.outside.takes_of.borrow_mut().extend(ends);
    setup.enqueue_many("job", 3, "acme", "g");
    setup.world.advance(3 * SECOND);
    setup.shard.crash();
    setup.world.advance(4 * SECOND);
    assert_eq!(lender.marks(), (3, 2));
    setup.shard.crash();
    setup.run_until_done(4, MINUTE);
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn a_permit_that_was_used_is_not_drawn_again_after_a_crash() {
    let (setup, lender) = with_lease(3);
    for (done, job) in [(2, "one"), (3, "two")] {
        setup.enqueue_many(job, 1, "acme", "g");
        setup.run_until_done(done, SECOND);
    }
    setup.shard.crash();
    setup.enqueue_many("last", 2, "acme", "g");
    setup.run_until_done(5, MINUTE);
    let (granted, leased) = admitted(&setup);
    assert_eq!(granted, ["first-000", "last-001"]);
    assert_eq!(leased.len(), 3);
    setup.world.advance(3 * MINUTE);
    assert_all_back(&setup, &lender);
}

#[test]
fn what_a_lost_answer_gave_is_told_again_under_the_same_id() {
    for crash in [false, true] {
        let setup = Setup::new(&[], |builder| builder.max_admitted(50));
        let lender = Lender::new(&setup, 10, 5);
        setup.fate(|_| Fate::AnswerLost);
        setup.enqueue_many("job", 2, "acme", "g");
        setup.world.advance(ms(500));
        assert_eq!(lender.lent.get(), 1);
        if crash {
            setup.shard.crash();
        }
        setup.fate(|_| Fate::Arrives);
        setup.run_until_done(2, MINUTE);
        let ids: Vec<String> = setup
            .outside
            .calls
            .borrow()
            .iter()
            .filter_map(|call| match &call.message {
                Message::Request(request) => request.request_id.clone(),
                Message::Sync(_) => None,
            })
            .collect();
        assert!(ids.len() >= 2 && ids[0] == ids[1], "{ids:?}");
        // The lease was told again, so it is of use.
        assert_eq!(lender.lent.get(), 1);
        setup.enqueue_many("more", 2, "acme", "g");
        setup.run_until_done(4, MINUTE);
        assert_eq!(lender.lent.get(), 1);
        setup.world.advance(3 * MINUTE);
        assert_all_back(&setup, &lender);
    }
}

#[test]
fn a_request_is_closed_also_if_nothing_waits_any_more() {
    for crash in [false, true] {
        let setup = Setup::new(&[], wide);
        let lender = Lender::new(&setup, 10, 5);
        setup.fate(|_| Fate::AnswerLost);
        setup.enqueue_many("job", 1, "acme", "g");
        setup.world.advance(ms(100));
        assert_eq!(setup.cancel("job-000"), CancelOutcome::Cancelled);
        setup.fate(|_| Fate::Arrives);
        if crash {
            setup.shard.crash();
        }
        setup.world.advance(10 * SECOND);
        let last = setup
            .outside
            .calls
            .borrow()
            .iter()
            .rev()
            .find_map(|call| match &call.message {
                Message::Request(request) => Some(request.demand.len()),
                Message::Sync(_) => None,
            });
        assert_eq!(last, Some(0));
        setup.world.advance(3 * MINUTE);
        assert_all_back(&setup, &lender);
    }
}

#[test]
fn a_job_of_a_lease_costs_few_rows() {
    let setup = Setup::new(&[], |builder| builder.max_admitted(100).retention(MINUTE));
    let lender = Lender::new(&setup, 10_000, 1_000);
    lender.grants.set(false);
    setup.enqueue_many("first", 1, "acme", "g");
    setup.run_until_done(1, MINUTE);
    setup.world.advance(2 * MINUTE);
    setup.enqueue_many("second", 1, "acme", "g");
    setup.run_until_done(2, MINUTE);
    let before = setup.rows_changed();
    let (batches, of) = (8, 100);
    for batch in 0..batches {
        setup.enqueue_many(&format!("job-{batch}"), of, "acme", "g");
        setup.run_until_done(2 + (batch + 1) * of, MINUTE);
    }
    setup.world.advance(3 * MINUTE);
    assert_eq!(setup.rows("durability_semaphore_queue_items"), 0);
    // Stored, finished, forgotten; six for a draw, and now and then the lease and the alarm.
    let per_job = (setup.rows_changed() - before) as f64 / (batches * of) as f64;
    assert!((3.0..3.2).contains(&per_job), "{per_job} rows a job");
    assert_all_back(&setup, &lender);
}
