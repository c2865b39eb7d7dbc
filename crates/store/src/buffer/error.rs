//! Why a buffer of a program cannot be read or written.

use ropewalk_model::Range;

/// Why a buffer of a program cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The agent has no buffer of this name.
    #[error(
        "there is no buffer {name} here; the program whose agent this is lends it under that name before the transfer"
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// The agent has a buffer of this name.
    #[error("a buffer {name} is lent already; take it back first, or use another name")]
    Exists {
        /// The name.
        name: String,
    },
    /// The name cannot be written in rows.
    #[error(
        "\"{name}\" cannot be the name of a buffer; use 1 to 255 letters, digits, `.`, `-` and `_`"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// The rows reach beyond the buffer.
    #[error(
        "buffer {name} has {len} bytes, and bytes {first}-{last} of it are asked for; lend a longer one, or end the range within it",
        first = range.start, last = range.end.saturating_sub(1)
    )]
    TooShort {
        /// The buffer.
        name: String,
        /// Bytes it has.
        len: u64,
        /// Offsets in the buffer that are asked for.
        range: Range,
    },
    /// It was lent for reading.
    #[error("buffer {name} can only be read; lend one that can be written")]
    ReadOnly {
        /// The buffer.
        name: String,
    },
    /// A transfer writes these bytes.
    #[error(
        "bytes {first}-{last} of buffer {name} are being written by a transfer; wait for its end",
        first = range.start, last = range.end.saturating_sub(1)
    )]
    Busy {
        /// The buffer.
        name: String,
        /// Offsets in the buffer.
        range: Range,
    },
    /// Its program took the memory back.
    #[error("buffer {name} was taken back by its program; the transfer needs it until its end")]
    TakenBack {
        /// The buffer.
        name: String,
    },
}
