//! One limit over all receivers, dealt again each second.

use std::collections::BTreeMap;

use ropewalk_model::{ByteRate, Instant, Nanos};

use super::life::NodeLife;
use super::{Coordinator, Node};
use crate::control::{self, to_agent};

/// How often the shares of a `--limit` are dealt again.
const LEASE_TIME: Nanos = Nanos(1_000_000_000);

/// Smallest share of a limit that a working receiver keeps, so that it can show it wants more.
const LEASE_SHARE_MIN: f64 = 0.02;

/// When the shares were dealt, and what each receiver had checked then.
#[derive(Debug, Default)]
pub(super) struct Lease {
    when: Instant,
    checked: BTreeMap<u32, u64>,
}

impl Lease {
    /// The first shares were sent with the plan.
    pub fn begin(&mut self, now: Instant) {
        self.when = now;
    }

    /// The next look deals again.
    pub fn expire(&mut self) {
        self.when = Instant::ZERO;
    }
}

impl Coordinator {
    /// Shares the limit among receivers in proportion to what each used of late, so that a node
    /// that cannot use its share gives it to those that can. The sum never exceeds the limit.
    pub(super) fn deal_limit(&mut self, now: Instant) {
        let Some(ByteRate(limit)) = self.setup.limit else {
            return;
        };
        if now.since(self.lease.when) < LEASE_TIME {
            return;
        }
        self.lease.when = now;
        // One that joins cannot use a share before it has a plan.
        let works = |node: &Node| matches!(node.life(), NodeLife::Working(_));
        let working: Vec<u32> = self
            .receivers()
            .filter(|&n| works(&self.nodes[n as usize]))
            .collect();
        let used: Vec<f64> = working
            .iter()
            .map(|n| {
                let checked = self.nodes[*n as usize].checked;
                let before = self.lease.checked.insert(*n, checked).unwrap_or(0);
                checked.saturating_sub(before) as f64
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
        let rate = |weight: f64| ((limit as f64 * weight / sum) as u64).max(1);
        let dealt: u64 = weights.iter().map(|&weight| rate(weight)).sum();
        debug_assert!(
            dealt <= limit.max(working.len() as u64),
            "{dealt} bytes per second are dealt of {limit}"
        );
        for (node, weight) in working.into_iter().zip(weights) {
            let rate = rate(weight);
            self.send(node, to_agent::Body::Limit(control::Limit { rate }));
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Instant;

    use super::super::tests::{actions, from, node, sent, started_with};
    use crate::control::{Status, from_agent, to_agent};

    /// The shares of a limit never sum to more than the limit, and follow use.
    #[test]
    fn the_limit_is_shared_by_use() {
        let (mut c, _) = started_with(
            vec![
                node("a", &[(0, 100)], &[], None),
                node("b", &[], &[(0, 100)], None),
                node("c", &[], &[(0, 100)], None),
            ],
            Some(1000),
        );
        for (node, checked) in [(1, 90), (2, 10)] {
            let status = Status {
                checked,
                ..Status::default()
            };
            c.handle_message(node, from(from_agent::Body::Status(status)), Instant(20));
        }
        actions(&mut c);
        c.handle_timer(Instant(2_000_000_000));
        let told = actions(&mut c);
        let limit = |body: &&to_agent::Body| match body {
            to_agent::Body::Limit(limit) => Some(limit.rate),
            _ => None,
        };
        let rates = [1, 2].map(|node| sent(&told, node).iter().find_map(limit).unwrap());
        assert!(
            rates.iter().sum::<u64>() <= 1000 && rates[0] > rates[1],
            "{rates:?}"
        );
    }
}
