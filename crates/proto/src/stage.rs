//! A continuous stream of blocks through groups of processes, one process of each group on each node.
//!
//! ```text
//!   node 1:  A ──▶ B ──▶ C      every process of a group sends to every process of the next,
//!             ╲ ╱   ╲ ╱         or, where the edge between two groups is local, only to the one
//!             ╱ ╲   ╱ ╲         of its own node
//!   node 2:  A ──▶ B ──▶ C
//! ```
//!
//! The sender owns delivery: for each outgoing edge it holds credit in bytes, which the receiver grants from one pool of
//! buffers. A block keeps its buffer from the grant until it is written to the next process, so a process that cannot pass
//! blocks on stops granting, and the slowest last process slows the first ones. The groups form a line without cycles and the
//! last one takes what arrives, so that some block can always move.
//!
//! * [`process`]: one process: merges what arrives, deals it to the next group
//! * [`credit`]: what a process grants to the processes before it
//! * [`deal`]: which process of the next group gets a block
//! * [`account`]: counts, bytes and a hash that does not depend on order, of all blocks in and out
//! * [`frame`]: blocks, credit and ends on the wire
//! * [`datagrams`]: both ends of an edge whose blocks go as datagrams
//! * [`run`]: the master's view: phases of a stream, which failure is the cause, whether every block arrived once
//! * [`report`]: what a stream reports
//! * [`shuffle`]: records, their keys and partitions

pub mod account;
pub mod credit;
pub mod datagrams;
pub mod deal;
pub mod frame;
pub mod process;
pub mod report;
pub mod run;
pub mod shuffle;
#[cfg(test)]
mod tests;

/// Groups of one stream at most: connections of a process grow with nodes, processes of a node with groups.
pub const GROUPS_MAX: u32 = 64;

/// Shortest block.
pub const BLOCK_MIN: u64 = 64;

/// Longest block.
pub const BLOCK_MAX: u64 = 16 << 20;

/// Nodes of one stream at most: each process has a connection to each of them.
pub const NODES_MAX: u32 = 1024;

/// Buffers of a process together at most, in bytes: 4 GiB.
pub const MEMORY_MAX: u64 = 4 << 30;

/// Buffers of a process at least: one to receive into and one to make a block in.
pub const BUFFERS_MIN: u64 = 2;

/// The name of a group: A to Z, then AA, AB and so on.
#[must_use]
pub fn group_name(group: u32) -> String {
    let mut letters = Vec::new();
    let mut rest = u64::from(group) + 1;
    while rest > 0 {
        rest -= 1;
        letters.push(b'A' + (rest % 26) as u8);
        rest /= 26;
    }
    letters
        .iter()
        .rev()
        .map(|&letter| char::from(letter))
        .collect()
}

/// The group of a name as [`group_name`] writes it; `None` where it is none, or above [`GROUPS_MAX`].
#[must_use]
pub fn group_of(name: &str) -> Option<u32> {
    (0..GROUPS_MAX).find(|&group| group_name(group) == name)
}
