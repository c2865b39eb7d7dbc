//! Nodes, links and the routes between them.

use std::collections::{BTreeMap, VecDeque};

/// Nodes whose ways to all others are kept at a time. Two are enough where all nodes have a router of theirs; each takes 8
/// bytes a node.
const TREES_MAX: usize = 64;

/// What a link is to the transfers: where drops are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// At a sending node.
    Access,
    /// Between routers.
    Trunk,
    /// At a receiving node.
    Egress,
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Node that sends.
    pub from: usize,
    /// Node at the other end.
    pub to: usize,
    /// Rate.
    pub bits_per_second: f64,
    /// One way.
    pub latency_seconds: f64,
    /// Packets that the queue at `from` holds, the one in transmission included.
    pub queue: usize,
    /// Probability that a packet is lost on the way, whatever the queue does.
    pub loss: f64,
}

impl Link {
    /// The other direction: the same rate, latency and queue, and nothing is lost.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            loss: 0.0,
            ..self.clone()
        }
    }
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// Names of nodes.
    pub nodes: Vec<String>,
    /// All directions of all links.
    pub links: Vec<Link>,
}

impl Topology {
    /// The number of the node of this name, which is added when it is new.
    pub fn node(&mut self, name: &str) -> usize {
        match self.nodes.iter().position(|node| node == name) {
            Some(number) => number,
            None => self.add(name.to_owned()),
        }
    }

    /// Adds a node of a name that no other has; cheaper than looking for it.
    pub(super) fn add(&mut self, name: String) -> usize {
        self.nodes.push(name);
        self.nodes.len() - 1
    }

    /// Adds a link and its other direction, as [`Link::reversed`] has it.
    pub fn duplex(&mut self, link: Link) {
        let back = link.reversed();
        self.links.extend([link, back]);
    }

    /// Links of a shortest way, by hops; ties go to the link that was added first. `None`: there is no way.
    #[must_use]
    pub fn route(&self, from: usize, to: usize) -> Option<Vec<u32>> {
        Routes::new(self).route(from, to)
    }
}

/// Links by the node that they leave.
#[derive(Debug)]
struct Leaving<'t> {
    links: &'t [Link],
    // Each node's in their order, and where each node's begin.
    numbers: Vec<u32>,
    begins: Vec<usize>,
}

impl<'t> Leaving<'t> {
    fn new(topology: &'t Topology) -> Self {
        let links = topology.links.as_slice();
        let mut begins = vec![0_usize; topology.nodes.len() + 1];
        for link in links {
            begins[link.from + 1] += 1;
        }
        for node in 1..begins.len() {
            begins[node] += begins[node - 1];
        }
        let mut next = begins.clone();
        let mut numbers = vec![0_u32; links.len()];
        for (number, link) in (0_u32..).zip(links) {
            numbers[next[link.from]] = number;
            next[link.from] += 1;
        }
        Self {
            links,
            numbers,
            begins,
        }
    }

    fn of(&self, node: usize) -> &[u32] {
        &self.numbers[self.begins[node]..self.begins[node + 1]]
    }

    fn end(&self, number: u32) -> usize {
        self.links[number as usize].to
    }

    // The first link to the only neighbour; `None` where there are several, or none.
    fn only_way_out(&self, node: usize) -> Option<u32> {
        let all = self.of(node).iter().copied();
        let mut out = all.filter(|&number| self.end(number) != node);
        let first = out.next()?;
        out.all(|other| self.end(other) == self.end(first))
            .then_some(first)
    }

    // Over which link each node is reached from this one: breadth first, the first of several links counts.
    fn tree(&self, root: usize) -> Vec<Option<u32>> {
        let mut came_over = vec![None; self.begins.len() - 1];
        let mut queue = VecDeque::from([root]);
        while let Some(node) = queue.pop_front() {
            for &number in self.of(node) {
                let to = self.end(number);
                if to != root && came_over[to].is_none() {
                    came_over[to] = Some(number);
                    queue.push_back(to);
                }
            }
        }
        came_over
    }
}

/// The ways between the nodes of a network, for many pairs: O(nodes + links) for each router that ways begin at, then
/// O(length) a way.
#[derive(Debug)]
pub(super) struct Routes<'t> {
    leaving: Leaving<'t>,
    // By the node where ways begin.
    trees: BTreeMap<usize, Vec<Option<u32>>>,
}

impl<'t> Routes<'t> {
    pub fn new(topology: &'t Topology) -> Self {
        Self {
            leaving: Leaving::new(topology),
            trees: BTreeMap::new(),
        }
    }

    /// See [`Topology::route`].
    pub fn route(&mut self, from: usize, to: usize) -> Option<Vec<u32>> {
        if from == to {
            return Some(Vec::new());
        }
        let leaving = &self.leaving;
        // Whoever has one neighbour leaves the choice to it: all nodes of a router share its tree.
        let first = leaving.only_way_out(from);
        let root = first.map_or(from, |number| leaving.end(number));
        if self.trees.len() >= TREES_MAX && !self.trees.contains_key(&root) {
            self.trees.clear();
        }
        let tree = self.trees.entry(root);
        let tree = tree.or_insert_with(|| leaving.tree(root));
        let mut way = Vec::new();
        let mut node = to;
        while node != root {
            let number = tree[node]?;
            way.push(number);
            node = leaving.links[number as usize].from;
        }
        way.extend(first);
        way.reverse();
        Some(way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;

    fn link(from: usize, to: usize) -> Link {
        Link {
            from,
            to,
            bits_per_second: 1e6,
            latency_seconds: 0.0,
            queue: 50,
            loss: 0.0,
        }
    }

    /// The shorter of two ways, each direction over its own links, and no way at all.
    #[test]
    fn routes() {
        let mut net = Topology::default();
        for (a, b) in [("a", "r"), ("r", "s"), ("s", "b"), ("a", "b")] {
            let (from, to) = (net.node(a), net.node(b));
            net.duplex(link(from, to));
        }
        let alone = net.node("alone");
        assert_eq!(net.route(0, 3), Some(vec![6]));
        assert_eq!(net.route(2, 0), Some(vec![3, 1]));
        assert_eq!(net.route(0, alone), None);
        assert_eq!(net.route(1, 1), Some(vec![]));
    }

    // A search of its own for each pair, over all links.
    fn naive(net: &Topology, from: usize, to: usize) -> Option<Vec<u32>> {
        let mut came_over: Vec<Option<u32>> = vec![None; net.nodes.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            for (number, link) in (0_u32..).zip(&net.links) {
                if link.from == node && link.to != from && came_over[link.to].is_none() {
                    came_over[link.to] = Some(number);
                    queue.push_back(link.to);
                }
            }
        }
        let mut way = Vec::new();
        let mut node = to;
        while node != from {
            let number = came_over[node]?;
            way.push(number);
            node = net.links[number as usize].from;
        }
        way.reverse();
        Some(way)
    }

    /// Shared trees give the ways that a search for each pair gives, ties included: links of all kinds by chance, one
    /// way, double, to themselves, and nodes that hang on one other.
    #[test]
    fn routes_are_those_of_a_search_for_each_pair() {
        for seed in 0..200 {
            let mut chance = Stream::mixed(seed, 1);
            let mut pick = |many: usize| (chance.next_unit() * many as f64) as usize;
            let mut net = Topology::default();
            let nodes = 2 + pick(8);
            for node in 0..nodes {
                net.add(format!("n{node}"));
            }
            for _ in 0..pick(2 * nodes + 1) {
                let one = link(pick(nodes), pick(nodes));
                match pick(3) {
                    0 => net.links.push(one),
                    _ => net.duplex(one),
                }
            }
            let mut routes = Routes::new(&net);
            for from in 0..nodes {
                for to in 0..nodes {
                    let expected = naive(&net, from, to);
                    assert_eq!(routes.route(from, to), expected, "{from} {to} in {net:?}");
                }
            }
        }
    }

    /// As many nodes behind two routers as fit a simulation are no matter of minutes: two trees do.
    #[test]
    fn large_clusters_share_two_trees() {
        let mut net = Topology::default();
        let (left, right) = (net.node("R1"), net.node("R2"));
        net.duplex(link(left, right));
        let ends: Vec<(usize, usize)> = (0..100_000)
            .map(|node| {
                let ends = (
                    net.add(format!("from {node}")),
                    net.add(format!("to {node}")),
                );
                net.duplex(link(ends.0, left));
                net.duplex(link(right, ends.1));
                ends
            })
            .collect();
        let mut routes = Routes::new(&net);
        for (from, to) in ends {
            assert_eq!(routes.route(from, to).map(|way| way.len()), Some(3));
            assert_eq!(routes.route(to, from).map(|way| way.len()), Some(3));
        }
        assert_eq!(routes.trees.len(), 2);
    }
}
