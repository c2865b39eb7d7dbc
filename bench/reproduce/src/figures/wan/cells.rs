//! The set-ups: twelve that have each factor's extremes.

use ropewalk_lab::trunk::{Loss, TrunkSpec};

use crate::figures::trunk::{Queue, trunk};

/// Rate of the trunk.
pub(super) const RATE: u64 = 100_000_000;
/// What a packet on it may weigh.
const MTU: u32 = 1500;
/// What of it is payload of TCP: 1448 bytes of each packet of 1500.
pub(super) const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

/// Streams of a pair that are tried.
pub(super) const STREAMS: [u32; 4] = [1, 4, 16, 32];

/// A trunk between two clusters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    /// In tables and for `--only`.
    pub name: &'static str,
    /// Nodes of each side.
    pub nodes: usize,
    pub round_trip_ms: u64,
    pub queue: Queue,
    /// Part of the packets that the trunk loses at random.
    pub loss: f64,
    /// Congestion control of all hosts.
    pub control: &'static str,
}

/// A cell in one line.
pub(super) const fn cell(
    name: &'static str,
    nodes: usize,
    round_trip_ms: u64,
    queue: Queue,
    loss: f64,
    control: &'static str,
) -> Cell {
    Cell {
        name,
        nodes,
        round_trip_ms,
        queue,
        loss,
        control,
    }
}

/// One in a thousand.
const LOSSY: f64 = 0.001;

/// All of them.
pub(super) const CELLS: [Cell; 12] = [
    cell("near-one", 1, 20, Queue::Fifty, 0.0, "cubic"),
    cell("far-one", 1, 160, Queue::Fifty, 0.0, "reno"),
    cell("far-one-lossy", 1, 160, Queue::Product, LOSSY, "cubic"),
    cell("near-four-lossy", 4, 20, Queue::Product, LOSSY, "reno"),
    cell("middle-four-bbr", 4, 80, Queue::Product, 0.0, "bbr"),
    cell("far-four-lossy-bbr", 4, 160, Queue::Fifty, LOSSY, "bbr"),
    cell("near-eight-bbr", 8, 20, Queue::Fifty, 0.0, "bbr"),
    cell("middle-eight", 8, 80, Queue::Fifty, 0.0, "cubic"),
    cell("far-eight-lossy", 8, 160, Queue::Product, LOSSY, "reno"),
    cell("near-sixteen", 16, 20, Queue::Fifty, 0.0, "reno"),
    cell("far-sixteen", 16, 160, Queue::Product, 0.0, "cubic"),
    cell("middle-sixteen-lossy", 16, 80, Queue::Fifty, LOSSY, "cubic"),
];

/// Those that are run in a hurry.
const QUICK: [&str; 3] = ["far-four-lossy-bbr", "middle-eight", "near-sixteen"];

/// The cells to run.
pub(super) fn cells(is_quick: bool) -> Vec<Cell> {
    let mut cells = CELLS.to_vec();
    cells.retain(|cell| !is_quick || QUICK.contains(&cell.name));
    cells
}

impl Cell {
    /// Whether the packet simulator has its congestion control.
    pub fn has_simulator(&self) -> bool {
        self.control != "bbr"
    }

    /// Packets that the trunk's queue holds.
    pub fn queue_packets(&self) -> u32 {
        self.queue.packets(RATE, MTU, self.round_trip_ms)
    }

    /// The trunk: data goes from side A to side B, and loss and the short queue are in its way only.
    pub fn trunk(&self) -> TrunkSpec {
        let mut trunk = trunk(Some(RATE), MTU, self.round_trip_ms, self.queue_packets());
        trunk.a_to_b = trunk.a_to_b.loss(Loss::independent(self.loss));
        trunk
    }

    /// Bytes that take the trunk so long, in whole MB for each of the nodes.
    pub fn bytes(&self, seconds: f64) -> u64 {
        let step = 1_000_000 * self.nodes as u64;
        let bytes = RATE as f64 / 8.0 * PAYLOAD_SHARE * seconds;
        ((bytes / step as f64).round() as u64).max(1) * step
    }

    /// Nodes and streams of each that are tried: numbers of nodes up to its own, in powers of two. In a hurry only its own,
    /// and with sixteen those that have the product of one that is tried.
    pub fn settings(&self, is_quick: bool) -> Vec<(usize, u32)> {
        let nodes = [1, 2, 4, 8, 16].into_iter().filter(|&n| n <= self.nodes);
        let all = nodes.flat_map(|nodes| STREAMS.map(|streams| (nodes, streams)));
        let is_wanted = |&(nodes, streams): &(usize, u32)| {
            let is_split = self.nodes == 16 && [16, 64].contains(&(nodes as u32 * streams));
            !is_quick || nodes == self.nodes || is_split
        };
        all.filter(is_wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Names differ, none is part of another with its comma, and every level of every factor occurs.
    #[test]
    fn all_levels() {
        let names: BTreeSet<_> = CELLS.iter().map(|cell| cell.name).collect();
        assert_eq!(names.len(), CELLS.len());
        assert_eq!((cells(true).len(), cells(false).len()), (3, 12));
        let has = |what: &dyn Fn(&Cell) -> bool| CELLS.iter().filter(|cell| what(cell)).count();
        for nodes in [1, 4, 8, 16] {
            assert_eq!(has(&|cell| cell.nodes == nodes), 3, "{nodes} nodes");
        }
        for ms in [20, 80, 160] {
            assert!(has(&|cell| cell.round_trip_ms == ms) >= 3, "{ms} ms");
        }
        for control in ["reno", "cubic", "bbr"] {
            assert!(has(&|cell| cell.control == control) >= 3, "{control}");
        }
        for (loss, queue) in [(0.0, Queue::Fifty), (LOSSY, Queue::Product)] {
            assert!(has(&|cell| cell.loss == loss && cell.queue == queue) >= 2);
        }
    }

    /// Bytes are equal for all nodes and near what was asked for.
    #[test]
    fn sizes() {
        for cell in CELLS {
            let bytes = cell.bytes(7.0);
            assert_eq!(bytes % cell.nodes as u64, 0);
            let seconds = bytes as f64 * 8.0 / (RATE as f64 * PAYLOAD_SHARE);
            assert!((6.0..8.0).contains(&seconds), "{}: {seconds}", cell.name);
        }
        assert_eq!(CELLS[11].settings(false).len(), 20);
        assert_eq!(CELLS[4].settings(true), [(4, 1), (4, 4), (4, 16), (4, 32)]);
        let quick = CELLS[11].settings(true);
        for split in [(1, 16), (4, 4), (16, 1), (2, 32), (4, 16), (16, 4)] {
            assert!(quick.contains(&split), "{split:?}");
        }
    }
}
