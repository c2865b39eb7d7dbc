//! The least possible time on a network that changes.

use ropewalk_model::{Problem, RangeSet};

use crate::scenario::{Change, Event, Scenario, Speed};

/// Least time in seconds that any mover needs for the scenario; `None` when some byte can never arrive.
///
/// That is the least T such that the transfer fits into T seconds on a network whose nodes have, all the time,
/// the mean speed they have over [0, T]. It is a **lower bound**: what a node could do only after the bytes it
/// needs were gone, or before it had any, counts all the same; pair caps do not count; a receiver of a shared
/// destination that dies counts until then, though what it wrote is written again. A receiver that dies with its
/// own copy is left out: the transfer ends without it. Starting, connecting and syncing take no time.
///
/// Cost: that of [`ropewalk_sched::changing_bound`].
#[must_use]
pub fn changed_bound(scenario: &Scenario) -> Option<f64> {
    let (seconds, _) =
        ropewalk_sched::changing_bound(|seconds| carried_problem(scenario, seconds))?;
    Some(seconds)
}

/// The scenario as a planner would see it whose unit of time is the first `seconds`: speeds are the bytes that each
/// node can carry in them.
fn carried_problem(scenario: &Scenario, seconds: f64) -> Problem {
    let mut problem = Problem::default();
    let rows = |rows: &[ropewalk_proto::control::Row]| {
        let ranges = rows
            .iter()
            .map(|row| ropewalk_proto::control::range(row.start, row.length));
        RangeSet::from_ranges(ranges)
    };
    for (number, setup) in scenario.nodes.iter().enumerate() {
        let events: Vec<Event> = of_node(scenario, number as u32);
        let bytes = carried(scenario.speeds[number], &events, seconds);
        if let Some(source) = setup.sources.first() {
            problem.senders.push(ropewalk_model::problem::Sender {
                name: setup.name.clone(),
                // Rounded up: it must stay a lower bound.
                up: bytes.up.ceil() as u64,
                ranges: rows(&source.source.rows),
            });
        }
        let gone = |event: &Event| matches!(event.change, Change::Dies | Change::Stops);
        for sink in setup.sinks.iter().take(1) {
            if sink.destination.is_none() && events.iter().any(gone) {
                continue;
            }
            problem.receivers.push(ropewalk_model::problem::Receiver {
                name: setup.name.clone(),
                down: bytes.down.ceil() as u64,
                ranges: rows(&sink.sink.rows),
                destination: sink.destination.clone(),
                relay_up: None,
            });
        }
    }
    problem
}

fn of_node(scenario: &Scenario, node: u32) -> Vec<Event> {
    let mut events: Vec<Event> = scenario
        .script
        .iter()
        .copied()
        .filter(|e| e.node == node)
        .collect();
    events.sort_by_key(|event| event.after);
    events
}

/// Bytes that a node can send and receive in the first `seconds`.
fn carried(start: Speed, events: &[Event], seconds: f64) -> Speed {
    let joins = events.iter().find(|event| event.change == Change::Joins);
    let mut here = joins.is_none();
    let (mut speed, mut stopped, mut paused_until) = (start, false, 0.0_f64);
    let (mut sum, mut at) = (Speed::both(0.0), 0.0_f64);
    let mut advance = |to: f64, here: bool, speed: Speed, stopped: bool, paused: f64| {
        let from = at.max(paused).min(to);
        if here {
            sum.up += speed.up * (to - from);
            sum.down += if stopped {
                0.0
            } else {
                speed.down * (to - from)
            };
        }
        at = at.max(to);
    };
    for event in events {
        let time = (event.after.as_seconds()).min(seconds);
        advance(time, here, speed, stopped, paused_until);
        if event.after.as_seconds() > seconds {
            break;
        }
        match event.change {
            Change::Speed(new) => speed = new,
            Change::PausedUntil(until) | Change::SleepsUntil(until) => {
                paused_until = paused_until.max(until.as_seconds());
            }
            Change::Dies | Change::LosesPower | Change::Leaves => speed = Speed::both(0.0),
            Change::Stops => stopped = true,
            Change::Joins => here = true,
            // Nodes carry what they did.
            Change::StreamsBreak { .. }
            | Change::RailFails { .. }
            | Change::ConnectRefused { .. }
            | Change::MasterSleepsUntil(_)
            | Change::MasterDies
            | Change::Lies => {}
        }
        // The dead stay dead.
        if matches!(event.change, Change::Dies | Change::LosesPower) {
            break;
        }
    }
    advance(seconds, here, speed, stopped, paused_until);
    sum
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Range;

    use super::*;
    use crate::scenario::node;
    use crate::{MS, SECOND};

    /// One sender of 10 kB/s, one receiver of 20 kB/s, 1 MB.
    fn pair() -> Scenario {
        let all = [Range::new(0, 1_000_000)];
        let nodes = vec![
            node("s", &all, &[], None),
            node("r", &[], &all, Some("out")),
        ];
        Scenario::new(nodes, vec![Speed::both(10e3), Speed::both(20e3)])
    }

    #[track_caller]
    fn assert_bound(scenario: &Scenario, seconds: f64) {
        let bound = changed_bound(scenario).unwrap();
        assert!(
            (bound / seconds - 1.0).abs() < 1e-3,
            "{bound} s and not {seconds} s"
        );
    }

    /// Speeds that change are integrated; what happens after the end does not count.
    #[test]
    fn speeds_are_integrated() {
        let second = |seconds: u64| seconds * SECOND;
        assert_bound(&pair(), 100.0);
        let slower = pair().then(second(50), 0, Change::Speed(Speed::both(1e3)));
        assert_bound(&slower, 550.0);
        let late = pair().then(second(101), 0, Change::Speed(Speed::both(0.0)));
        assert_bound(&late, 100.0);
        let rests = pair().then(second(20), 0, Change::PausedUntil(second(60)));
        assert_bound(&rests, 140.0);
        // A second rest inside the first one changes nothing.
        let rests = rests.then(second(30), 0, Change::PausedUntil(second(40)));
        assert_bound(&rests, 140.0);
        let joins = pair().then(second(30), 0, Change::Joins);
        assert_bound(&joins, 130.0);
        let events = [Event {
            after: 500 * MS,
            node: 0,
            change: Change::Dies,
        }];
        assert_eq!(carried(Speed::both(8.0), &events, 2.0), Speed::both(4.0));
    }

    /// A sender that dies too early takes bytes along for ever; a receiver with its own copy does not count then.
    #[test]
    fn deaths_make_it_endless_or_leave_out_a_copy() {
        let early = pair().then(50 * SECOND, 0, Change::Dies);
        assert_eq!(changed_bound(&early), None);
        let mut own = pair();
        own.nodes[1].sinks[0].destination = None;
        let dies = own.then(50 * SECOND, 1, Change::Dies);
        assert_eq!(changed_bound(&dies), Some(0.0));
    }
}
