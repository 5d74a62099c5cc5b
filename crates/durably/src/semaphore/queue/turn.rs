//! Whose turn it is: how many permits are asked for, by group, when fewer items can run than wait.
//! Pure; what waits and what is free is handed in.

use std::rc::Rc;

use crate::time::Timestamp;

/// The most permits that are asked for one group at once, so that what a grant's row and its items'
/// transaction hold stays bounded.
pub(super) const MAX_ASKED: u64 = 500;

/// A group that may ask now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) key: Rc<str>,
    pub(super) group: Rc<str>,
    /// Items that wait.
    pub(super) count: u64,
    /// Since when the oldest of them waits.
    pub(super) oldest_at: Timestamp,
    /// When its holder last gave it less than it asked for, if that was its last answer.
    pub(super) refused_at: Option<Timestamp>,
}

/// What is to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) key: Rc<str>,
    pub(super) group: Rc<str>,
    pub(super) count: u64,
    pub(super) oldest_at: Timestamp,
}

/// Shares `free` places among `candidates`: the oldest first, but a group that was refused has had its
/// turn and queues up behind what was there by then. So a group whose holder has nothing for it
/// cannot keep the places that another could use, and none is passed over for ever. A group that
/// was refused asks for no more than its share of the `room` for all, divided by all `waiting`
/// groups.
pub(super) fn share_out(
    mut candidates: Vec<Candidate>,
    mut free: u64,
    room: u64,
    waiting: u64,
) -> Vec<Asked> {
    let share = (room / waiting.max(1)).max(1);
    candidates.sort_by(|left, right| {
        let turn = |of: &Candidate| {
            of.refused_at
                .map_or(of.oldest_at, |at| at.max(of.oldest_at))
        };
        (turn(left), &left.key, &left.group).cmp(&(turn(right), &right.key, &right.group))
    });
    let mut asked = Vec::new();
    for candidate in candidates {
        if free == 0 {
            break;
        }
        let wanted = match candidate.refused_at {
            None => candidate.count,
            Some(_) => candidate.count.min(share),
        };
        let count = wanted.min(free).min(MAX_ASKED);
        free -= count;
        asked.push(Asked {
            key: candidate.key,
            group: candidate.group,
            count,
            oldest_at: candidate.oldest_at,
        });
    }
    asked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(group: &str, count: u64, oldest: u64, refused: Option<u64>) -> Candidate {
        Candidate {
            key: "k".into(),
            group: group.into(),
            count,
            oldest_at: Timestamp::from_millis(oldest),
            refused_at: refused.map(Timestamp::from_millis),
        }
    }

    fn shares(asked: &[Asked]) -> Vec<(&str, u64)> {
        asked.iter().map(|a| (&*a.group, a.count)).collect()
    }

    #[test]
    fn the_oldest_take_all_there_is() {
        let candidates = vec![candidate("b", 4, 20, None), candidate("a", 4, 10, None)];
        assert_eq!(
            shares(&share_out(candidates, 6, 6, 2)),
            [("a", 4), ("b", 2)]
        );
    }

    #[test]
    fn one_that_was_refused_lets_others_by() {
        let candidates = vec![candidate("a", 9, 10, Some(30)), candidate("b", 3, 20, None)];
        assert_eq!(
            shares(&share_out(candidates, 10, 10, 2)),
            [("b", 3), ("a", 5)]
        );
        // But not what came after it was refused.
        let candidates = vec![candidate("a", 9, 10, Some(30)), candidate("b", 9, 40, None)];
        assert_eq!(
            shares(&share_out(candidates, 10, 10, 2)),
            [("a", 5), ("b", 5)]
        );
    }

    proptest! {
        #[test]
        fn never_more_than_is_free_or_waits(
            groups in prop::collection::vec((1..50u64, 0..100u64, prop::option::of(0..100u64)), 0..20),
            free in 0..60u64,
            in_flight in 0..60u64,
        ) {
            let candidates: Vec<_> = groups
                .iter()
                .enumerate()
                .map(|(index, (count, oldest, refused))| {
                    candidate(&index.to_string(), *count, *oldest, *refused)
                })
                .collect();
            let waiting = candidates.len() as u64;
            let asked = share_out(candidates.clone(), free, free + in_flight, waiting);
            prop_assert!(asked.iter().map(|a| a.count).sum::<u64>() <= free);
            for one in &asked {
                let of = candidates.iter().find(|c| c.group == one.group).expect("a candidate");
                prop_assert!(one.count > 0 && one.count <= of.count);
            }
            // If places are left, nobody was left out.
            if asked.iter().map(|a| a.count).sum::<u64>() < free {
                prop_assert_eq!(asked.len(), candidates.len());
            }
        }
    }
}
