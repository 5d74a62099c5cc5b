//! Servers are killed (SIGKILL) at random moments: one of them, or all at once as by a power failure.

use std::time::Duration;

use super::fleet::Fleet;
use super::limits::Sharing;
use super::settings::Storm;

const VARIABLE: &str = "STORM_KILLS";
const SHORT: u64 = 18;

#[tokio::test(flavor = "multi_thread")]
async fn storm_of_kills_with_grants() {
    kills("kills with grants", &[Sharing::Grants; 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn storm_of_kills_with_leases() {
    let sharing = [Sharing::Strict, Sharing::Under, Sharing::Over];
    kills("kills with leases", &sharing).await;
}

async fn kills(name: &'static str, sharing: &[Sharing]) {
    let storm = Storm::new(name, VARIABLE, SHORT);
    let fleet = Fleet::start(sharing, &[], |_, setup| setup).await;
    let blows = async {
        let mut random = storm.random(1);
        let mut kills = 0;
        while kills < storm.blows {
            // From the first moments of a server to well into its work.
            tokio::time::sleep(Duration::from_millis(random.below(400))).await;
            if random.below(8) == 0 {
                let seats = fleet.seats();
                futures::future::join_all(seats.map(|seat| seat.kill())).await;
                futures::future::join_all(seats.map(|seat| seat.start())).await;
                kills += 3;
            } else {
                let seat = fleet.some_seat(&mut random);
                seat.kill().await;
                // Sometimes others notice that it is away.
                tokio::time::sleep(Duration::from_millis(random.below(60))).await;
                seat.start().await;
                kills += 1;
            }
        }
        format!("{kills} kills, as many restarts")
    };
    fleet.weather(&storm, blows).await;
}
