//! Two clusters with agents on all nodes, and one transfer between them.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ropewalk_lab::trunk::{ClusterSpec, TrunkSpec};
use ropewalk_lab::{Lab, LabBuilder, Topology};
use ropewalk_proto::report::{Event, Report};
use serde::{Deserialize, Serialize};

use crate::bench::Site;
use crate::network::with_program;
use crate::ropewalk::{Agents, PORT, Place, words};

/// Rate of every node's interface: no node alone is held up by it.
pub(super) const ACCESS: u64 = 200_000_000;

/// Who chooses the number of streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Streams {
    /// So many for each pair of nodes.
    Fixed(u32),
    /// A policy, or none (`off`).
    Tuned(&'static str),
}

impl Streams {
    /// In tables and keys.
    pub fn name(&self) -> String {
        match self {
            Self::Fixed(count) => format!("{count} streams"),
            Self::Tuned(policy) => (*policy).to_owned(),
        }
    }

    pub fn option(&self) -> String {
        match self {
            Self::Fixed(count) => format!("--streams {count}"),
            Self::Tuned(policy) => format!("--streams-policy {policy}"),
        }
    }
}

/// One transfer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ran {
    /// From the first grant to the last safe byte, or to the moment when it was stopped.
    pub seconds: f64,
    /// Before that.
    pub start_seconds: f64,
    pub is_complete: bool,
    /// When how many streams of a receiver were chosen.
    pub steps: Vec<(f64, u32)>,
    /// Delivered bytes over time.
    pub progress: Vec<(f64, u64)>,
    /// Packets that the trunk delivered, found its queue full for, and lost.
    pub packets: (u64, u64, u64),
    pub processor_seconds: f64,
    /// Why the run does not count; none = it does.
    pub invalid: Vec<String>,
}

/// Two clusters, ready.
pub(super) struct Rig {
    pub lab: Lab,
    pub agents: Agents,
    /// The host where masters run.
    pub master: String,
}

/// Why a transfer was stopped.
const OVER_LIMIT: &str = "over the limit of time";

impl Rig {
    /// Nodes with these interfaces on each side and, on the receivers', one more host for the master.
    pub fn new(site: &Site, caps: [&[u64]; 2], trunk: TrunkSpec, control: &str) -> Result<Self> {
        let clusters = ClusterSpec {
            hosts: [caps[0].len(), caps[1].len() + 1],
            access_bits_per_second: Some(ACCESS),
            trunk,
        };
        let mut topology = Topology::clusters(&clusters);
        // As the clusters list them: one side, then the other.
        for (host, &cap) in topology.hosts.iter_mut().zip(caps.concat().iter()) {
            host.nics[0].bits_per_second = Some(cap);
        }
        let names: Vec<String> = topology
            .hosts
            .iter()
            .map(|host| host.name.clone())
            .collect();
        let (master, nodes) = names.split_last().context("no hosts")?;
        let builder = with_program(LabBuilder::from(topology), site);
        let lab = builder.congestion_control(control).build();
        let lab = lab.context("cannot build the lab")?;
        let mut agents = Agents::new(site)?;
        for node in nodes {
            agents.start_in(&lab, node, &[])?;
        }
        Ok(Self {
            lab,
            agents,
            master: master.clone(),
        })
    }

    /// Moves what the specification says. Stopped after `limit_seconds` of moving.
    pub fn run(&mut self, specification: &str, options: &str, limit_seconds: f64) -> Result<Ran> {
        let spec = self.agents.spec(specification)?;
        let arguments = words(&format!("transfer {spec} {options}"));
        self.lab.trunk(0).reset_counters()?;
        let mut watched = Watched::default();
        // Generous: how a busy machine slows things is not for a deadline to judge.
        let deadline = Duration::from_secs_f64(60.0 + 2.0 * limit_seconds);
        let place = Place::Host(&self.lab, &self.master);
        let moved = self.agents.run(place, &arguments, deadline, |_, event| {
            watched.see(event, limit_seconds)
        });
        let data = self.lab.trunk(0).counters()?.a_to_b.link;
        let invalid = self.lab.trunk(0).validity()?.reasons;
        let ran = match moved {
            Ok(moved) => Ran::of(moved.complete()?.report, watched),
            Err(error) if error.root_cause().to_string() == OVER_LIMIT => {
                Ran::stopped(limit_seconds, watched)
            }
            Err(error) => return Err(error),
        };
        Ok(Ran {
            packets: (
                data.delivered.packets,
                data.dropped_queue.packets,
                data.dropped_loss.packets,
            ),
            invalid,
            ..ran
        })
    }
}

impl Ran {
    /// Whether the trunk's relay kept up.
    pub fn is_valid(&self) -> bool {
        self.invalid.is_empty()
    }

    /// What was delivered, of so many bytes, in Mbit/s.
    pub fn megabits(&self, bytes: u64) -> f64 {
        let delivered = match self.is_complete {
            true => bytes,
            false => self.progress.last().map_or(0, |last| last.1),
        };
        delivered as f64 * 8.0 / 1e6 / self.seconds
    }

    /// One that moved everything.
    pub fn of(report: Report, watched: Watched) -> Self {
        let used = report.nodes.iter().map(|node| node.processor_seconds);
        Self {
            start_seconds: report.start_seconds,
            is_complete: true,
            processor_seconds: used.sum(),
            ..Self::stopped(report.seconds - report.start_seconds, watched)
        }
    }

    fn stopped(seconds: f64, watched: Watched) -> Self {
        Self {
            seconds,
            start_seconds: 0.0,
            is_complete: false,
            steps: watched.steps,
            progress: watched.progress,
            packets: (0, 0, 0),
            processor_seconds: 0.0,
            invalid: Vec::new(),
        }
    }
}

/// What counts of equal runs: the valid ones where there are any, else all of them. Says, too, whether they are valid.
pub(super) fn counted<T>(all: Vec<T>, is_valid: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
    let has_valid = all.iter().any(&is_valid);
    let is_kept = |one: &T| !has_valid || is_valid(one);
    (all.into_iter().filter(is_kept).collect(), has_valid)
}

/// Runs during which the relay did not keep up, and all runs.
pub(super) fn invalid<'r>(runs: impl IntoIterator<Item = &'r Ran>) -> (usize, usize) {
    runs.into_iter().fold((0, 0), |(invalid, all), ran| {
        (invalid + usize::from(!ran.is_valid()), all + 1)
    })
}

/// The remark on them below a table.
pub(super) fn invalid_note((invalid, all): (usize, usize)) -> String {
    format!(
        "invalid: runs during which the trunk's relay did not keep up (1 % of the packets more than 1 ms late, 0.1 % more than 5 ms, 90 % busy, or packets lost beside it): {invalid} of {all} here."
    )
}

/// What the master told while bytes flowed.
#[derive(Debug, Default)]
pub(super) struct Watched {
    steps: Vec<(f64, u32)>,
    progress: Vec<(f64, u64)>,
}

impl Watched {
    /// Takes an event in.
    ///
    /// # Errors
    /// Bytes have been flowing for longer than the limit.
    pub fn see(&mut self, event: &Event, limit_seconds: f64) -> Result<()> {
        match event {
            Event::Progress {
                seconds,
                delivered_bytes,
                ..
            } => {
                self.progress.push((*seconds, *delivered_bytes));
                if *seconds > limit_seconds {
                    bail!(OVER_LIMIT);
                }
            }
            Event::Note { seconds, message } => {
                self.steps
                    .extend(step(message).map(|count| (*seconds, count)));
            }
            _ => {}
        }
        Ok(())
    }
}

/// The number of streams in what people are told when it changes.
pub(super) fn step(message: &str) -> Option<u32> {
    let (count, _) = message.split_once(" streams a receiver")?;
    count.parse().ok()
}

/// Pair i moves part i.
pub(super) fn specification(nodes: usize, bytes: u64) -> String {
    let each = bytes / nodes as u64;
    let mut text = String::new();
    for pair in 1..=nodes {
        let range = format!("{}+{each}", (pair as u64 - 1) * each);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "writer a{pair}:{PORT} \"mem:{bytes}\" 0 {range}");
        let _ = writeln!(text, "reader b{pair}:{PORT} \"null:\" 0 {range}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One valid run puts invalid ones aside; without any, all count and that is said.
    #[test]
    fn who_counts() {
        let run = |seconds, is_valid: bool| Ran {
            invalid: (!is_valid).then(|| "late".into()).into_iter().collect(),
            ..Ran::stopped(seconds, Watched::default())
        };
        let seconds = |runs: &[Ran]| {
            let (counted, are_valid) = counted(runs.iter().collect(), |ran| ran.is_valid());
            let seconds: Vec<f64> = counted.iter().map(|ran| ran.seconds).collect();
            (seconds, are_valid)
        };
        let mixed = [run(1.0, false), run(2.0, true), run(3.0, false)];
        assert_eq!(seconds(&mixed), (vec![2.0], true));
        assert_eq!(invalid(&mixed), (2, 3));
        let late = [run(1.0, false), run(3.0, false)];
        assert_eq!(seconds(&late), (vec![1.0, 3.0], false));
        assert_eq!(seconds(&[]), (vec![], false));
    }

    /// Goodput of a run that was stopped is of what had come.
    #[test]
    fn goodput() {
        let progress = vec![(1.0, 1_000_000), (2.0, 3_000_000)];
        let watched = Watched {
            progress,
            ..Watched::default()
        };
        let stopped = Ran::stopped(2.0, watched);
        assert_eq!(stopped.megabits(9_000_000), 12.0);
        let whole = Ran {
            is_complete: true,
            ..stopped
        };
        assert_eq!(whole.megabits(9_000_000), 36.0);
    }

    /// Each pair has a part of its own.
    #[test]
    fn parts() {
        let text = specification(2, 1000);
        assert!(
            text.contains("writer a2:7420 \"mem:1000\" 0 500+500"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 4);
    }

    /// Steps are read from what people are told; a transfer that takes too long is stopped.
    #[test]
    fn watching() {
        let mut watched = Watched::default();
        let note = |message: &str| Event::Note {
            seconds: 1.5,
            message: message.into(),
        };
        let text = "16 streams a receiver from now on (model)";
        watched.see(&note(text), 9.0).unwrap();
        watched.see(&note("a1 is slow"), 9.0).unwrap();
        assert_eq!(watched.steps, [(1.5, 16)]);
        let progress = |seconds| Event::Progress {
            seconds,
            delivered_bytes: 7,
            received_bytes: 7,
            total_bytes: 9,
            bits_per_second: 0.0,
            eta_seconds: None,
            receivers: Vec::new(),
            senders: Vec::new(),
            bottlenecks: Vec::new(),
        };
        watched.see(&progress(8.0), 9.0).unwrap();
        let error = watched.see(&progress(9.1), 9.0).unwrap_err();
        assert_eq!(error.root_cause().to_string(), OVER_LIMIT);
        assert_eq!(watched.progress, [(8.0, 7), (9.1, 7)]);
    }
}
