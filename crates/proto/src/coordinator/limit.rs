//! One limit over all receivers, dealt anew each second.

use super::{Coordinator, LEASE_NS, LEASE_SHARE_MIN};
use crate::control::{self, to_agent};

impl Coordinator {
    /// Shares the limit among receivers in proportion to what each used of late, so that a node
    /// that cannot use its share gives it to those that can. The sum never exceeds the limit.
    pub(super) fn deal_limit(&mut self, now_ns: u64) {
        let Some(limit) = self.setup.limit else {
            return;
        };
        if now_ns.saturating_sub(self.lease_ns) < LEASE_NS {
            return;
        }
        self.lease_ns = now_ns;
        // One that joins cannot use a share before it has a plan.
        let works = |node: &super::Node| {
            let is_planned = node.opened.is_some() && !node.awaits_plan;
            is_planned && node.alive() && node.done.is_none()
        };
        let working: Vec<u32> = self
            .receivers()
            .filter(|&n| works(&self.nodes[n as usize]))
            .collect();
        let used: Vec<f64> = working
            .iter()
            .map(|n| {
                let now = self.nodes[*n as usize].checked;
                let before = self.lease_delivered.insert(*n, now).unwrap_or(0);
                now.saturating_sub(before) as f64
            })
            .collect();
        let total: f64 = used.iter().sum();
        let even = 1.0 / working.len().max(1) as f64;
        let weights: Vec<f64> = used
            .iter()
            .map(|u| {
                if total > 0.0 {
                    (u / total + even) / 2.0
                } else {
                    even
                }
                .max(LEASE_SHARE_MIN)
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        for (node, weight) in working.into_iter().zip(weights) {
            let rate = ((limit as f64 * weight / sum) as u64).max(1);
            self.send(node, to_agent::Body::Limit(control::Limit { rate }));
        }
    }
}
