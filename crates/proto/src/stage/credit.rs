//! What a process grants to the processes before it, from one pool of buffers.
//!
//! Where there is a buffer for every edge, each edge has a fixed share and gets a buffer back when its block has left the
//! process. Where there are fewer buffers than edges, fixed shares could stop two processes that wait for each other's edges: a buffer is then
//! granted only to a sender that has a block at hand and asks, in the order of requests.

use std::collections::VecDeque;

/// The receiving side of all edges into a process. Counts whole buffers: a block takes one, however short it is.
#[derive(Clone, Debug)]
pub struct Grants {
    edges: Vec<Edge>,
    on_demand: bool,
    // Buffers that are granted to no edge; always 0 with shares.
    spare: usize,
    // Edges that asked, in order; each once.
    wanting: VecDeque<usize>,
    slots: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Edge {
    share: u64,
    // announced <= granted, arrived <= announced, freed <= arrived.
    granted: u64,
    announced: u64,
    arrived: u64,
    freed: u64,
    is_greeted: bool,
    wants: bool,
    // It asked for more than it has been granted, before the block of that grant arrived.
    wants_next: bool,
}

/// What is sent to a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Buffers, from the edge's beginning.
    pub buffers: u64,
    /// More on request only.
    pub on_demand: bool,
}

impl Grants {
    /// For so many edges and buffers.
    #[must_use]
    pub fn new(edges: usize, slots: usize) -> Self {
        let on_demand = edges > slots;
        let share = |at: usize| match on_demand {
            true => 0,
            false => (slots / edges + usize::from(at < slots % edges)) as u64,
        };
        let edge = |at| Edge {
            share: share(at),
            granted: share(at),
            ..Edge::default()
        };
        Self {
            edges: (0..edges).map(edge).collect(),
            on_demand,
            spare: if on_demand { slots } else { 0 },
            wanting: VecDeque::new(),
            slots,
        }
    }

    /// A block is here. False when the sender had no credit for it.
    #[must_use]
    pub fn arrive(&mut self, edge: usize) -> bool {
        let one = &mut self.edges[edge];
        let has_credit = one.arrived < one.announced;
        one.arrived += u64::from(has_credit);
        if one.wants_next && one.arrived == one.granted {
            one.wants_next = false;
            self.want(edge);
        }
        has_credit
    }

    /// The buffer of a block that arrived on this edge is free.
    pub fn free(&mut self, edge: usize) {
        self.edges[edge].freed += 1;
        match self.on_demand {
            true => {
                self.spare += 1;
                self.serve();
            }
            false => self.edges[edge].granted += 1,
        }
        self.check();
    }

    /// A sender has a block and no credit. Where blocks travel as datagrams this may arrive before the block that it sent last: it counts when
    /// that one is here, so that each edge has one buffer at most.
    pub fn want(&mut self, edge: usize) {
        let one = &mut self.edges[edge];
        // With shares it gets credit without asking.
        if self.on_demand && !one.wants {
            if one.granted == one.arrived {
                one.wants = true;
                self.wanting.push_back(edge);
                self.serve();
            } else {
                one.wants_next = true;
            }
        }
        self.check();
    }

    fn serve(&mut self) {
        while self.spare > 0
            && let Some(edge) = self.wanting.pop_front()
        {
            self.spare -= 1;
            let edge = &mut self.edges[edge];
            edge.wants = false;
            edge.granted += 1;
        }
    }

    /// What the sender of an edge should be sent now, if anything. With shares not for each buffer: when half of the share
    /// is used.
    pub fn poll(&mut self, edge: usize) -> Option<Granted> {
        let on_demand = self.on_demand;
        let edge = &mut self.edges[edge];
        let has_new = edge.granted > edge.announced;
        let is_low = edge.announced - edge.arrived <= edge.share / 2;
        if !edge.is_greeted || has_new && is_low {
            edge.is_greeted = true;
            edge.announced = edge.granted;
            return Some(Granted {
                buffers: edge.granted,
                on_demand,
            });
        }
        None
    }

    /// No buffer is granted twice.
    fn check(&self) {
        if cfg!(debug_assertions) {
            let held: u64 = self
                .edges
                .iter()
                .map(|edge| edge.granted - edge.freed)
                .sum();
            assert_eq!(
                held as usize + self.spare,
                if self.edges.is_empty() {
                    self.spare
                } else {
                    self.slots
                }
            );
            for edge in &self.edges {
                assert!(edge.freed <= edge.arrived && edge.arrived <= edge.announced);
                assert!(edge.announced <= edge.granted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares differ by one buffer at most and are granted again as blocks leave, in batches.
    #[test]
    fn shares_are_granted_again() {
        let mut grants = Grants::new(3, 10);
        let mut first = |edge| grants.poll(edge).unwrap().buffers;
        assert_eq!([first(0), first(1), first(2)], [4, 3, 3]);
        assert_eq!(grants.poll(0), None);
        assert!(grants.arrive(0));
        grants.free(0);
        // Three of four are left: not worth a frame.
        assert_eq!(grants.poll(0), None);
        assert!(grants.arrive(0));
        grants.free(0);
        assert_eq!(grants.poll(0).unwrap().buffers, 6);
        for _ in 0..3 {
            assert!(grants.arrive(1));
        }
        assert!(!grants.arrive(1), "beyond its credit");
    }

    /// With fewer buffers than edges, senders that ask get one each, in order.
    #[test]
    fn scarce_buffers_go_to_those_that_ask() {
        let mut grants = Grants::new(3, 2);
        for edge in 0..3 {
            let first = grants.poll(edge).unwrap();
            assert_eq!((first.buffers, first.on_demand), (0, true));
        }
        for edge in [2, 2, 0, 1] {
            grants.want(edge);
        }
        assert_eq!(grants.poll(2).unwrap().buffers, 1);
        assert_eq!(grants.poll(0).unwrap().buffers, 1);
        assert_eq!(grants.poll(1), None);
        assert!(grants.arrive(2));
        assert!(!grants.arrive(2));
        grants.free(2);
        assert_eq!(grants.poll(1).unwrap().buffers, 1);
        assert!(grants.arrive(1) && grants.arrive(0));
    }

    /// A request that overtakes the block before it is served when that one is here, and not before.
    #[test]
    fn a_request_may_overtake_a_block() {
        let mut grants = Grants::new(2, 1);
        for edge in 0..2 {
            assert_eq!(grants.poll(edge).unwrap().buffers, 0);
        }
        grants.want(0);
        assert_eq!(grants.poll(0).unwrap().buffers, 1);
        // The next one, twice; another edge has asked before the block arrives.
        grants.want(0);
        grants.want(0);
        grants.want(1);
        assert_eq!(grants.poll(0), None);
        assert!(grants.arrive(0));
        grants.free(0);
        assert_eq!((grants.poll(0), grants.poll(1).unwrap().buffers), (None, 1));
        assert!(grants.arrive(1));
        grants.free(1);
        assert_eq!(grants.poll(0).unwrap().buffers, 2);
        assert!(grants.arrive(0));
        grants.free(0);
        assert_eq!(grants.poll(0), None);
    }
}
