//! A server is stopped (SIGSTOP) for longer than every deadline, and goes on (SIGCONT) as if nothing had been:
//! claims are late, leases have run out, attempts and requests were given up.

use std::time::Duration;

use super::fleet::Fleet;
use super::limits::Sharing;
use super::settings::Storm;

/// Longer than the claim deadline (1 s), a lease's life (1.5 s), an attempt's timeout (2 s) and a request's answer
/// (5 s).
const LONGEST: u64 = 6_000;

#[tokio::test(flavor = "multi_thread")]
async fn storm_of_frozen_servers() {
    let storm = Storm::new("freezes", "STORM_FREEZES", 3);
    let sharing = [
        Sharing::Grants,
        Sharing::Strict,
        Sharing::Under,
        Sharing::Over,
    ];
    let fleet = Fleet::start(&sharing, &[], |_, setup| setup).await;
    let blows = async {
        let mut random = storm.random(1);
        for number in 0..storm.blows {
            tokio::time::sleep(Duration::from_millis(random.below(600))).await;
            // In turns, so that a short storm has frozen each of them.
            let seat = fleet.seats()[number as usize % 3];
            let length = match number {
                0 | 1 => LONGEST,
                _ => 1_200 + random.below(LONGEST - 1_200),
            };
            seat.signal("STOP").await;
            tokio::time::sleep(Duration::from_millis(length)).await;
            seat.signal("CONT").await;
        }
        format!("{} freezes", storm.blows)
    };
    fleet.weather(&storm, blows).await;
}
