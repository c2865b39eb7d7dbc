//! When receivers will be done, foreseen from what holds them up now.
//!
//! A lane that shares a busy sender with others is as fast as TCP lets it be, which may be far from equal shares, and
//! gets more when the others are done. A receiver that looks late by its present speed is not, as long as its senders
//! work to their limit on things that have to be sent anyway. It is late when what it has left is more than it
//! can take, when what is left for one of its senders is more than that can send, or when a lane is slow though
//! neither of its ends is busy.

use std::collections::BTreeMap;

use super::{Balancer, Member, View};

/// A node that carries this part of what it can is busy.
const BUSY: f64 = 0.85;

/// Of what a receiver could get more than it gets, this part is counted on: what it lags behind must be made good while
/// it still can.
const COUNTS_ON: f64 = 0.6;

/// What the present speeds mean for the time left.
pub(super) struct Foresight {
    // By node: bytes left to be sent, per byte per second it can send.
    load_seconds: Vec<f64>,
    // By member: what it has left of each sender, and how fast it could get all of it.
    parts: Vec<BTreeMap<u32, f64>>,
    could: Vec<f64>,
    // By node: it sends about all it can just now.
    is_busy: Vec<bool>,
}

impl Balancer {
    /// Looks ahead. Cost O(pairs observed and planned).
    pub(super) fn foresee(&self, view: View<'_>, members: &[Member]) -> Foresight {
        let room = self.whole_room(view);
        let mut sent = vec![0.0; view.nodes.len()];
        let mut sent_now = vec![0.0; view.nodes.len()];
        let mut load = vec![0.0; view.nodes.len()];
        let parts: Vec<_> = members.iter().map(|m| m.left_by_sender(view)).collect();
        for (member, parts) in members.iter().zip(&parts) {
            for (sender, left) in parts {
                load[*sender as usize] += left;
            }
            let observed = self.observed(member.node);
            for ((sender, rate), (_, recent)) in observed.pairs().zip(observed.recent_pairs()) {
                sent[sender as usize] += rate.max(recent);
                sent_now[sender as usize] += recent;
            }
        }
        let busy = |sent: &[f64]| -> Vec<bool> {
            let nodes = sent.iter().zip(&room.up);
            nodes.map(|(sent, up)| *sent >= up * BUSY).collect()
        };
        let was_busy = busy(&sent);
        let could = |(member, parts): (&Member, &BTreeMap<u32, f64>)| {
            let observed = self.observed(member.node);
            let pairs = observed.pairs().zip(observed.recent_pairs());
            let pairs = pairs.map(|((sender, rate), (_, recent))| (sender, rate.max(recent)));
            let rates: BTreeMap<u32, f64> = pairs.collect();
            let lane = |sender: &u32| {
                let up = room.up[*sender as usize];
                match rates.get(sender) {
                    Some(rate) if !was_busy[*sender as usize] => *rate,
                    _ => up,
                }
            };
            let lanes: f64 = parts.keys().map(lane).sum();
            let could = lanes.min(room.down[member.node as usize]);
            member.speed() + COUNTS_ON * (could - member.speed()).max(0.0)
        };
        let could = members.iter().zip(&parts).map(could).collect();
        let load_seconds = load
            .iter()
            .zip(&room.up)
            .map(|(load, up)| load / up.max(1.0));
        Foresight {
            load_seconds: load_seconds.collect(),
            parts,
            could,
            is_busy: busy(&sent_now),
        }
    }
}

impl Foresight {
    /// Seconds until a member is done with what it has.
    pub(super) fn seconds(&self, at: usize, member: &Member) -> f64 {
        if member.left < 1.0 {
            return 0.0;
        }
        let loads = self.parts[at]
            .keys()
            .map(|sender| self.load_seconds[*sender as usize]);
        loads.fold(member.left / self.could[at].max(1.0), f64::max)
    }

    /// Senders that a member has still something to get from.
    pub(super) fn senders(&self, at: usize) -> impl Iterator<Item = u32> + '_ {
        self.parts[at].keys().copied()
    }

    /// What a member has still to get from each sender.
    pub(super) fn parts(&self, at: usize) -> impl Iterator<Item = (&u32, &f64)> + '_ {
        self.parts[at].iter()
    }

    /// Seconds that a sender needs for all that is left for it.
    pub(super) fn load_seconds(&self, sender: u32) -> f64 {
        self.load_seconds[sender as usize]
    }

    /// Whether a sender is at its limit just now.
    pub(super) fn is_busy(&self, sender: u32) -> bool {
        self.is_busy[sender as usize]
    }

    /// Bytes that a member would not have in so many seconds.
    pub(super) fn over(&self, at: usize, member: &Member, seconds: f64) -> f64 {
        let own = member.left - self.could[at] * seconds;
        let of_senders = self.parts[at].iter().map(|(sender, left)| {
            let load = self.load_seconds[*sender as usize];
            left * (1.0 - seconds / load.max(seconds).max(1e-9))
        });
        of_senders.sum::<f64>().max(own)
    }
}
