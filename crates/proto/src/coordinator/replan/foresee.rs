//! When the last receiver will be done if nobody plans anew.
//!
//! Present rates say too much: lanes of one node share it equally while the plan gave them unequal parts, so that
//! some look late that will be in time once others are done. Here what lanes have left is followed to its end over nodes
//! as fast as they are estimated to be, shared fairly (max-min). A lane that now brings clearly less than its share
//! is taken to stay as slow: something else holds it up.

use std::collections::BTreeMap;

use super::{Coordinator, Member};
use crate::coordinator::plan::Room;

/// Above so many lanes it is not looked ahead: a look costs lanes x steps.
const LANES_MAX: usize = 2000;
/// Lanes that end within this part of the time so far end together: a step for each would bring nothing.
const STEP: f64 = 0.01;
/// A lane below this part of its fair share is held up by something else.
const HELD_UP: f64 = 0.6;

struct Flow {
    sender: usize,
    receiver: usize,
    left: f64,
    most: f64,
}

impl Coordinator {
    /// Seconds until all lanes have done their parts; `None` with too many of them.
    pub(super) fn foreseen_seconds(&self, members: &[Member]) -> Option<f64> {
        let mut flows = Vec::new();
        for member in members.iter().filter(|member| member.left >= 1.0) {
            let node = &self.nodes[member.node as usize];
            let mut parts: BTreeMap<u32, f64> = BTreeMap::new();
            for run in &node.runs {
                *parts.entry(run.sender).or_default() += run.length as f64;
            }
            for (sender, part) in &mut parts {
                *part = (*part - node.observed.come_from(*sender) as f64).max(0.0);
            }
            let sum: f64 = parts.values().sum();
            if sum <= 0.0 {
                return None;
            }
            let left = parts.into_iter().filter(|(_, part)| *part > 0.0);
            flows.extend(left.map(|(sender, part)| Flow {
                sender: sender as usize,
                receiver: member.node as usize,
                left: part * member.left / sum,
                most: f64::MAX,
            }));
        }
        if flows.len() > LANES_MAX {
            return None;
        }
        let room = self.whole_room();
        let fair = shares(&flows, &room);
        for (flow, fair) in flows.iter_mut().zip(fair) {
            let observed = &self.nodes[flow.receiver].observed;
            let now = observed.wanting_rate(flow.sender as u32);
            flow.most = now.filter(|now| *now < fair * HELD_UP).unwrap_or(f64::MAX);
        }
        for (flow, fair) in flows.iter().zip(shares(&flows, &room)) { eprintln!("  {}->{} left {:.1}M fair {:.2}M most {:.2}M obs {:?}", flow.sender, flow.receiver, flow.left/1e6, fair/1e6, if flow.most > 1e12 {-1.0} else {flow.most/1e6}, self.nodes[flow.receiver].observed.wanting_rate(flow.sender as u32).map(|r| r/1e6)); }
        eprintln!("  up {:?} down {:?}", room.up.iter().map(|r| (r/1e5) as u32).collect::<Vec<_>>(), room.down.iter().map(|r| (r/1e5) as u32).collect::<Vec<_>>());
        Some(run(flows, &room))
    }
}

/// Seconds until the last flow is through.
fn run(mut flows: Vec<Flow>, room: &Room) -> f64 {
    let mut passed = 0.0;
    while !flows.is_empty() {
        let rates = shares(&flows, room);
        let ends = flows
            .iter()
            .zip(&rates)
            .map(|(flow, rate)| flow.left / rate);
        let step = ends.fold(f64::MAX, f64::min).max(passed * STEP);
        // Never ends: some node carries nothing.
        if !step.is_finite() || step >= 1e9 {
            return 1e9;
        }
        passed += step;
        for (flow, rate) in flows.iter_mut().zip(rates) {
            flow.left -= rate * step;
        }
        flows.retain(|flow| flow.left > 1.0);
    }
    passed
}

/// Bytes per second of each flow where nodes are shared max-min: the fullest node is dealt out first.
fn shares(flows: &[Flow], room: &Room) -> Vec<f64> {
    let mut left = [room.up.clone(), room.down.clone()];
    let mut count = [vec![0_u32; room.up.len()], vec![0_u32; room.down.len()]];
    for flow in flows {
        count[0][flow.sender] += 1;
        count[1][flow.receiver] += 1;
    }
    let mut rates = vec![-1.0; flows.len()];
    let mut open: Vec<usize> = (0..flows.len()).collect();
    while !open.is_empty() {
        let fair = |flow: &Flow| {
            let up = left[0][flow.sender] / f64::from(count[0][flow.sender]);
            let down = left[1][flow.receiver] / f64::from(count[1][flow.receiver]);
            up.min(down).min(flow.most).max(0.0)
        };
        let least = open
            .iter()
            .map(|&at| fair(&flows[at]))
            .fold(f64::MAX, f64::min);
        let level = least * (1.0 + 1e-9);
        let (now, later): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|&&at| fair(&flows[at]) <= level);
        for at in now {
            let flow = &flows[at];
            rates[at] = least;
            left[0][flow.sender] -= least;
            left[1][flow.receiver] -= least;
            count[0][flow.sender] -= 1;
            count[1][flow.receiver] -= 1;
        }
        open = later;
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(sender: usize, receiver: usize, left: f64) -> Flow {
        Flow {
            sender,
            receiver,
            left,
            most: f64::MAX,
        }
    }

    fn room(up: &[f64], down: &[f64]) -> Room {
        Room {
            up: up.to_vec(),
            down: down.to_vec(),
        }
    }

    /// Unequal parts over lanes that share equally: the sender is busy to the end, so nobody is late.
    #[test]
    fn who_looks_late_may_be_in_time() {
        let flows = vec![flow(0, 1, 600.0), flow(0, 2, 300.0), flow(0, 3, 100.0)];
        let room = room(&[100.0, 0.0, 0.0, 0.0], &[0.0, 1000.0, 1000.0, 1000.0]);
        // At a third of the speed the first would take 18 s.
        let rates = shares(&flows, &room);
        assert!((rates[0] - 100.0 / 3.0).abs() < 1e-6);
        let seconds = run(flows, &room);
        assert!((seconds - 10.0).abs() < 0.2, "{seconds}");
    }

    /// Shares are max-min: who is held up elsewhere leaves the rest to others.
    #[test]
    fn shares_are_fair() {
        let mut flows = vec![flow(0, 2, 1.0), flow(0, 3, 1.0), flow(1, 3, 1.0)];
        let network = room(&[100.0, 100.0, 0.0, 0.0], &[0.0, 0.0, 20.0, 100.0]);
        let rates = shares(&flows, &network);
        assert_eq!(
            rates.iter().map(|rate| rate.round()).collect::<Vec<_>>(),
            [20.0, 50.0, 50.0]
        );
        flows[1].most = 10.0;
        let rates = shares(&flows, &network);
        assert_eq!(
            rates.iter().map(|rate| rate.round()).collect::<Vec<_>>(),
            [20.0, 10.0, 90.0]
        );
    }

    /// A node that carries nothing never ends, and is told so.
    #[test]
    fn a_dead_node_never_ends() {
        let seconds = run(vec![flow(0, 1, 10.0)], &room(&[0.0, 0.0], &[0.0, 5.0]));
        assert!(seconds >= 1e9);
    }
}
