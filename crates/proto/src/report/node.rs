//! What each node and each pair of nodes did, and the control messages between them.

use serde::{Deserialize, Serialize};

/// One node's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name of the node.
    pub node: String,
    /// Bytes others received from it.
    pub sent_bytes: u64,
    /// Bytes safe in its sinks.
    pub received_bytes: u64,
    /// Processor time of the agent for this transfer (all its threads; an agent that serves several
    /// transfers counts them all).
    pub processor_seconds: f64,
    /// Largest resident memory of the agent.
    pub resident_max_bytes: u64,
    /// Most bytes in one second, as a rate.
    pub best_bits_per_second: f64,
    /// What ended the node's part early.
    pub error: Option<String>,
    /// What the kernel said last of the TCP connections on which it sends; absent where there were none.
    #[serde(default)]
    pub network: Option<NetworkReport>,
}

/// What the kernel said of the TCP connections on which a node sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkReport {
    /// Connections that were open then.
    pub streams: u32,
    /// Mean round trip over them.
    pub round_trip_seconds: f64,
    /// The least one seen, that of an empty path.
    pub least_round_trip_seconds: f64,
    /// Payload of a full segment.
    pub segment_bytes: u32,
    /// Data segments sent, those sent again included.
    pub segments: u64,
    /// Of these, those sent again.
    pub repeated_segments: u64,
    /// Bytes on their way that windows or buffers of the hosts allow a stream; 0 where they were not the limit.
    pub window_bytes: u32,
}

/// One sender-receiver pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// Name of the sender.
    pub sender: String,
    /// Name of the receiver.
    pub receiver: String,
    /// Lane kind.
    pub lane: String,
    /// Which of the two connected: `direct` (the receiver), `reversed` (the sender), or `through this host`.
    #[serde(default)]
    pub way: String,
    /// The receiver's interface and both ends' addresses; a pair has one row for each. `None` within a host.
    pub rail: Option<String>,
    /// Streams in the lane.
    pub streams: u32,
    /// Delivered bytes.
    pub bytes: u64,
    /// Damaged units.
    pub corrupt_units: u64,
    /// Mean over its streams of the time spent blocked on the peer or the network.
    pub waiting_seconds: f64,
    /// Datagrams received and needed; 0 on other lanes.
    #[serde(default)]
    pub datagrams: u64,
    /// Datagrams that were lacking after a round, and asked for again.
    #[serde(default)]
    pub datagrams_again: u64,
    /// What else a lane of datagrams saw; `None` on other lanes.
    #[serde(default)]
    pub blast: Option<BlastReport>,
}

/// What the receiving end of a lane of datagrams saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlastReport {
    /// Datagrams sent, repeated ones among them, that are missing.
    pub lost_datagrams: u64,
    /// Of these, those that the receiving socket had no space for: sequence numbers that went missing while its counter of
    /// drops moved, which counts merged packets.
    pub dropped_datagrams: u64,
    /// Datagrams received twice, late or damaged, or were not the peer's.
    pub stray_datagrams: u64,
    /// How often the monitor asked the sender to suspend.
    pub suspensions: u32,
    /// Processor time of the monitor's threads.
    pub monitor_processor_seconds: f64,
    /// Times between datagrams while any were due.
    pub arrival_gaps: GapReport,
    /// Times between units that became whole: when there was data to use.
    pub delivery_gaps: GapReport,
}

/// Gaps between events: the middle one, one in a hundred, and the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GapReport {
    /// Half of all gaps are no longer; up to a quarter too long.
    pub median_seconds: f64,
    /// 99 % are no longer; up to a quarter too long.
    pub p99_seconds: f64,
    /// Exactly.
    pub longest_seconds: f64,
}

/// Control messages of a transfer. Plan messages are what CEP section 4.2 counts (four, about 1 KB a node).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlReport {
    /// Nodes.
    pub nodes: u64,
    /// Open, opened, plan, revision, done, finish, finished.
    pub plan_messages: u64,
    /// Their bytes before encryption, length prefixes included.
    pub plan_bytes: u64,
    /// Credentials.
    pub handshake_bytes: u64,
    /// Periodic status.
    pub status_messages: u64,
    /// Their bytes.
    pub status_bytes: u64,
    /// All bytes through the pipes to agents that the command started (ssh's standard input and output), both ways: control
    /// messages, bytes of nodes that cannot connect to each other, and what frames them.
    pub pipe_bytes: u64,
    /// Bytes of nodes that cannot connect to each other, which went through the command's host, each counted once.
    pub bridged_bytes: u64,
    /// All that control connections sent, from the first to the last packet, as the master's interface counts it:
    /// handshakes, TLS, and the headers of packets. Pipes are counted apart.
    #[serde(default)]
    pub wire_sent_bytes: u64,
    /// The same, received.
    #[serde(default)]
    pub wire_received_bytes: u64,
    /// Packets of control connections, both ways; none for pipes.
    #[serde(default)]
    pub wire_packets: u64,
}
