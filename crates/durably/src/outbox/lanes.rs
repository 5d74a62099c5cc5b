//! Which calls of a channel may run beside which. Decided here, without I/O: what may start now, and
//! who waits in line for it.
//!
//! A *lane* is what only one call at a time may use: the whole channel with [`Overlap::Never`], a key
//! with [`Overlap::PerKey`]. Whoever wants a certain key published now stands *in line*; everybody is
//! served in the order in which they came, as far as their lanes are free.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::publish::Overlap;
use crate::bugs::{self, Bug};

/// Names a batch; rises with every one that starts.
pub(super) type BatchId = u64;
/// Names somebody in line.
pub(super) type Ticket = u64;

/// What runs, and who waits.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    overlap: Overlap,
    max_in_flight: u64,
    /// The keys on their way, each with its batch.
    in_flight: BTreeMap<String, BatchId>,
    batches: BTreeSet<BatchId>,
    line: VecDeque<(Ticket, String)>,
    next_ticket: Ticket,
    next_batch: BatchId,
}

impl Lanes {
    pub(super) fn new(overlap: Overlap, max_in_flight: u64) -> Self {
        Lanes {
            overlap,
            max_in_flight,
            in_flight: BTreeMap::new(),
            batches: BTreeSet::new(),
            line: VecDeque::new(),
            next_ticket: 0,
            next_batch: 0,
        }
    }

    /// Takes a place in line for `key`.
    pub(super) fn line_up(&mut self, key: String) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.line.push_back((ticket, key));
        ticket
    }

    /// Whoever is to be served next: the first in line whose lane is free.
    pub(super) fn next_in_line(&self) -> Option<(Ticket, &str)> {
        if self.is_full() {
            return None;
        }
        match self.overlap {
            Overlap::Never => self.line.front(),
            Overlap::PerKey => self.line.iter().find(|(_, key)| !self.is_in_flight(key)),
        }
        .map(|(ticket, key)| (*ticket, key.as_str()))
    }

    /// Takes somebody out of the line, who has been served or has gone.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.line.retain(|(other, _)| *other != ticket);
    }

    /// Whether no more calls may start.
    fn is_full(&self) -> bool {
        match self.overlap {
            Overlap::Never => !self.batches.is_empty(),
            Overlap::PerKey => self.in_flight.len() as u64 >= self.max_in_flight,
        }
    }

    /// How many due entries may start now, beside those in line.
    pub(super) fn room(&self) -> u64 {
        match self.overlap {
            Overlap::Never if self.batches.is_empty() && self.line.is_empty() => u64::MAX,
            Overlap::Never => 0,
            Overlap::PerKey => self
                .max_in_flight
                .saturating_sub(self.in_flight.len() as u64),
        }
    }

    pub(super) fn is_in_flight(&self, key: &str) -> bool {
        self.in_flight.contains_key(key) && !bugs::is_on(Bug::OverlapPerKey)
    }

    /// How many keys are on their way.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.len() as u64
    }

    /// Notes that a batch of `keys` has started.
    pub(super) fn start(&mut self, keys: impl IntoIterator<Item = String>) -> BatchId {
        let batch = self.next_batch;
        self.next_batch += 1;
        self.batches.insert(batch);
        self.in_flight
            .extend(keys.into_iter().map(|key| (key, batch)));
        batch
    }

    /// Notes that a batch has ended.
    pub(super) fn end(&mut self, batch: BatchId) {
        self.batches.remove(&batch);
        self.in_flight.retain(|_, of| *of != batch);
    }

    /// The oldest batch that has not ended.
    pub(super) fn oldest(&self) -> Option<BatchId> {
        self.batches.first().copied()
    }

    /// The batch that starts next.
    pub(super) fn next_batch(&self) -> BatchId {
        self.next_batch
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        LineUp(u8),
        ServeNext,
        StartDue(u8),
        EndOldest,
        EndNewest,
        Leave,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..4u8).prop_map(Step::LineUp),
            Just(Step::ServeNext),
            (0..4u8).prop_map(Step::StartDue),
            Just(Step::EndOldest),
            Just(Step::EndNewest),
            Just(Step::Leave),
        ];
        prop::collection::vec(step, 0..60)
    }

    /// Starts what is next in line; whether there was somebody.
    fn serve_next(lanes: &mut Lanes, running: &mut Vec<(BatchId, String)>) -> Option<Ticket> {
        let (ticket, key) = lanes.next_in_line()?;
        let key = key.to_owned();
        lanes.leave(ticket);
        let batch = lanes.start([key.clone()]);
        running.push((batch, key));
        Some(ticket)
    }

    proptest! {
        #[test]
        fn calls_share_no_lane_and_whoever_waits_is_served_in_turn(
            is_exclusive: bool, max_in_flight in 1..3u64, steps in steps(),
        ) {
            let overlap = if is_exclusive { Overlap::Never } else { Overlap::PerKey };
            let mut lanes = Lanes::new(overlap, max_in_flight);
            let mut running: Vec<(BatchId, String)> = Vec::new();
            let mut waiting: Vec<(Ticket, String)> = Vec::new();
            for step in steps {
                match step {
                    Step::LineUp(key) => {
                        let key = key.to_string();
                        waiting.push((lanes.line_up(key.clone()), key));
                    }
                    Step::ServeNext => {
                        let free = |key: &String| !running.iter().any(|(_, other)| other == key);
                        let is_full = match overlap {
                            Overlap::Never => !running.is_empty(),
                            Overlap::PerKey => running.len() as u64 >= max_in_flight,
                        };
                        let first = waiting.iter().position(|(_, key)| !is_full && free(key));
                        let expected = first.map(|place| waiting.remove(place).0);
                        prop_assert_eq!(serve_next(&mut lanes, &mut running), expected);
                    }
                    Step::StartDue(key) => {
                        let key = key.to_string();
                        if lanes.room() > 0 && !lanes.is_in_flight(&key) {
                            let batch = lanes.start([key.clone()]);
                            running.push((batch, key));
                        }
                    }
                    Step::EndOldest if !running.is_empty() => lanes.end(running.remove(0).0),
                    Step::EndNewest => {
                        if let Some((batch, _)) = running.pop() {
                            lanes.end(batch);
                        }
                    }
                    Step::Leave => {
                        if let Some((ticket, _)) = waiting.pop() {
                            lanes.leave(ticket);
                        }
                    }
                    Step::EndOldest => {}
                }
                let keys: BTreeSet<&String> = running.iter().map(|(_, key)| key).collect();
                prop_assert_eq!(keys.len(), running.len());
                prop_assert_eq!(lanes.in_flight(), running.len() as u64);
                prop_assert_eq!(lanes.oldest(), running.first().map(|(batch, _)| *batch));
                match overlap {
                    Overlap::Never => prop_assert!(running.len() <= 1),
                    Overlap::PerKey => prop_assert!(running.len() as u64 <= max_in_flight),
                }
            }
            // Once calls end, everybody is served, first come first served within a key.
            let mut served = Vec::new();
            while !waiting.is_empty() {
                for (batch, _) in running.drain(..) {
                    lanes.end(batch);
                }
                let ticket = serve_next(&mut lanes, &mut running);
                prop_assert!(ticket.is_some(), "{:?} wait for ever", waiting);
                let place = waiting.iter().position(|(other, _)| Some(*other) == ticket);
                served.push(waiting.remove(place.unwrap()));
            }
            prop_assert!(served.is_sorted_by_key(|(ticket, _)| *ticket));
        }
    }
}
