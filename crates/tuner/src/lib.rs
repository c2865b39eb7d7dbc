//! How many nodes and how many streams a node: chosen for a whole cluster pair while bytes flow (coordinated striping,
//! section 5.3).
//!
//! ```text
//!  counters of every node ──▶ Tuner ──▶ Setting (nodes × streams), stepwise
//!                              │
//!                 path.rs      ├ Path: what the path is like, from what was seen
//!                 tuner.rs     ├ when to look, how far to step, when to go back
//!                 policy/      └ Policy: how many would be best there
//!                                 model     formula, corrected by loss and by the time a halved window takes to grow
//!                                 simulate  asks for simulations of the situation (Question, Answer)
//!                                 database  nearest situations, simulated or seen
//! ```
//!
//! Pure: the caller gives time and counters, and has simulations run as it likes.

#![forbid(unsafe_code)]

pub mod formula;
mod path;
pub mod policy;
mod tuner;

pub use path::Situation;
pub use policy::{Answer, Policy, PolicyName, Question};
pub use tuner::{Tuner, far_streams};

/// How many nodes send, and over how many streams each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Nodes that have streams.
    pub nodes: u32,
    /// Streams of each.
    pub streams: u32,
}

impl Setting {
    /// All streams of the cluster pair.
    #[must_use]
    pub fn total(self) -> u32 {
        self.nodes * self.streams
    }
}

/// Other transfers over the same path that are tuned, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// How many.
    pub transfers: u32,
    /// Their streams, together; 0 while one of them does not know.
    pub streams: u32,
}

/// What may be chosen, and what is known of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Nodes that have something to move.
    pub nodes: u32,
    /// Most streams of one of them.
    pub streams: u32,
    /// Rate of the trunk in bytes a second, where it is known.
    pub trunk: Option<f64>,
    /// Rate of a node's access in bytes a second, where it is known.
    pub access: Option<f64>,
}

impl Limits {
    /// The setting of about so many streams in all: the same on all nodes, and fewer nodes only where each has one.
    #[must_use]
    pub fn split(&self, total: f64) -> Setting {
        let nodes = self.nodes.max(1);
        let each = (total / f64::from(nodes)).round();
        if each >= 1.0 {
            let streams = (each as u32).min(self.streams.max(1));
            return Setting { nodes, streams };
        }
        let least = match (self.trunk, self.access) {
            (Some(trunk), Some(access)) if access > 0.0 => (trunk / access).ceil(),
            _ => 1.0,
        };
        let nodes = total.round().max(least).clamp(1.0, f64::from(nodes)) as u32;
        Setting { nodes, streams: 1 }
    }
}

/// What a node's streams did so far. Counters only grow; the rest is as of now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeCounters {
    /// Open streams.
    pub streams: u32,
    /// Payload acknowledged, in bytes.
    pub bytes: u64,
    /// Segments sent, repeated ones included.
    pub segments: u64,
    /// Segments sent again.
    pub repeated: u64,
    /// Mean round trip of its streams; 0 where it is not known.
    pub rtt_seconds: f64,
    /// Least round trip of its streams; 0 where it is not known.
    pub rtt_seconds_min: f64,
    /// Window in segments that its streams are held to by hosts, not by the path; 0 where they are not.
    pub window_max: f64,
    /// Payload of a full segment, in bytes.
    pub segment_bytes: f64,
}
