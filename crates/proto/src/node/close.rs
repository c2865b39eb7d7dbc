//! What becomes of what a node has written, where the transfer ends.

use ropewalk_model::RangeSet;

use super::{End, Node, Settled};

/// What is to be done with the sinks where the transfer ends; ranges are of the data space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Close {
    /// Nothing: files have their names, or other nodes go on with them.
    Leave,
    /// Nothing is removed, as was asked for. What is safe is recorded after a sync that begins now; another node may write there still.
    Keep(Settled),
    /// All that was written is removed: contents are known to be wrong.
    Discard,
    /// What is worth it is kept for a later transfer, the rest is removed.
    SetAside(Unfinished),
}

/// What a later transfer can go on with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// To be recorded after a sync that begins now.
    pub settled: Option<Settled>,
    /// Holders refused these bytes: files that have some of them are not worth keeping.
    pub refused: RangeSet,
}

impl Node {
    /// The master ends the transfer, or is gone. What becomes of the sinks of this node; of those that other nodes write, too, only
    /// with [`End::discards_shared`].
    pub fn close(&mut self, end: End) -> Close {
        let unfinished = self.unfinished();
        self.handle_end(end);
        if self.is_renamed {
            return Close::Leave;
        }
        match (end.discards, self.is_wrong, unfinished.settled) {
            (true, true, _) => Close::Discard,
            (true, false, settled) => Close::SetAside(Unfinished {
                settled,
                refused: unfinished.refused,
            }),
            (false, false, Some(settled)) => Close::Keep(settled),
            (false, ..) => Close::Leave,
        }
    }

    /// As [`Node::close`] where files of an own copy that lack no byte get their names: the bytes that are missing. Without them no
    /// file gets a name, and [`Node::close`] says what follows.
    pub fn close_whole_files(&mut self) -> (Option<RangeSet>, Unfinished) {
        let missing = self.missing_of_rename();
        let unfinished = self.unfinished();
        self.handle_end(End::default());
        (missing, unfinished)
    }

    fn unfinished(&mut self) -> Unfinished {
        Unfinished {
            settled: self.to_record(),
            refused: self.fetch.missing_refused(),
        }
    }
}
