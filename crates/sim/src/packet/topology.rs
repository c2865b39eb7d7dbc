//! Nodes, links and the routes between them.

use std::collections::VecDeque;

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
            None => {
                self.nodes.push(name.to_owned());
                self.nodes.len() - 1
            }
        }
    }

    /// Adds both directions of a link; the way back has the same rate, latency and queue, and loses nothing.
    pub fn duplex(&mut self, link: Link) {
        let back = Link {
            from: link.to,
            to: link.from,
            loss: 0.0,
            ..link.clone()
        };
        self.links.push(link);
        self.links.push(back);
    }

    /// Links of a shortest way, by hops; ties go to the link that was added first. `None`: there is no way.
    #[must_use]
    pub fn route(&self, from: usize, to: usize) -> Option<Vec<u32>> {
        let mut came_over: Vec<Option<usize>> = vec![None; self.nodes.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            if node == to {
                break;
            }
            for (number, link) in self.links.iter().enumerate() {
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
            way.push(u32::try_from(number).ok()?);
            node = self.links[number].from;
        }
        way.reverse();
        Some(way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shorter of two ways, each direction over its own links, and no way at all.
    #[test]
    fn routes() {
        let mut net = Topology::default();
        for (a, b) in [("a", "r"), ("r", "s"), ("s", "b"), ("a", "b")] {
            let (from, to) = (net.node(a), net.node(b));
            net.duplex(Link {
                from,
                to,
                bits_per_second: 1e6,
                latency_seconds: 0.0,
                queue: 50,
                loss: 0.0,
            });
        }
        let alone = net.node("alone");
        assert_eq!(net.route(0, 3), Some(vec![6]));
        assert_eq!(net.route(2, 0), Some(vec![3, 1]));
        assert_eq!(net.route(0, alone), None);
        assert_eq!(net.route(1, 1), Some(vec![]));
    }
}
