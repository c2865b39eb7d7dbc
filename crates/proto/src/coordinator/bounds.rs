//! What the least possible time of the transfer follows from: declared speeds of nodes, pairs and trunks, and which node was there when.

use ropewalk_model::problem::{Problem, Receiver, Sender};
use ropewalk_model::{ByteRate, Instant, add_links};

use super::{Basis, Coordinator, Node};

/// Stands for a speed that is not known, bytes per second: no network is as fast, so that it never binds.
const UNLIMITED: u64 = 1 << 50;

impl Coordinator {
    /// Whether nodes joined, left or were lost while bytes moved.
    pub fn is_changed(&self) -> bool {
        let changed = |node: &Node| node.came_at.is_some() || node.gone_at.is_some();
        self.nodes.iter().any(changed)
    }

    /// Whether a speed is declared for a node that takes part, or for a pair or trunk.
    pub fn has_declared(&self) -> bool {
        let declared = |node: &Node| {
            (node.is_sender() && node.setup.up.is_some())
                || (node.is_receiver() && node.setup.down.is_some())
        };
        !self.setup.links.is_empty() || self.nodes.iter().any(declared)
    }

    /// The transfer as it was first planned, at the speeds that are declared, or the interfaces' where these are the
    /// base; other nodes count as unlimited.
    pub fn declared_problem(&self) -> Problem {
        let here = |node: &Node| if node.came_at.is_some() { 0.0 } else { 1.0 };
        self.problem_at(here, 1.0)
    }

    /// The same for the nodes as they joined and left, with what each could carry in the first `seconds` of moving in place
    /// of speeds. A receiver of its own copy that was lost is left out.
    pub fn carried_problem(&self, seconds: f64) -> Problem {
        let start_at = self.clock.moving_at.unwrap_or_default();
        let since = |when: Instant| when.since(start_at).as_seconds();
        let here = |node: &Node| {
            let from = node.came_at.map_or(0.0, since);
            let to = node.gone_at.map_or(f64::MAX, since);
            (to.min(seconds) - from).max(0.0)
        };
        self.problem_at(here, seconds)
    }

    /// * `here`: how long each node was there, of `whole`.
    fn problem_at(&self, here: impl Fn(&Node) -> f64, whole: f64) -> Problem {
        let is_interface = self.basis == Basis::Interface;
        let carried = |node: &Node, declared: Option<ByteRate>| {
            let interface = node.opened.as_deref().map(|opened| opened.interface_rate);
            let interface = interface.filter(|rate| is_interface && *rate > 0);
            let rate = declared
                .map(|rate| rate.0)
                .or(interface)
                .unwrap_or(UNLIMITED);
            // Rounded up: it must stay a lower bound.
            (rate as f64 * here(node)).ceil() as u64
        };
        let takes_part = |node: &&Node| here(node) > 0.0;
        // Nobody waits for the copy of one that is gone.
        let is_awaited = |node: &&Node| node.group.is_some() || node.alive();
        let mut problem = Problem::default();
        let (mut senders, mut receivers_here) = (Vec::new(), Vec::new());
        for node in self.nodes.iter().filter(takes_part) {
            if node.is_sender() {
                senders.push(here(node));
                problem.senders.push(Sender {
                    name: node.setup.name.clone(),
                    up: carried(node, node.setup.up),
                    ranges: node.holds.clone(),
                });
            }
        }
        let receivers = self.nodes.iter().filter(|node| node.is_receiver());
        for node in receivers.filter(is_awaited) {
            receivers_here.push(here(node));
            problem.receivers.push(Receiver {
                name: node.setup.name.clone(),
                down: carried(node, node.setup.down),
                ranges: node.wants.clone(),
                destination: node.setup.sinks.first().and_then(|s| s.destination.clone()),
                // Those that the plan leaves out may have the uplink that others have.
                relay_up: (!self.relays.is_empty() && node.group.is_none())
                    .then(|| carried(node, node.setup.up.or(node.setup.down))),
            });
        }
        add_links(&mut problem, &self.setup.links, |link, pair| {
            let there = match pair {
                Some((sender, receiver)) => senders[sender].min(receivers_here[receiver]),
                None => whole,
            };
            (link.rate.0 as f64 * there).ceil() as u64
        });
        problem
    }
}
