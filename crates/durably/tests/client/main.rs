//! The client and the layers in front of its transport, on a virtual clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use durably::Timestamp;
use durably::layers::{Backoff, RetryLayer, Retryable, TimeoutLayer, Timer};
use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
use durably::semaphore::protocol::{
    Demand, GrantReply, Message, PermitRequest, PermitSync, Reply, SyncReply,
};
use durably_sim::World;
use tower_layer::Layer;

const START: u64 = 1_000_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Clone)]
struct WorldTimer(World);

impl Timer for WorldTimer {
    type Sleep = durably_sim::Sleep;

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }
}

fn request(count: u64) -> PermitRequest {
    PermitRequest {
        client_id: "c1".into(),
        demand: vec![Demand {
            group: "g".into(),
            count,
            oldest_at: Timestamp::from_millis(START),
        }],
        grants: Vec::new(),
        leases: None,
        sent_at: None,
        request_id: None,
        request_number: None,
        wait_ms: None,
        client_ttl_ms: None,
    }
}

fn sync() -> PermitSync {
    PermitSync {
        client_id: "c1".into(),
        grants: Vec::new(),
        leases: None,
        sent_at: None,
        client_ttl_ms: None,
    }
}

/// An answer by a holder whose clock shows `now` and who wants to be asked again 500 ms later.
fn granted(now: u64) -> Reply {
    Reply::Grant(GrantReply {
        grants: Vec::new(),
        blocked: Vec::new(),
        grant_results: Vec::new(),
        next_request_at: Timestamp::from_millis(now + 500),
        leases: None,
        contended: false,
        request_number: None,
        now: Some(Timestamp::from_millis(now)),
    })
}

fn synced() -> Reply {
    Reply::Synced(SyncReply {
        grant_results: Vec::new(),
        leases: None,
        contended: false,
        now: None,
    })
}

fn sent_at(call: &HolderCall) -> u64 {
    let sent = match &call.message {
        Message::Request(request) => request.sent_at,
        Message::Sync(sync) => sync.sent_at,
    };
    sent.expect("every message says when it was sent")
        .as_millis()
        - START
}

#[test]
fn it_waits_until_a_holder_wants_to_be_asked_again_whatever_that_ones_clock_shows() {
    let world = World::new(START);
    let sent: Rc<RefCell<Vec<(String, u64)>>> = Rc::default();
    let (heard, clock) = (sent.clone(), world.clone());
    let transport = holder_fn(move |call: HolderCall| {
        heard.borrow_mut().push((call.key.clone(), sent_at(&call)));
        let clock = clock.clone();
        async move {
            clock.sleep(ms(100)).await;
            // A year behind.
            Ok(match call.message {
                Message::Request(_) => granted(5_000),
                Message::Sync(_) => synced(),
            })
        }
    });
    let client = SemaphoreClient::new(transport, WorldTimer(world.clone()));
    let asking = client.clone();
    world.block_on(async move {
        asking.request("a", request(1)).await.expect("answered");
        asking.request("a", request(2)).await.expect("answered");
        asking.sync("a", sync()).await.expect("answered");
        asking.request("b", request(1)).await.expect("answered");
        client.request("a", request(3)).await.expect("answered");
    });
    let expected = [("a", 0), ("a", 500), ("a", 600), ("b", 700), ("a", 1_000)];
    let expected = expected.map(|(key, at)| (key.to_owned(), at));
    assert_eq!(*sent.borrow(), expected);
}

#[test]
fn a_message_that_breaks_the_protocol_is_not_sent_and_a_wrong_answer_is_told() {
    let world = World::new(START);
    let calls = Rc::new(Cell::new(0));
    let counted = calls.clone();
    let transport = holder_fn(move |_| {
        counted.set(counted.get() + 1);
        async { Ok(synced()) }
    });
    let client = SemaphoreClient::new(transport, WorldTimer(world.clone()));
    let error = world
        .block_on(client.request("a", request(0)))
        .expect_err("no demand for nothing");
    assert_eq!(error.code(), "malformed");
    assert!(error.to_string().contains("demand[0].count"), "{error}");
    assert_eq!(calls.get(), 0);
    let error = world
        .block_on(client.request("a", request(1)))
        .expect_err("not the answer to a request");
    assert!(!error.is_retryable());
}

#[test]
fn a_timeout_stops_waiting_and_takes_nothing_back() {
    let world = World::new(START);
    let arrived = Rc::new(Cell::new(false));
    let (seen, clock) = (arrived.clone(), world.clone());
    let slow = holder_fn(move |_| {
        // As a transport does, the message leaves before anybody waits.
        let (seen, clock) = (seen.clone(), clock.clone());
        let working = clock.clone();
        clock.spawn(async move {
            working.sleep(ms(300)).await;
            seen.set(true);
        });
        async move {
            clock.sleep(ms(400)).await;
            Ok(synced())
        }
    });
    let timer = WorldTimer(world.clone());
    let timeout = TimeoutLayer::new(timer.clone(), ms(200)).expect("a duration");
    let client = SemaphoreClient::new(timeout.layer(slow), timer);
    let error = world
        .block_on(client.sync("a", sync()))
        .expect_err("too slow");
    assert_eq!(error.code(), "timeout");
    assert!(error.is_retryable());
    assert_eq!(world.now().as_millis(), START + 200);
    world.advance(ms(100));
    assert!(arrived.get());
}

#[test]
fn a_timeout_leaves_a_request_the_time_that_it_may_wait_at_the_holder() {
    let world = World::new(START);
    let silent = holder_fn(|_| std::future::pending());
    let timer = WorldTimer(world.clone());
    let timeout = TimeoutLayer::new(timer.clone(), ms(200)).expect("a duration");
    let client = SemaphoreClient::new(timeout.layer(silent), timer);
    let waiting = PermitRequest {
        wait_ms: Some(1_000),
        ..request(1)
    };
    let error = world
        .block_on(client.request("a", waiting))
        .expect_err("no answer");
    assert_eq!(error.code(), "timeout");
    assert_eq!(world.now().as_millis(), START + 1_200);
}

#[test]
fn retries_follow_the_error_wait_longer_each_time_and_say_when_they_were_sent() {
    let world = World::new(START);
    let sent: Rc<RefCell<Vec<u64>>> = Rc::default();
    let failures = Rc::new(RefCell::new(Vec::<ClientError>::new()));
    let (heard, failing) = (sent.clone(), failures.clone());
    let transport = holder_fn(move |call: HolderCall| {
        heard.borrow_mut().push(sent_at(&call));
        let failure = failing.borrow_mut().pop();
        async move { failure.map_or(Ok(synced()), Err) }
    });
    let timer = WorldTimer(world.clone());
    let backoff = Backoff {
        first: ms(100),
        longest: ms(300),
    };
    // Of every delay half is certain, and 50 ms of the other half come on top.
    let retry = RetryLayer::new(timer.clone(), || 50u64, backoff, 4).expect("settings");
    let client = SemaphoreClient::new(retry.layer(transport), timer);

    let gone = || ClientError::unreachable("gone");
    failures.borrow_mut().extend([gone(), gone(), gone()]);
    world
        .block_on(client.sync("a", sync()))
        .expect("the fourth try works");
    assert_eq!(*sent.borrow(), [0, 100, 250, 450]);

    failures
        .borrow_mut()
        .extend([gone(), gone(), gone(), gone()]);
    let error = world
        .block_on(client.sync("a", sync()))
        .expect_err("four tries");
    assert_eq!(error.code(), "unreachable");

    sent.borrow_mut().clear();
    failures.borrow_mut().push(ClientError::Refused {
        code: "malformed".into(),
        message: "no".into(),
        retryable: false,
    });
    let error = world
        .block_on(client.sync("a", sync()))
        .expect_err("refused");
    assert_eq!(error.code(), "malformed");
    assert_eq!(sent.borrow().len(), 1);
}

#[test]
fn wrong_settings_are_refused_by_name() {
    let timer = WorldTimer(World::new(START));
    let error = TimeoutLayer::new(timer.clone(), Duration::ZERO)
        .err()
        .expect("no time");
    assert_eq!(error.field(), "timeout");
    let error = RetryLayer::new(timer.clone(), || 0u64, Backoff::default(), 0)
        .err()
        .expect("no try");
    assert_eq!(error.field(), "attempts");
    let backoff = Backoff {
        first: ms(10),
        longest: ms(5),
    };
    let error = RetryLayer::new(timer, || 0u64, backoff, 2)
        .err()
        .expect("the wrong way round");
    assert_eq!(error.field(), "backoff.longest");
}

/// A timer that may go to another thread.
#[derive(Clone)]
struct SendTimer;

impl Timer for SendTimer {
    type Sleep = std::future::Ready<()>;

    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }

    fn sleep(&self, _: Duration) -> Self::Sleep {
        std::future::ready(())
    }
}

#[test]
fn a_client_and_its_futures_go_to_other_threads_if_its_parts_do() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let transport = holder_fn(|_| async { Ok(synced()) });
    let timeout = TimeoutLayer::new(SendTimer, ms(1)).expect("a duration");
    let retry = RetryLayer::new(SendTimer, || 0u64, Backoff::default(), 2).expect("settings");
    let client = SemaphoreClient::new(retry.layer(timeout.layer(transport)), SendTimer);
    let client = is_send(client);
    let future = is_send(client.sync("a", sync()));
    drop(future);
    drop(is_send(client.request("a", request(1))));
}
