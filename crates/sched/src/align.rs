//! Moves the cuts between long pieces to whole chunks where that costs no time.
//!
//! A chunk cut between two senders is checked as two units and read from two disks. Bytes count
//! first, though: a node that sets the predicted time, or would set it, keeps its exact share.

use ropewalk_model::{Assignment, CHUNK_LEN, Loads, Problem, Range, Schedule};

/// Pieces shorter than this keep their exact share: half a chunk would be too much of it.
const PIECE_MIN: u64 = 8 * CHUNK_LEN;

/// Nodes this close to the predicted time, relatively, count as setting it.
const TIME_TOLERANCE: f64 = 1e-6;

/// Moves cuts between neighbouring long pieces to multiples of [`CHUNK_LEN`] in the data space.
///
/// The predicted time stays as it was. Plans with pair caps or trunks are left alone. Cost
/// O(assignments × log).
pub(crate) fn prefer_whole_chunks(problem: &Problem, schedule: Schedule) -> Schedule {
    if problem.has_links() {
        return schedule;
    }
    let mut destination_of = vec![0; problem.receivers.len()];
    for (index, destination) in problem.destinations().iter().enumerate() {
        for &receiver in &destination.receivers {
            destination_of[receiver] = index;
        }
    }
    let mut loads = schedule.loads(problem);
    let seconds = loads.seconds(problem);
    let mut pieces = schedule.assignments;
    pieces.sort_unstable_by_key(|piece| (destination_of[piece.receiver], piece.range.start));
    for at in 1..pieces.len() {
        let (before, after) = (pieces[at - 1], pieces[at]);
        let neighbours = destination_of[before.receiver] == destination_of[after.receiver]
            && before.range.end == after.range.start;
        if !neighbours || before.range.len() < PIECE_MIN || after.range.len() < PIECE_MIN {
            continue;
        }
        let cut = before.range.end;
        let over = cut % CHUNK_LEN;
        if over == 0 {
            continue;
        }
        let down = (Range::new(cut - over, cut), before, after);
        let up = (Range::new(cut, cut - over + CHUNK_LEN), after, before);
        let nearest_first = match over <= CHUNK_LEN / 2 {
            true => [down, up],
            false => [up, down],
        };
        let free = nearest_first
            .into_iter()
            .find(|(moved, giver, taker)| may_move(problem, &loads, seconds, *moved, giver, taker));
        let Some((moved, giver, taker)) = free else {
            continue;
        };
        let bytes = u128::from(moved.len());
        loads.senders[giver.sender] -= bytes;
        loads.senders[taker.sender] += bytes;
        loads.receivers[giver.receiver] -= bytes;
        loads.receivers[taker.receiver] += bytes;
        let cut = if moved.end == cut {
            moved.start
        } else {
            moved.end
        };
        pieces[at - 1].range.end = cut;
        pieces[at].range.start = cut;
    }
    Schedule::from_assignments(pieces)
}

/// Whether the taker can carry the bytes and neither side sets the time, before or after.
fn may_move(
    problem: &Problem,
    loads: &Loads,
    seconds: f64,
    moved: Range,
    giver: &Assignment,
    taker: &Assignment,
) -> bool {
    let bytes = moved.len() as f64;
    let limit = seconds * (1.0 - TIME_TOLERANCE);
    let free = |load: u128, more: f64, speed: u64| load as f64 + more <= limit * speed as f64;
    let sender_free = giver.sender == taker.sender || {
        let (from, to) = (
            &problem.senders[giver.sender],
            &problem.senders[taker.sender],
        );
        free(loads.senders[giver.sender], 0.0, from.up)
            && free(loads.senders[taker.sender], bytes, to.up)
            && to.ranges.contains_range(moved)
    };
    let receiver_free = giver.receiver == taker.receiver || {
        let (from, to) = (
            &problem.receivers[giver.receiver],
            &problem.receivers[taker.receiver],
        );
        free(loads.receivers[giver.receiver], 0.0, from.down)
            && free(loads.receivers[taker.receiver], bytes, to.down)
            && to.ranges.contains_range(moved)
    };
    sender_free && receiver_free
}

#[cfg(test)]
mod tests {
    use ropewalk_model::{RangeSet, Receiver, Sender, verify};

    use super::*;
    use crate::{Greedy, Scheduler as _};

    const LENGTH: u64 = 500_000_007;

    /// Three replicas of a file and one receiver of the speed given.
    fn problem(down: u64) -> Problem {
        let ranges = RangeSet::from(Range::new(13, 13 + LENGTH));
        let sender = |i: u64| Sender {
            name: format!("w{i}"),
            up: 100_000_000 + i,
            ranges: ranges.clone(),
        };
        Problem {
            senders: (0..3).map(sender).collect(),
            receivers: vec![Receiver {
                name: "r".to_owned(),
                down,
                ranges: ranges.clone(),
                ..Receiver::default()
            }],
            ..Problem::default()
        }
    }

    fn cuts(schedule: &Schedule) -> Vec<u64> {
        let inner = schedule.assignments.iter().skip(1);
        inner.map(|piece| piece.range.start).collect()
    }

    /// Where the receiver sets the time, senders have room, so no chunk is cut and no time is lost.
    #[test]
    fn cuts_follow_chunks_where_there_is_room() {
        let problem = problem(100_000_000);
        let plan = Greedy.plan(&problem).unwrap();
        verify(&problem, &plan).unwrap();
        assert_eq!(plan.assignments.len(), 3);
        assert!(
            cuts(&plan).iter().all(|cut| cut % CHUNK_LEN == 0),
            "{plan:?}"
        );
        assert_eq!(plan.predicted_seconds(&problem), LENGTH as f64 / 1e8);
    }

    /// Where the senders set the time, they keep their exact shares.
    #[test]
    fn exact_shares_stay_where_they_set_the_time() {
        let problem = problem(1_000_000_000);
        let plan = Greedy.plan(&problem).unwrap();
        assert!(
            cuts(&plan).iter().all(|cut| cut % CHUNK_LEN != 0),
            "{plan:?}"
        );
        let fluid = Greedy.fluid_seconds(&problem).unwrap();
        assert!((plan.predicted_seconds(&problem) - fluid).abs() < 1e-7);
    }
}
