//! Declared caps and trunks while bytes move: what they leave to a plan, and the least time that they allow.

use ropewalk_model::{Problem, add_links};

use super::Coordinator;
use super::plan::Room;
use super::replan::Member;

impl Coordinator {
    /// Adds what caps and trunks have left beside the work that is kept.
    ///
    /// * `senders`, `receivers`: the nodes of the problem, in its order.
    pub(super) fn add_links_left(
        &self,
        problem: &mut Problem,
        room: &Room,
        senders: &[u32],
        receivers: &[u32],
    ) {
        add_links(problem, &self.setup.links, |link, pair| {
            let takes = |(sender, receiver, _): &&(u32, u32, f64)| match pair {
                Some((s, r)) => (*sender, *receiver) == (senders[s], receivers[r]),
                None => link.limits(self.name(*sender), self.name(*receiver)),
            };
            let kept: f64 = room.kept.iter().filter(takes).map(|(.., rate)| rate).sum();
            (link.rate.0 as f64 - kept).max(0.0) as u64
        });
    }

    /// Seconds that trunks need for what has to cross them: what is wanted behind one that all senders are before.
    pub(super) fn least_over_trunks(&self, members: &[Member]) -> f64 {
        let trunks = self.setup.links.iter().filter(|link| link.trunk.is_some());
        let seconds = trunks.map(|link| {
            let mut senders = self
                .senders()
                .filter(|&n| self.nodes[n as usize].can_send());
            if !senders.all(|n| link.from.holds(self.name(n))) {
                return 0.0;
            }
            let behind = |member: &&Member| {
                let node = &self.nodes[member.node as usize];
                link.to.holds(self.name(member.node)) && !node.is_sender()
            };
            let crosses: f64 = members.iter().filter(behind).map(|m| m.left).sum();
            crosses / link.rate.0.max(1) as f64
        });
        seconds.fold(0.0, f64::max)
    }
}
