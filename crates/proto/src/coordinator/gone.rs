//! Nodes without which a transfer ended before it was complete: when they are back, another round of it goes on.

use ropewalk_model::RangeSet;

use super::Coordinator;
use super::node::Node;
use crate::report::ErrorKind;

/// A node that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its name.
    pub node: String,
    /// Why.
    pub reason: String,
}

impl Coordinator {
    /// Once the transfer has ended: the nodes that are gone and were needed.
    ///
    /// None where it is complete, was stopped or failed for another reason, and where a node that was needed was cancelled at its
    /// agent: its user does not want it to go on.
    #[must_use]
    pub fn gone(&self) -> Vec<Gone> {
        let missing = RangeSet::from_ranges(self.missing().values().flat_map(RangeSet::iter));
        let kind = self.failure_kind();
        let is_needed = |node: &Node| match kind {
            // Refused: every node was needed.
            None => self.moving_at().is_none(),
            Some(ErrorKind::Lost) if node.is_receiver() => true,
            Some(ErrorKind::Lost | ErrorKind::Missing) => {
                !node.holds.intersection(&missing).is_empty()
            }
            Some(_) => false,
        };
        let takes_part = |node: &&Node| node.is_sender() || node.is_receiver();
        let nodes = self.nodes.iter().filter(takes_part);
        let lost = nodes.filter_map(|node| Some((node, node.lost.as_ref()?)));
        let needed: Vec<_> = lost.filter(|&(node, _)| is_needed(node)).collect();
        if self.ending.is_cancelled || needed.iter().any(|(node, _)| node.is_cancelled) {
            return Vec::new();
        }
        let gone = |(node, reason): (&Node, &String)| Gone {
            node: node.setup.name.clone(),
            reason: reason.clone(),
        };
        needed.into_iter().map(gone).collect()
    }
}
