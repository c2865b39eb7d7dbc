//! The least time of a transfer whose network changes on the way.
//!
//! A node moves at most the integral of its capacity. The least time is the least T at which these integrals over
//! `[0, T]` suffice: that of the static bound with capacities integral / T. Both sides are asked for the whole of
//! `[0, T]`, not for each moment, so this is a lower bound; where one side is the narrower one throughout, or both
//! change at once and alike, it is exact.
//!
//! A receiver of a shared destination that dies takes what it wrote with it: these bytes count twice, once with it
//! as a copy of their own that only the dead node takes, and once for the others. What a plan that foresaw the death
//! would save by never using that node is not asked for.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use ropewalk_model::{Problem, Range, problem};
use ropewalk_sched::bound;
use serde::{Deserialize, Serialize};

use crate::scenario::{Scenario, What, speed};

/// No transfer of a figure takes a week; what is not done by then never will be.
const SECONDS_MAX: f64 = 604_800.0;

/// Bytes per second that are never the narrow place.
const UNBOUNDED: f64 = 1e15;

/// Halvings of the interval that holds the least time: to 1e-12 of it.
const HALVINGS: u32 = 40;

/// A capacity that changes at known times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Capacity {
    // Seconds and the bytes per second from then on; the first is at 0, times do not fall.
    steps: Vec<(f64, f64)>,
}

impl Capacity {
    /// One that does not change.
    pub fn constant(bytes_per_second: f64) -> Self {
        Self {
            steps: vec![(0.0, bytes_per_second)],
        }
    }

    /// Changes it from a time on, which is not before the last change.
    pub fn set(&mut self, seconds: f64, bytes_per_second: f64) {
        let last = self.steps.last().map_or(0.0, |step| step.0);
        self.steps.push((seconds.max(last), bytes_per_second));
    }

    /// Stops it from `from` to `until`.
    pub fn pause(&mut self, from: f64, until: f64) {
        let rate = self.steps.last().map_or(0.0, |step| step.1);
        self.set(from, 0.0);
        self.set(until, rate);
    }

    /// Bytes it can move from 0 to `seconds`.
    pub fn integral(&self, seconds: f64) -> f64 {
        let ends = self.steps.iter().skip(1).map(|step| step.0);
        let ends = ends.chain([f64::INFINITY]);
        let parts = self.steps.iter().zip(ends);
        parts
            .map(|((from, rate), until)| rate * (until.min(seconds) - from).max(0.0))
            .sum()
    }
}

/// When a change of a scenario came about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Happened {
    /// Seconds from the start of the transfer.
    pub seconds: f64,
    /// When it was over, if it was a pause.
    pub until_seconds: Option<f64>,
    /// What each receiver had written when it died.
    pub lost_bytes: BTreeMap<String, u64>,
}

/// The least time of a scenario whose changes came about as `happened` says, in order; those beyond its end did not.
pub(crate) fn least_seconds(scenario: &Scenario, happened: &[Happened]) -> Result<f64> {
    let mut problem = scenario.problem();
    let constant = |rate: u64| Capacity::constant(rate as f64);
    let mut ups: Vec<Capacity> = problem.senders.iter().map(|s| constant(s.up)).collect();
    let mut downs: Vec<Capacity> = problem.receivers.iter().map(|r| constant(r.down)).collect();
    for (change, happened) in scenario.changes.iter().zip(happened) {
        let at = happened.seconds;
        if let What::Join { senders, receivers } = &change.what {
            let joined = Scenario {
                senders: senders.clone(),
                receivers: receivers.clone(),
                changes: Vec::new(),
                ..scenario.clone()
            };
            let joined = joined.problem();
            let later = |rate: u64| {
                let mut capacity = Capacity::constant(0.0);
                capacity.set(at, rate as f64);
                capacity
            };
            ups.extend(joined.senders.iter().map(|sender| later(sender.up)));
            downs.extend(joined.receivers.iter().map(|receiver| later(receiver.down)));
            problem.senders.extend(joined.senders);
            problem.receivers.extend(joined.receivers);
            continue;
        }
        for name in change.what.nodes() {
            let up = problem.senders.iter().position(|s| s.name == *name);
            let down = problem.receivers.iter().position(|r| r.name == *name);
            let capacity = match (up, down) {
                (Some(up), _) => &mut ups[up],
                (None, Some(down)) => &mut downs[down],
                (None, None) => bail!("no node {name} takes part"),
            };
            match &change.what {
                What::Rate {
                    bits_per_second, ..
                } => capacity.set(at, speed(*bits_per_second) as f64),
                What::Pause { seconds, .. } => {
                    capacity.pause(at, happened.until_seconds.unwrap_or(at + seconds));
                }
                What::Die { .. } => {
                    capacity.set(at, 0.0);
                    let lost = happened.lost_bytes.get(name).copied().unwrap_or(0);
                    if let Some(down) = down {
                        count_twice(&mut problem, down, lost);
                        // It did take them in its time, whatever a burst of its link or a late report say.
                        downs[down] = Capacity::constant(UNBOUNDED);
                    }
                }
                What::Join { .. } => {}
            }
        }
    }
    solve(&problem, &ups, &downs)
}

/// Makes what a receiver wrote before it died a copy of its own, which everybody holds.
fn count_twice(problem: &mut Problem, receiver: usize, lost_bytes: u64) {
    let ends = problem.senders.iter().map(|s| &s.ranges);
    let ends = ends.chain(problem.receivers.iter().map(|r| &r.ranges));
    let end = ends
        .filter_map(|set| Some(set.last()?.end))
        .max()
        .unwrap_or(0);
    let again = Range::new(end, end.saturating_add(lost_bytes));
    for problem::Sender { ranges, .. } in &mut problem.senders {
        ranges.insert(again);
    }
    let receiver = &mut problem.receivers[receiver];
    receiver.ranges = again.into();
    receiver.destination = None;
}

/// The least T at which capacities `ups` and `downs`, in the problem's order, suffice.
fn solve(problem: &Problem, ups: &[Capacity], downs: &[Capacity]) -> Result<f64> {
    let suffices = |seconds: f64| {
        let mut problem = problem.clone();
        let mean = |capacity: &Capacity| (capacity.integral(seconds) / seconds).round() as u64;
        for (sender, capacity) in problem.senders.iter_mut().zip(ups) {
            sender.up = mean(capacity);
        }
        for (receiver, capacity) in problem.receivers.iter_mut().zip(downs) {
            receiver.down = mean(capacity);
        }
        // Bytes that nobody can send yet are no reason to give up: somebody may join.
        bound(&problem).is_ok_and(|bound| bound.seconds <= seconds)
    };
    let mut high = 1e-3;
    while !suffices(high) {
        high *= 2.0;
        if high > SECONDS_MAX {
            return Err(bound(problem).err().map_or_else(
                || anyhow::anyhow!("what is left of the network never moves all bytes"),
                anyhow::Error::from,
            ))
            .context("no bound of the changed network");
        }
    }
    let mut low = 0.0;
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if suffices(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(high)
}

impl What {
    /// The nodes of the specification that it happens to.
    fn nodes(&self) -> &[String] {
        match self {
            Self::Rate { node, .. } | Self::Pause { node, .. } => std::slice::from_ref(node),
            Self::Die { nodes } => nodes,
            Self::Join { .. } => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Change, Node, all};

    const BYTES: u64 = 1_000_000_000;

    /// Nodes of these rates, in bytes per second so that times can be computed by hand.
    fn nodes(kind: &str, rates: &[u64]) -> Vec<Node> {
        let bits = |rate: u64| (rate as f64 * 8.0 / crate::network::TCP_SHARE).round() as u64;
        let node = |(index, rate): (usize, &u64)| Node {
            name: format!("{kind}{index}"),
            bits_per_second: bits(*rate),
            ranges: all(BYTES),
        };
        rates.iter().enumerate().map(node).collect()
    }

    fn least(ups: &[u64], downs: &[u64], what: Option<What>, happened: Happened) -> f64 {
        let change = what.map(|what| Change {
            at_share: 0.5,
            what,
        });
        let scenario = Scenario {
            bytes: BYTES,
            senders: nodes("s", ups),
            receivers: nodes("r", downs),
            is_shared: true,
            changes: change.into_iter().collect(),
        };
        let seconds = least_seconds(&scenario, &[happened]).unwrap();
        (seconds * 1e4).round() / 1e4
    }

    fn at(seconds: f64) -> Happened {
        Happened {
            seconds,
            ..Happened::default()
        }
    }

    const M: u64 = 1_000_000;

    /// Capacity before, between and after changes adds up; what lies before 0 or beyond the end does not count.
    #[test]
    fn integrals() {
        let mut capacity = Capacity::constant(10.0);
        capacity.pause(2.0, 5.0);
        capacity.set(7.0, 1.0);
        let at = |seconds| capacity.integral(seconds);
        assert_eq!(
            [0.0, 1.0, 2.0, 4.0, 6.0, 7.0, 9.0].map(at),
            [0.0, 10.0, 20.0, 20.0, 30.0, 40.0, 42.0]
        );
    }

    /// Without changes it is the static bound, and a change after the end changes nothing.
    #[test]
    fn nothing_changes() {
        let (ups, downs) = ([30 * M, 70 * M], [100 * M, 50 * M]);
        assert_eq!(least(&ups, &downs, None, at(0.0)), 10.0);
        let slow = What::Rate {
            node: "s1".into(),
            bits_per_second: 1,
        };
        assert_eq!(least(&ups, &downs, Some(slow), at(11.0)), 10.0);
    }

    /// 100 MB/s for 5 s, then the 70 of them that slow to a tenth: 500 MB at 37 MB/s.
    #[test]
    fn a_sender_slows() {
        let slow = What::Rate {
            node: "s1".into(),
            bits_per_second: nodes("s", &[7 * M])[0].bits_per_second,
        };
        let seconds = least(&[30 * M, 70 * M], &[150 * M], Some(slow), at(5.0));
        assert_eq!(seconds, 18.5135);
    }

    /// The receivers take 100 MB/s, 40 during the pause of 5 s: 300 MB are late, 3 s. Spare speed would hide it.
    #[test]
    fn a_receiver_pauses() {
        let pause = || What::Pause {
            node: "r0".into(),
            seconds: 5.0,
        };
        let measured = Happened {
            until_seconds: Some(9.0),
            ..at(4.0)
        };
        let seconds = |downs: &[u64]| least(&[100 * M], downs, Some(pause()), measured.clone());
        assert_eq!(seconds(&[60 * M, 40 * M]), 13.0);
        assert_eq!(seconds(&[60 * M, 100 * M]), 10.0);
    }

    /// 50 MB/s for 10 s, then 100 on both sides; a sender alone would not help.
    #[test]
    fn nodes_join() {
        let join = |receivers: &[u64]| What::Join {
            senders: nodes("more", &[50 * M]),
            receivers: nodes("others", receivers),
        };
        let seconds =
            |receivers: &[u64]| least(&[50 * M], &[50 * M], Some(join(receivers)), at(10.0));
        assert_eq!(seconds(&[50 * M]), 15.0);
        assert_eq!(seconds(&[]), 20.0);
    }

    /// Two of four die after 5 s, one of them with 250 MB written: 500 delivered less 250, so 750 MB at 50 MB/s.
    #[test]
    fn nodes_die() {
        let die = |nodes: [&str; 2]| What::Die {
            nodes: nodes.map(str::to_owned).to_vec(),
        };
        let with = |bytes| Happened {
            lost_bytes: [("r0".to_owned(), bytes)].into(),
            ..at(5.0)
        };
        let rates = [50 * M, 50 * M];
        let seconds = |bytes| least(&rates, &rates, Some(die(["s0", "r0"])), with(bytes));
        assert_eq!(seconds(250 * M), 20.0);
        // Had it been idle, the other receiver's 50 MB/s would still set the time.
        assert_eq!(seconds(0), 20.0);
        let wide = |bytes| {
            least(
                &rates,
                &[50 * M, 100 * M],
                Some(die(["s0", "r0"])),
                with(bytes),
            )
        };
        assert_eq!((wide(250 * M), wide(0)), (20.0, 15.0));
    }

    /// When nobody is left to take the bytes there is no bound.
    #[test]
    fn everybody_dies() {
        let scenario = Scenario {
            bytes: BYTES,
            senders: nodes("s", &[M]),
            receivers: nodes("r", &[M]),
            is_shared: true,
            changes: vec![Change {
                at_share: 0.5,
                what: What::Die {
                    nodes: vec!["s0".into()],
                },
            }],
        };
        assert!(least_seconds(&scenario, &[at(1.0)]).is_err());
    }
}
