//! What happens because time passes.

use super::phase::Phase;
use super::{Coordinator, Node};

/// A node that is silent for this long is lost (agents send a status at least each second).
pub const SILENCE_NS_MAX: u64 = 15_000_000_000;

/// A driver that calls so long after its last call was stopped, or its host was: no node is silent for that.
const ABSENCE_NS_MIN: u64 = 2_000_000_000;

/// Longest time for all nodes to open what they hold (large trees are walked in it).
pub const OPEN_NS_MAX: u64 = 300_000_000_000;

/// Longest time for the nodes that rename files into place to do so and report.
/// A tree of a million files takes minutes; a dead node shows by its connection.
pub const FINISH_NS_MAX: u64 = 600_000_000_000;

/// Longest wait for a further final report after the rename; it carries statistics only.
pub const FAREWELL_NS_MAX: u64 = 2_000_000_000;

/// When things happened.
#[derive(Debug)]
pub(super) struct Clock {
    pub start_ns: u64,
    /// When bytes started to flow, and when the last receiver was done.
    pub moving_ns: Option<u64>,
    pub last_done_ns: Option<u64>,
    /// When the driver last called, and when it last called as time passed.
    pub now_ns: u64,
    timer_ns: u64,
}

impl Clock {
    pub fn new(now_ns: u64) -> Self {
        Self {
            start_ns: now_ns,
            moving_ns: None,
            last_done_ns: None,
            now_ns,
            timer_ns: now_ns,
        }
    }
}

impl Coordinator {
    /// What nodes sent while the driver was stopped lies in its connections: their silence begins after that.
    fn excuse_absence(&mut self, now_ns: u64) {
        let absence = now_ns.saturating_sub(self.clock.timer_ns);
        self.clock.timer_ns = now_ns;
        if absence >= ABSENCE_NS_MIN {
            for node in &mut self.nodes {
                node.heard_ns = (node.heard_ns + absence).min(now_ns);
            }
        }
    }

    /// Time passes. Call at least once a second; work moves between nodes at these calls.
    pub fn handle_timer(&mut self, now_ns: u64) {
        self.clock.now_ns = now_ns;
        self.excuse_absence(now_ns);
        match self.phase {
            Phase::Opening if now_ns.saturating_sub(self.clock.start_ns) > OPEN_NS_MAX => {
                let late = (0..).zip(&self.nodes).filter(|(_, n)| n.opened.is_none());
                let late: Vec<u32> = late.map(|(at, _)| at).collect();
                self.refuse_late("answer", late);
            }
            Phase::Comparing => {
                let late = self.comparing.late(now_ns);
                self.refuse_late("list of files", late);
            }
            Phase::Probing if self.probing.is_late(now_ns) => {
                let late: Vec<u32> = self.probing.awaited().collect();
                self.refuse_late("look at its files", late);
            }
            Phase::Moving => {
                self.lose_silent(now_ns);
                self.deal_limit(now_ns);
                self.tune(now_ns);
                self.rebalance(now_ns);
                self.ask_leaving(now_ns);
            }
            Phase::Finishing => self.lose_late(now_ns),
            Phase::Opening | Phase::Probing | Phase::Planning | Phase::Ended => {}
        }
        self.check();
    }

    fn refuse_late(&mut self, what: &str, late: impl IntoIterator<Item = u32>) {
        let late: Vec<&str> = late.into_iter().map(|node| self.name(node)).collect();
        if late.is_empty() {
            return;
        }
        let seconds = OPEN_NS_MAX / 1_000_000_000;
        let nodes = late.join(", ");
        self.refuse(format!("no {what} within {seconds} s from {nodes}"));
    }

    /// Nodes that were silent for too long are lost.
    fn lose_silent(&mut self, now_ns: u64) {
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            // One that joins reports nothing while it opens what it has.
            let (most, what) = match state.opened {
                Some(_) => (SILENCE_NS_MAX, "silent for"),
                None => (OPEN_NS_MAX, "it did not open what it has within"),
            };
            if state.alive() && now_ns.saturating_sub(state.heard_ns) > most {
                let reason = format!("{what} {} s", most / 1_000_000_000);
                self.handle_lost(node, &reason, now_ns);
            }
        }
    }

    /// Nodes whose final report does not come in time are lost.
    fn lose_late(&mut self, now_ns: u64) {
        let ending = &mut self.ending;
        let since = *ending.since_ns.get_or_insert(now_ns);
        let is_landing = |node: &Node| node.life().is_landing();
        let over = if self.nodes.iter().any(is_landing) {
            ending.farewell_ns = None;
            now_ns.saturating_sub(since) > FINISH_NS_MAX
        } else {
            let since = *ending.farewell_ns.get_or_insert(now_ns);
            now_ns.saturating_sub(since) > FAREWELL_NS_MAX
        };
        for node in 0..self.nodes.len() as u32 {
            let state = &self.nodes[node as usize];
            if over && state.alive() && state.finished.is_none() {
                self.handle_lost(node, "did not finish in time", now_ns);
            }
        }
    }
}
