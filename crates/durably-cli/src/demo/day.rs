//! A real day of flights as jobs, and how fast it passes.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Flights that left New York on 2013-07-10; `data/README.md` says where they are from.
const FLIGHTS: &str = include_str!("../../data/flights-2013-07-10.jsonl");

/// Minutes that the whole day takes within the demo's limits, and in how many seconds they pass at
/// speed 1.
const WHOLE_MINUTES: f64 = 3_900.0;
const WHOLE_SECONDS: f64 = 45.0;

/// One flight, which is one job.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Flight {
    pub(super) id: String,
    /// The airline.
    #[serde(rename = "key")]
    pub(super) account: String,
    /// The airport that it leaves.
    pub(super) group: String,
    /// When it is submitted, in minutes of the day.
    pub(super) at_minute: u32,
    /// How long it runs.
    pub(super) minutes: u32,
    pub(super) body: Map<String, Value>,
}

impl Flight {
    /// The job as it is submitted. Its body says how long it runs, since the endpoint has nothing
    /// else to go by.
    pub(super) fn job(&self) -> Value {
        let mut body = self.body.clone();
        body.insert("minutes".to_owned(), self.minutes.into());
        serde_json::json!({
            "account": self.account, "id": self.id, "group": self.group, "body": body,
        })
    }
}

/// The flights in the order of their departure: the first `jobs` of those before minute `until`.
/// Ids end in `suffix`.
pub(super) fn flights(
    jobs: Option<u32>,
    until: Option<u32>,
    suffix: &str,
) -> serde_json::Result<Vec<Flight>> {
    let mut flights = FLIGHTS
        .lines()
        .map(serde_json::from_str)
        .collect::<serde_json::Result<Vec<Flight>>>()?;
    flights.retain(|flight| until.is_none_or(|until| flight.at_minute < until));
    if let Some(jobs) = jobs {
        flights.truncate(usize::try_from(jobs).unwrap_or(usize::MAX));
    }
    for flight in &mut flights {
        flight.id.push_str(suffix);
    }
    Ok(flights)
}

/// How fast minutes pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    seconds_per_minute: f64,
}

impl Pace {
    pub(super) fn new(speed: f64) -> Pace {
        Pace {
            seconds_per_minute: WHOLE_SECONDS / WHOLE_MINUTES / speed,
        }
    }

    /// How long `minutes` of the day take.
    pub(super) fn real(self, minutes: u32) -> Duration {
        Duration::from_secs_f64(self.seconds_per_minute * f64::from(minutes))
    }

    /// How many minutes of the day pass meanwhile.
    pub(super) fn minutes(self, real: Duration) -> f64 {
        real.as_secs_f64() / self.seconds_per_minute
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_whole_day_is_there_in_order() {
        let flights = flights(None, None, "").unwrap();
        let ids: BTreeSet<_> = flights.iter().map(|flight| &flight.id).collect();
        assert_eq!((flights.len(), ids.len()), (846, 846));
        assert!(flights.is_sorted_by_key(|flight| flight.at_minute));
    }

    #[test]
    fn a_shorter_day_is_its_beginning() {
        let short = flights(Some(3), Some(25), "-x").unwrap();
        assert_eq!(short.len(), 3);
        assert!(
            short
                .iter()
                .all(|flight| flight.at_minute < 25 && flight.id.ends_with("-x"))
        );
    }

    #[test]
    fn the_day_passes_in_45_seconds() {
        let whole = Pace::new(1.0).real(3_900);
        assert!(whole.abs_diff(Duration::from_secs(45)) < Duration::from_millis(1));
        assert!((Pace::new(2.0).minutes(Duration::from_secs(1)) - 173.3).abs() < 0.1);
    }
}
