//! The states of a receiving node.

/// See the drawing at [`crate::node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Life {
    /// It makes its sinks.
    Preparing,
    /// Bytes are missing.
    Fetching,
    /// All that can be received was; it is being synced.
    Settling,
    /// All is safe; the sink is read back.
    Checking,
    /// All is as it should be; files are renamed into place.
    Renaming,
    /// There is nothing more to do than to report.
    Concluded,
    /// It has reported that its part is complete.
    Done,
    /// It has reported that its part failed.
    Failed,
    /// The master has ended the transfer.
    Ended,
}

impl Life {
    /// All of them, in the order of a life.
    pub const ALL: [Self; 9] = [
        Self::Preparing,
        Self::Fetching,
        Self::Settling,
        Self::Checking,
        Self::Renaming,
        Self::Concluded,
        Self::Done,
        Self::Failed,
        Self::Ended,
    ];

    /// The table of transitions.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use Life::{
            Checking, Concluded, Done, Ended, Failed, Fetching, Preparing, Renaming, Settling,
        };
        match next {
            Preparing => false,
            // Also again: a revision brings more work.
            Fetching => !matches!(self, Failed | Ended),
            Settling => self == Fetching,
            Checking => self == Settling,
            Renaming => matches!(self, Settling | Checking),
            Concluded => matches!(self, Settling | Checking | Renaming),
            Done => self == Concluded,
            Failed => !matches!(self, Done | Failed | Ended),
            Ended => true,
        }
    }
}
