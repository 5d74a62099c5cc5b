//! Which interesting things happened anywhere in a world, so that a world which exercises nothing is
//! seen. Beside the states: it says nothing about any one of them.

use std::sync::atomic::{AtomicU32, Ordering};

use durably::semaphore::SemaphoreEvent;
use durably::semaphore::round::RoundOutcome;

/// Something interesting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A round gave permits.
    Granted,
    /// A round gave a lease.
    Leased,
    /// A round retired a lease.
    LeaseRetired,
    /// Permits that were not claimed in time came back.
    ClaimExpired,
    /// A client took permits out of a lease.
    Drawn,
    /// A client heard that a lease had stopped that it had not stored.
    StrangeLeaseStopped,
    /// Items went back to their place because a claim came too late.
    Requeued,
    /// A client found its answer repeated.
    Repeated,
    /// A request waited for a later round.
    Parked,
    /// A late or repeated copy of a message was taken.
    CopyTaken,
    /// What a silent client held came back.
    ClientExpired,
    /// A client or the holder died.
    Crashed,
    /// The holder knew nothing of a lease that was reported.
    UnknownLease,
    /// All work was done.
    AllDone,
}

impl Event {
    const ALL: [(Event, &'static str); 14] = [
        (Event::Granted, "granted"),
        (Event::Leased, "leased"),
        (Event::LeaseRetired, "lease retired"),
        (Event::ClaimExpired, "claim expired"),
        (Event::Drawn, "drawn"),
        (Event::StrangeLeaseStopped, "strange lease settled"),
        (Event::Requeued, "requeued"),
        (Event::Repeated, "answer repeated"),
        (Event::Parked, "parked"),
        (Event::CopyTaken, "copy taken"),
        (Event::ClientExpired, "client expired"),
        (Event::Crashed, "crashed"),
        (Event::UnknownLease, "unknown lease"),
        (Event::AllDone, "all done"),
    ];
}

/// What has happened so far.
#[derive(Debug, Default)]
pub struct Coverage(AtomicU32);

impl Coverage {
    pub(crate) fn note(&self, event: Event) {
        let bit = 1 << event as u32;
        if self.0.load(Ordering::Relaxed) & bit == 0 {
            self.0.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub(crate) fn round(&self, outcome: &RoundOutcome) {
        if outcome.granted > 0 {
            self.note(Event::Granted);
        }
        for event in &outcome.events {
            match event {
                SemaphoreEvent::LeaseGranted { .. } => self.note(Event::Leased),
                SemaphoreEvent::LeaseRetired { .. } => self.note(Event::LeaseRetired),
                SemaphoreEvent::GrantReclaimed { .. } => self.note(Event::ClaimExpired),
                _ => {}
            }
        }
    }

    /// Whether it happened.
    pub fn has(&self, event: Event) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << event as u32) != 0
    }

    /// The names of what happened.
    pub fn names(&self) -> Vec<&'static str> {
        let all = Event::ALL.into_iter();
        all.filter(|(event, _)| self.has(*event))
            .map(|(_, name)| name)
            .collect()
    }
}
