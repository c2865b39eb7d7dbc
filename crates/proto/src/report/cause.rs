//! What held a transfer back, and when.

use serde::{Deserialize, Serialize};

/// What held a transfer back for a part of its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BottleneckReport {
    /// What it was.
    pub cause: BottleneckCause,
    /// The node, of a pair the sender, or the name of a trunk; absent for what is of no node, and of several nodes or pairs together of which none
    /// has a tenth.
    pub node: Option<String>,
    /// Of a pair, the receiver.
    pub peer: Option<String>,
    /// Of losses over one of several rails of a pair, that one: the sender's interface and address, and the receiver's address.
    #[serde(default)]
    pub rail: Option<String>,
    /// Of the whole time, 0 to 1.
    pub share: f64,
}

/// Rates and causes over time, from the first grant on: at most 240 points of one or more seconds, the last one shorter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelineReport {
    /// Names of the nodes whose rates the points have, in their order; empty where there are more than 64: then a point has the sum.
    pub nodes: Vec<String>,
    /// What happened, in order.
    pub points: Vec<PointReport>,
}

/// A second, or several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointReport {
    /// Its end.
    pub seconds: f64,
    /// Its length.
    pub length_seconds: f64,
    /// What others received from each node.
    pub sent_bits_per_second: Vec<f64>,
    /// What each node received.
    pub received_bits_per_second: Vec<f64>,
    /// What held the transfer back in it, the largest share of it first.
    pub bottlenecks: Vec<BottleneckReport>,
}

/// What can hold a transfer back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckCause {
    /// Reaching nodes, opening and planning.
    #[default]
    Starting,
    /// Comparing contents at a receiver.
    Comparing,
    /// Finding peers and opening streams.
    Opening,
    /// An earlier transfer to a destination had to end first.
    EarlierTransfer,
    /// Reading a source.
    SourceDisk,
    /// Hashing, encrypting and copying at a sender.
    SenderProcessor,
    /// The declared or measured speed of a sender.
    SenderRate,
    /// What lies between two nodes.
    Path,
    /// Buffers or windows of two hosts.
    Window,
    /// Losses between two nodes.
    Loss,
    /// A declared trunk or cap of a pair.
    Trunk,
    /// Round trips: a sender was not asked for enough ahead.
    RoundTrips,
    /// The declared or measured speed of a receiver.
    ReceiverRate,
    /// Checking, decrypting, hashing and copying at a receiver.
    ReceiverProcessor,
    /// Writing a sink.
    SinkDisk,
    /// A full disk of a receiver.
    Space,
    /// Making bytes safe, and giving files their names, after the last byte was received.
    Syncing,
    /// The limit of the transfer.
    Limit,
    /// A node that did not answer for 2 s or more: its host, agent or network.
    Silence,
    /// The process of the command did not run for 2 s or more: it was stopped, or its host was.
    Absence,
    /// Other nodes, whose agents were not asked: only of what one agent knows of a transfer, in `top`.
    Peers,
}
