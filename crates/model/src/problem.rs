//! What a planner is asked: what each node holds, what it wants, and how fast it is.
//!
//! Plain data. Speeds are bytes per second; a speed or cap of 0 means that the node, pair or trunk
//! carries nothing. Indices (`usize`) are positions in [`Problem::senders`] and [`Problem::receivers`].
//! Left out on purpose: addresses, files, latency; planning needs none of them.

use std::collections::HashMap;

use crate::range::RangeSet;

pub mod case;

/// One transfer as the planner sees it. Source: CEP section 3.1, the two lists of tuples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problem {
    /// The nodes that have data.
    pub senders: Vec<Sender>,
    /// The nodes that want data.
    pub receivers: Vec<Receiver>,
    /// Narrow or closed pairs; a pair not listed has no cap of its own.
    pub pair_caps: Vec<PairCap>,
    /// Links shared by several pairs.
    pub trunks: Vec<Trunk>,
}

/// A node that has data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sender {
    /// For people; unique among senders.
    pub name: String,
    /// Total sending speed in bytes per second.
    pub up: u64,
    /// What it can serve.
    pub ranges: RangeSet,
}

/// A node that wants data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receiver {
    /// For people; unique among receivers.
    pub name: String,
    /// Total receiving speed in bytes per second.
    pub down: u64,
    /// What it wants, or with a destination what it is able to take.
    pub ranges: RangeSet,
    /// Receivers with one destination share its copy: each byte goes to exactly one of them.
    pub destination: Option<String>,
    /// Speed in bytes per second at which it could pass data on; `None` when it does not.
    pub relay_up: Option<u64>,
}

/// A limit between one sender and one receiver, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairCap {
    /// Position in [`Problem::senders`].
    pub sender: usize,
    /// Position in [`Problem::receivers`].
    pub receiver: usize,
    /// Bytes per second; 0 closes the pair.
    pub cap: u64,
}

/// Nodes that lie near each other: what others send them takes a longer path, of which nothing else is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Site {
    /// Positions in [`Problem::senders`], in order.
    pub senders: Vec<usize>,
    /// Positions in [`Problem::receivers`], in order.
    pub receivers: Vec<usize>,
}

/// A limit for all traffic from any of the senders, and from receivers that hand on beside them, to any of the receivers together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trunk {
    /// For people; without one it is called by its position.
    pub name: String,
    /// Positions in [`Problem::senders`].
    pub senders: Vec<usize>,
    /// Positions in [`Problem::receivers`] of those on the side of the senders: what they hand on to `receivers` crosses the trunk, too.
    pub relays: Vec<usize>,
    /// Positions in [`Problem::receivers`].
    pub receivers: Vec<usize>,
    /// Bytes per second; 0 closes every pair that crosses the trunk.
    pub cap: u64,
}

impl Trunk {
    /// What the trunk at a position is called: "trunk wan", or "trunk 0" when it has no name.
    #[must_use]
    pub fn label(&self, position: usize) -> String {
        match self.name.is_empty() {
            true => format!("trunk {position}"),
            false => format!("trunk {}", self.name),
        }
    }
}

/// Something that wants one copy: a named shared destination, or a single receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The shared name, or the receiver's own name.
    pub name: String,
    /// Positions in [`Problem::receivers`], ascending; dead receivers included.
    pub receivers: Vec<usize>,
    /// The union of what its receivers list.
    pub wanted: RangeSet,
}

impl Problem {
    /// The destinations in order of their first receiver.
    #[must_use]
    pub fn destinations(&self) -> Vec<Destination> {
        let mut shared: HashMap<&str, usize> = HashMap::new();
        let mut destinations: Vec<Destination> = Vec::new();
        for (index, receiver) in self.receivers.iter().enumerate() {
            let known = receiver
                .destination
                .as_deref()
                .map(|name| *shared.entry(name).or_insert(destinations.len()));
            match known.and_then(|at| destinations.get_mut(at)) {
                Some(destination) => destination.receivers.push(index),
                None => destinations.push(Destination {
                    name: receiver
                        .destination
                        .as_ref()
                        .unwrap_or(&receiver.name)
                        .clone(),
                    receivers: vec![index],
                    wanted: RangeSet::new(),
                }),
            }
        }
        for destination in &mut destinations {
            let listed = destination.receivers.iter();
            destination.wanted = listed.flat_map(|&r| &self.receivers[r].ranges).collect();
        }
        destinations
    }

    /// Bytes that must cross: each destination's wanted bytes, added up.
    #[must_use]
    pub fn wanted_bytes(&self) -> u128 {
        let destinations = self.destinations();
        let bytes = destinations
            .iter()
            .map(|d| u128::from(d.wanted.len_bytes()));
        bytes.sum()
    }

    /// Whether only the nodes' own speeds count, so that the exact bound applies.
    ///
    /// Pairs and trunks that no plan could use anyway do not matter, but any listed one counts here:
    /// the question is what the bound may claim, and it claims the least.
    #[must_use]
    pub fn has_links(&self) -> bool {
        !self.pair_caps.is_empty() || !self.trunks.is_empty()
    }
}
