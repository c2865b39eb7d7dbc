//! A plan with relays in virtual time, unit by unit: how long it takes when a receiver can hand on only what it has.
//!
//! Left out on purpose: ledgers, windows and control messages. Transfers have no relays, so there is no machine of theirs to
//! run; this answers what order and rates cost.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_model::{Problem, Range, RelaySchedule};

use crate::network::{Flow, Network};
use crate::scenario::Speed;

/// Steps that a plan's time is divided into; rates change, and complete units are handed on, only between two.
const STEPS: f64 = 4_000.0;

/// Times the plan's own time after which the run is given up: some bytes never arrive.
const PATIENCE: f64 = 20.0;

/// A unit on its way to one receiver.
struct Unit {
    bytes: f64,
    /// Units that its source must have first.
    awaits: u32,
    /// Units that wait for it.
    frees: Vec<u32>,
    lane: u32,
}

/// One direction between two nodes.
struct Lane {
    ends: (u32, u32),
    cap: f64,
    /// Units that can be sent, in order; of the first one, `sent` bytes are there.
    ready: VecDeque<u32>,
    sent: f64,
    flow: Option<Flow>,
    rate: f64,
}

/// Seconds until the last byte has arrived; infinite when some never does.
///
/// * `unit_len`: bytes, above 0; a unit is handed on when all of it has arrived.
/// * `is_paced`: no lane exceeds the rate that the plan gives it; else the lanes of a node share its link equally.
///
/// What a receiver hands on is sent to it first. Cost O(steps × lanes × log + units × log).
#[must_use]
pub fn run_relays(
    problem: &Problem,
    schedule: &RelaySchedule,
    unit_len: u64,
    is_paced: bool,
) -> f64 {
    let seconds = schedule.predicted_seconds(problem);
    let (mut units, mut lanes) = units(problem, schedule, unit_len);
    if units.is_empty() {
        return 0.0;
    }
    for lane in &mut lanes {
        lane.cap = f64::INFINITY;
    }
    if is_paced {
        let mut bytes = vec![0.0; lanes.len()];
        units
            .iter()
            .for_each(|unit| bytes[unit.lane as usize] += unit.bytes);
        for (lane, bytes) in lanes.iter_mut().zip(bytes) {
            lane.cap = bytes / seconds;
        }
    }
    let mut network = Network::new(&speeds(problem));
    let step = seconds / STEPS;
    let (mut now, mut last, mut open) = (0.0, 0.0, units.len());
    while open > 0 && now < seconds * PATIENCE {
        for (at, lane) in lanes.iter_mut().enumerate() {
            match (lane.flow, lane.ready.is_empty()) {
                (None, false) => {
                    let (from, to) = lane.ends;
                    lane.flow = Some(network.start(from, to, lane.cap, (0, at as u32)));
                }
                (Some(flow), true) => {
                    network.stop(flow);
                    (lane.flow, lane.rate) = (None, 0.0);
                }
                _ => {}
            }
        }
        for ((_, lane), rate) in network.settle() {
            lanes[lane as usize].rate = rate;
        }
        let mut arrived: Vec<u32> = Vec::new();
        for lane in &mut lanes {
            let mut left = lane.rate * step;
            while let Some(&unit) = lane.ready.front().filter(|_| left > 0.0) {
                let lacks = units[unit as usize].bytes - lane.sent;
                if left < lacks {
                    lane.sent += left;
                    break;
                }
                left -= lacks;
                lane.sent = 0.0;
                lane.ready.pop_front();
                arrived.push(unit);
                last = f64::max(last, now + step - left / lane.rate);
            }
        }
        open -= arrived.len();
        for unit in arrived {
            for freed in std::mem::take(&mut units[unit as usize].frees) {
                let next = &mut units[freed as usize];
                next.awaits -= 1;
                if next.awaits == 0 {
                    lanes[next.lane as usize].ready.push_back(freed);
                }
            }
        }
        now += step;
    }
    if open > 0 { f64::INFINITY } else { last }
}

/// Senders, then receivers.
fn speeds(problem: &Problem) -> Vec<Speed> {
    let senders = problem.senders.iter().map(|sender| Speed {
        up: sender.up as f64,
        down: 0.0,
    });
    let receivers = problem.receivers.iter().map(|receiver| Speed {
        up: receiver.relay_up.unwrap_or(0) as f64,
        down: receiver.down as f64,
    });
    senders.chain(receivers).collect()
}

/// All units with what they wait for, and the lanes with those that need not wait.
fn units(problem: &Problem, schedule: &RelaySchedule, unit_len: u64) -> (Vec<Unit>, Vec<Lane>) {
    let senders = problem.senders.len() as u32;
    let direct = schedule.direct.assignments.iter();
    let direct = direct.map(|run| (run.sender as u32, senders + run.receiver as u32, run.range));
    let relayed = schedule.relayed.iter();
    let relayed = relayed.map(|run| {
        (
            senders + run.from as u32,
            senders + run.to as u32,
            run.range,
        )
    });
    let mut units: Vec<Unit> = Vec::new();
    let mut lanes: Vec<Lane> = Vec::new();
    let mut known: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    // Of each node: the units that it gets, by offset. Of each unit: its range and its source.
    let mut gets: Vec<Vec<(Range, u32)>> = vec![Vec::new(); problem.receivers.len()];
    let mut sources: Vec<(u32, Range)> = Vec::new();
    for (from, to, run) in direct.chain(relayed) {
        let lane = *known.entry((from, to)).or_insert_with(|| {
            lanes.push(Lane {
                ends: (from, to),
                cap: 0.0,
                ready: VecDeque::new(),
                sent: 0.0,
                flow: None,
                rate: 0.0,
            });
            lanes.len() as u32 - 1
        });
        let mut start = run.start;
        while start < run.end {
            // Units begin at multiples of their length, so those of a source and of its peers are the same.
            let end = run.end.min((start / unit_len + 1).saturating_mul(unit_len));
            let range = Range::new(start, end);
            gets[(to - senders) as usize].push((range, units.len() as u32));
            sources.push((from, range));
            units.push(Unit {
                bytes: range.len() as f64,
                awaits: 0,
                frees: Vec::new(),
                lane,
            });
            start = end;
        }
    }
    gets.iter_mut().for_each(|list| list.sort_unstable());
    for (unit, &(from, range)) in sources.iter().enumerate() {
        let Some(source) = from.checked_sub(senders) else {
            continue;
        };
        let list = &gets[source as usize];
        let first = list.partition_point(|(had, _)| had.end <= range.start);
        let mut lacks = range.len();
        for &(run, had) in list[first..]
            .iter()
            .take_while(|(had, _)| had.start < range.end)
        {
            lacks = lacks.saturating_sub(run.intersect(range).map_or(0, Range::len));
            units[unit].awaits += 1;
            units[had as usize].frees.push(unit as u32);
        }
        // What its source never gets is never sent.
        units[unit].awaits += u32::from(lacks > 0);
    }
    let mut free: Vec<u32> = (0..units.len() as u32).collect();
    free.retain(|&unit| units[unit as usize].awaits == 0);
    // What is handed on goes first.
    free.sort_by_key(|&unit| units[unit as usize].frees.is_empty());
    for unit in free {
        lanes[units[unit as usize].lane as usize]
            .ready
            .push_back(unit);
    }
    (units, lanes)
}
