//! Receivers that are far ahead wait for those that are behind.
//!
//! TCP may divide a busy sender among its lanes as it likes, for many seconds. Who gets more than its part is done
//! early, who gets less is left with more than it can take in the end, and then senders stand idle. So while a
//! receiver lags behind what it needs, those that share a busy sender with it and are ahead of what they need
//! are limited to that. It costs nothing while the sender stays busy; when it does not, the one that lags is held up by
//! itself or by its path, which shows now, and the limits end.

use std::collections::BTreeSet;

use super::foresee::Foresight;
use super::{Coordinator, Member};
use crate::control::{self, to_agent};

/// A receiver with less than this part of the speed it needs lags.
const LAGS: f64 = 0.8;

/// One with so many times the speed it needs is ahead.
const AHEAD: f64 = 1.2;

/// What those that are held back may have of what they need.
const HELD: f64 = 1.05;

/// With less time left than this nobody is held back.
const SECONDS_MIN: f64 = 1.5;

/// A limit is told anew when it changes by this part.
const CHANGE: f64 = 0.1;

impl Coordinator {
    /// Holds back who is ahead; all should be done after so many seconds. Cost O(pairs with something left).
    pub(super) fn hold_back(&mut self, members: &[Member], foresight: &Foresight, seconds: f64) {
        if self.setup.limit.is_some() {
            return;
        }
        let speed = |member: &Member| self.nodes[member.node as usize].observed.recent();
        let needed = |member: &Member| member.left / seconds.max(1e-3);
        let lags = |member: &Member| member.left >= 1.0 && speed(member) < LAGS * needed(member);
        let lacking = members.iter().enumerate().filter(|(_, m)| lags(m));
        // Of a sender that nobody told the speed of, less that comes would be taken for less that it can.
        let is_told = |sender: &u32| self.nodes[*sender as usize].up.is_told();
        let lacking: BTreeSet<u32> = lacking
            .flat_map(|(at, _)| foresight.busy_senders(at))
            .filter(is_told)
            .collect();
        let limit = |(at, member): (usize, &Member)| {
            let shares = || foresight.busy_senders(at).any(|s| lacking.contains(&s));
            let is_held = self.nodes[member.node as usize].held > 0.0;
            let is_ahead = || is_held || speed(member) > AHEAD * needed(member);
            match seconds > SECONDS_MIN && !lags(member) && shares() && is_ahead() {
                true => needed(member) * HELD,
                false => 0.0,
            }
        };
        let limits: Vec<f64> = members.iter().enumerate().map(limit).collect();
        for (member, limit) in members.iter().zip(limits) {
            let held = &mut self.nodes[member.node as usize].held;
            let differs = (limit - *held).abs() > CHANGE * held.max(limit);
            if differs {
                *held = limit;
                let rate = limit as u64;
                self.send(member.node, to_agent::Body::Limit(control::Limit { rate }));
            }
        }
    }
}
