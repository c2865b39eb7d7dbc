//! What is under way on a lane, and how far it has come.

use std::collections::VecDeque;

use ropewalk_model::Range;

use crate::network::{Flow, Network};

/// One lane of a receiver, connected or connecting.
pub(crate) struct Lane {
    pub sender: u32,
    pub ready_ns: u64,
    // Granted units in order; bytes of the first one that have come, as of `at_ns`.
    pub queue: VecDeque<Range>,
    pub outstanding: u64,
    pub come: f64,
    // Bytes of units that came whole, and of all that the participant was told of.
    pub landed: u64,
    told: u64,
    pub at_ns: u64,
    // `None` while the queue is empty.
    pub flow: Option<Flow>,
    pub rate: f64,
}

impl Lane {
    /// Connects until `ready_ns`.
    pub fn new(sender: u32, ready_ns: u64, now_ns: u64) -> Self {
        Self {
            sender,
            ready_ns,
            queue: VecDeque::new(),
            outstanding: 0,
            come: 0.0,
            landed: 0,
            told: 0,
            at_ns: now_ns,
            flow: None,
            rate: 0.0,
        }
    }

    /// Lets bytes come until now.
    pub fn advance(&mut self, now_ns: u64) {
        self.come += self.rate * (now_ns - self.at_ns) as f64 / 1e9;
        self.at_ns = now_ns;
    }

    /// Bytes that came since this was asked last.
    pub fn take_fresh(&mut self) -> u64 {
        let come = self.landed + self.torn() as u64;
        let fresh = come.saturating_sub(self.told);
        self.told += fresh;
        fresh
    }

    /// When the first unit is whole at the present rate.
    pub fn next_ns(&self) -> Option<u64> {
        let unit = self.queue.front().filter(|_| self.rate > 0.0)?;
        let seconds = (unit.len() as f64 - self.come).max(0.0) / self.rate;
        Some(self.at_ns.saturating_add((seconds * 1e9) as u64))
    }

    /// Bytes that came of a unit that will not be whole.
    pub fn torn(&self) -> f64 {
        let first = self.queue.front().map_or(0.0, |unit| unit.len() as f64);
        self.come.clamp(0.0, first)
    }

    /// Nothing comes on it until it gets work again.
    pub fn stop(&mut self, network: &mut Network) {
        if let Some(flow) = self.flow.take() {
            network.stop(flow);
        }
        (self.rate, self.come) = (0.0, 0.0);
    }
}
