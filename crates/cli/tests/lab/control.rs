//! What control connections carry: the report against the interface's counters.

use std::fmt::Write as _;
use std::process::Child;

use ropewalk_lab::{HostSpec, Lab, LabBuilder};

use crate::hosts::{agent, close, master};

/// Agents, half of them senders.
const NODES: usize = 32;

/// Bytes that a node may cost, everything included (docs/control-traffic.md).
const NODE_BYTES_MAX: u64 = 3000;

const PORT: u16 = 20_000;
const ROW_LEN: usize = 64 << 10;

/// A quick transfer between the agents of one host, as its master on another one starts it.
fn specification(host: &str) -> String {
    let mut rows = String::new();
    for at in 0..NODES {
        let (kind, object) = match at < NODES / 2 {
            true => ("writer", format!("mem:{ROW_LEN}")),
            false => ("reader", "null:".to_owned()),
        };
        let start = at % (NODES / 2) * ROW_LEN;
        let (port, last) = (usize::from(PORT) + at, start + ROW_LEN - 1);
        writeln!(rows, "{kind} {host}:{port} {object} 0 {start}-{last}").unwrap();
    }
    rows
}

/// Bytes of both directions, and packets.
fn carried(lab: &Lab) -> (u64, u64) {
    let counters = lab.counters("m", 0).unwrap();
    (
        counters.tx_bytes + counters.rx_bytes,
        counters.tx_packets + counters.rx_packets,
    )
}

/// The report says what the interface counts, to 3 %, and a node costs less than it may. On a busy machine answers come
/// later than the kernel waits with its acknowledgements, which then leave by themselves: the least of a few runs counts.
#[test]
fn control_traffic_is_small_and_counted() {
    if ropewalk_lab::skip("control_traffic_is_small_and_counted") {
        return;
    }
    let lab = LabBuilder::new()
        .hosts(["m", "a"].map(HostSpec::new))
        .build()
        .unwrap();
    let agents: Vec<Child> = (0..NODES as u16)
        .map(|at| agent(&lab, "a", PORT + at, &["/data"]))
        .collect();
    std::fs::write(lab.path_in("m", "/run/many.cep"), specification("a")).unwrap();
    let mut least = u64::MAX;
    for _ in 0..5 {
        let before = carried(&lab);
        let args = ["transfer", "--plain", "--speeds", "off", "/run/many.cep"];
        let (status, report) = master(&lab, "m", &args);
        assert_eq!(status, Some(0), "{report:#}");
        let after = carried(&lab);
        let control = &report["control"];
        let field = |name: &str| control[name].as_u64().unwrap();
        let (bytes, packets) = (after.0 - before.0, after.1 - before.1);
        let told = field("wire_sent_bytes") + field("wire_received_bytes");
        assert!(
            told.abs_diff(bytes) * 100 <= bytes * 3,
            "the report says {told} of {bytes} bytes"
        );
        let told = field("wire_packets");
        assert!(
            told.abs_diff(packets) * 100 <= packets * 3,
            "the report says {told} of {packets} packets"
        );
        least = least.min(bytes / NODES as u64);
    }
    assert!(least <= NODE_BYTES_MAX, "{least} bytes a node");
    close(lab, agents);
}
