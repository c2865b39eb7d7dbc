//! A transfer as plain data: nodes, their speeds, what each may access, and what changes on the way.
//!
//! One description makes the hosts of a lab, the specification file and the [`Problem`] that bounds are computed
//! of, so that they cannot disagree. Nothing in it is particular to the lab: the simulator runs it as well.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ropewalk_lab::Lab;
use ropewalk_model::{Problem, Range, RangeSet, problem};
use ropewalk_sched::{bound, by_name};

use crate::bench::Site;
use crate::network::{MASTER, capped, hint, lab, tcp_rate};
use crate::ropewalk::{Agents, Moved, PORT, Place, words};

/// The scheduler of equal shares.
pub(crate) const UNIFORM: &str = "uniform";
/// The paper's scheduler.
pub(crate) const GREEDY: &str = "greedy";
/// The best scheduler that is built.
pub(crate) const AUTO: &str = "auto";

/// A host with one agent: a sender or a receiver, as the list says it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its host's name.
    pub name: String,
    /// Cap of its interface, each way.
    pub bits_per_second: u64,
    /// What it holds, or is able to take.
    pub ranges: RangeSet,
}

/// Something that happens while bytes flow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// The interface of a node gets this cap.
    Rate {
        /// Whose.
        node: String,
        /// Each way.
        bits_per_second: u64,
    },
    /// The agent of a node is stopped (SIGSTOP), and goes on later.
    Pause {
        /// Whose.
        node: String,
        /// For how long.
        seconds: f64,
    },
    /// The agents of nodes are killed (SIGKILL).
    Die {
        /// Whose.
        nodes: Vec<String>,
    },
    /// Nodes that were not in the specification take part from now on.
    Join {
        /// Those that have data.
        senders: Vec<Node>,
        /// Those that want data.
        receivers: Vec<Node>,
    },
}

/// A change and its moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    /// It happens when this share of the bytes is delivered.
    pub at_share: f64,
    /// What happens.
    pub what: What,
}

/// A transfer of `bytes` bytes of data space.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scenario {
    /// Length of the data space.
    pub bytes: u64,
    /// The nodes that have data.
    pub senders: Vec<Node>,
    /// The nodes that want data.
    pub receivers: Vec<Node>,
    /// Whether the receivers share one destination; else each wants a copy of its own.
    pub is_shared: bool,
    /// What happens on the way, in order.
    pub changes: Vec<Change>,
}

/// Everything from 0 to `bytes`.
pub(crate) fn all(bytes: u64) -> RangeSet {
    RangeSet::from(Range::new(0, bytes))
}

/// The window of node `index` of `nodes`: `halves` halves of an n-th of the data from its n-th on, wrapping.
pub(crate) fn window(bytes: u64, index: usize, nodes: usize, halves: usize) -> RangeSet {
    let part = |numerator: usize, denominator: usize| {
        let exact = u128::from(bytes) * numerator as u128 / denominator as u128;
        u64::try_from(exact).unwrap_or(u64::MAX)
    };
    let start = part(index, nodes);
    let end = part(2 * index + halves, 2 * nodes);
    RangeSet::from_ranges([
        Range::new(start, end.min(bytes)),
        Range::new(0, end.saturating_sub(bytes)),
    ])
}

/// Bytes per second that a cap carries, as specification files declare it.
pub(crate) fn speed(bits_per_second: u64) -> u64 {
    (tcp_rate(bits_per_second) / 8.0).round() as u64
}

impl Scenario {
    /// The destination's name, when it is shared.
    pub fn destination(&self) -> Option<&'static str> {
        self.is_shared.then_some("out")
    }

    /// What a planner is asked that knows all speeds; without the changes.
    pub fn problem(&self) -> Problem {
        let senders = self.senders.iter().map(|node| problem::Sender {
            name: node.name.clone(),
            up: speed(node.bits_per_second),
            ranges: node.ranges.clone(),
        });
        let receivers = self.receivers.iter().map(|node| problem::Receiver {
            name: node.name.clone(),
            down: speed(node.bits_per_second),
            ranges: node.ranges.clone(),
            destination: self.destination().map(str::to_owned),
            relay_up: None,
        });
        Problem {
            senders: senders.collect(),
            receivers: receivers.collect(),
            ..Problem::default()
        }
    }

    /// Bytes that must cross.
    pub fn wanted_bytes(&self) -> f64 {
        self.problem().wanted_bytes() as f64
    }

    /// The least time that any scheduler can take, changes not counted.
    pub fn bound_seconds(&self) -> Result<f64> {
        let bound = bound(&self.problem()).context("no bound")?;
        Ok(bound.seconds)
    }

    /// The time of a scheduler's shares when nothing corrects them, changes not counted.
    pub fn static_seconds(&self, scheduler: &str) -> Result<f64> {
        let scheduler = by_name(scheduler).context("no such scheduler")?;
        scheduler
            .fluid_seconds(&self.problem())
            .context("no plan at all")
    }

    /// The specification file, with speeds or without.
    pub fn specification(&self, has_hints: bool) -> String {
        self.rows(&self.senders, &self.receivers, has_hints)
    }

    /// Rows of a specification file; those of nodes that join are the same.
    pub fn rows(&self, senders: &[Node], receivers: &[Node], has_hints: bool) -> String {
        let bytes = self.bytes;
        let mut text = String::new();
        for (kind, speed, uri, nodes) in [
            ("writer", "up", format!("mem:{bytes}"), senders),
            ("reader", "down", "null:".to_owned(), receivers),
        ] {
            for node in nodes {
                let mut words = String::new();
                if has_hints {
                    words += &format!(" {speed}={}", hint(node.bits_per_second));
                }
                if let Some(destination) = self.destination().filter(|_| kind == "reader") {
                    words += &format!(" dest={destination}");
                }
                for range in &node.ranges {
                    // Writing to a string cannot fail.
                    let _ = writeln!(
                        text,
                        "{kind} {}:{PORT} \"{uri}\" {} {}+{}{words}",
                        node.name,
                        range.start,
                        range.start,
                        range.len()
                    );
                }
            }
        }
        text
    }

    /// All nodes, those that join later too: senders first.
    pub fn nodes(&self) -> Vec<&Node> {
        let (mut senders, mut receivers): (Vec<&Node>, Vec<&Node>) = (
            self.senders.iter().collect(),
            self.receivers.iter().collect(),
        );
        for change in &self.changes {
            if let What::Join {
                senders: more,
                receivers: others,
            } = &change.what
            {
                senders.extend(more);
                receivers.extend(others);
            }
        }
        senders.extend(receivers);
        senders
    }

    /// A lab of all nodes, an agent on each.
    pub fn start(&self, site: &Site) -> Result<(Lab, Agents)> {
        let nodes = self.nodes();
        let hosts = nodes
            .iter()
            .map(|node| capped(node.name.clone(), node.bits_per_second));
        let lab = lab(hosts, site)?;
        let mut agents = Agents::new(site)?;
        for node in nodes {
            agents.start_in(&lab, &node.name, &[])?;
        }
        Ok((lab, agents))
    }

    /// Moves the bytes in a lab of its own, all of them, with nothing changing on the way.
    pub fn measure(&self, site: &Site, run: &Run, seconds: f64) -> Result<Moved> {
        let (lab, agents) = self.start(site)?;
        let spec = agents.spec(&self.specification(run.has_hints))?;
        let arguments = words(&format!("transfer {spec} {}", run.options()));
        agents.run_once(Place::Host(&lab, MASTER), &arguments, deadline(seconds))
    }
}

/// Generous: how a busy machine slows things is not for a deadline to judge.
pub(crate) fn deadline(seconds: f64) -> Duration {
    Duration::from_secs_f64(60.0 + 10.0 * seconds)
}

/// A way to run a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// In tables and keys.
    pub name: &'static str,
    /// Whether speeds are declared.
    pub has_hints: bool,
    /// Which plan is made first.
    pub scheduler: &'static str,
    /// Whether work moves while bytes flow.
    pub has_feedback: bool,
}

/// All speeds are declared, and work moves while bytes flow.
pub(crate) const HINTS: Run = Run {
    name: "hints",
    has_hints: true,
    scheduler: AUTO,
    has_feedback: true,
};

/// The same without speeds.
pub(crate) const NO_HINTS: Run = Run {
    name: "no hints",
    has_hints: false,
    ..HINTS
};

impl Run {
    fn options(&self) -> String {
        let feedback = if self.has_feedback { "on" } else { "off" };
        format!("--scheduler {} --replan {feedback}", self.scheduler)
    }

    /// The least time that this way of running can take: that of its plan when nothing corrects it.
    pub fn best_seconds(&self, scenario: &Scenario) -> Result<f64> {
        match self.has_feedback {
            true => scenario.bound_seconds(),
            false => scenario.static_seconds(self.scheduler),
        }
    }

    /// Multiples of `step` bytes that take this run about `seconds`, of a scenario made for any number of bytes.
    pub fn size(&self, seconds: f64, step: u64, scenario: impl Fn(u64) -> Scenario) -> Result<u64> {
        // Times are in proportion to bytes: any size tells the rate.
        let sample = 1 << 10;
        let rate = (step * sample) as f64 / self.best_seconds(&scenario(step * sample))?;
        Ok(((rate * seconds / step as f64).round() as u64).max(1) * step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(set: &RangeSet) -> Vec<(u64, u64)> {
        set.iter().map(|range| (range.start, range.end)).collect()
    }

    /// Windows start at the node's own part, wrap, and at full width are everything.
    #[test]
    fn windows() {
        assert_eq!(ranges(&window(1600, 0, 8, 2)), [(0, 200)]);
        assert_eq!(ranges(&window(1600, 7, 8, 2)), [(1400, 1600)]);
        assert_eq!(ranges(&window(1600, 2, 8, 9)), [(400, 1300)]);
        assert_eq!(ranges(&window(1600, 7, 8, 9)), [(0, 700), (1400, 1600)]);
        for index in 0..8 {
            assert_eq!(window(1600, index, 8, 16), all(1600));
        }
    }

    fn scenario() -> Scenario {
        let node = |name: &str, index| Node {
            name: name.into(),
            bits_per_second: 20_000_000,
            ranges: window(1600, index, 8, 3),
        };
        Scenario {
            bytes: 1600,
            senders: vec![node("s0", 0), node("s7", 7)],
            receivers: vec![node("r7", 7)],
            is_shared: true,
            changes: Vec::new(),
        }
    }

    /// A window that wraps is two rows of one node; what the file says is what the bound is computed of.
    #[test]
    fn rows_and_problem_agree() {
        let scenario = scenario();
        let text = scenario.specification(true);
        let expected = "writer s0:7420 \"mem:1600\" 0 0+300 up=2391017B/s\n\
                        writer s7:7420 \"mem:1600\" 0 0+100 up=2391017B/s\n\
                        writer s7:7420 \"mem:1600\" 1400 1400+200 up=2391017B/s\n\
                        reader r7:7420 \"null:\" 0 0+100 down=2391017B/s dest=out\n\
                        reader r7:7420 \"null:\" 1400 1400+200 down=2391017B/s dest=out\n";
        assert_eq!(text, expected);
        assert!(!scenario.specification(false).contains("B/s"));
        let problem = ropewalk_model::TransferSpec::parse(&text).unwrap();
        let held: Vec<u64> = problem.rows.iter().map(|row| row.range.len()).collect();
        assert_eq!(held, [300, 100, 200, 100, 200]);
        let problem = scenario.problem();
        assert_eq!(problem.senders[1].ranges.len_bytes(), 300);
        assert_eq!(problem.senders[0].up, 2_391_017);
        assert_eq!(problem.wanted_bytes(), 300);
    }

    /// A run without feedback is sized to its own plan's time, one with feedback to the bound.
    #[test]
    fn sizes() {
        let make = |bytes| {
            let node = |name: &str, megabits: u64| Node {
                name: name.into(),
                bits_per_second: megabits * 1_000_000,
                ranges: all(bytes),
            };
            Scenario {
                bytes,
                senders: vec![node("s0", 20), node("s1", 180)],
                receivers: vec![node("r0", 400)],
                is_shared: false,
                changes: Vec::new(),
            }
        };
        let run = |has_feedback| Run {
            name: "x",
            has_hints: true,
            scheduler: UNIFORM,
            has_feedback,
        };
        let size = |has_feedback| run(has_feedback).size(10.0, 1 << 20, make).unwrap();
        // 200 Mbit/s against twice 20, of which TCP carries 95.6 %.
        assert_eq!(size(true) >> 20, 228);
        assert_eq!(size(false) >> 20, 46);
    }
}
