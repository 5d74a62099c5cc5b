//! Messages to a holder, a line each: read, written and read again, and given to a holder that has a grant and a lease
//! out. What is refused changes nothing stored; what is taken keeps the limit.

use std::time::Duration;

use durably::semaphore::protocol::{Message, Reply};
use durably::semaphore::{LeaseOptions, SemaphoreError};

use super::lines;
use super::stand::{Stand, stored};

const LIMIT: u64 = 4;

/// What is out when the input begins: one grant and one lease. Their ids are the same every time.
const FIRST: &[u8] =
    br#"{"type":"request","v":1,"clientId":"c1","sentAt":1000000000000,"requestId":"r1",
"demand":[{"group":"a","count":1,"oldestAt":999999999000}],"grants":[],"leases":[]}"#;

/// Reads messages and replies, and has a holder answer the messages.
///
/// # Panics
///
/// If it finds a fault.
pub fn wire(input: &[u8]) {
    let mut taken = 0;
    for line in lines(input) {
        if let Ok(message) = Message::from_json(line) {
            taken += 1;
            assert_eq!(message.check(), Ok(()), "what was read is malformed");
            let json = serde_json::to_vec(&message).expect("a message is JSON");
            assert_eq!(Message::from_json(&json), Ok(message));
        }
        if let Ok(reply) = Reply::from_json(line) {
            let json = serde_json::to_vec(&reply).expect("a reply is JSON");
            assert_eq!(Reply::from_json(&json), Ok(reply));
        }
    }
    if taken > 0 {
        hold(input);
    }
}

fn hold(input: &[u8]) {
    let stand = Stand::new();
    let leases = LeaseOptions {
        permits_per_lease: 2,
        ttl: Duration::from_secs(2),
        ..LeaseOptions::default()
    };
    let opened =
        stand.account(|account| async move { account.set_leases(Some(Some(leases))).await });
    assert!(matches!(opened, Ok(Ok(()))));
    let first = send(&stand, FIRST);
    assert!(matches!(first, Ok(Reply::Grant(reply)) if reply.grants.len() == 1));
    for (number, line) in lines(input).enumerate() {
        let before = stored(&stand.account);
        match send(&stand, line) {
            Ok(reply) => {
                let json = serde_json::to_vec(&reply).expect("a reply is JSON");
                assert_eq!(Reply::from_json(&json), Ok(reply));
            }
            Err(error) => {
                assert!(!error.code().is_empty() && !error.to_string().is_empty());
                if Message::from_json(line).is_err() {
                    assert_eq!(error.code(), "malformed");
                    assert_eq!(
                        stored(&stand.account),
                        before,
                        "refused, and not without a trace"
                    );
                }
            }
        }
        keeps_the_limit(&stand);
        if number % 2 == 1 {
            stand.account.crash();
        }
        stand.advance(Duration::from_millis(700));
    }
    stand.advance(Duration::from_secs(60));
    keeps_the_limit(&stand);
}

fn send(stand: &Stand, json: &[u8]) -> Result<Reply, SemaphoreError> {
    let json = json.to_owned();
    let answer =
        stand.account(|account| async move { account.semaphore().handle_json(&json).await });
    answer.expect("the holder lives")
}

fn keeps_the_limit(stand: &Stand) {
    let usage = stand.account(|account| async move { account.usage().await });
    let usage = usage.expect("the holder lives").expect("usage can be had");
    assert!(
        usage.granted + usage.leased <= LIMIT,
        "more is out than may be: {usage:?}"
    );
}
