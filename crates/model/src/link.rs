//! Limits on what some nodes send to others, by the nodes' names: caps of pairs, and trunks that several pairs share.
//!
//! Names, and not positions, because nodes join and leave while a transfer runs.

use std::collections::BTreeSet;

use crate::problem::{PairCap, Problem, Trunk};
use crate::spec::HostPort;
use crate::units::ByteRate;

/// A limit, in the direction from one set of nodes to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Name of the trunk that all pairs share; `None`: each pair has a cap of its own.
    pub trunk: Option<String>,
    /// Bytes per second, above 0.
    pub rate: ByteRate,
    /// The nodes that send.
    pub from: NodeSet,
    /// The nodes that receive.
    pub to: NodeSet,
}

/// Nodes by name, and all nodes of some hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSet {
    /// Names of single nodes, `host:port` or as a transfer calls them.
    pub nodes: BTreeSet<String>,
    /// Hosts of which every node counts.
    pub hosts: BTreeSet<String>,
}

impl NodeSet {
    /// Whether a node of this name, `host:port` or a host alone, is one of them.
    #[must_use]
    pub fn holds(&self, name: &str) -> bool {
        self.nodes.contains(name)
            || self.hosts.contains(name)
            || !self.hosts.is_empty()
                && name
                    .parse()
                    .is_ok_and(|at: HostPort| self.hosts.contains(&at.host))
    }
}

impl Link {
    /// Whether bytes from one node to another are limited by it; a node's bytes to itself are not.
    #[must_use]
    pub fn limits(&self, sender: &str, receiver: &str) -> bool {
        sender != receiver && self.from.holds(sender) && self.to.holds(receiver)
    }
}

/// Adds caps and trunks to a problem, as far as its nodes are concerned.
///
/// * `room`: bytes per second, or bytes, that a link lets through beside what the problem is not about; below 1 it is
///   taken for 1, as 0 would close the link. It gets the sender and the receiver of a pair, none of a trunk.
///
/// Cost O(links × (senders + receivers) + capped pairs).
pub fn add_links(
    problem: &mut Problem,
    links: &[Link],
    room: impl Fn(&Link, Option<(usize, usize)>) -> u64,
) {
    for link in links {
        let senders = problem.senders.iter().enumerate();
        let senders = senders.filter(|(_, node)| link.from.holds(&node.name));
        let senders: Vec<usize> = senders.map(|(at, _)| at).collect();
        let receivers = problem.receivers.iter().enumerate();
        let receivers = receivers.filter(|(_, node)| link.to.holds(&node.name));
        let receivers: Vec<usize> = receivers.map(|(at, _)| at).collect();
        if let Some(name) = &link.trunk {
            let relays = problem.receivers.iter().enumerate();
            let relays = relays.filter(|(_, node)| link.from.holds(&node.name));
            let relays: Vec<usize> = relays.map(|(at, _)| at).collect();
            if receivers.is_empty() || (senders.is_empty() && relays.is_empty()) {
                continue;
            }
            problem.trunks.push(Trunk {
                name: name.clone(),
                cap: room(link, None).max(1),
                senders,
                relays,
                receivers,
            });
            continue;
        }
        if senders.is_empty() || receivers.is_empty() {
            continue;
        }
        for &sender in &senders {
            let others = receivers.iter().copied();
            let others =
                others.filter(|&r| problem.receivers[r].name != problem.senders[sender].name);
            problem.pair_caps.extend(others.map(|receiver| PairCap {
                sender,
                receiver,
                cap: room(link, Some((sender, receiver))).max(1),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::problem::{Receiver, Sender};

    const NAMES: [&str; 6] = ["a:1", "a:2", "b:1", "b", "[::1]:5", "c:7"];

    fn set() -> impl Strategy<Value = NodeSet> {
        let nodes = proptest::sample::subsequence(NAMES.to_vec(), 0..4);
        let hosts = proptest::sample::subsequence(vec!["a", "b", "::1"], 0..3);
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        (nodes, hosts).prop_map(move |(nodes, hosts)| NodeSet {
            nodes: owned(nodes),
            hosts: owned(hosts),
        })
    }

    fn host(name: &str) -> &str {
        match name {
            "[::1]:5" => "::1",
            name => name.split(':').next().unwrap(),
        }
    }

    proptest! {
        /// Each pair of nodes has exactly the caps and trunks of the links whose sets hold both.
        #[test]
        fn pairs_have_the_limits_that_name_them(
            links in proptest::collection::vec((any::<bool>(), 1..9_u64, set(), set()), 0..5),
            senders in proptest::sample::subsequence(NAMES.to_vec(), 0..6),
            receivers in proptest::sample::subsequence(NAMES.to_vec(), 0..6),
        ) {
            let named = |(at, (is_trunk, rate, from, to)): (usize, (bool, u64, NodeSet, NodeSet))| Link {
                trunk: is_trunk.then(|| format!("t{at}")),
                rate: ByteRate(rate),
                from,
                to,
            };
            let links: Vec<Link> = links.into_iter().enumerate().map(named).collect();
            let mut problem = Problem {
                senders: senders.iter().map(|&name| Sender { name: name.into(), ..Sender::default() }).collect(),
                receivers: receivers.iter().map(|&name| Receiver { name: name.into(), ..Receiver::default() }).collect(),
                ..Problem::default()
            };
            add_links(&mut problem, &links, |link, _| link.rate.0);
            let in_set = |set: &NodeSet, name: &str| {
                set.nodes.contains(name) || set.hosts.contains(host(name))
            };
            for (s, sender) in senders.iter().enumerate() {
                for (r, receiver) in receivers.iter().enumerate() {
                    let both = |link: &&Link| in_set(&link.from, sender) && in_set(&link.to, receiver);
                    let mut caps: Vec<u64> = links.iter().filter(both)
                        .filter(|link| link.trunk.is_none() && sender != receiver)
                        .map(|link| link.rate.0).collect();
                    let mut found: Vec<u64> = problem.pair_caps.iter()
                        .filter(|cap| (cap.sender, cap.receiver) == (s, r))
                        .map(|cap| cap.cap).collect();
                    caps.sort_unstable();
                    found.sort_unstable();
                    prop_assert_eq!(caps, found);
                    let trunks: Vec<&str> = links.iter().filter(both)
                        .filter_map(|link| link.trunk.as_deref()).collect();
                    let crossed: Vec<&str> = problem.trunks.iter()
                        .filter(|trunk| trunk.senders.contains(&s) && trunk.receivers.contains(&r))
                        .map(|trunk| trunk.name.as_str()).collect();
                    prop_assert_eq!(trunks, crossed);
                }
            }
            for (a, from) in receivers.iter().enumerate() {
                for (b, to) in receivers.iter().enumerate() {
                    let trunks = links.iter().filter(|link| in_set(&link.from, from) && in_set(&link.to, to));
                    let trunks: Vec<&str> = trunks.filter_map(|link| link.trunk.as_deref()).collect();
                    let crossed: Vec<&str> = problem.trunks.iter()
                        .filter(|trunk| trunk.relays.contains(&a) && trunk.receivers.contains(&b))
                        .map(|trunk| trunk.name.as_str()).collect();
                    prop_assert_eq!(trunks, crossed);
                }
            }
        }
    }
}
