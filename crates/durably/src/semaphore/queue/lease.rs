//! What a lease allows, what its holder has yet to hear of it, and what a holder's echo means. Pure.
//!
//! A lease is a block of permits of one group. What is taken from it at once is a *draw*, which
//! stands among the grants with its claim confirmed from the start; here are only the marks. A drawn
//! permit is one-shot: its release gives footprint back and never another draw.

use std::rc::Rc;
use std::time::Duration;

use crate::bugs::{Bug, is_on};
use crate::semaphore::protocol::{LeaseGrant, LeaseReport};
use crate::time::Timestamp;

/// A lease that is drawn from is reported when half its lifetime is over, but not more often than this.
const LEAST_REFRESH: Duration = Duration::from_millis(50);

/// A lease that has stopped is reported again and again until its holder settles it, but not more
/// often than this.
const LEAST_REPEAT: Duration = Duration::from_secs(1);

/// How far a lease has come. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// 0: it is drawn from until its time is over.
    Live,
    /// 1: nothing is drawn from it any more; the holder has to settle it.
    Stopped,
    /// 2: nothing is drawn from it any more, and there is nobody to settle it: its holder knows no
    /// such lease.
    Unknown,
}

/// A lease as it is kept in memory.
#[derive(Debug)]
pub struct Lease {
    /// The group that may draw from it.
    pub group: Rc<str>,
    /// What it had when it came.
    pub permits: u64,
    /// Permits ever drawn.
    pub drawn: u64,
    /// Drawn permits ever given back.
    pub released: u64,
    /// The part of both marks whose draws are gone.
    pub(super) settled: u64,
    /// How far it has come.
    pub phase: Phase,
    /// Nothing is drawn from this time of our clock on.
    pub until: Timestamp,
    /// The same, as its row has it.
    pub(super) stored_until: Timestamp,
    /// How long it lasts from a report on.
    pub lifetime: Duration,
    /// Of how many releases the holder has heard, and whether it has of the end of drawing.
    told: u64,
    told_stop: bool,
    /// It is to be reported though nothing has changed.
    due: bool,
    /// When half its lifetime is over since it was last reported.
    report_at: Timestamp,
    /// Its time is over and the stop is being stored.
    ending: bool,
    /// Under which time it stands among the leases that something is to be done about.
    pub(super) timed: Option<Timestamp>,
}

impl Lease {
    /// A lease that was just stored, of which nothing is drawn.
    pub fn new(
        group: Rc<str>,
        permits: u64,
        phase: Phase,
        until: Timestamp,
        lifetime: Duration,
    ) -> Lease {
        Lease {
            group,
            permits,
            drawn: 0,
            released: 0,
            settled: 0,
            phase,
            until,
            stored_until: until,
            lifetime,
            told: 0,
            told_stop: false,
            due: false,
            report_at: before(until, lifetime / 2),
            ending: false,
            timed: None,
        }
    }

    /// Permits that may still be drawn, unless its time is over.
    pub(super) fn undrawn(&self) -> u64 {
        match self.phase {
            Phase::Live if !self.ending && is_on(Bug::DrawPermitAgain) => {
                let out = self.drawn.saturating_sub(self.released);
                self.permits.saturating_sub(out)
            }
            Phase::Live if !self.ending => self.permits.saturating_sub(self.drawn),
            Phase::Stopped if is_on(Bug::DrawFromStoppedLease) => {
                self.permits.saturating_sub(self.drawn)
            }
            _ => 0,
        }
    }

    /// Permits that may be drawn at `now`.
    pub(super) fn drawable_at(&self, now: Timestamp) -> u64 {
        match now < self.until || is_on(Bug::DrawAfterExpiry) {
            true => self.undrawn(),
            false => 0,
        }
    }

    /// Whether every permit that was drawn has come back.
    pub(super) fn is_unused(&self) -> bool {
        self.released >= self.drawn
    }

    pub(super) fn report(&self, id: &str) -> LeaseReport {
        LeaseReport {
            lease_id: id.to_owned(),
            drawn: self.drawn,
            released: self.released,
            retired: self.phase != Phase::Live,
        }
    }

    /// Whether the holder has to hear of it now. What is said about a lease that the holder does not
    /// know matters to a round only.
    pub(super) fn is_untold(&self) -> bool {
        match self.phase {
            Phase::Live => self.due || self.released > self.told,
            Phase::Stopped => self.due || self.released > self.told || !self.told_stop,
            Phase::Unknown => false,
        }
    }

    /// Whether a request has to carry it: what is not reported counts as drawn and, if nothing tells
    /// of it any more, as lost.
    pub(super) fn is_carried(&self) -> bool {
        self.phase != Phase::Unknown || !self.is_unused()
    }

    /// When something is to be done about it by itself.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Live if self.ending => None,
            Phase::Live if self.due => Some(self.until),
            Phase::Live => Some(self.report_at.min(self.until)),
            Phase::Stopped => Some(self.report_at),
            Phase::Unknown => None,
        }
    }

    /// Its time of [`next_at`](Self::next_at) has come. `true` if it is to be stopped, which has yet to
    /// be stored: its time is over, or nobody has used it for half of it. So a holder's word reaches
    /// every lease within half its lifetime, and one that is idle ends.
    pub(super) fn pass_time(&mut self, now: Timestamp) -> bool {
        match self.phase {
            Phase::Live if now >= self.until || (now >= self.report_at && self.is_unused()) => {
                self.ending = true;
                return true;
            }
            Phase::Live if now >= self.report_at => self.due = true,
            Phase::Stopped if now >= self.report_at => {
                self.due = true;
                self.expect_report(now);
            }
            _ => {}
        }
        false
    }

    /// The stop that [`pass_time`](Self::pass_time) asked for could not be stored.
    pub(super) fn not_ended(&mut self) {
        self.ending = false;
    }

    pub(super) fn stop(&mut self, phase: Phase, now: Timestamp) {
        self.phase = phase;
        self.ending = false;
        self.expect_report(now);
    }

    /// The holder has heard `report`, sent at `sent`. `until` is how long it may be drawn from, if it
    /// may.
    pub(super) fn heard(&mut self, report: &LeaseReport, sent: Timestamp, echo: &Echo) {
        self.told = self.told.max(report.released);
        self.told_stop |= report.retired;
        self.due = false;
        if let Echo::Live { until, lifetime } = echo {
            self.lifetime = *lifetime;
            self.until = self.until.max(*until);
        }
        self.expect_report(sent);
    }

    fn expect_report(&mut self, from: Timestamp) {
        let half = self.lifetime / 2;
        self.report_at = match self.phase {
            // A holder that does not extend it leaves less each time, in the end nothing to wait for.
            Phase::Live => from + half.max(LEAST_REFRESH),
            _ => from + half.max(LEAST_REPEAT),
        };
    }
}

fn before(end: Timestamp, duration: Duration) -> Timestamp {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_millis(end.as_millis().saturating_sub(millis))
}

/// What passes between two clocks while a message is answered.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// When the message was sent, on our clock.
    pub sent: Timestamp,
    /// When its answer came.
    pub now: Timestamp,
    /// The holder's clock when it answered, if it told.
    pub holder: Option<Timestamp>,
}

impl Clocks {
    /// How long something lasts that ends at `end` on the holder's clock, and when it ends on ours:
    /// the holder answered after the message was sent, so counting from there is never too long.
    /// `None` if it has ended.
    fn lasting(&self, end: Timestamp) -> Option<(Duration, Timestamp)> {
        let lasting = match self.holder {
            Some(holder) if !is_on(Bug::TrustForeignClock) => {
                (end.since(holder), self.sent + end.since(holder))
            }
            _ => (end.since(self.now), end),
        };
        (!lasting.0.is_zero()).then_some(lasting)
    }
}

/// What a holder says about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// It goes on.
    Live {
        /// Until when, on our clock.
        until: Timestamp,
        /// How long from the message on.
        lifetime: Duration,
    },
    /// Nothing may be drawn from it any more.
    Stopped,
    /// All that was drawn has come back, and the holder has forgotten it.
    Settled,
    /// The holder knows no such lease of this client.
    Unknown,
}

impl Echo {
    /// What is said of a lease that was not reported in the message. `None` if nothing is.
    pub fn of_unreported(grant: &LeaseGrant, clocks: &Clocks) -> Option<Echo> {
        if grant.group.is_empty() {
            return None;
        }
        Some(match clocks.lasting(grant.expires_at) {
            Some((lifetime, until)) => Echo::Live { until, lifetime },
            None => Echo::Stopped,
        })
    }

    /// What is said in answer to `report`. A holder that says nothing keeps no leases at all.
    pub fn of_reported(report: &LeaseReport, answer: Option<&LeaseGrant>, clocks: &Clocks) -> Echo {
        let Some(grant) = answer else {
            return Echo::Unknown;
        };
        match Echo::of_unreported(grant, clocks) {
            None => Echo::Unknown,
            // One that is over has as many permits as have not come back, and none is settled.
            Some(Echo::Stopped) if grant.permits <= report.released => Echo::Settled,
            Some(echo) => echo,
        }
    }
}

/// What an echo changes about a lease as it stands now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on as it was.
    Stays,
    /// It is not drawn from any more.
    Stops(Phase),
    /// Nothing is left to say about it.
    Gone,
}

/// Decides what `echo` changes about `lease`.
pub fn fate(lease: &Lease, echo: &Echo) -> Fate {
    match echo {
        Echo::Settled | Echo::Unknown if lease.is_unused() => Fate::Gone,
        // Nobody settles what is drawn meanwhile: it is seen to its end here.
        Echo::Settled | Echo::Unknown if lease.phase != Phase::Unknown => {
            Fate::Stops(Phase::Unknown)
        }
        Echo::Stopped if lease.phase == Phase::Live => Fate::Stops(Phase::Stopped),
        // It is known after all.
        Echo::Stopped | Echo::Live { .. } if lease.phase == Phase::Unknown => {
            Fate::Stops(Phase::Stopped)
        }
        _ => Fate::Stays,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn lease() -> Lease {
        Lease::new("g".into(), 8, Phase::Live, at(10_000), ms(8_000))
    }

    fn grant(group: &str, permits: u64, expires_at: u64) -> LeaseGrant {
        LeaseGrant {
            lease_id: "l".into(),
            group: group.into(),
            permits,
            expires_at: at(expires_at),
        }
    }

    #[test]
    fn a_lease_is_drawn_from_until_its_time_and_reported_at_half_of_it_if_used() {
        let mut lease = lease();
        assert_eq!(lease.next_at(), Some(at(6_000)));
        assert_eq!(lease.drawable_at(at(9_999)), 8);
        assert_eq!(lease.drawable_at(at(10_000)), 0);
        lease.drawn += 3;
        assert!(!lease.pass_time(at(6_000)));
        assert!(lease.is_untold());
        assert_eq!(lease.next_at(), Some(at(10_000)));
        let report = lease.report("l");
        assert_eq!(
            (report.drawn, report.released, report.retired),
            (3, 0, false)
        );
        let echo = Echo::Live {
            until: at(15_000),
            lifetime: ms(8_000),
        };
        lease.heard(&report, at(7_000), &echo);
        assert!(!lease.is_untold());
        assert_eq!(lease.next_at(), Some(at(11_000)));
        assert!(!lease.pass_time(at(11_000)) && lease.is_untold());
        assert!(lease.pass_time(at(15_000)));
        assert_eq!(lease.undrawn(), 0);
    }

    #[test]
    fn a_lease_that_nobody_uses_ends_at_half_its_lifetime() {
        let mut lease = lease();
        assert!(lease.pass_time(at(6_000)));
        assert_eq!(lease.undrawn(), 0);
        assert_eq!(lease.next_at(), None);
    }

    #[test]
    fn a_stop_that_could_not_be_stored_is_tried_again() {
        let mut lease = lease();
        assert!(lease.pass_time(at(10_000)));
        assert_eq!(lease.next_at(), None);
        lease.not_ended();
        assert!(lease.next_at().is_some_and(|next| next <= at(10_000)));
        assert!(lease.pass_time(at(10_100)));
    }

    #[test]
    fn what_comes_back_is_told_before_half_of_a_lease_is_over() {
        let mut lease = lease();
        lease.drawn = 2;
        assert!(!lease.is_untold());
        lease.released = 1;
        assert!(lease.is_untold());
        let echo = Echo::Live {
            until: at(10_400),
            lifetime: ms(400),
        };
        lease.heard(&lease.report("l"), at(10_000), &echo);
        assert!(!lease.is_untold());
        // However short it is.
        assert_eq!(lease.next_at(), Some(at(10_200)));
    }

    #[test]
    fn a_lease_that_nobody_knows_is_carried_while_its_work_runs_and_may_become_known_again() {
        let mut lease = lease();
        lease.drawn = 1;
        lease.stop(Phase::Unknown, at(3_000));
        assert!(lease.is_carried());
        assert_eq!(fate(&lease, &Echo::Unknown), Fate::Stays);
        assert_eq!(fate(&lease, &Echo::Settled), Fate::Stays);
        let live = Echo::Live {
            until: at(9_000),
            lifetime: ms(8_000),
        };
        for known in [Echo::Stopped, live] {
            assert_eq!(fate(&lease, &known), Fate::Stops(Phase::Stopped));
        }
        lease.stop(Phase::Stopped, at(4_000));
        lease.released = 1;
        // It has ended, but only its holder settles it.
        assert!(lease.is_carried());
        assert_eq!(fate(&lease, &Echo::Stopped), Fate::Stays);
        assert_eq!(fate(&lease, &Echo::Unknown), Fate::Gone);
    }

    #[test]
    fn a_lease_that_its_holder_does_not_extend_is_not_reported_without_end() {
        let mut lease = lease();
        lease.drawn += 2;
        let end = lease.until;
        let mut reports = 0;
        let mut now = at(0);
        while lease.next_at().is_some_and(|next| next < end) {
            now = lease.next_at().unwrap().max(now);
            assert!(!lease.pass_time(now) && lease.is_untold());
            let echo = Echo::Live {
                until: end,
                lifetime: end.since(now),
            };
            lease.heard(&lease.report("l"), now, &echo);
            reports += 1;
        }
        assert!((1..20).contains(&reports), "{reports}");
        assert!(lease.pass_time(end));
    }

    #[test]
    fn a_stopped_lease_is_reported_until_its_holder_settles_it() {
        let mut lease = lease();
        lease.drawn += 2;
        lease.stop(Phase::Stopped, at(3_000));
        assert!(lease.is_untold() && lease.undrawn() == 0);
        lease.heard(&lease.report("l"), at(3_000), &Echo::Stopped);
        assert!(!lease.is_untold());
        lease.released = 1;
        assert!(lease.is_untold());
        lease.heard(&lease.report("l"), at(4_000), &Echo::Stopped);
        assert!(!lease.is_untold() && !lease.pass_time(at(8_000)) && lease.is_untold());
    }

    #[test]
    fn expiry_counts_from_the_sending_if_the_holder_tells_its_clock() {
        let report = lease().report("l");
        let told = Clocks {
            sent: at(1_000),
            now: at(3_000),
            holder: Some(at(500_000)),
        };
        let echo = Echo::of_reported(&report, Some(&grant("g", 8, 504_000)), &told);
        let live = |until, lifetime| Echo::Live {
            until: at(until),
            lifetime: ms(lifetime),
        };
        assert_eq!(echo, live(5_000, 4_000));
        let over = Echo::of_reported(&report, Some(&grant("g", 8, 500_000)), &told);
        assert_eq!(over, Echo::Stopped);
        let untold = Clocks {
            holder: None,
            ..told
        };
        let echo = Echo::of_reported(&report, Some(&grant("g", 8, 4_000)), &untold);
        assert_eq!(echo, live(4_000, 1_000));
        assert_eq!(Echo::of_reported(&report, None, &told), Echo::Unknown);
        let unknown = Echo::of_reported(&report, Some(&grant("", 0, 500_000)), &told);
        assert_eq!(unknown, Echo::Unknown);
    }

    #[test]
    fn settled_is_only_what_has_come_back_as_the_holder_knows_it() {
        let mut lease = lease();
        lease.drawn += 3;
        lease.released = 3;
        lease.stop(Phase::Stopped, at(0));
        let clocks = Clocks {
            sent: at(1_000),
            now: at(1_000),
            holder: Some(at(1_000)),
        };
        let report = lease.report("l");
        let held = Echo::of_reported(&report, Some(&grant("g", 8, 1_000)), &clocks);
        assert_eq!((held, fate(&lease, &held)), (Echo::Stopped, Fate::Stays));
        let gone = Echo::of_reported(&report, Some(&grant("g", 3, 1_000)), &clocks);
        assert_eq!((gone, fate(&lease, &gone)), (Echo::Settled, Fate::Gone));
        lease.released = 2;
        assert_eq!(fate(&lease, &Echo::Unknown), Fate::Stops(Phase::Unknown));
    }
}
