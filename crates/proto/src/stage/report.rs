//! What a stream reports at its end, and each second.

use ropewalk_model::Nanos;
use serde::Serialize;

use super::group_name;
use super::run::{Progress, Run};
use crate::report::{ErrorKind, Outcome};

/// A stream at its end. `docs/json.md` names the fields.
#[derive(Clone, Debug, Serialize)]
pub struct StreamReport {
    /// Its id; null when it was refused before it had one.
    pub stream: Option<String>,
    /// How it ended: never partial.
    pub outcome: Outcome,
    /// In words.
    pub error: Option<String>,
    /// What kind.
    pub error_kind: Option<ErrorKind>,
    /// From the start of the command.
    pub seconds: f64,
    /// Of it, until blocks began to move.
    pub start_seconds: f64,
    /// What the last group received.
    pub bytes: u64,
    /// What the last group received.
    pub blocks: u64,
    /// `bytes` over the time in which blocks moved.
    pub bits_per_second: f64,
    /// Length of a block.
    pub block_bytes: u64,
    /// Whether blocks were sealed between processes; where all are of one host and user they are not.
    pub encrypted: bool,
    /// Bytes of blocks that all processes sent again as datagrams.
    pub retransmitted_bytes: u64,
    /// Whether every block arrived once: from each group to the next, and through each process that passes blocks on.
    pub accounted: bool,
    /// The group that kept the others waiting.
    pub bound_by: Option<String>,
    /// Groups in order.
    pub stages: Vec<StageReport>,
    /// Processes by group, then node.
    pub processes: Vec<ProcessReport>,
    /// Of a shuffle.
    pub shuffle: Option<ShuffleReport>,
}

/// What a shuffle has written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShuffleReport {
    /// Records.
    pub records: u64,
    /// Their bytes, with the ends of lines.
    pub bytes: u64,
    /// Partitions.
    pub partitions: u32,
    /// Records of the partition with least.
    pub least_records: u64,
    /// Records of the partition with most.
    pub most_records: u64,
    /// Records of the partition with most over the mean.
    pub imbalance: f64,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// Its name.
    pub stage: String,
    /// Bytes received.
    pub received_bytes: u64,
    /// Blocks received.
    pub received_blocks: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// The larger of both over the time of the slowest process.
    pub bits_per_second: f64,
    /// Bytes of the process with most over the mean.
    pub imbalance: f64,
    /// Share of the time in which its processes waited for blocks.
    pub waiting_for_input: f64,
    /// Share of the time in which they waited for the next group.
    pub waiting_for_output: f64,
    /// How long a process waited for no other group, in the mean.
    pub working_seconds: f64,
    /// Processor time of all.
    pub processor_seconds: f64,
    /// Memory of the process with most.
    pub resident_max_bytes: u64,
    /// Bytes of blocks that its processes sent again as datagrams.
    pub retransmitted_bytes: u64,
}

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// Its node.
    pub node: String,
    /// Its group.
    pub stage: String,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// From its first block to its end.
    pub seconds: f64,
    /// Share of that in which it waited for blocks.
    pub waiting_for_input: f64,
    /// Share in which it waited for the next group.
    pub waiting_for_output: f64,
    /// Processor time.
    pub processor_seconds: f64,
    /// Most memory.
    pub resident_max_bytes: u64,
    /// Bytes of blocks that it sent again as datagrams.
    pub retransmitted_bytes: u64,
}

impl StreamReport {
    /// A stream that ended before any node was opened.
    #[must_use]
    pub fn refused(block_bytes: u64, kind: ErrorKind, error: &str) -> Self {
        Self {
            stream: None,
            outcome: Outcome::Refused,
            error: Some(error.to_owned()),
            error_kind: Some(kind),
            seconds: 0.0,
            start_seconds: 0.0,
            bytes: 0,
            blocks: 0,
            bits_per_second: 0.0,
            block_bytes,
            encrypted: false,
            retransmitted_bytes: 0,
            accounted: false,
            bound_by: None,
            stages: Vec::new(),
            processes: Vec::new(),
            shuffle: None,
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn bytes(progress: &Progress) -> u64 {
    progress.received.bytes.max(progress.dealt.bytes)
}

impl StageReport {
    /// Of one group.
    #[must_use]
    pub fn of(group: u32, processes: &[Progress]) -> Self {
        let sum = |of: fn(&Progress) -> u64| processes.iter().map(of).sum::<u64>();
        let longest = processes
            .iter()
            .map(|one| one.elapsed)
            .max()
            .unwrap_or_default();
        let (total, elapsed) = (sum(bytes), sum(|one| one.elapsed.0));
        let most = processes.iter().map(bytes).max().unwrap_or(0);
        let waited = sum(|one| one.waited_input.0 + one.waited_output.0);
        let working = Nanos(elapsed.saturating_sub(waited)).as_seconds();
        Self {
            stage: group_name(group),
            received_bytes: sum(|one| one.received.bytes),
            received_blocks: sum(|one| one.received.blocks),
            sent_bytes: sum(|one| one.dealt.bytes),
            bits_per_second: share(total * 8, longest.0) * 1e9,
            imbalance: share(most * processes.len() as u64, total),
            // Without a first block they have waited for nothing else.
            waiting_for_input: if elapsed == 0 {
                1.0
            } else {
                share(sum(|one| one.waited_input.0), elapsed)
            },
            waiting_for_output: share(sum(|one| one.waited_output.0), elapsed),
            working_seconds: working / processes.len().max(1) as f64,
            processor_seconds: sum(|one| one.processor.0) as f64 / 1e9,
            resident_max_bytes: processes
                .iter()
                .map(|one| one.resident_max)
                .max()
                .unwrap_or(0),
            retransmitted_bytes: sum(|one| one.retransmitted),
        }
    }

    /// Share of the time in which its processes waited for no other group.
    #[must_use]
    pub fn working(&self) -> f64 {
        1.0 - self.waiting_for_input - self.waiting_for_output
    }
}

impl Run {
    /// All groups in order.
    #[must_use]
    pub fn stages(&self, groups: u32) -> Vec<StageReport> {
        (0..groups)
            .map(|group| StageReport::of(group, self.group(group)))
            .collect()
    }

    /// What a shuffle into so many partitions has written.
    #[must_use]
    pub fn shuffled(&self, partitions: u32) -> ShuffleReport {
        let (written, least_records, most_records) = self.records(partitions);
        ShuffleReport {
            records: written.blocks,
            bytes: written.bytes,
            partitions,
            least_records,
            most_records,
            imbalance: share(most_records * u64::from(partitions), written.blocks),
        }
    }

    /// All processes, by group, then node.
    #[must_use]
    pub fn processes(&self, groups: u32, names: &[String]) -> Vec<ProcessReport> {
        let of = |group: u32| {
            let processes = self.group(group).iter().zip(names);
            processes.map(move |(one, node)| ProcessReport {
                node: node.clone(),
                stage: group_name(group),
                received_bytes: one.received.bytes,
                sent_bytes: one.dealt.bytes,
                seconds: one.elapsed.as_seconds(),
                waiting_for_input: share(one.waited_input.0, one.elapsed.0),
                waiting_for_output: share(one.waited_output.0, one.elapsed.0),
                processor_seconds: one.processor.as_seconds(),
                resident_max_bytes: one.resident_max,
                retransmitted_bytes: one.retransmitted,
            })
        };
        (0..groups).flat_map(of).collect()
    }
}

/// The group that worked longest: the one that the others waited for. Shares of time say less, as a group whose blocks are all on their way
/// has ended, and a group without a block has not begun.
#[must_use]
pub fn bound_by(stages: &[StageReport]) -> Option<&StageReport> {
    stages
        .iter()
        .max_by(|one, other| one.working_seconds.total_cmp(&other.working_seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::account::Account;
    use ropewalk_model::Nanos;

    /// Shares are of the time of all processes of a group; the group without waiting is the one that bound the rest.
    #[test]
    fn stages_are_summed() {
        let process = |bytes, input, output| Progress {
            received: Account {
                blocks: 1,
                bytes,
                sum: 0,
            },
            elapsed: Nanos::from_secs(10),
            waited_input: Nanos::from_secs(input),
            waited_output: Nanos::from_secs(output),
            ..Progress::default()
        };
        let slow = StageReport::of(1, &[process(3000, 1, 0), process(1000, 2, 1)]);
        assert_eq!((slow.stage.as_str(), slow.received_bytes), ("B", 4000));
        assert!((slow.bits_per_second - 3200.0).abs() < 1e-9);
        assert!((slow.imbalance - 1.5).abs() < 1e-9);
        assert!((slow.waiting_for_input - 0.15).abs() < 1e-9);
        assert!((slow.working() - 0.8).abs() < 1e-9);
        let idle = StageReport::of(2, &[process(1000, 9, 0)]);
        let fresh = StageReport::of(3, &[Progress::default()]);
        assert_eq!(bound_by(&[idle, slow.clone(), fresh]), Some(&slow));
        // All that it had was on its way at once.
        let ended = Progress {
            elapsed: Nanos::from_millis(1),
            ..process(3000, 0, 0)
        };
        let fast = StageReport::of(0, &[ended]);
        assert!(fast.working() > slow.working());
        assert_eq!(bound_by(&[fast, slow.clone()]), Some(&slow));
    }
}
