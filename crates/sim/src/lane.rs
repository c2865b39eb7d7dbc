//! What is under way on a stream, and its progress.

use std::collections::VecDeque;

use ropewalk_model::{Instant, Nanos, Range};

use ropewalk_proto::node::Announcer;

use crate::network::{Flow, Network};

/// One stream of a receiver, connected or connecting.
pub(crate) struct Lane {
    pub sender: u32,
    // What the network knows it by.
    pub owner: u32,
    // When what it waits for (a connection, an answer) is there.
    pub ready_at: Option<Instant>,
    // The rail carries nothing.
    pub is_stuck: bool,
    // Granted units in order; bytes of the first one that have come, as of `advanced_at`.
    pub queue: VecDeque<(u32, Range)>,
    pub come: f64,
    // Bytes of units that came whole, and of all that the machine knows of.
    pub landed: u64,
    told: u64,
    pub advanced_at: Instant,
    // `None` while the queue is empty.
    pub flow: Option<Flow>,
    pub rate: f64,
    // To a fellow receiver: what that was told on it.
    pub announcer: Option<Announcer>,
}

impl Lane {
    /// Nothing is under way.
    pub fn new(sender: u32, owner: u32, now: Instant) -> Self {
        Self {
            sender,
            owner,
            ready_at: None,
            is_stuck: false,
            queue: VecDeque::new(),
            come: 0.0,
            landed: 0,
            told: 0,
            advanced_at: now,
            flow: None,
            rate: 0.0,
            announcer: None,
        }
    }

    /// Lets bytes arrive until now.
    pub fn advance(&mut self, now: Instant) {
        self.come += self.rate * now.since(self.advanced_at).0 as f64 / 1e9;
        self.advanced_at = now;
    }

    /// Bytes received since this was asked last.
    pub fn take_fresh(&mut self) -> u64 {
        let come = self.landed + self.torn() as u64;
        let fresh = come.saturating_sub(self.told);
        self.told += fresh;
        fresh
    }

    /// When the first unit is whole at the present rate.
    pub fn next_at(&self) -> Option<Instant> {
        let (_, unit) = self.queue.front().filter(|_| self.rate > 0.0)?;
        let seconds = (unit.len() as f64 - self.come).max(0.0) / self.rate;
        Some(self.advanced_at + Nanos::from_seconds(seconds))
    }

    /// Bytes received of a unit that will not be whole.
    pub fn torn(&self) -> f64 {
        let first = self.queue.front();
        let first = first.map_or(0.0, |(_, unit)| unit.len() as f64);
        self.come.clamp(0.0, first)
    }

    /// Nothing arrives on it until it gets work again.
    pub fn stop(&mut self, network: &mut Network) {
        if let Some(flow) = self.flow.take() {
            network.stop(flow);
        }
        (self.rate, self.come) = (0.0, 0.0);
    }
}
