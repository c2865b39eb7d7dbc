//! Maximum flow by Dinic's algorithm, in exact integers.
//!
//! Source: Dinic 1970, blocking flows over breadth-first levels. Paths are walked with an explicit
//! stack: residual paths can be as long as the graph, deeper than a thread's stack.

use crate::wide::Amount;

/// Where flow comes from: node 0.
pub(crate) const SOURCE: usize = 0;

/// Where flow goes: node 1.
pub(crate) const SINK: usize = 1;

const NONE: usize = usize::MAX;

struct Edge<A> {
    to: usize,
    /// What can still pass. Edge `e ^ 1` is the way back.
    residual: A,
    /// The next edge from the same node.
    next: usize,
}

/// A directed graph with capacities. Nodes are `0..nodes`.
pub(crate) struct Network<A> {
    first: Vec<usize>,
    edges: Vec<Edge<A>>,
    level: Vec<usize>,
    current: Vec<usize>,
}

impl<A: Amount> Network<A> {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            first: vec![NONE; nodes],
            edges: Vec::new(),
            level: Vec::new(),
            current: Vec::new(),
        }
    }

    /// Adds an edge and returns its number.
    pub(crate) fn edge(&mut self, from: usize, to: usize, capacity: A) -> usize {
        let number = self.edges.len();
        for (from, to, residual) in [(from, to, capacity), (to, from, A::default())] {
            let next = std::mem::replace(&mut self.first[from], self.edges.len());
            self.edges.push(Edge { to, residual, next });
        }
        number
    }

    /// What flows through an edge that was added with [`Self::edge`].
    pub(crate) fn flow(&self, edge: usize) -> A {
        self.edges[edge ^ 1].residual
    }

    /// Pushes the most from [`SOURCE`] to [`SINK`] and returns how much that is.
    pub(crate) fn maximum_flow(&mut self) -> A {
        let mut total = A::default();
        while self.find_levels() {
            self.current.clone_from(&self.first);
            while let Some(pushed) = self.push_path() {
                total = total.plus(pushed);
            }
        }
        total
    }

    /// After [`Self::maximum_flow`]: whether the node lies on the source's side of the minimum cut
    /// nearest to the source.
    pub(crate) fn reached(&self, node: usize) -> bool {
        self.level[node] != NONE
    }

    fn find_levels(&mut self) -> bool {
        self.level.clear();
        self.level.resize(self.first.len(), NONE);
        self.level[SOURCE] = 0;
        let mut queue = std::collections::VecDeque::from([SOURCE]);
        while let Some(node) = queue.pop_front() {
            let mut edge = self.first[node];
            while let Some(found) = self.edges.get(edge) {
                if found.residual > A::default() && self.level[found.to] == NONE {
                    self.level[found.to] = self.level[node] + 1;
                    queue.push_back(found.to);
                }
                edge = found.next;
            }
        }
        self.level[SINK] != NONE
    }

    /// One path along rising levels; `None` when there is none left.
    fn push_path(&mut self) -> Option<A> {
        let mut path: Vec<usize> = Vec::new();
        let mut node = SOURCE;
        while node != SINK {
            let edge = self.current[node];
            match self.edges.get(edge) {
                Some(found) => {
                    let rises = self.level[found.to] == self.level[node] + 1;
                    if found.residual > A::default() && rises {
                        path.push(edge);
                        node = found.to;
                    } else {
                        self.current[node] = found.next;
                    }
                }
                // A dead end: go back, and past the edge that led here.
                None => {
                    let edge = path.pop()?;
                    node = self.edges[edge ^ 1].to;
                    self.current[node] = self.edges[edge].next;
                }
            }
        }
        let narrowest = path.iter().map(|&edge| self.edges[edge].residual).min()?;
        for edge in path {
            let (there, back) = (edge, edge ^ 1);
            self.edges[there].residual = self.edges[there].residual.minus(narrowest);
            self.edges[back].residual = self.edges[back].residual.plus(narrowest);
        }
        Some(narrowest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wide::Wide;

    fn maximum<A: Amount>(edges: &[(usize, usize, u128)], unit: u128) -> A {
        let mut graph = Network::<A>::new(6);
        for &(from, to, capacity) in edges {
            graph.edge(from, to, A::product(capacity, unit));
        }
        graph.maximum_flow()
    }

    proptest! {
        /// The flow equals the smallest cut over all subsets, in both number types.
        #[test]
        fn flow_equals_smallest_cut(edges in proptest::collection::vec((0..6usize, 0..6usize, 0..20_u128), 0..18)) {
            let cut = |side: usize| edges.iter()
                .filter(|(from, to, _)| side >> from & 1 == 1 && side >> to & 1 == 0)
                .map(|(_, _, capacity)| capacity).sum::<u128>();
            let smallest = (0..64).filter(|side| side & 1 == 1 && side >> 1 & 1 == 0).map(cut).min();
            prop_assert_eq!(Some(maximum::<u128>(&edges, 1)), smallest);
            let huge = u128::MAX / 7;
            let expected = smallest.map(|s| Wide::product(s, huge));
            prop_assert_eq!(Some(maximum::<Wide>(&edges, huge)), expected);
        }
    }
}
