//! One limit over all receivers, dealt again each second.

use std::collections::BTreeMap;

use ropewalk_model::{ByteRate, Instant, Nanos};

use super::life::NodeLife;
use super::phase::Phase;
use super::{Coordinator, Node};
use crate::control::{self, to_agent};

/// How often the shares of a `--limit` are dealt again.
const LEASE_TIME: Nanos = Nanos(1_000_000_000);

/// Smallest part of a limit that one keeps, so that it can show it wants more.
const SHARE_MIN: f64 = 0.02;

/// When the shares were dealt, and what each receiver had checked then.
#[derive(Debug, Default)]
pub(super) struct Lease {
    when: Instant,
    checked: BTreeMap<u32, u64>,
    // What each may receive, in bytes per second.
    shares: BTreeMap<u32, u64>,
    // Since when the limit is what it is, and bytes that the earlier ones allowed; both of the time in which bytes move.
    changed_at: Option<Instant>,
    allowed: f64,
    // There was a time without a limit.
    was_free: bool,
}

impl Lease {
    /// The first shares were sent with the plan.
    pub fn begin(&mut self, now: Instant) {
        self.when = now;
    }

    /// What a receiver may receive of the limit, in bytes per second; `None` before it was dealt.
    pub fn share(&self, node: u32) -> Option<u64> {
        self.shares.get(&node).copied()
    }

    /// The next look deals again.
    pub fn expire(&mut self) {
        self.when = Instant::ZERO;
    }
}

/// Shares of a limit in proportion to what each used lately; half of it is shared evenly, so that one that used little can show that
/// it wants more. The sum never exceeds the limit, except that each gets 1 at least.
#[must_use]
pub fn shares(limit: u64, used: &[f64]) -> Vec<u64> {
    let total: f64 = used.iter().sum();
    let even = 1.0 / used.len().max(1) as f64;
    let weight = |used: &f64| match total > 0.0 {
        true => ((used / total + even) / 2.0).max(SHARE_MIN),
        false => even,
    };
    let weights: Vec<f64> = used.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    let share = |weight: &f64| ((limit as f64 * weight / sum) as u64).max(1);
    weights.iter().map(share).collect()
}

impl Coordinator {
    /// Changes the limit of all receivers together, or removes it.
    pub fn handle_limit(&mut self, limit: Option<ByteRate>, now: Instant) {
        self.clock.now = now;
        if self.setup.limit == limit {
            return;
        }
        if let Some(since) = self.lease.changed_at.or(self.clock.moving_at) {
            let seconds = now.since(since).as_seconds();
            match self.setup.limit {
                Some(rate) => self.lease.allowed += rate.0 as f64 * seconds,
                None => self.lease.was_free = true,
            }
            self.lease.changed_at = Some(now);
        }
        self.setup.limit = limit;
        self.lease.shares.clear();
        if self.phase != Phase::Moving {
            return;
        }
        self.lease.expire();
        self.balancer.forget_holds();
        self.deal_limit(now);
        if limit.is_none() {
            for node in self.receivers().collect::<Vec<_>>() {
                // One that is done may be given more.
                let life = self.nodes[node as usize].life();
                if matches!(life, NodeLife::Working(_) | NodeLife::Done(_)) {
                    self.send(node, to_agent::Body::Limit(control::Limit { rate: 0 }));
                }
            }
        }
    }

    /// Least time that so many bytes take under the limits since they move, in seconds; `None` where there was none all along.
    pub fn limited_seconds(&self, bytes: f64) -> Option<f64> {
        let rate = self.limit().filter(|_| !self.lease.was_free)?;
        let before = match (self.clock.moving_at, self.lease.changed_at) {
            (Some(began), Some(changed)) => changed.since(began).as_seconds(),
            _ => 0.0,
        };
        Some(before + (bytes - self.lease.allowed).max(0.0) / rate)
    }

    /// Shares the limit among receivers in proportion to what each used lately, so that a node
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
        let shares = shares(limit, &used);
        let dealt = shares
            .iter()
            .fold(0_u64, |sum, rate| sum.saturating_add(*rate));
        debug_assert!(
            dealt <= limit.max(working.len() as u64),
            "{dealt} bytes per second are dealt of {limit}"
        );
        self.lease.shares = working
            .iter()
            .copied()
            .zip(shares.iter().copied())
            .collect();
        for (node, rate) in working.into_iter().zip(shares) {
            self.send(node, to_agent::Body::Limit(control::Limit { rate }));
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::{ByteRate, Instant, Nanos};

    use super::super::Action;
    use super::super::tests::{actions, from, node, sent, started_with};
    use super::NodeLife;
    use crate::control::{Done, Status, from_agent, to_agent};

    /// A limit that changes while bytes move is dealt at once, and removing it frees the receivers. The least time counts what each
    /// allowed; after a time without a limit there is none.
    #[test]
    fn a_limit_changes_while_bytes_move() {
        let (mut c, _) = started_with(
            vec![
                node("a", &[(0, 100)], &[], None),
                node("b", &[], &[(0, 100)], None),
            ],
            Some(10),
        );
        let rates = |told: Vec<Action>| -> Vec<u64> {
            let rate = |body: &to_agent::Body| match body {
                to_agent::Body::Limit(limit) => Some(limit.rate),
                _ => None,
            };
            sent(&told, 1)
                .iter()
                .filter_map(|body| rate(body))
                .collect()
        };
        actions(&mut c);
        assert_eq!(c.limited_seconds(100.0), Some(10.0));
        let began = c.clock.moving_at.unwrap();
        let after = |seconds: u64| began + Nanos(seconds * 1_000_000_000);
        c.handle_limit(Some(ByteRate(40)), after(2));
        assert_eq!(rates(actions(&mut c)), [40]);
        assert_eq!(c.limited_seconds(100.0), Some(4.0));
        c.handle_limit(Some(ByteRate(40)), after(3));
        assert!(rates(actions(&mut c)).is_empty());
        c.handle_limit(None, after(3));
        assert_eq!(rates(actions(&mut c)), [0]);
        assert_eq!(c.limited_seconds(100.0), None);
        c.handle_limit(Some(ByteRate(5)), after(4));
        assert_eq!(rates(actions(&mut c)), [5]);
        assert_eq!(c.limited_seconds(100.0), None);
    }

    /// A receiver that is done may be given more: it learns, too, that there is no limit any more.
    #[test]
    fn receivers_that_are_done_are_freed() {
        let (mut c, _) = started_with(
            vec![
                node("a", &[(0, 100)], &[], None),
                node("b", &[], &[(0, 50)], None),
                node("c", &[], &[(50, 50)], None),
            ],
            Some(10),
        );
        let done = from_agent::Body::Done(Done::default());
        c.handle_message(1, from(done), Instant(20));
        assert!(matches!(c.nodes[1].life(), NodeLife::Done(_)));
        actions(&mut c);
        c.handle_limit(None, Instant(30));
        let told = actions(&mut c);
        for node in [1, 2] {
            let bodies = sent(&told, node);
            let mut limits = bodies.iter().filter_map(|body| match body {
                to_agent::Body::Limit(limit) => Some(limit.rate),
                _ => None,
            });
            assert_eq!((limits.next(), limits.next()), (Some(0), None), "{node}");
        }
    }

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
