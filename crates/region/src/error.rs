//! Why an operation on a region failed.

use std::io;
use std::path::PathBuf;

use ropewalk_message::MessageError;
use ropewalk_model::Range;
use ropewalk_store::BufferError;

/// Why an operation failed. Sorted by the party that must act.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The arguments cannot be meant, or the range is not in the region, not held, or not to be written.
    #[error("{0}")]
    Misuse(String),
    /// No node of the region was reached.
    #[error("region {name}: no node was reached: {causes}")]
    Unreached {
        /// Name of the region.
        name: String,
        /// What went wrong at each.
        causes: String,
    },
    /// The nodes do not agree on what the region is, or one refused.
    #[error("region {name}: {text}")]
    Refused {
        /// Name of the region.
        name: String,
        /// What they said.
        text: String,
    },
    /// All nodes that hold the bytes are lost.
    #[error("region {name}: all nodes that hold {range} are lost: {nodes}")]
    Lost {
        /// Name of the region.
        name: String,
        /// The bytes.
        range: Range,
        /// The nodes, and what became of each.
        nodes: String,
    },
    /// The deadline passed. A put may be written by some holders.
    #[error("region {name}: the deadline of {seconds} s passed; {owing}")]
    Deadline {
        /// Name of the region.
        name: String,
        /// Longest time of a call.
        seconds: u64,
        /// Which nodes have not answered.
        owing: String,
    },
    /// A file cannot be exposed.
    #[error("cannot expose {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Memory cannot be exposed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// An address cannot be listened on, or options cannot be meant.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The operating system refused something else.
    #[error("{doing} failed: {source}")]
    System {
        /// Operation that failed.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl RegionError {
    /// Whether the same call, or one over a region that is connected again, may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreached { .. } | Self::Lost { .. } | Self::Deadline { .. } => true,
            Self::Message(error) => error.is_retryable(),
            _ => false,
        }
    }
}
