//! What a holder's answer to a report changes: which items keep their permit, which go back to their
//! place, when a grant is settled. Pure.

use crate::bugs::{Bug, is_on};
use crate::semaphore::protocol::{GrantReport, GrantResult, GrantStatus};

/// Where an item of a grant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It has its permit, or waits for it to be confirmed.
    Held,
    /// The same, but nobody wants it any more.
    Cancelled,
    /// It has ended.
    Finished,
}

/// What is known of a grant's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// Made by this instance and not answered.
    Open,
    /// Made by an earlier instance; it may have been answered, and its items admitted.
    Inherited,
    /// The holder has confirmed what the grant's items stand for.
    Confirmed,
}

/// What an answer changes. Positions are those of the grant's items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The claim is answered by this: the items left are claimed.
    pub confirmed: bool,
    /// Released permits that the holder has heard of.
    pub told: u64,
    /// The holder has forgotten a grant whose items still run: there is nobody to tell.
    pub abandoned: bool,
    /// Nothing is left to say about the grant.
    pub settled: bool,
    /// The positions that stay, if not all of them do.
    pub kept: Option<Vec<usize>>,
    /// Items that go back to their place.
    pub back: Vec<usize>,
    /// Cancelled items that get no permit; they are gone.
    pub dropped: Vec<usize>,
    /// Cancelled items whose permit goes back.
    pub unwanted: Vec<usize>,
    /// Finished items that no permit stands for any more.
    pub orphans: Vec<usize>,
}

impl Verdict {
    /// Whether rows change.
    pub fn is_stored(&self) -> bool {
        self.settled || self.kept.is_some() || !self.unwanted.is_empty()
    }
}

/// Judges `result`, the answer to `sent`, for a grant whose items are `items`, oldest first, and of
/// whose releases the holder has heard `told`.
pub fn judge(
    items: &[Standing],
    claim: Claim,
    told: u64,
    sent: &GrantReport,
    result: &GrantResult,
) -> Verdict {
    let known = result.status != GrantStatus::NotFound;
    let all = items.len() as u64;
    let finished = count(items, Standing::Finished);
    // What a report says has been heard by whoever answered it, in whichever way it was taken.
    let told = if known { told.max(sent.released) } else { told };
    if claim == Claim::Confirmed || (!known && finished == all) {
        let is_told = told >= all || is_on(Bug::SettleUntold);
        let settled = finished == all && (!known || is_told);
        return Verdict {
            told,
            settled,
            abandoned: !known && !settled,
            ..Verdict::default()
        };
    }

    let confirmed = if known { result.claimed.min(all) } else { 0 };
    // Permits go to those that have used theirs, then to the oldest that want one.
    let order = [Standing::Finished, Standing::Held, Standing::Cancelled]
        .into_iter()
        .flat_map(|standing| positions(items, standing));
    let mut verdict = Verdict {
        confirmed: true,
        told,
        ..Verdict::default()
    };
    let mut kept = Vec::new();
    for position in order {
        let stays = (kept.len() as u64) < confirmed;
        if stays {
            kept.push(position);
        }
        match (items[position], stays) {
            (Standing::Held, true) | (Standing::Finished, true) => {}
            (Standing::Cancelled, true) => verdict.unwanted.push(position),
            (Standing::Held, false) => verdict.back.push(position),
            (Standing::Cancelled, false) => verdict.dropped.push(position),
            (Standing::Finished, false) => verdict.orphans.push(position),
        }
    }
    let ended = kept
        .iter()
        .all(|position| items[*position] == Standing::Finished);
    verdict.settled = ended && told >= confirmed;
    if confirmed < all {
        kept.sort_unstable();
        verdict.kept = Some(kept);
    }
    verdict
}

fn positions(items: &[Standing], standing: Standing) -> impl Iterator<Item = usize> + '_ {
    items
        .iter()
        .enumerate()
        .filter(move |(_, item)| **item == standing)
        .map(|(position, _)| position)
}

fn count(items: &[Standing], standing: Standing) -> u64 {
    positions(items, standing).count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Standing::{Cancelled, Finished, Held};
    use super::*;

    fn sent(claimed: u64, released: u64) -> GrantReport {
        GrantReport {
            grant_id: "g".into(),
            claimed,
            released,
        }
    }

    fn answer(claimed: u64, status: GrantStatus) -> GrantResult {
        GrantResult {
            grant_id: "g".into(),
            claimed,
            status,
        }
    }

    #[test]
    fn a_smaller_claim_sends_the_newest_back_and_drops_cancelled_ones_first() {
        let items = [Held, Cancelled, Held, Held];
        let late = answer(2, GrantStatus::Expired);
        let verdict = judge(&items, Claim::Open, 0, &sent(4, 0), &late);
        assert_eq!(verdict.kept, Some(vec![0, 2]));
        assert_eq!(verdict.back, [3]);
        assert_eq!(verdict.dropped, [1]);
        assert!(verdict.unwanted.is_empty() && !verdict.settled);
    }

    #[test]
    fn a_confirmed_claim_returns_the_permits_of_cancelled_items() {
        let verdict = judge(
            &[Held, Cancelled],
            Claim::Open,
            0,
            &sent(2, 0),
            &answer(2, GrantStatus::Ok),
        );
        assert_eq!(verdict.unwanted, [1]);
        assert_eq!(verdict.kept, None);
        assert!(verdict.confirmed && !verdict.settled);
    }

    #[test]
    fn a_grant_that_nobody_knows_sends_all_back_unless_its_items_have_ended() {
        let gone = answer(0, GrantStatus::NotFound);
        let verdict = judge(&[Held, Held], Claim::Inherited, 0, &sent(2, 0), &gone);
        assert_eq!(verdict.back, [0, 1]);
        assert!(verdict.settled);
        let verdict = judge(
            &[Finished, Finished],
            Claim::Inherited,
            0,
            &sent(2, 2),
            &gone,
        );
        assert!(verdict.settled && verdict.orphans.is_empty());
        let verdict = judge(&[Held, Finished], Claim::Confirmed, 0, &sent(2, 1), &gone);
        assert!(verdict.abandoned && !verdict.settled && verdict.back.is_empty());
        let fine = answer(2, GrantStatus::Ok);
        let verdict = judge(&[Held, Finished], Claim::Confirmed, 0, &sent(2, 1), &fine);
        assert!(!verdict.abandoned && !verdict.settled);
    }

    #[test]
    fn a_claim_may_be_answered_after_its_work_has_ended() {
        let fine = answer(2, GrantStatus::Ok);
        let verdict = judge(&[Finished; 2], Claim::Inherited, 0, &sent(2, 2), &fine);
        assert!(verdict.confirmed && verdict.settled && verdict.told == 2);
        let verdict = judge(&[Finished; 2], Claim::Inherited, 0, &sent(2, 1), &fine);
        assert!(verdict.confirmed && !verdict.settled && verdict.told == 1);
        // None is settled that still runs, and what it stands for is all that is told.
        let verdict = judge(&[Held, Finished], Claim::Open, 0, &sent(2, 1), &fine);
        assert!(verdict.confirmed && !verdict.settled && verdict.told == 1);
        assert!(!verdict.is_stored());
    }

    #[test]
    fn settled_only_when_the_holder_has_heard_of_every_release() {
        let fine = answer(2, GrantStatus::Ok);
        let items = [Finished, Finished];
        assert!(!judge(&items, Claim::Confirmed, 0, &sent(2, 1), &fine).settled);
        assert!(judge(&items, Claim::Confirmed, 0, &sent(2, 2), &fine).settled);
        assert!(judge(&items, Claim::Confirmed, 2, &sent(2, 1), &fine).settled);
    }

    proptest! {
        #[test]
        fn no_item_is_lost_or_judged_twice(
            items in prop::collection::vec(prop::sample::select(vec![Held, Cancelled, Finished]), 1..9),
            claim in prop::sample::select(vec![Claim::Open, Claim::Inherited, Claim::Confirmed]),
            claimed in 0..9u64,
            status in prop::sample::select(vec![GrantStatus::Ok, GrantStatus::Expired, GrantStatus::NotFound]),
            told in 0..9u64,
        ) {
            let all = items.len() as u64;
            let finished = count(&items, Finished);
            let report = sent(all, finished);
            let verdict = judge(&items, claim, told.min(finished), &report, &answer(claimed, status));
            let kept = verdict.kept.clone().unwrap_or_else(|| (0..items.len()).collect());
            let mut places: Vec<usize> = kept.clone();
            places.extend(&verdict.back);
            places.extend(&verdict.dropped);
            places.extend(&verdict.orphans);
            places.sort_unstable();
            prop_assert_eq!(places, (0..items.len()).collect::<Vec<_>>());
            prop_assert!(verdict.back.iter().all(|position| items[*position] == Held));
            // Only what the holder confirmed is kept by a claim that was open.
            if verdict.confirmed && status != GrantStatus::NotFound {
                prop_assert!(kept.len() as u64 <= claimed);
            }
            if claim == Claim::Confirmed {
                prop_assert!(verdict.back.is_empty() && verdict.kept.is_none());
            }
            // The oldest that want a permit keep theirs.
            if let (Some(last), Some(first)) = (
                kept.iter().filter(|position| items[**position] == Held).max(),
                verdict.back.iter().min(),
            ) {
                prop_assert!(last < first);
            }
        }
    }
}
