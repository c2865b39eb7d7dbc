//! What control connections carry: the report against the interface's counters. How they behave on a path that loses.

use std::fmt::Write as _;
use std::process::Child;
use std::time::Duration;

use ropewalk_lab::trunk::{Direction, LinkSpec};
use ropewalk_lab::{HostSpec, Lab, LabBuilder};

use crate::common::wait_for;
use crate::hosts::{agent, begin, close, far_pair, master};

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

/// The pause in milliseconds before the kernel retransmits next, and how often it has in a row, of a host's one connection to or from an
/// agent.
fn retransmits(lab: &Lab, host: &str) -> (u32, u32) {
    let words = ["-tino", "sport", "=", ":7420", "or", "dport", "=", ":7420"];
    let shown = lab.command(host, "ss").args(words).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let field = |name: &str| {
        let mut words = shown.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.parse().ok())
    };
    let pause = field("rto:").unwrap_or_else(|| panic!("no connection of {host}: {shown}"));
    (pause, field("backoff:").unwrap_or(0))
}

/// Until a host has retransmitted the same for some time, with no pause above a second.
fn assert_retransmits(lab: &Lab, host: &str) {
    wait_for("five attempts", || {
        let (pause, attempts) = retransmits(lab, host);
        assert!(
            pause <= 1000,
            "{host}: {pause} ms after {attempts} attempts"
        );
        (attempts >= 5).then_some(())
    });
}

/// What is lost again and again is retransmitted each second, by agent and master, so that a control connection survives a bad path. With
/// pauses that double, half of the time until the connection ends is one pause.
#[test]
fn what_is_lost_is_retransmitted_each_second() {
    let name = "what_is_lost_is_retransmitted_each_second";
    if ropewalk_lab::skip(name) {
        return;
    }
    if !std::path::Path::new("/proc/sys/net/ipv4/tcp_rto_max_ms").exists() {
        return eprintln!("SKIPPED {name}: this kernel has no limit of the pause; run Linux 6.15");
    }
    let link = LinkSpec::unlimited().delay(Duration::from_millis(2));
    let lab = far_pair(link);
    let agents = [agent(&lab, "b1", 7420, &["/data"])];
    let change = |direction, words: &str| lab.trunk(0).change(&[direction], words).unwrap();
    // Of one node: only control crosses.
    let words = ["stream", "b1:7420", "--size", "1TiB"];
    let (mut command, mut events) = begin(&lab, "a1", &words);
    events.find(|event| event["event"] == "progress").unwrap();
    // The agent says how the stream goes on.
    change(Direction::BToA, "blackhole=on");
    assert_retransmits(&lab, "b1");
    change(Direction::BToA, "blackhole=off");
    let moved = |event: &serde_json::Value| event["stages"][1]["received_bytes"].clone();
    let before = moved(&events.find(|event| event["event"] == "progress").unwrap());
    let goes_on =
        |event: &serde_json::Value| event["event"] == "progress" && moved(event) != before;
    events.find(goes_on).unwrap();
    // The master ends it.
    change(Direction::AToB, "blackhole=on");
    let number = command.id().to_string();
    let kill = std::process::Command::new("kill")
        .args(["-s", "INT", &number])
        .status();
    assert!(kill.unwrap().success());
    assert_retransmits(&lab, "a1");
    command.wait().unwrap();
    close(lab, agents);
}
