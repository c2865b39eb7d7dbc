//! What a transfer says while it runs.

use serde::{Deserialize, Serialize};

use super::{BottleneckReport, Change, Report, SourcesReport};

/// A note while the transfer runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A standing master carries the transfer out, and what follows is what it says.
    HandedOver {
        /// Number of the job there.
        job: u64,
        /// Its address.
        at: String,
    },
    /// A node answered.
    Reached {
        /// Name of the node.
        node: String,
        /// Nodes that answered so far.
        reached: usize,
        /// Nodes of the transfer.
        nodes: usize,
    },
    /// Nodes have not answered for a second or more.
    Awaiting {
        /// Their names.
        awaited: Vec<String>,
        /// Nodes that answered so far.
        reached: usize,
        /// Nodes of the transfer.
        nodes: usize,
    },
    /// Nodes are gone that the transfer cannot go on without; it waits for them. At once, and then each second.
    Waiting {
        /// Their names.
        awaited: Vec<String>,
        /// Why they are gone, or were not reached again.
        reason: String,
        /// How long they have been waited for.
        seconds: f64,
        /// Longest time; absent where there is none.
        most_seconds: Option<f64>,
    },
    /// All nodes that were waited for are back: the transfer goes on with what is missing.
    Returned {
        /// Their names.
        returned: Vec<String>,
        /// How long they were waited for.
        seconds: f64,
    },
    /// Nothing moves for a moment: files changed, or could not be read, while they were copied, and their sources are read again. As with
    /// [`Event::Returned`] all nodes are reached again for that.
    Repeating {
        /// How many, each counted once.
        files: u64,
    },
    /// ssh may ask something at the terminal, until the next event.
    Asking {
        /// Name of the node.
        node: String,
    },
    /// This program was put on a host that lacks it.
    Uploaded {
        /// Name of the node.
        node: String,
        /// Which file of the host it is, or how else it is kept.
        message: String,
    },
    /// Before the plan: a node reads the trees that are its sources; a few times a second where that takes longer than a second.
    Scanning {
        /// Name of the node.
        node: String,
        /// Names that it has looked at so far, also those that are no part of the copy.
        entries: u64,
    },
    /// The schedule is made; bytes start to flow.
    Planned {
        /// Transfer id.
        transfer: String,
        /// Bytes that will cross, each destination counted.
        bytes: u64,
        /// Files, when the sources are trees.
        files: u64,
        /// How several sources of a copy relate; absent for one source, and for rows.
        #[serde(default)]
        sources: Option<SourcesReport>,
        /// Scheduler used.
        scheduler: String,
        /// Predicted time; absent when no speed is known.
        predicted_seconds: Option<f64>,
        /// Least possible time; absent when no speed is known.
        bound_seconds: Option<f64>,
        /// Where the speeds come from.
        bound_basis: String,
    },
    /// How far it is; at most a few times a second.
    Progress {
        /// Seconds since bytes started to flow.
        seconds: f64,
        /// Safe bytes.
        delivered_bytes: u64,
        /// Bytes that came and were checked, safe or not yet; rate and time left follow them.
        #[serde(default)]
        received_bytes: u64,
        /// All wanted bytes.
        total_bytes: u64,
        /// Received bytes over the last two seconds.
        bits_per_second: f64,
        /// Expected time left; absent when nothing moves.
        eta_seconds: Option<f64>,
        /// Per receiver.
        receivers: Vec<NodeProgress>,
        /// Per sender: bytes delivered from it so far.
        senders: Vec<NodeProgress>,
        /// What held the transfer back in the last seconds, the largest share first; empty where nothing was seen.
        #[serde(default)]
        bottlenecks: Vec<BottleneckReport>,
    },
    /// A receiver compares contents of what it has with those of the sources, by hashes; about twice a second.
    Comparing {
        /// Name of the node.
        node: String,
        /// Bytes that are compared, or need not be.
        done_bytes: u64,
        /// All that are to be compared.
        total_bytes: u64,
    },
    /// Nothing moves, as a receiver waits for an earlier transfer to its destination to end, whose command was killed or lost; a few times
    /// a second.
    AwaitingEnd {
        /// Name of the node.
        node: String,
        /// The destination.
        path: String,
        /// How long it has waited.
        seconds: f64,
    },
    /// Nothing moves, as a node removes what no source has; a few times a second.
    Removing {
        /// Name of the node.
        node: String,
        /// Names that are gone.
        removed: u64,
        /// All that are to be removed.
        total: u64,
    },
    /// Something went wrong and was dealt with, or is worth knowing.
    Note {
        /// Seconds since bytes started to flow.
        seconds: f64,
        /// Plain words: node, lane, range, cause.
        message: String,
    },
    /// Of a dry run, something that a copy would do; with `--list`, something that it is about to do. Of a comparison: something that differs.
    Listed {
        /// Name of the node at whose destination it would be done; of a shared one, of the node that looked.
        node: String,
        /// What.
        change: Change,
        /// The file, link or folder, with the name of the source's folder.
        file: String,
        /// Length of a file, 0 of others.
        bytes: u64,
    },
    /// The end.
    Ended {
        /// The final report.
        report: Box<Report>,
    },
}

impl Event {
    /// What the transfer does at this moment, for lists of transfers: progress without its nodes one by one, or what is waited for. `None` for
    /// what has happened.
    #[must_use]
    pub fn now(mut self) -> Option<Self> {
        if let Self::Progress {
            receivers, senders, ..
        } = &mut self
        {
            *receivers = Vec::new();
            *senders = Vec::new();
        }
        match self {
            Self::Progress { .. }
            | Self::Reached { .. }
            | Self::Awaiting { .. }
            | Self::Waiting { .. }
            | Self::Returned { .. }
            | Self::Repeating { .. }
            | Self::Scanning { .. }
            | Self::Comparing { .. }
            | Self::AwaitingEnd { .. }
            | Self::Removing { .. } => Some(self),
            Self::HandedOver { .. }
            | Self::Asking { .. }
            | Self::Uploaded { .. }
            | Self::Planned { .. }
            | Self::Note { .. }
            | Self::Listed { .. }
            | Self::Ended { .. } => None,
        }
    }
}

/// Progress of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeProgress {
    /// Name of the node.
    pub node: String,
    /// Bytes received by it, or from it.
    pub bytes: u64,
    /// Of those that it received, the safe ones; 0 for a sender.
    #[serde(default)]
    pub safe_bytes: u64,
    /// Bytes it wants (receivers) or is planned to send (senders).
    pub total_bytes: u64,
    /// Received bytes over the last two seconds.
    pub bits_per_second: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of transfers has no rows for thousands of nodes, and nothing that is over.
    #[test]
    fn an_event_of_now_is_without_its_nodes() {
        let node = NodeProgress {
            node: "b".into(),
            bytes: 5,
            safe_bytes: 0,
            total_bytes: 10,
            bits_per_second: 1.0,
        };
        let progress = |receivers: Vec<NodeProgress>| Event::Progress {
            seconds: 1.0,
            delivered_bytes: 0,
            received_bytes: 5,
            total_bytes: 10,
            bits_per_second: 1.0,
            eta_seconds: None,
            senders: receivers.clone(),
            receivers,
            bottlenecks: Vec::new(),
        };
        assert_eq!(progress(vec![node]).now(), Some(progress(Vec::new())));
        let asking = Event::Asking { node: "b".into() };
        assert_eq!(asking.now(), None);
    }
}
