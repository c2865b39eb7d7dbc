//! The least possible time on a network that changes.

use ropewalk_model::{Problem, RangeSet};
use ropewalk_sched::bound;

use crate::scenario::{Change, Event, Scenario, Speed};

/// Relative width at which the search for the least time stops.
const PRECISION: f64 = 1e-6;

/// A longer time is taken for never, seconds (thirty years).
const NEVER: f64 = 1e9;

/// Least time in seconds that any mover needs for the scenario; `None` when some byte can never arrive.
///
/// That is the least T such that the transfer fits into T seconds on a network whose nodes have, all the time,
/// the mean speed they have over [0, T]. It is a **lower bound**: what a node could do only after the bytes it
/// needs were gone, or before it had any, counts all the same; pair caps do not count; a receiver of a shared
/// destination that dies counts until then, though what it wrote is written again. A receiver that dies with its
/// own copy is left out: the transfer ends without it. Starting, connecting and syncing take no time.
///
/// Cost: about 40 bounds, each the cost of [`ropewalk_sched::bound`].
#[must_use]
pub fn changed_bound(scenario: &Scenario) -> Option<f64> {
    let fits = |seconds: f64| {
        // A plan that cannot reach all bytes with what there is so far does not fit.
        bound(&mean_problem(scenario, seconds)).is_ok_and(|bound| bound.seconds <= seconds)
    };
    let mut long = 1.0;
    while !fits(long) {
        long *= 2.0;
        if long > NEVER {
            return None;
        }
    }
    let mut short = 0.0;
    while long - short > long * PRECISION {
        let middle = (long + short) / 2.0;
        match fits(middle) {
            true => long = middle,
            false => short = middle,
        }
        // Nothing wanted takes no time.
        if long < 1e-12 {
            return Some(0.0);
        }
    }
    Some(long)
}

/// The scenario as a planner would see it, at the mean speeds of the first `seconds`.
fn mean_problem(scenario: &Scenario, seconds: f64) -> Problem {
    let mut problem = Problem::default();
    let rows = |rows: &[ropewalk_proto::control::Row]| {
        let ranges = rows
            .iter()
            .map(|row| ropewalk_proto::control::range(row.start, row.length));
        RangeSet::from_ranges(ranges)
    };
    for (number, setup) in scenario.nodes.iter().enumerate() {
        let events: Vec<Event> = of_node(scenario, number as u32);
        let mean = mean_speed(scenario.speeds[number], &events, seconds);
        if let Some(source) = setup.sources.first() {
            problem.senders.push(ropewalk_model::problem::Sender {
                name: setup.name.clone(),
                // Rounded up: it must stay a lower bound.
                up: mean.up.ceil() as u64,
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
                down: mean.down.ceil() as u64,
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
    events.sort_by_key(|event| event.at_ns);
    events
}

/// Mean speed over the first `seconds`.
fn mean_speed(start: Speed, events: &[Event], seconds: f64) -> Speed {
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
        let time = (event.at_ns as f64 / 1e9).min(seconds);
        advance(time, here, speed, stopped, paused_until);
        if event.at_ns as f64 / 1e9 > seconds {
            break;
        }
        match event.change {
            Change::Speed(new) => speed = new,
            Change::PausedUntil(until) => paused_until = paused_until.max(until as f64 / 1e9),
            Change::Dies => speed = Speed::both(0.0),
            Change::Stops => stopped = true,
            Change::Joins => here = true,
        }
        // The dead stay dead.
        if event.change == Change::Dies {
            break;
        }
    }
    advance(seconds, here, speed, stopped, paused_until);
    Speed {
        up: sum.up / seconds,
        down: sum.down / seconds,
    }
}
