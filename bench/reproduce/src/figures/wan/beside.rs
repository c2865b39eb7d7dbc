//! The same set-up in the packet simulator.

use anyhow::{Result, anyhow};
use ropewalk_tcp_sim::tune::{Bed, Setting, profile};
use ropewalk_tcp_sim::{FlavourName, Stripes, TwoClusters};

use super::LIMIT;
use super::cells::{Cell, PAYLOAD_SHARE, RATE};
use super::rig::ACCESS;

/// Payload of a packet, and headers that the simulator adds to it.
const PACKET_BYTES: u32 = 1448;
const HEADER_BYTES: f64 = 40.0;

/// No window is in the way: the lab's hosts have 64 MB.
const WINDOW: u32 = 1 << 16;

/// Latency of a node's own link.
const ACCESS_LATENCY_SECONDS: f64 = 0.00002;

/// Packets in a host's own queue.
const HOST_QUEUE: usize = 1000;

/// The cell's network, and its congestion control where the simulator has it.
fn network(cell: &Cell, nodes: usize) -> Option<(TwoClusters, FlavourName)> {
    let flavour = match cell.control {
        "reno" => FlavourName::NewReno,
        "cubic" => FlavourName::Cubic,
        _ => return None,
    };
    // Headers differ by time stamps: links are as much faster as the simulator's packets are smaller.
    let wire = f64::from(PACKET_BYTES) / PAYLOAD_SHARE;
    let scale = (f64::from(PACKET_BYTES) + HEADER_BYTES) / wire;
    let net = TwoClusters {
        nodes: nodes as u32,
        stripes: Stripes(Vec::new()),
        bits_per_second: RATE as f64 * scale,
        latency_seconds: cell.round_trip_ms as f64 / 2000.0,
        queue: cell.queue_packets() as usize,
        loss: cell.loss,
        access_bits_per_second: ACCESS as f64 * scale,
        access_latency_seconds: ACCESS_LATENCY_SECONDS,
        access_queue: HOST_QUEUE,
        bytes_per_node: 0,
    };
    Some((net, flavour))
}

/// What the simulator says of a number of nodes and streams that pull what the trunk carries in so many seconds; `None`
/// for a congestion control that it does not have.
pub(super) fn simulate(
    cell: &Cell,
    nodes: usize,
    streams: u32,
    seconds: f64,
) -> Result<Option<f64>> {
    let Some((net, flavour)) = network(cell, nodes) else {
        return Ok(None);
    };
    let bytes = cell.bytes(seconds);
    let bed = Bed {
        net,
        flavour,
        packet_bytes: PACKET_BYTES,
        window: WINDOW,
        packets: bytes.div_ceil(u64::from(PACKET_BYTES)),
    };
    let setting = Setting {
        nodes: nodes as u32,
        streams,
    };
    let went = bed.fixed(setting, LIMIT * seconds);
    went.map(|went| Some(went.seconds))
        .map_err(|error| anyhow!("{error}"))
}

/// The same where each stream has an equal part.
pub(super) fn simulate_equal(cell: &Cell, streams: u32, seconds: f64) -> Result<Option<f64>> {
    let Some((net, flavour)) = network(cell, cell.nodes) else {
        return Ok(None);
    };
    let net = TwoClusters {
        stripes: Stripes(vec![(flavour, streams)]),
        bytes_per_node: cell.bytes(seconds) / cell.nodes as u64,
        ..net
    };
    let mut scenario = net.scenario_of(profile(), PACKET_BYTES);
    (scenario.window, scenario.ssthresh) = (WINDOW, WINDOW);
    scenario.limit_seconds = LIMIT * seconds;
    let outcome = scenario.run().map_err(|error| anyhow!("{error}"))?;
    Ok(Some(outcome.seconds))
}

#[cfg(test)]
mod tests {
    use super::super::cells::CELLS;
    use super::*;

    /// A full trunk takes what the bytes are sized for, pulled; equal parts take no less. There is no BBR.
    #[test]
    fn full_trunk() {
        let near = &CELLS[9];
        let pulled = simulate(near, 16, 1, 4.0).unwrap().unwrap();
        assert!((3.9..5.0).contains(&pulled), "{pulled}");
        let equal = simulate_equal(near, 1, 4.0).unwrap().unwrap();
        assert!(equal >= pulled - 0.2 && equal < 12.0, "{equal} {pulled}");
        for cell in CELLS {
            assert_eq!(network(&cell, 1).is_some(), cell.has_simulator());
        }
        let bbr = CELLS.iter().find(|cell| !cell.has_simulator()).unwrap();
        assert_eq!(simulate(bbr, 1, 1, 1.0).unwrap(), None);
    }
}
