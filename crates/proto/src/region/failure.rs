//! Why an operation of an origin failed.

use ropewalk_model::Range;

use super::frame::Status;
use super::rule::HolderId;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The range ends beyond the region.
    #[error("{range} is not in the region, which has {size} bytes")]
    OutOfRange {
        /// The range.
        range: Range,
        /// Bytes of the region.
        size: u64,
    },
    /// No node that was reached holds these bytes.
    #[error("no node that was reached holds the beginning of {range}")]
    NotHeld {
        /// From the first byte that is missing on.
        range: Range,
    },
    /// No node that was reached owns these bytes.
    #[error("no node that was reached owns the beginning of {range}")]
    NoOwner {
        /// From the first byte that is missing on.
        range: Range,
    },
    /// All nodes that hold the bytes, or own them where these were written, are lost.
    #[error("all nodes that hold {range} are lost")]
    NoHolder {
        /// The bytes.
        range: Range,
        /// The nodes.
        holders: Vec<HolderId>,
    },
    /// The region is not written.
    #[error("the region is read-only")]
    ReadOnly,
    /// The range of a wait is not on one node.
    #[error("no node has all of {range}; wait for a range that one node holds")]
    Split {
        /// The range.
        range: Range,
    },
    /// A node refused the request.
    #[error("a node refused: {text}")]
    Refused {
        /// The node.
        holder: HolderId,
        /// Why, as a code.
        status: Status,
        /// Why.
        text: String,
    },
}
